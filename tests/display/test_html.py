"""HTML for notebooks: all text is escaped."""

from html.parser import HTMLParser

import pytest
from hypothesis import given

from kinetoscope.display.html import LONGEST, Cell, columns_chart, note, page, safe, table
from kinetoscope.display.sentence import printable
from tests.support.hostile import HOSTILE_NAMES, hostile_text


class Found(HTMLParser):
    """Collects tags with their attributes, and text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.text, self.attributes = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.append(dict(attributes))

    def handle_data(self, text):
        self.text.append(text)


@given(hostile_text, hostile_text)
def test_whatever_a_name_holds_a_cell_is_one_cell_with_that_text(name, title):
    found = Found(table(["name"], [[Cell(name, title)]]))
    assert found.tags == ["div", "table", "thead", "tr", "th", "tbody", "tr", "td"]
    assert set(found.attributes[-1]) <= {"class", "title"}
    shown = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    assert "".join(found.text).removeprefix("name") == printable(shown)


@given(hostile_text)
def test_every_page_can_be_sent(name):
    page(note(name), table([name], [[name]], caption=name), columns_chart([1, 2], name)).encode("utf-8")


@pytest.mark.parametrize(
    "character", ["\u202e", "\u2066", "\u200b", "\ufeff", "\x00", "\ud800", "\n"], ids=ascii
)
def test_characters_that_cannot_be_seen_are_written_out(character):
    assert character not in safe(f"a{character}b")


def test_dollar_signs_are_no_formula():
    assert page(note("$x^2$")).startswith('<div class="kinetoscope tex2jax_ignore mathjax_ignore">')


def test_a_name_that_is_cut_is_whole_when_it_is_pointed_at():
    found = Found(table(["name"], [["a" * 100], ["b"]]))
    cells = [
        attributes
        for tag, attributes in zip(found.tags, found.attributes, strict=True)
        if tag in ("th", "td")
    ]
    assert [attributes.get("title") for attributes in cells] == [None, "a" * 100, None]


def test_a_bar_reaches_as_far_as_the_share():
    cell = table(["share"], [[Cell("1", share=0.25)], [Cell("2", share=7.0)], [Cell("3")]], left=())
    assert "25.0%" in cell
    assert "100.0%" in cell
    assert cell.count("gradient") == 2


def test_columns_of_numbers():
    assert columns_chart([], "none") == columns_chart([0, 0], "none") == ""
    drawn = columns_chart([1.0, 4.0], "two <numbers>")
    assert drawn.count("<rect") == 2
    assert 'height="7.0"' in drawn
    assert 'height="28.0"' in drawn
    assert "<title>two &lt;numbers&gt;</title>" in drawn
    assert columns_chart(range(1, 1001), "many").count("<rect") <= 120


@pytest.mark.parametrize("name", [name for name in HOSTILE_NAMES if "<" in name or "&" in name])
def test_nothing_in_a_note_is_taken_for_html(name):
    assert Found(note(name)).tags == ["div"]
