from kinetoscope.display.text_table import bar_table, text_table


def test_cells_are_aligned_and_lines_have_no_spaces_at_their_end():
    rows = [("bytes", "name", "where"), ("12", "a", ""), ("1,234", "longer", "train.py:3")]
    assert text_table(rows, "><<") == [
        "  bytes  name    where",
        "     12  a",
        "  1,234  longer  train.py:3",
    ]


def test_a_table_without_rows_has_no_lines():
    assert text_table([], "><") == []


def test_a_bar_shows_each_size_as_part_of_the_whole():
    rows = [("a", "50 ms"), ("漢字", "100 ms"), ("none", "0 ms")]
    header, *lines = [line.plain for line in bar_table(("name", "self"), rows, 72, [50, 100, 0], 100)]
    assert header == "name" + " " * 48 + "    self"
    assert lines == [
        "a" + " " * 51 + "   50 ms  █████",
        "漢字" + " " * 48 + "  100 ms  ██████████",
        "none" + " " * 48 + "    0 ms  ",
    ]


def test_names_that_do_not_fit_are_cut_and_numbers_give_way_to_them():
    (header, line) = (
        line.plain
        for line in bar_table(
            ("name", "self", "share", "calls"), [("x" * 50, "1 ms", "100 %", "1,000,000")], 40, [1], 1
        )
    )
    assert header.split() == ["name", "self", "share"]
    assert line == "x" * 26 + "…  1 ms  100 %"
