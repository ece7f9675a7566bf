"""Lone surrogates in text that must be valid UTF-8."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.model.strings import StringTable, from_utf8, to_utf8

# Made of what the escape is made of, so that the tricky neighbours come up often.
TRICKY = st.text(
    st.sampled_from(["\\", "u", "{", "}", "d", "8", "0", "f", "\ud800", "\udfff", "\udc80", "é"])
)


@given(st.one_of(st.text(st.characters()), TRICKY))
def test_every_string_survives_the_way_there_and_back(text):
    escaped = to_utf8(text)
    escaped.encode("utf-8")
    assert from_utf8(escaped) == text


@given(st.lists(TRICKY, unique=True))
def test_different_strings_stay_different(texts):
    assert len({to_utf8(text) for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("aten::add", "aten::add"),
        ("größer\n\x00", "größer\n\x00"),
        ("C:\\users", "C:\\users"),
        ("a\ud800b", "a\\u{d800}b"),
        ("\\\ud800", "\\\\\\u{d800}"),
        ("\\u{d800}", "\\\\u{d800}"),
        ("\\u{0041}", "\\u{0041}"),
    ],
)
def test_the_escape_is_the_documented_one(text, escaped):
    assert to_utf8(text) == escaped
    assert from_utf8(escaped) == text


def test_a_string_table_adds_only_new_texts():
    texts = ["", "a", "b", "a"]
    table = StringTable(texts)
    assert [table.row(text) for text in ("a", "", "c", "b", "c")] == [1, 0, 4, 2, 4]
    assert table.texts is texts
    assert texts == ["", "a", "b", "a", "c"]
