"""Notes about spans in read_recording."""

from hypothesis import given
from hypothesis import strategies as st

import kinetoscope._core as _core
from tests.support.recording_builder import RecordingBuilder

OPERAND, GRADIENT, RECORD_FUNCTION = 1, 2, 3


def read(builder: RecordingBuilder, tmp_path):
    return _core.read_recording(str(builder.write(tmp_path / "recording")))


def test_notes_find_their_spans(tmp_path):
    builder = RecordingBuilder()
    for thread in (1, 2):
        for start in (10, 20, 30):
            builder.span(start, start + 5, thread=thread)
    builder.note(10, OPERAND, 0xABC0, 64, argument=2, device_type=1, device_index=3)
    builder.note(30, RECORD_FUNCTION, 77)
    builder.note(20, GRADIENT, 0xDEF0, 128, thread=2)
    recording = read(builder, tmp_path)
    notes = {name: column.tolist() for name, column in recording["notes"].items()}
    assert notes == {
        "span": [0, 2, 4],
        "kind": [OPERAND, RECORD_FUNCTION, GRADIENT],
        "value": [0xABC0, 77, 0xDEF0],
        "bytes": [64, 0, 128],
        "argument": [2, 0, 0],
        "parameter": [-1, -1, -1],
        "device_type": [1, 0, 0],
        "device_index": [3, -1, -1],
    }
    assert not any(recording["losses"].values())


def test_notes_without_their_span_are_counted(tmp_path):
    builder = RecordingBuilder()
    builder.span(10, 20)
    builder.span(30, 40)
    builder.note(5, OPERAND, 1)
    builder.note(10, OPERAND, 2)
    builder.note(11, OPERAND, 3)
    builder.note(30, OPERAND, 4)
    builder.note(31, OPERAND, 5)
    builder.note(10, OPERAND, 6, thread=9)
    recording = read(builder, tmp_path)
    assert recording["notes"]["value"].tolist() == [2, 4]
    assert recording["losses"]["unmatched_notes"] == 4


@given(
    starts=st.lists(st.integers(0, 2_000), min_size=1, max_size=40, unique=True).map(sorted),
    wanted=st.lists(st.integers(0, 2_000), max_size=60),
)
def test_every_note_is_matched_or_counted(tmp_path_factory, starts, wanted):
    builder = RecordingBuilder()
    for start in starts:
        builder.span(start, start + 1)
    for value, start in enumerate(wanted):
        builder.note(start, OPERAND, value)
    recording = read(builder, tmp_path_factory.mktemp("notes"))
    expected = [(starts.index(start), value) for value, start in enumerate(wanted) if start in starts]
    notes = recording["notes"]
    assert list(zip(notes["span"].tolist(), notes["value"].tolist(), strict=True)) == expected
    assert recording["losses"]["unmatched_notes"] == len(wanted) - len(expected)
