"""Whether a trace keeps to the limits of a test: traces made by hand, of devices too."""

import pytest

from kinetoscope import StateError
from kinetoscope.comparison.verdict import MOST_PLACES, judge
from kinetoscope.integrations.pytest.marker import limits_of
from tests.support.hostile import HOSTILE_NAMES
from tests.support.trace_builder import TraceBuilder

CUDA = (1, 1)


def told(builder, ran_ns=0, **limits):
    return judge(builder.build(), limits_of([limits]), ran_ns).text.splitlines()


@pytest.fixture
def on_device():
    """An operator of a module that starts two kernels, and one that no operator started."""
    builder = TraceBuilder()
    layer = builder.module("Linear", name="fc", parent=builder.module("Net"))
    stack = builder.stack(("train.py", 3, "main"), ("model.py", 7, "forward"))
    builder.span("aten::addmm", 0, 100, module=layer, stack=stack)
    builder.runtime("cudaLaunchKernel", 10, 5, correlation=1).kernel("gemm", 200, 100, correlation=1)
    builder.runtime("cudaLaunchKernel", 20, 5, correlation=2).kernel("gemm", 300, 100, correlation=2)
    return builder.kernel("alone", 500, 10)


def test_kernels_are_told_by_the_operator_that_started_them(on_device):
    lines = told(on_device, max_kernels=1)
    assert lines[0] == "max_kernels=1: 3 kernels ran, 2 too many"
    assert [line.split() for line in lines[1:]] == [
        ["calls", "kernel", "module", "line"],
        ["2", "gemm", "fc", "model.py:7", "in", "forward"],
        ["1", "alone", "-", "-"],
    ]


def test_kernels_and_calls_of_the_runtime_are_no_operators(on_device):
    verdict = judge(on_device.build(), limits_of([{"max_operators": 1, "max_kernels": 3}]), 0)
    assert verdict.text == ""
    assert verdict.measured == {"operators": 1, "kernels": 3}


def test_the_device_that_held_most_is_the_one_told():
    builder = TraceBuilder()
    builder.span("aten::empty", 0, 1000)
    builder.allocate(100, 0x10, 4096)
    builder.allocate(200, 0x10, 1000, device=CUDA)
    builder.free(300, 0x10, device=CUDA)
    builder.allocate(400, 0x20, 3000, device=CUDA)
    builder.allocate(500, 0x30, 2000, device=CUDA)
    lines = told(builder, max_peak_bytes=4096)
    assert lines[0] == (
        "max_peak_bytes=4,096: 4.88 KiB (5,000 bytes) held at once on cuda:1, 904 B too many, 500 ns after the start"
    )
    # What was freed before is no part of it, nor is what another device held.
    assert [line.split() for line in lines[2:]] == [["4.88", "KiB", "aten::empty", "-", "-"]]
    assert told(builder, max_peak_bytes=5000) == []


@pytest.mark.parametrize(
    ("text", "allowed"), [("64MB", 64_000_000), ("64MiB", 64 << 20), ("4096", 4096), ("2 KiB", 2048)]
)
def test_a_limit_of_bytes_may_have_a_unit(text, allowed):
    assert limits_of([{"max_peak_bytes": text}]).allowed == {"max_peak_bytes": allowed}


def test_allocations_are_counted_on_all_devices_and_frees_are_none():
    builder = TraceBuilder()
    builder.allocate(100, 0x10, 1500, stack=builder.stack(("train.py", 5, "main")))
    builder.free(150, 0x10)
    builder.allocate(200, 0x10, 1500, device=CUDA)
    lines = told(builder, max_allocations=1)
    assert lines[0] == "max_allocations=1: 2 blocks allocated, 2.93 KiB together, 1 too many"
    assert ["1", "(outside", "all)", "-", "train.py:5", "in", "main"] in [line.split() for line in lines]


def test_the_longest_step_after_the_warm_up_is_told_with_what_took_it():
    builder = TraceBuilder()
    for number, (start_ms, took_ms) in enumerate([(0, 90), (100, 10), (200, 30), (300, 12)]):
        builder.step(number, start_ms * 1_000_000, took_ms * 1_000_000)
        builder.span("aten::mm", start_ms * 1_000_000, (took_ms - 4) * 1_000_000)
    lines = told(builder, max_step_ms=11, warmup_steps=1)
    assert lines[0] == (
        "max_step_ms=11: step 2 took 30 ms, 19 ms too long; the median of 3 steps is 12 ms, 2 of them too long"
    )
    assert [line.split() for line in lines[2:]] == [
        ["26", "ms", "aten::mm", "-", "-"],
        ["4", "ms", "of", "it", "outside", "all", "operators"],
    ]
    assert told(builder, max_step_ms=30, warmup_steps=1) == []


def test_a_warm_up_of_a_test_without_steps_leaves_nothing():
    with pytest.raises(
        StateError, match="warmup_steps=1 leaves no step to be looked at: the trace has 0 steps"
    ):
        told(TraceBuilder().span("aten::mm", 0, 5), max_step_ms=1, warmup_steps=1)


def test_what_was_recorded_is_the_step_of_a_test_without_any():
    assert told(TraceBuilder(), ran_ns=2_500_000, max_step_ms=2) == [
        "max_step_ms=2: the test, which marks no steps, took 2.50 ms, 500 µs too long",
        "  2.50 ms of it outside all operators",
    ]


def test_many_places_are_cut_to_the_largest_and_nothing_is_lost():
    builder = TraceBuilder()
    for place in range(10):
        for call in range(place + 1):
            builder.span(f"op{place}", place * 1000 + call * 10, 5)
    lines = told(builder, max_operators=0)
    assert [line.split()[0] for line in lines[2:]] == ["10", "9", "8", "7", "6", "5", "10"]
    assert lines[-1].strip() == "10  in 4 other places"
    assert len(lines) == MOST_PLACES + 3


def test_a_trace_that_lost_something_is_said_to_have_been_more(on_device):
    on_device.lose("dropped_spans", 7)
    verdict = judge(on_device.build(), limits_of([{"max_kernels": 0}]), 0)
    assert verdict.lost.endswith("spans not written (7)")
    assert verdict.text.endswith("(times and counts are lower bounds: spans not written (7))")


def test_names_take_one_line_and_a_column_each():
    builder = TraceBuilder()
    for place, name in enumerate(HOSTILE_NAMES):
        builder.span(name, place * 10, 5, stack=builder.stack((name, 3, name)), module=builder.module(name))
    lines = told(builder, max_operators=0)
    assert len(lines) <= MOST_PLACES + 3
    assert all(line.isprintable() for line in lines)


def test_limits_are_told_in_one_order_whatever_the_marker_says_first(on_device):
    lines = told(on_device, ran_ns=5_000_000, max_kernels=0, max_operators=0, max_step_ms=1)
    assert [line.partition("=")[0] for line in lines if line.startswith("max_")] == [
        "max_step_ms",
        "max_operators",
        "max_kernels",
    ]
