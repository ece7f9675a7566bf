"""Traces of several processes in viewer formats: processes stay separate, even with equal ids."""

import json

import pytest

import kinetoscope
from kinetoscope.combine.processes import merge_processes
from tests.support.trace_builder import TraceBuilder


@pytest.fixture(scope="module")
def merged():
    """Build two ranks in two containers: both are process 1 with thread 1, have a device 0, sample a counter, and use memory."""
    traces = []
    for rank in range(2):
        builder = TraceBuilder()
        builder.thread("main", os_tid=1)
        device = builder.stream(7)
        builder.span("aten::add", 0, 50).counter("queue", 10, rank + 0.5)
        builder.allocate(5, 64, 100 + rank)
        builder.allocate(6, 64, 200 + rank, device=(1, 0))
        builder.runtime("cudaLaunchKernel", 10, 5, correlation=3)
        builder.kernel("add", 20, 10, stream=device, correlation=3)
        trace = builder.build()
        trace.info.update(process=1, rank=rank, host=f"node{rank}")
        traces.append(trace)
    return merge_processes(traces, [0, 1_000])


def test_in_a_chrome_trace(merged, tmp_path):
    merged.save(tmp_path / "merged.json")
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    labels = {one["pid"]: one["args"]["labels"] for one in events if one["name"] == "process_labels"}
    assert sorted(labels.values()) == [
        "CPU of rank 0", "CPU of rank 1", "GPU 0 of rank 0", "GPU 0 of rank 1",
    ]  # fmt: skip
    counters = [(labels[one["pid"]], one["args"]["value"]) for one in events if one["ph"] == "C"]
    assert counters == [("CPU of rank 0", 0.5), ("CPU of rank 1", 1.5)]
    blocks = [(labels[one["pid"]], one["args"]["Bytes"]) for one in events if one["name"] == "[memory]"]
    assert blocks == [
        ("CPU of rank 0", 100), ("CPU of rank 0", 200), ("CPU of rank 1", 101), ("CPU of rank 1", 201),
    ]  # fmt: skip
    back = kinetoscope.open(tmp_path / "merged.json").table("spans").to_pylist()
    assert sorted((row["rank"], row["name"]) for row in back) == sorted(
        (rank, name) for rank in range(2) for name in ("aten::add", "cudaLaunchKernel", "add")
    )
