"""JSON escaping and validation."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope._core as _core
from tests.support.strict_json import paired, read_strictly

# Hypothesis does not generate lone surrogates by default.
any_character = st.one_of(
    st.characters(codec=None, exclude_categories=()), st.sampled_from('"\\/\b\f\n\r\t\0\x7f')
)
any_text = st.text(any_character)


@given(any_text)
def test_escaped_text_reads_back(text):
    escaped = _core.escape_json(text).decode("utf-8")
    assert read_strictly(f'"{escaped}"') == paired(text)


def test_hostile_texts_read_back():
    for text in (
        '"',
        "\\",
        '\\"',
        "\\u0000",
        "\0\x01\x1f",
        "\ud800",
        "\udfff\ud800",
        "</script>",
        "é😀",
        "x" * 100_000,
    ):
        assert read_strictly(f'"{_core.escape_json(text).decode("utf-8")}"') == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, st.booleans(), st.sampled_from([None, 1]))
def test_json_passes(value, ascii_only, indent):
    assert _core.is_json(json.dumps(value, ensure_ascii=ascii_only, indent=indent))


@given(json_values, st.data())
def test_damaged_json_passes_only_where_a_strict_parser_agrees(value, data):
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 2))
    text = text[:at] + data.draw(st.text('{}[],:"\\ \n0-1.eE+tnu\x01', max_size=2)) + text[at + length :]
    try:
        read_strictly(text)
        expected = True
    except ValueError:
        expected = False
    assert _core.is_json(text) == expected


NOT_VALUES = [
    "",
    " ",
    "NaN",
    "Infinity",
    "01",
    "1.",
    ".5",
    "+1",
    "1e",
    "tru",
    "[1,]",
    "{,}",
    '{"a"}',
    "[}",
    "]",
    "1 2",
]
NOT_STRINGS = ['"', "'a'", '"\x01"', '"\\x"', '"\\u12g4"', '"\ud800"']
TOO_DEEP = ["[" * 201 + "]" * 201, "[" * 100_000]


@pytest.mark.parametrize("text", [*NOT_VALUES, *NOT_STRINGS, *TOO_DEEP])
def test_what_is_no_json_does_not_pass(text):
    assert not _core.is_json(text)


@pytest.mark.parametrize("text", ["0", "-0", "1.5e-7", ' {"a" : [ ] } ', '"\\ud800"', "[" * 200 + "]" * 200])
def test_what_is_json_passes(text):
    assert _core.is_json(text)
