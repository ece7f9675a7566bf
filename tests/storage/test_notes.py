"""Notes: what is written is read, nothing else is accepted, and the trace itself stays as it is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope import ArgumentError, FormatError
from kinetoscope.storage.notes import (
    MOST_LETTERS,
    MOST_NOTES,
    Note,
    notes_path,
    parse_notes,
    read_notes,
    write_notes,
)

TIMES = st.integers(-(2**62) + 1, 2**62 - 1)
TEXTS = st.text(min_size=1, max_size=60).map(str.strip).filter(bool)
NOTES = st.builds(
    lambda times, text, span: Note(min(times), max(times), text, span),
    st.tuples(TIMES, TIMES),
    TEXTS,
    st.none() | st.integers(0, 2**40),
)


@pytest.fixture
def trace_path(tmp_path):
    path = tmp_path / "run.ktrace"
    path.write_bytes(b"a trace")
    return path


@given(st.lists(NOTES, max_size=5))
def test_what_is_written_is_read_in_order_of_time(tmp_path_factory, notes):
    path = tmp_path_factory.mktemp("notes") / "run.ktrace"
    path.write_bytes(b"a trace")
    write_notes(path, notes)
    assert read_notes(path) == sorted(notes, key=lambda note: (note.start_ns, note.end_ns))
    assert path.read_bytes() == b"a trace"


def test_notes_are_beside_the_trace_and_the_last_one_takes_the_file_along(trace_path):
    assert read_notes(trace_path) == []
    assert write_notes(trace_path, [Note(1, 2, "here")]).name == "run.ktrace.notes.json"
    write_notes(trace_path, [])
    assert [one.name for one in trace_path.parent.iterdir()] == ["run.ktrace"]


def test_a_trace_that_is_no_file_has_no_place_for_notes(tmp_path):
    for path in (None, tmp_path / "gone.ktrace"):
        assert notes_path(path) is None
        assert read_notes(path) == []
        with pytest.raises(ArgumentError, match="save it first"):
            write_notes(path, [Note(0, 0, "lost")])


def whole(**changes):
    return {"start_ns": 0, "end_ns": 1, "text": "x", "span": None, **changes}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], 'a list "notes"'),
        ({"notes": {}}, 'a list "notes"'),
        ({"notes": [whole()] * (MOST_NOTES + 1)}, "1,001"),
        ({"notes": ["text"]}, "must be an object"),
        ({"notes": [whole(start_ns=2)]}, "start_ns=2, end_ns=1"),
        ({"notes": [whole(start_ns=True)]}, "start_ns=True"),
        ({"notes": [whole(end_ns=2**62)]}, "are not times"),
        ({"notes": [whole(text=" ")]}, "1 to 2,000 letters"),
        ({"notes": [whole(text="x" * (MOST_LETTERS + 1))]}, "1 to 2,000 letters"),
        ({"notes": [whole(text=5)]}, "1 to 2,000 letters"),
        ({"notes": [whole(span=-1)]}, "span=-1"),
    ],
)
def test_what_are_no_notes_is_refused_with_what_is_wrong(found, words):
    with pytest.raises(ArgumentError, match=words):
        parse_notes(json.dumps(found).encode())


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"null", b'{"notes": 1}'])
def test_a_file_that_has_no_notes_is_an_error_with_its_name(trace_path, text):
    notes_path(trace_path).write_bytes(text)
    with pytest.raises(FormatError, match=r"run\.ktrace\.notes\.json: .*; move the file away"):
        read_notes(trace_path)
