"""Tables, bars and charts as lines of text."""

import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from kinetoscope.display.arrow_text import print_table
from kinetoscope.display.lines import bar_drawn, folded, sparkline, text_table
from kinetoscope.display.terminal import rows_in_view


def test_cells_are_aligned_and_lines_have_no_spaces_at_their_end():
    rows = [("bytes", "name", "where"), ("12", "a", ""), ("1,234", "longer", "train.py:3")]
    assert text_table(rows, "><<") == [
        "  bytes  name    where",
        "     12  a",
        "  1,234  longer  train.py:3",
    ]


def test_a_table_without_rows_has_no_lines():
    assert text_table([], "><") == []


def test_a_table_that_is_too_wide_cuts_names_then_leaves_out_columns_and_says_which():
    rows = [("name", "base", "new", "share", ""), ("x" * 40, "12.5 ms", "14 ms", "5.2 %", "slower")]
    assert text_table(rows, "<>>><", width=60, dispensable=(3, 1)) == [
        "  name" + " " * 23 + "     base    new  share",
        "  " + "x" * 26 + "…  12.5 ms  14 ms  5.2 %  slower",
    ]
    assert text_table(rows, "<>>><", width=50, dispensable=(3, 1)) == [
        "  name" + " " * 20 + "     base    new",
        "  " + "x" * 23 + "…  12.5 ms  14 ms  slower",
        "  columns that do not fit: share",
    ]
    assert text_table(rows, "<>>><", width=45, dispensable=(3, 1)) == [
        "  name" + " " * 24 + "    new",
        "  " + "x" * 27 + "…  14 ms  slower",
        "  columns that do not fit: base, share",
    ]


@given(
    st.lists(st.tuples(*[st.text("ab漢", max_size=40)] * 4), min_size=1, max_size=4),
    st.integers(90, 200),
)
def test_no_line_of_a_table_is_wider_than_asked(rows, width):
    rows = [(first, number[:9], other[:9], last) for first, number, other, last in rows]
    lines = text_table(rows, "<>><", width=width, dispensable=(1, 2))
    assert all(cell_len(line) <= width for line in lines[: len(rows)])


def test_sentences_are_broken_between_words():
    assert folded("one two three", 9, "  ") == ["  one two", "  three"]
    assert folded("kinetoscope/comparison", 5) == ["kinetoscope/comparison"]
    assert folded("", 9, "  ") == [""]


def test_a_bar_begins_where_the_bars_before_it_end():
    assert bar_drawn(0, 0.5, 10) == "█████"
    assert bar_drawn(0.5, 0.5, 10) == "     █████"
    assert bar_drawn(0.5, 0.001, 10) == "     ▏"
    assert bar_drawn(1, 0.001, 10) == "         ▏"
    assert bar_drawn(0, 0, 10) == ""


@pytest.mark.parametrize(("width", "cut"), [(80, True), (120, False)])
def test_a_wide_terminal_shows_long_texts_whole(width, cut):
    name = "aten::" + "x" * 80
    table = pa.table({"name": [name, "short"], "count": [1, 2]})
    printer = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_table(printer, table, 0, "--csv")
    text = printer.file.getvalue()
    assert (name not in text) is cut
    assert "count" in text
    assert max(map(len, text.splitlines())) <= width


def test_a_terminal_gets_as_many_rows_as_it_has_lines():
    for height, rows in ((50, 45), (6, 10)):
        assert rows_in_view(Console(width=80, height=height, force_terminal=True), 20) == rows
    assert rows_in_view(Console(file=io.StringIO(), width=80, height=50), 20) == 20


def test_a_sparkline_starts_at_zero_and_keeps_the_peaks():
    assert sparkline([8, 4, 1, 0], 10) == "█▅▂▁"
    assert sparkline([1, 1, 8, 1], 2) == "▂█"
    assert sparkline([0, 0], 5) == "▁▁"
    assert sparkline([], 5) == ""


@given(st.lists(st.floats(min_value=0, max_value=1e12), max_size=300), st.integers(min_value=0, max_value=80))
def test_a_sparkline_is_as_wide_as_it_may_be(values, width):
    assert len(sparkline(values, width)) == min(len(values), width)
