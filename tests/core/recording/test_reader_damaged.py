"""read_recording never crashes, and reads the undamaged parts of damaged recordings."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope._core as _core
from tests.support.recording_builder import (
    ALLOCATIONS,
    DICTIONARY,
    FREE,
    HEADER_BYTES,
    SPANS,
    Chunk,
    RecordingBuilder,
)


def small_recording() -> RecordingBuilder:
    """Build a small recording with all kinds of records, in several chunks."""
    builder = RecordingBuilder(
        chunk_bytes=256,
        clock=1,
        pairs=[(900, 10_000, 70_000), (2_000, 10_500, 70_500), (9_000, 14_000, 74_000)],
    )
    builder.thread(1, os_tid=11, torch_tid=1, name="main")
    builder.thread(2, os_tid=12, torch_tid=2)
    stack = 0
    for line in range(4):
        stack = builder.stack(stack, builder.frame(f"f{line}", "a.py", line))
    root = builder.module("GPT")
    layer = builder.module("Linear", parent=root, name="fc", caller=root)
    parameter = builder.parameter(layer, "weight", 64)
    shapes = builder.shapes("[[1]]")
    name = builder.name("aten::mm", "out")
    builder.info("host", '"x"')
    for at in range(8):
        builder.span(10 * at, 10 * at + 9, name, stack=stack, module=layer, shapes=shapes, sequence=at)
        builder.span(
            100 + at,
            0 if at % 3 == 0 else 120,
            name,
            thread=2,
            scope=1,
            forward_thread=1,
            parameter=parameter,
        )
        builder.allocation(10 * at, 64 * at, 64, stack=stack)
        builder.append("counters", {"value": [at, at + 1]}, time=10 * at, session=at % 2)
    return builder


def check(recording) -> None:
    """Check the invariants of every readable recording."""
    spans, allocations = recording["spans"], recording["allocations"]
    rows = {
        "thread": len(recording["threads"]["index"]),
        "name": len(recording["strings"]),
        "overload": len(recording["strings"]),
        "forward_thread": len(recording["threads"]["index"]),
        "stack": len(recording["stacks"]["parent"]),
        "module": len(recording["modules"]["parent"]),
        "shapes": len(recording["shapes"]["dims"]),
        "parameter": len(recording["parameters"]["module"]),
    }
    for column, limit in rows.items():
        least = 0 if column in ("thread", "name", "overload") else -1
        assert ((spans[column] >= least) & (spans[column] < limit)).all(), column
    assert len({len(column) for column in spans.values()}) == 1
    assert len({len(column) for column in allocations.values()}) == 1
    assert (spans["duration_ns"] >= 0).all()
    assert (spans["start_ns"] >= 0).all()
    assert (allocations["bytes"] >= 0).all()
    assert (np.diff(allocations["time_ns"]) >= 0).all()
    parent = recording["stacks"]["parent"]
    assert (parent < np.arange(len(parent))).all()
    for column in ("parent", "caller"):
        parent = recording["modules"][column]
        for start in range(len(parent)):
            row, steps = start, 0
            while row >= 0:
                row, steps = parent[row], steps + 1
                assert steps <= len(parent)
    assert all(0 <= count < 2**63 for count in recording["losses"].values())
    for table, parts in recording["rows"].items():
        assert table
        assert all(part["time_ns"] >= 0 and isinstance(part["json"], bytes) for part in parts)
    # Spans have the order that the rest of the core expects.
    nesting = _core.nest(spans["thread"], spans["start_ns"], spans["duration_ns"])
    assert (nesting["self_ns"] >= 0).all()


def read_bytes(data: bytes, path: Path):
    path.write_bytes(data)
    return _core.read_recording(str(path))


def test_the_small_recording_is_whole(tmp_path):
    recording = read_bytes(small_recording().to_bytes(), tmp_path / "recording")
    check(recording)
    assert len(recording["spans"]["start_ns"]) == 16
    assert {name for name, count in recording["losses"].items() if count} == {"unfinished_spans"}


def test_a_file_cut_anywhere_opens_or_is_refused(tmp_path):
    data = small_recording().to_bytes()
    path = tmp_path / "recording"
    header = 8 + 24 + 72 + 128 * 24 + 200
    offsets = [*range(200), *range(header - 40, header + 40), *range(HEADER_BYTES - 5, len(data))]
    spans_before = 0
    for size in offsets:
        if size < header:
            with pytest.raises(ValueError, match="recording"):
                read_bytes(data[:size], path)
            continue
        recording = read_bytes(data[:size], path)
        check(recording)
        spans = len(recording["spans"]["start_ns"])
        assert spans >= spans_before
        spans_before = spans
        assert (
            recording["losses"]["damaged_chunks"] + recording["losses"]["damaged_records"] > 0 or spans == 16
        )
    assert spans_before == 16


def test_random_damage_never_brings_the_reader_down(tmp_path):
    whole = np.frombuffer(small_recording().to_bytes(), np.uint8)
    random = np.random.default_rng(11)
    path = tmp_path / "recording"
    # Clock pairs after the third are not read, so damage there would test nothing.
    interesting = np.concatenate([np.arange(8, 8 + 96 + 72), np.arange(HEADER_BYTES, len(whole))])
    read = 0
    for _ in range(600):
        data = whole.copy()
        at = random.choice(interesting, random.integers(1, 12))
        data[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.integers(256)], len(at))
        try:
            recording = read_bytes(data.tobytes(), path)
        except ValueError:
            continue
        check(recording)
        read += 1
    assert read > 300


@pytest.mark.parametrize("bytes_gone", [256, 512, 4096])
@pytest.mark.parametrize("state", [0, 1], ids=["killed", "stopped"])
def test_no_rows_are_missing_without_a_loss(tmp_path, bytes_gone, state):
    builder = small_recording()
    builder.version, builder.state = 4, state
    for at in range(200):
        builder.span(1000 + at, 1001 + at, 1, thread=3)
    whole = np.frombuffer(builder.to_bytes(), np.uint8)
    path = tmp_path / "a.recording"
    expected = read_bytes(whole.tobytes(), path)
    assert expected["losses"]["damaged_chunks"] == 0
    missing = 0
    for page in range(bytes_gone, len(whole), bytes_gone):
        data = whole.copy()
        data[page : page + bytes_gone] = 0
        recording = read_bytes(data.tobytes(), path)
        check(recording)
        for table, column in (("spans", "start_ns"), ("allocations", "bytes")):
            if len(recording[table][column]) < len(expected[table][column]):
                assert recording["losses"]["damaged_chunks"] > 0
                missing += 1
        if len(recording["strings"]) < len(expected["strings"]):
            assert recording["losses"]["damaged_chunks"] + recording["losses"]["damaged_entries"] > 0
    assert missing > 1


def test_chunks_of_noise(tmp_path):
    random = np.random.default_rng(12)
    builder = small_recording()
    for kind in (FREE, SPANS, ALLOCATIONS, DICTIONARY, 77):
        for committed in (0, 1, 3, 192, 193, 2**32, 2**64 - 1):
            payload = bytes(random.integers(0, 256, 192, np.uint8))
            builder.extra_chunks.append(Chunk(kind, 1, payload, committed, 2**63))
    recording = read_bytes(builder.to_bytes(), tmp_path / "recording")
    check(recording)
    assert recording["losses"]["damaged_chunks"] > 0


@given(st.binary(max_size=180), st.lists(st.tuples(st.integers(0, 12), st.binary(max_size=30)), max_size=6))
def test_any_dictionary(tmp_path_factory, noise, entries):
    builder = small_recording()
    for kind, payload in entries:
        builder.entry(kind, payload)
    builder.extra_chunks.append(Chunk(DICTIONARY, 0, noise, len(noise), 99))
    check(read_bytes(builder.to_bytes(), tmp_path_factory.getbasetemp() / "dictionary"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "version 99"),
        ({"chunk_bytes": 128 + 8}, "chunk size of 136 bytes"),
    ],
)
def test_an_unknown_header_is_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        read_bytes(RecordingBuilder(**change).to_bytes(), tmp_path / "recording")


@pytest.mark.parametrize("chunk_bytes", [0, 64, 2**32 - 64])
def test_absurd_chunk_sizes_are_refused(tmp_path, chunk_bytes):
    data = bytearray(RecordingBuilder().to_bytes())
    struct.pack_into("<I", data, 12, chunk_bytes)
    with pytest.raises(ValueError, match="header is damaged"):
        read_bytes(bytes(data), tmp_path / "recording")


def test_other_files_are_refused(tmp_path):
    for data in (b"", b"{", b"PK\x03\x04" + bytes(9000)):
        with pytest.raises(ValueError, match="not a Kinetoscope recording"):
            read_bytes(data, tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        _core.read_recording(str(tmp_path / "missing"))
    with pytest.raises(IsADirectoryError):
        _core.read_recording(str(tmp_path))
    with pytest.raises(OSError, match="Invalid argument"):
        _core.read_recording("/dev/zero")


def test_the_path_may_hold_any_character(tmp_path):
    path = tmp_path / "émission \U0001f600"
    assert read_bytes(RecordingBuilder().to_bytes(), path)["state"] == "stopped"


def test_impossible_times_are_clamped_and_counted(tmp_path):
    builder = RecordingBuilder()
    builder.spans[1] = [
        (10, 2000, 0, 0, 0, 0, -1, 0, 0, 0, 0),  # begins before the recording
        (3000, 2500, 0, 0, 0, 0, -1, 0, 0, 0, 0),  # ends before it begins
        (4000, 2**64 - 1, 0, 0, 0, 0, -1, 0, 0, 0, 0),
        (2**64 - 1, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0),
    ]
    builder.allocation(-500, 1, 1)
    builder.allocation(5, 1, -7)
    recording = read_bytes(builder.to_bytes(), tmp_path / "recording")
    check(recording)
    spans = recording["spans"]
    assert spans["start_ns"].tolist() == [0, 2000, 3000, 2**63 - 1]
    assert spans["duration_ns"].tolist() == [1000, 0, 2**63 - 1 - 3000, 0]
    assert recording["allocations"]["time_ns"].tolist() == [0, 5]
    assert recording["allocations"]["bytes"].tolist() == [1, 0]
    assert recording["losses"]["early_records"] == 2
    assert recording["losses"]["damaged_records"] == 2


@pytest.mark.parametrize("version", [1, 7])
def test_ids_that_name_nothing_become_none(tmp_path, version):
    builder = RecordingBuilder(version=version)
    name = builder.name("aten::mm")
    builder.span(1, 2, name, stack=5, module=6, shapes=7, parameter=8, forward_thread=9)
    builder.span(2, 3, name + 1)
    builder.span(3, 4, 2**32 - 1, stack=2**32 - 1)
    spans = read_bytes(builder.to_bytes(), tmp_path / "recording")["spans"]
    for column in ("stack", "module", "shapes", "parameter", "forward_thread"):
        assert spans[column].tolist() == [-1] * 3
    assert spans["name"].tolist() == [1, 0, 0]


def test_stacks_and_modules_in_circles_are_cut(tmp_path):
    builder = RecordingBuilder()
    frame = builder.frame("f", "f.py", 1)
    builder.stack(2, frame)  # its parent comes later
    builder.stack(2, frame)  # its own parent
    builder.stack(1, frame)
    first = builder.module("A")
    second = builder.module("B", parent=first, caller=first)
    builder.module("C", parent=3)
    builder.module_name(first, second, "x")
    recording = read_bytes(builder.to_bytes(), tmp_path / "recording")
    check(recording)
    assert recording["stacks"]["parent"].tolist() == [-1, -1, 0]
    assert recording["modules"]["parent"].tolist() == [1, -1, -1]
    assert recording["losses"]["damaged_entries"] == 4


def test_an_id_from_nowhere_makes_no_giant_table(tmp_path):
    builder = RecordingBuilder()
    builder.entry(1, struct.pack("<I", 4_000_000_000) + b"far")
    builder.entry(1, struct.pack("<I", 7) + b"gap")
    recording = read_bytes(builder.to_bytes(), tmp_path / "recording")
    assert recording["strings"] == ["", "", "", "", "", "", "", "gap"]
    assert recording["losses"]["damaged_entries"] == 1
