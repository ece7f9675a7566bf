import re

import pytest

from kinetoscope.analyses.overview import StepDurations
from kinetoscope.combine.processes import merge_processes
from kinetoscope.viewer.pages.overview import memory_tile, step_tile, work_tile
from kinetoscope.viewer.server.routes import answer
from tests.support.trace_builder import TraceBuilder


def tiles(trace):
    return {one["title"]: one for one in answer(trace, "overview", {})["tiles"]}


def text(said):
    values = iter(said["values"])
    return re.sub(r"\{\}", lambda _: "{:g}{}".format(*next(values)), said["text"])


def working(rank=None, *, share=0.5):
    """Two steps of 100 of which a device works a part."""
    builder = TraceBuilder()
    if rank is not None:
        builder.know("distributedInfo", {"rank": rank, "world_size": 2})
    stream = builder.stream(7, device=rank or 0)
    for number in range(2):
        builder.step(number, 100 * number, 100)
        builder.runtime("cudaLaunchKernel", 100 * number + 1, 5, correlation=number + 1)
        builder.kernel("gemm", 100 * number + 10, int(100 * share), stream=stream, correlation=number + 1)
    return builder.build()


def test_busy_is_the_working_part_of_the_breakdown():
    trace = working()
    rows = trace.table("breakdown").to_pylist()
    worked = sum(row["compute_ns"] + row["communication_ns"] + row["copy_ns"] for row in rows)
    found = tiles(trace)["Device busy"]
    assert found["value"] == [100 * worked / sum(row["duration_ns"] for row in rows), "%"] == [50, "%"]
    assert text(found["more"]) == "of step time"


def test_busy_of_several_devices_tells_how_far_they_are_apart():
    found = tiles(merge_processes([working(0, share=0.2), working(1, share=0.8)], [0, 0]))["Device busy"]
    assert found["value"] == [pytest.approx(50), "%"]
    assert text(found["more"]) == "of step time, 2 devices: 20% to 80%"


def test_without_a_device_it_is_the_share_of_operators():
    found = tiles(TraceBuilder().span("aten::mm", 0, 30).span("aten::mm", 90, 10).build())
    assert found["In operators"]["value"] == [40, "%"]
    assert text(found["In operators"]["more"]) == "of recorded time"
    assert found["Operators"]["value"] == [2, ""]
    assert "Kernels" not in found


def test_a_step_that_is_left_out_counts_nowhere():
    builder = TraceBuilder()
    for end in (1000, 1100, 1200):
        builder.span("aten::mm", end - 50, 50)
        builder.annotation("Optimizer.step#SGD.step", end, 0)
    trace = builder.build()
    found = tiles(trace)
    rows = trace.table("breakdown").to_pylist()[1:]
    share = 100 * sum(row["compute_ns"] for row in rows) / sum(row["duration_ns"] for row in rows)
    assert found["In operators"]["value"] == [pytest.approx(share), "%"]
    assert found["Step"]["value"] == [100, "ns"]
    assert "not counted" in text(found["Step"]["hint"])


def test_an_empty_trace_has_no_share():
    found = tiles(TraceBuilder().build())
    assert found["In operators"]["value"] == [None, "%"]
    assert found["Recorded"]["value"] == [0, "ns"]


def test_slow_tiles_are_requested_later():
    builder = TraceBuilder().know("profile_memory", 1)
    shapes = builder.shapes([[4, 4], [4, 4]], ["float", "float"])
    builder.span("aten::mm", 0, 100, shapes=shapes)
    builder.allocate(10, 0x1000, 64)
    trace = builder.build()
    found = tiles(trace)
    assert [found[title]["ask"] for title in ("Memory peak", "Arithmetic")] == [
        "overview/memory",
        "overview/work",
    ]
    assert answer(trace, "overview/memory", {})["tile"]["value"] == [64, "bytes"]
    assert answer(trace, "overview/work", {})["tile"]["value"] == [pytest.approx(128 * 1e7), "FLOP/s"]


@pytest.mark.parametrize(
    ("count", "numbers", "told"),
    [(1, 1, "the only step"), (8, 1, "1 step on 4 processes"), (9, 9, "mean of 9, 95 % ≤ 7ns")],
)
def test_steps_are_counted_by_number_and_process(count, numbers, told):
    steps = StepDurations(count, numbers, 4, 0, 5, 1, 9, 7, "", (), (), 0)
    assert text(step_tile(working().overview(), steps)["more"]) == told


@pytest.mark.parametrize(
    ("size", "told"), [(None, "cuda:0 · after 30ns"), (4000, "cuda:0 · 25% of 4000bytes")]
)
def test_the_peak_is_told_with_the_size_of_the_device_where_that_is_known(size, told):
    peak = {
        "device": "cuda:0", "bytes": 1000, "time_ns": 30, "size_bytes": size, "counted": False, "attributed_bytes": 1000,
    }  # fmt: skip
    assert text(memory_tile([peak])["more"]) == told


def test_near_the_peak_of_the_device_utilization_is_the_number():
    found = work_tile({"flops": 10, "flops_per_s": 5.0, "mfu_percent": 40.0, "covered_percent": 99.0})
    assert (found["title"], found["value"], text(found["more"])) == ("MFU", [40.0, "%"], "5FLOP/s")
    assert found["hint"]["text"].count("{}") == len(found["hint"]["values"]) == 2
