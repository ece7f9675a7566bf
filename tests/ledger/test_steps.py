"""The table of steps."""

import pytest

from tests.support.trace_builder import TraceBuilder


def test_a_step_is_divided_into_its_phases():
    builder = TraceBuilder()
    for number, at in enumerate((0, 1000)):
        builder.step(number, at, 900)
        builder.span("aten::linear", at + 10, 100, sequence=number)
        builder.backward("LinearBackward0", at + 200, 50, sequence=number)
        builder.annotation("Optimizer.step#SGD.step", at + 400, 60).span("aten::add_", at + 410, 20)
    builder.span("aten::outside", 950, 20)
    first, second = builder.build().table("steps").to_pylist()
    assert first == {
        "number": 0, "start_ns": 0, "duration_ns": 900, "operators": 4, "forward_ns": 100, "backward_ns": 52, "optimizer_ns": 60,
        "compute_ns": 172, "communication_ns": 0, "copy_ns": 0, "data_wait_ns": 0, "device_wait_ns": 0, "host_wait_ns": 728, "blocked_ns": 0,
        "garbage_ns": 0, "processor_wait_ns": 0, "idle_ns": 0, "compile_ns": 0,
        "largest_gap_ns": 470, "largest_gap_file": None, "largest_gap_line": None,
        "peak_bytes": None, "flops": None, "flops_covered_percent": pytest.approx(100 * 52 / 172), "flops_per_s": None, "mfu": None, "span": 0, "name": None, "arguments": None, "source": "marked",
        "start_up": False, "process": 4242, "rank": None,
    }  # fmt: skip
    assert (second["number"], second["start_ns"], second["forward_ns"]) == (1, 1000, 100)


def test_what_makes_a_batch_in_the_wait_for_it_is_waiting_and_not_forward():
    builder = TraceBuilder().step(0, 0, 1000)
    builder.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 300)
    builder.span("aten::stack", 150, 100).span("aten::mm", 500, 70)
    (row,) = builder.build().table("steps").to_pylist()
    assert (row["forward_ns"], row["data_wait_ns"], row["operators"]) == (70, 300, 2)


def test_a_range_that_waits_for_backward_on_another_thread_is_not_forward():
    builder = TraceBuilder().step(0, 0, 1000)
    main, autograd = builder.thread(), builder.thread()
    builder.annotation("train", 0, 1000, thread=main)
    builder.span("aten::linear", 10, 100, sequence=1, thread=main)
    builder.annotation("## backward ##", 200, 600, thread=main).span("aten::ones_like", 210, 40, thread=main)
    # Its thread runs nothing else of the step, and the range waits for all of it.
    builder.backward("LinearBackward0", 300, 400, sequence=1, thread=autograd)
    builder.backward("AddBackward0", 720, 30, sequence=-1, thread=autograd)
    trace = builder.build()
    (row,) = trace.table("steps").to_pylist()
    backward_ns = row["backward_ns"]
    assert (row["forward_ns"], backward_ns >= 430) == (1000 - backward_ns, True)
    assert trace.overview().outside_ns == (1000 - backward_ns, backward_ns, 0)


def test_python_of_a_closure_is_not_the_optimizer_s():
    builder = TraceBuilder().step(0, 0, 1000)
    builder.annotation("Optimizer.step#Adam.step", 100, 800)
    builder.span("aten::linear", 200, 100, sequence=1)
    builder.backward("LinearBackward0", 400, 200, sequence=1)
    builder.span("aten::_fused_adam_", 750, 50)
    trace = builder.build()
    (row,) = trace.table("steps").to_pylist()
    # Of the optimizer's range, what comes after backward: 150 before its operator, that, and 100 after it.
    assert (row["forward_ns"], row["backward_ns"], row["optimizer_ns"]) == (100, 202, 299)
    assert trace.overview().outside_ns == (100, 202, 299)


def test_a_closure_that_waits_for_backward_on_another_thread_is_left_out_once():
    builder = TraceBuilder().step(0, 0, 1000)
    _, autograd = builder.thread(), builder.thread("autograd")
    builder.annotation("Optimizer.step#Adam.step", 100, 800)
    builder.span("aten::linear", 200, 100, sequence=1)
    builder.backward("LinearBackward0", 401, 198, sequence=1, thread=autograd)
    builder.span("aten::_fused_adam_", 750, 50)
    (row,) = builder.build().table("steps").to_pylist()
    assert (row["forward_ns"], row["backward_ns"], row["optimizer_ns"]) == (100, 200, 300)


def test_the_peak_counts_what_was_live_before():
    builder = TraceBuilder().step(0, 0, 100).step(1, 200, 100).step(2, 400, 100)
    builder.allocate(10, 0x10, 100)
    builder.allocate(20, 0x20, 50)
    builder.free(30, 0x20)
    builder.allocate(210, 0x30, 10)
    builder.free(220, 0x10)
    assert [row["peak_bytes"] for row in builder.build().table("steps").to_pylist()] == [150, 110, 10]


def test_a_step_before_the_first_allocation_has_no_peak():
    builder = TraceBuilder().step(0, 0, 10).step(1, 20, 10)
    builder.allocate(25, 0x10, 7)
    assert [row["peak_bytes"] for row in builder.build().table("steps").to_pylist()] == [0, 7]


def test_steps_found_from_the_optimizer_say_so():
    trace = TraceBuilder().span("aten::add", 0, 5).annotation("Optimizer.step#SGD.step", 10, 20).build()
    row = trace.table("steps").to_pylist()[0]
    assert (row["source"], row["start_ns"], row["duration_ns"]) == ("optimizer", 0, 30)
    assert (row["forward_ns"], row["optimizer_ns"]) == (5, 20)


def test_no_steps_no_rows():
    builder = TraceBuilder().span("aten::add", 0, 5)
    builder.allocate(1, 0x10, 5)
    assert builder.build().table("steps").num_rows == 0
