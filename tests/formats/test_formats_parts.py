"""Windows of traces in timeline formats: no events before the start, and totals that include live memory."""

import json

import pytest

from kinetoscope.trace import open as open_trace
from tests.support.perfetto import complaints, needs_perfetto
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder


def part_with_older_memory():
    builder = TraceBuilder()
    builder.annotation("train", 0, 400_000)
    builder.span("aten::empty", 0, 100_000).span("aten::relu", 200_000, 100_000)
    builder.allocate(10_000, 4096, 1000)
    builder.allocate(210_000, 8192, 10)
    builder.free(220_000, 4096)
    return builder.build().window(150_000)


def test_chrome_json(tmp_path):
    part_with_older_memory().save(tmp_path / "x.json")
    events = [
        event for event in json.loads((tmp_path / "x.json").read_text())["traceEvents"] if "ts" in event
    ]
    assert min(event["ts"] for event in events) >= 0
    memory = [event["args"] for event in events if event["name"] == "[memory]"]
    assert [(block["Bytes"], block["Total Allocated"]) for block in memory] == [(10, 1010), (-1000, 10)]


@needs_perfetto
@pytest.mark.parametrize("name", ["h100_owlv2_stack_mem", "a100_nccl_rank3of8", "v100_resnet50_mem"])
def test_windows_and_steps_of_real_traces_lose_nothing_in_perfetto(tmp_path, name):
    with open_trace(real_trace(name)) as trace:
        middle = trace.window(trace.duration_ns // 3, 2 * trace.duration_ns // 3)
        step = trace.select_steps(trace.column("steps", "number")[-1:].tolist())
        for place, part in enumerate((middle, step)):
            part.save(tmp_path / f"{place}.json.gz")
            taken, lost = complaints(tmp_path / f"{place}.json.gz")
            assert lost == []
            assert taken >= len(part.columns("spans"))
