"""Rows of named tables in read_recording, and what a trace makes of them."""

import json

import pytest

import kinetoscope._core as _core
from kinetoscope import Trace
from kinetoscope.model.compile_facts import Compilation, CompileFacts
from kinetoscope.model.losses import CODES
from tests.support.recording_builder import ROWS, Chunk, RecordingBuilder

COUNTERS = {"monotonic_ns": [6_000, 7_000], "name": ["rss", "cpu"], "value": [4096.0, 0.5]}


def read(builder: RecordingBuilder, tmp_path):
    return _core.read_recording(str(builder.write(tmp_path / "recording")))


def trace_of(builder: RecordingBuilder, tmp_path) -> Trace:
    return Trace.from_recording(builder.write(tmp_path / "recording"))


def test_rows_are_read_by_table_in_the_order_of_writing(tmp_path):
    builder = RecordingBuilder(version=5)
    builder.append("counters", {"value": [1.5, 2.5]}, time=10, buffered=True)
    builder.append("Zähler", {"text": ["\ud800"]}, time=20, session=7)
    builder.append("counters", {"value": []}, time=30, session=7)
    recording = read(builder, tmp_path)
    assert recording["rows"] == {
        "counters": [
            {"session": 0, "buffered": True, "time_ns": 10, "rows": 2, "json": b'{"value": [1.5, 2.5]}'},
            {"session": 7, "buffered": False, "time_ns": 30, "rows": 0, "json": b'{"value": []}'},
        ],
        "Zähler": [
            {"session": 7, "buffered": False, "time_ns": 20, "rows": 1, "json": b'{"text": ["\\ud800"]}'}
        ],
    }
    assert not any(recording["losses"].values())


@pytest.mark.parametrize("version", range(1, 6))
def test_recordings_of_every_version_are_read(version, tmp_path):
    builder = RecordingBuilder(version=version)
    builder.span(0, 100, builder.name("aten::add"))
    recording = read(builder, tmp_path)
    assert recording["spans"]["duration_ns"].tolist() == [100]
    assert recording["rows"] == {}
    assert not any(recording["losses"].values())


def test_many_rows_in_many_chunks(tmp_path):
    builder = RecordingBuilder(version=5)
    for number in range(500):
        builder.append("toggles", {"number": [number]}, time=number)
    parts = read(builder, tmp_path)["rows"]["toggles"]
    assert [json.loads(part["json"])["number"] for part in parts] == [[number] for number in range(500)]
    assert [part["time_ns"] for part in parts] == list(range(500))


def test_what_the_recorder_lost_is_counted(tmp_path):
    builder = RecordingBuilder(version=5, dropped_rows=3, ring_dropped_rows=4, recycled_rows=5)
    losses = {loss["code"]: loss["count"] for loss in trace_of(builder, tmp_path).losses}
    assert losses == {"dropped_rows": 3, "ring_dropped_rows": 4, "recycled_rows": 5}
    assert losses.keys() <= CODES.keys()


@pytest.mark.parametrize(
    "payload",
    [
        b"\0" * 24,  # a table without a name
        b"\1" * 20,  # shorter than a header
        b"\0" * 12 + b"\xff" * 12,  # longer than its chunk
    ],
)
def test_damaged_rows_are_left_out_and_counted(payload, tmp_path):
    builder = RecordingBuilder(version=5)
    builder.append("counters", {"value": [1]})
    builder.extra_chunks.append(Chunk(ROWS, 0, payload, len(payload), 2))
    recording = read(builder, tmp_path)
    assert [part["rows"] for part in recording["rows"]["counters"]] == [1]
    assert recording["losses"]["damaged_entries"] == 1


def test_counters_lie_where_the_recording_begins_by_the_monotonic_clock(tmp_path):
    builder = RecordingBuilder(version=5)
    before = {"monotonic_ns": [3_000, 4_000], "name": ["rss", "rss"], "value": [1.0, 2.0]}
    builder.append("counters", before, buffered=True)
    builder.append("counters", COUNTERS, buffered=True)
    trace = trace_of(builder, tmp_path)
    # The recording begins at 5,000 ns of that clock. What was read last before holds when it begins.
    rows = trace.table("counters").select(["time_ns", "name", "value"]).to_pylist()
    assert rows == [
        {"time_ns": 0, "name": "rss", "value": 2.0},
        {"time_ns": 1_000, "name": "rss", "value": 4096.0},
        {"time_ns": 2_000, "name": "cpu", "value": 0.5},
    ]
    assert trace.complete


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (b"{", 1),
        (b"[1]", 1),
        (b"\xff", 1),
        (b"[" * 100_000, 1),
        ({"monotonic_ns": [1], "name": ["a"]}, 1),
        ({"monotonic_ns": [1], "name": ["a"], "value": 1.0}, 1),
        ({"monotonic_ns": [1], "name": ["a"], "value": [1.0]}, 2),
        ({"monotonic_ns": [1 << 63], "name": ["a"], "value": [1.0]}, 1),
        ({"monotonic_ns": [True], "name": ["a"], "value": [1.0]}, 1),
        ({"monotonic_ns": [1], "name": [1], "value": [1.0]}, 1),
    ],
)
def test_rows_that_are_not_what_their_table_has_are_left_out_and_counted(columns, rows, tmp_path):
    builder = RecordingBuilder(version=5, chunk_bytes=1 << 17)
    builder.append("counters", columns, rows=rows)
    builder.append("counters", COUNTERS)
    trace = trace_of(builder, tmp_path)
    assert trace.columns("counters")["value"].tolist() == [4096.0, 0.5]
    assert [(loss["code"], loss["count"]) for loss in trace.losses] == [("damaged_records", 1)]


def test_tables_whose_rows_are_kept_back_may_lack_the_last_second_of_a_killed_process(tmp_path):
    builder = RecordingBuilder(version=5, state=0)
    builder.append("counters", COUNTERS, buffered=True)
    builder.append("toggles", {"activity": ["CPU"], "enabled": [True]})
    builder.append("loading", {"batch": []}, buffered=True)
    losses = [(loss["code"], loss["where"]) for loss in trace_of(builder, tmp_path).losses]
    assert losses == [
        ("recording_not_stopped", "recording"),
        ("last_second", "counters"),
        ("last_second", "loading"),
    ]


def test_toggles_become_pauses(tmp_path):
    builder = RecordingBuilder(version=5, state=0)
    for time, activity, enabled in (
        (10, "CPU", True),
        (20, "CPU", False),
        (30, "CUDA", False),
        (40, "CPU", True),
        (50, "CPU", False),
    ):
        builder.append("toggles", {"activity": [activity], "enabled": [enabled]}, time=time)
    trace = trace_of(builder, tmp_path)
    start_ns = trace.info["start_realtime_ns"]
    assert trace.info["pauses"] == [
        {"activity": "CPU", "from_realtime_ns": start_ns + 20, "to_realtime_ns": start_ns + 40},
        {"activity": "CUDA", "from_realtime_ns": start_ns + 30, "to_realtime_ns": None},
        {"activity": "CPU", "from_realtime_ns": start_ns + 50, "to_realtime_ns": None},
    ]
    paused = {loss["where"]: loss["count"] for loss in trace.losses if loss["code"] == "collection_paused"}
    assert paused == {"CPU": 2, "CUDA": 1}


def test_what_was_compiled_is_in_rows(tmp_path):
    columns = {"compile_id": "0/0", "stage": "frame", "function": "forward", "file": "a.py", "line": 7}
    columns |= {"duration_ns": 50, "reason": "", "failure": ""}
    columns |= dict.fromkeys(("autotune_ns", "guards", "operators", "cache_hits", "cache_misses"), 0)
    columns |= dict.fromkeys(("dynamo_ns", "aot_ns", "inductor_ns", "codegen_ns", "kernel_compile_ns"), 1)
    builder = RecordingBuilder(version=5)
    builder.thread(1, os_tid=77)
    for number in range(2):
        one = Compilation({**columns, "compile_id": f"{number}/0"}, 5_000 + number, 77)
        part = CompileFacts([one]).as_part()
        builder.append("compiling", {"facts": [part]})
    trace = trace_of(builder, tmp_path)
    compiles = trace.columns("compiles")
    assert list(compiles["compile_id"]) == ["0/0", "1/0"]
    assert compiles["start_ns"].tolist() == [0, 1]
    assert trace.complete
