"""A part of a trace is a trace: which steps, kernels and blocks are in it, and what it says of itself."""

import pytest

from kinetoscope import ArgumentError, StateError
from kinetoscope.combine.concatenate import concatenate
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace
from tests.support.any_trace import changed
from tests.support.trace_builder import TraceBuilder


def device_trace():
    """Two steps; the second one's kernel runs after it, the first one's during the second."""
    builder = TraceBuilder()
    main = builder.thread("main")
    builder.stream(7)
    builder.thread("idle")
    builder.annotation("train", 0, 300, thread=main)
    for step in range(2):
        builder.step(step, 100 * step, 100, thread=main)
        builder.span("aten::mm", 100 * step + 10, 50, thread=main, sequence=step)
        builder.runtime("cudaLaunchKernel", 100 * step + 20, 10, thread=main, correlation=step)
        builder.kernel("gemm", 100 * step + 90, 60, correlation=step, grid=(step + 1, 1, 1))
    builder.kernel("of unknown launch", 160, 5)
    builder.copy("Memcpy HtoD", 30, 5, size_bytes=64)
    return builder.build()


def device_names(part):
    table = part.table("spans").to_pylist()
    stream = part.column("spans", "stream").tolist()
    return [
        (row["name"], row["start_ns"], row["duration_ns"])
        for row, at in zip(table, stream, strict=True)
        if at >= 0
    ]


def test_a_step_has_the_kernels_that_it_launched_whole():
    part = device_trace().select_steps([1])
    assert device_names(part) == [("of unknown launch", 60, 5), ("gemm", 90, 60)]
    spans = {row["name"]: row for row in part.table("spans").to_pylist()}
    assert spans["aten::mm"]["device_ns"] == 60
    assert part.column("kernels", "grid_x").tolist() == [2]
    assert spans["train"]["duration_ns"] == 100
    assert part.duration_ns == 150


def test_a_step_by_time_has_what_ran_then():
    part = device_trace().select_steps([1], device="time")
    assert device_names(part) == [("gemm", 0, 50), ("of unknown launch", 60, 5), ("gemm", 90, 10)]
    assert part.duration_ns == 100
    assert len(part.columns("launches")) == 1, "the launch of the first one lies before"


def test_a_window_has_what_ran_then_or_what_was_launched_then():
    trace = device_trace()
    assert device_names(trace.window(80, 120)) == [("gemm", 10, 30)]
    assert device_names(trace.window(100, 140, device="launch")) == [("gemm", 90, 60)]
    assert device_names(trace.window(0, 40)) == [("Memcpy HtoD", 30, 5)]


def test_a_part_says_what_it_is_and_what_was_cut():
    trace = device_trace()
    part = trace.window(50, 120)
    said = part.info["selections"]
    assert said == [
        {"window_ns": [50, 120], "device": "time", "cut_spans": 6, "spans_left_out": 5},
    ]
    assert part.complete, "what was cut on purpose is no loss"
    assert part.info["start_realtime_ns"] == trace.info["start_realtime_ns"] + 50
    assert part.info["stop_ns"] == part.duration_ns == 70
    flags = {row["name"]: row for row in part.table("spans").to_pylist()}
    assert flags["train"]["unfinished"]
    assert part.window(10).info["selections"][0] == said[0]


def test_cut_steps_keep_their_numbers():
    part = device_trace().window(150)
    assert part.table("steps").column("number").to_pylist() == [1]
    assert part.table("steps").column("duration_ns").to_pylist() == [50]
    assert part.window(60).table("steps").num_rows == 0


def test_steps_found_from_the_optimizer_stay_what_they_were():
    builder = TraceBuilder()
    for step in range(4):
        builder.span("aten::mm", 100 * step + 10, 20)
        builder.annotation("Optimizer.step#SGD.step", 100 * step + 80, 20)
    trace = builder.build()
    part = trace.select_steps([1, 2])
    steps = part.table("steps").to_pylist()
    assert [(row["number"], row["start_ns"], row["duration_ns"]) for row in steps] == [
        (1, 0, 100),
        (2, 100, 100),
    ]
    cut = trace.window(150, 170)
    assert cut.column("steps", "number").tolist() == [1]
    assert cut.column("steps", "span").tolist() == [-1], "the optimizer's range that ends it lies outside"


def test_stretches_of_steps_keep_their_distance_and_cut_what_spans_them():
    builder = TraceBuilder()
    for step in range(6):
        builder.step(step, 100 * step + 2, 96)
    builder.annotation("train", 0, 700)
    part = builder.build().select_steps([1, 2, 4])
    steps = part.table("steps").to_pylist()
    assert [(row["number"], row["start_ns"]) for row in steps] == [(1, 0), (2, 100), (4, 300)]
    ranges = [row for row in part.table("spans").to_pylist() if row["name"] == "train"]
    assert [(row["start_ns"], row["duration_ns"], row["self_ns"]) for row in ranges] == [
        (0, 196, 4),
        (300, 96, 0),
    ]
    assert part.info["selections"][0]["windows_ns"] == [[102, 298], [402, 498]]


def test_what_was_live_at_the_start_is_there_before_it():
    builder = TraceBuilder()
    builder.span("aten::empty", 0, 100).span("aten::relu", 200, 100)
    builder.allocate(10, 1, 1000, stack=builder.stack(("a.py", 1, "f")))
    builder.allocate(20, 2, 500)
    builder.free(30, 2)
    builder.allocate(210, 3, 10)
    builder.free(220, 1)
    part = builder.build().window(150)
    assert part.column("allocations", "time_ns").tolist() == [-1, 60, 70]
    assert part.column("allocations", "total_bytes").tolist() == [1000, 1010, 10]
    table = part.table("allocations").to_pylist()
    assert [row["bytes"] for row in table] == [1000, 10, -1000]
    assert table[0]["stack"] == "a.py(1): f"
    assert table[0]["operator"] is None
    assert part.table("spans").column("bytes").to_pylist() == [-990]
    assert not [row for row in part.key_averages() if row.key == "[memory]"]
    assert [row["never_freed"] for row in part.table("memory").to_pylist()] == [0, 1]


def test_a_block_whose_address_was_handed_out_again_was_not_live():
    builder = TraceBuilder()
    builder.span("aten::empty", 0, 300)
    builder.allocate(10, 1, 1000)
    builder.allocate(20, 1, 7)
    builder.allocate(30, 1, 5, device=(1, 0))
    builder.allocate(200, 2, 1)
    part = builder.build().window(100)
    assert part.column("allocations", "bytes").tolist() == [7, 5, 1]
    assert part.column("allocations", "total_bytes").tolist() == [7, 5, 8]


def test_backward_keeps_the_module_of_a_forward_that_is_outside():
    builder = TraceBuilder()
    layer = builder.module("Linear", name="fc", parent=builder.module("Net"))
    stack = builder.stack(("net.py", 3, "forward"))
    builder.span("aten::linear", 0, 50, module=layer, stack=stack, sequence=1)
    builder.backward("AddmmBackward0", 100, 50, sequence=1)
    builder.span("aten::mm", 110, 10)
    part = builder.build().window(90)
    for row in part.table("spans").to_pylist():
        assert (row["module"], row["stack"], row["forward"]) == ("fc", "net.py(3): forward", None)


def test_what_nothing_names_any_more_is_left_out():
    builder = TraceBuilder()
    for place in range(20):
        builder.span(
            f"op {place}", 10 * place, 5, module=builder.module(f"M{place}"), shapes=builder.shapes([place]),
            stack=builder.stack(("a.py", 1, "main"), ("b.py", place, f"f{place}")), arguments={"n": place},
        )  # fmt: skip
    part = builder.build().window(100, 120)
    assert {name for name in part.strings if name.startswith(("op ", "M", "f"))} == {
        "op 10",
        "op 11",
        "M10",
        "M11",
        "f10",
        "f11",
    }
    lengths = {
        name: len(part.columns(name)) for name in ("modules", "shapes", "stacks", "frames", "arguments")
    }
    assert lengths == {"modules": 2, "shapes": 2, "stacks": 3, "frames": 3, "arguments": 2}
    assert part.table("spans").column("stack").to_pylist() == [
        "a.py(1): main;b.py(10): f10",
        "a.py(1): main;b.py(11): f11",
    ]


def ranked_trace():
    builder = TraceBuilder()
    for _ in range(3):
        builder.thread("main")
    for thread in range(3):
        builder.span(f"op {thread}", 10, 20, thread=thread)
        builder.allocate(15 + thread, thread + 1, 100, thread=thread)
    builder.counter("power", 5, 1.0)
    return changed(builder.build(), threads={"rank": [0, 1, 2], "process": [100, 101, 102]})


def test_ranks():
    part = ranked_trace().select_ranks([0, 2])
    assert part.table("spans").column("name").to_pylist() == ["op 0", "op 2"]
    assert part.column("threads", "rank").tolist() == [0, 2]
    assert part.column("spans", "thread").tolist() == [0, 1]
    assert len(part.columns("allocations")) == 2
    assert len(part.columns("counters")) == 1
    assert part.info["selections"] == [{"ranks": [0, 2], "cut_spans": 0, "spans_left_out": 1}]
    assert part.select_ranks([2]).table("spans").column("name").to_pylist() == ["op 2"]


def test_the_rank_of_the_whole_trace_counts_for_threads_that_tell_none():
    trace = TraceBuilder().span("op", 0, 1).know("distributedInfo", {"rank": 3}).build()
    assert len(trace.select_ranks([3]).columns("spans")) == 1
    with pytest.raises(ArgumentError, match=r"the trace has no rank 0; it has 3"):
        trace.select_ranks([0, 3])


def test_a_closed_trace_has_no_parts_but_parts_outlive_it(tmp_path):
    device_trace().save(tmp_path / "x.ktrace")
    trace = open_trace(tmp_path / "x.ktrace")
    part = trace.window(50)
    trace.close()
    assert part.key_averages().table()
    for select in (trace.window, lambda: trace.select_steps([0]), lambda: trace.select_ranks([0])):
        with pytest.raises(StateError):
            select()


def test_an_empty_trace_has_an_empty_window():
    assert len(Trace.from_columns({}, strings=[""]).window().columns("spans")) == 0


def test_times_that_overflow_do_no_harm():
    builder = TraceBuilder().span("a", 2**62, 2**62).span("b", 5, 10)
    builder.stop_ns = 2**62
    trace = builder.build()
    part = trace.window(0, 10)
    assert part.table("spans").column("name").to_pylist() == ["b"]


def cycles_trace():
    """Two recordings of one process; the second frees nothing that the first one left."""
    parts = []
    for cycle in range(2):
        builder = TraceBuilder()
        builder.step(cycle, 0, 100).span("aten::empty", 10, 50)
        builder.allocate(20, 1, 100)
        builder.free(30, 1)
        builder.allocate(40, 2, 7)
        trace = builder.build()
        trace.info["start_realtime_ns"] += 1000 * cycle
        parts.append(trace)
    return concatenate(parts)


def test_cycles_are_cut_too():
    trace = cycles_trace()
    part = trace.window(1010, 1035)
    assert part.column("cycles", "number").tolist() == [1]
    assert part.column("cycles", "start_ns").tolist() == [0]
    assert part.column("spans", "cycle").tolist() == [0, 0]
    assert [cycle["number"] for cycle in part.info["cycles"]] == [1]
    assert part.info["cycles"][0]["duration_ns"] == 25
    assert part.column("allocations", "total_bytes").tolist() == [100, 0]
    assert part.column("allocations", "match").tolist() == [1, 0]
    spans = part.columns("spans")
    assert spans["bytes"].tolist() == [0, 0]
    both = trace.window(50, 1025)
    assert both.column("allocations", "total_bytes").tolist() == [7, 100]
    assert both.column("spans", "self_bytes").tolist() == [0, 0, 0, 100]
