"""Metadata in Chrome traces."""

import io
import json

from kinetoscope import open as open_trace
from tests.support.kineto_text import kernel, op, opened, spans


def test_the_header_says_when_where_and_with_what():
    trace = opened(
        op("aten::add", 10.5, 2),
        kernel("k", 11, 1),
        header={
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}, {"id": 1, "name": ""}, "odd"],
            "distributedInfo": {"rank": 2, "world_size": 4},
            "with_stack": 1,
            "host_name": "node7",
        },
    )
    assert trace.info["start_realtime_ns"] == 1_700_000_000_000_010_500
    assert trace.info["devices"] == [{"type": "cuda", "index": 0, "name": "NVIDIA H100"}]
    assert trace.info["deviceProperties"][2] == "odd"
    assert trace.info["engine"] == "kineto"
    assert (trace.info["host"], trace.info["with_stack"]) == ("node7", 1)
    assert trace.info["stop_ns"] == 2000
    assert trace.table("spans").column("rank").to_pylist() == [2, 2]


def test_times_since_1970_are_the_clock_on_the_wall_and_others_are_not():
    assert opened(op("a", 1695835542515301, 1)).info["start_realtime_ns"] == 1695835542515301000
    assert "start_realtime_ns" not in opened(op("a", 3_000_000, 1)).info


def test_windows_of_kineto_are_cycles():
    def window(name, ts, dur):
        return {
            "ph": "X",
            "cat": "Trace",
            "name": name,
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "ts": ts,
            "dur": dur,
        }

    trace = opened(
        window("PyTorch Profiler (0)", 5, 100),
        window("PyTorch Profiler (1)", 200, 50),
        window("MTIA Activity Trace (-1)", 1, 400),
        op("a", 10, 5),
        op("b", 210, 5),
    )
    rows = trace.table("cycles").select(["number", "start_ns", "duration_ns"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(0, 4000, 100_000), (1, 199_000, 50_000)]
    assert [row["cycle"] for row in trace.table("spans").to_pylist()] == [0, 1]
    assert spans(trace) == ["a", "b"]


def test_what_other_tools_write_is_read_as_well():
    text = json.dumps([
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "server"}},
        {"ph": "B", "name": "request", "pid": 1, "tid": 1, "ts": 10, "args": {"path": "/"}},
        {"ph": "i", "name": "mark", "pid": 1, "tid": 1, "ts": 12},
        {"ph": "C", "name": "queue", "pid": 1, "ts": 13, "args": {"length": 3}},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 20},
    ])  # fmt: skip
    trace = open_trace(io.BytesIO(text.encode()))
    assert spans(trace, "kind", "start_ns", "duration_ns") == [
        ("request", "user_annotation", 0, 10_000), ("mark", "user_annotation", 2000, 0),
    ]  # fmt: skip
    assert trace.table("counters").to_pylist() == [
        {"time_ns": 3000, "name": "queue", "value": 3.0, "process": 1, "rank": None}
    ]
    assert trace.table("spans").column("arguments").to_pylist() == ['{"path":"/"}', None]
    assert "engine" not in trace.info


def test_a_file_without_events_is_an_empty_trace():
    trace = opened()
    assert len(trace.columns("spans")) == 0
    assert trace.table("ops").num_rows == 0
    assert trace.table("spans").num_rows == 0
    assert trace.complete
