"""The host's trace and the devices' as one: rows, references, threads and times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.combine.device import join_device
from kinetoscope.model.schema import STORED, SpanKind
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder

MAIN, OTHER = 1000, 1001


def host_trace(operators=3, threads=(MAIN,)):
    """Operators 1000 ns long every 2000 ns on each thread, each around one inner operator, with a stack and a module."""
    builder = TraceBuilder()
    layer = builder.module("Linear")
    for tid in threads:
        thread = builder.thread("main", os_tid=tid, torch_tid=tid - 999)
        for row in range(operators):
            begin = 2000 * row
            builder.span(
                "aten::linear",
                begin,
                1000,
                thread=thread,
                module=layer,
                stack=builder.stack(("train.py", row + 1, "step")),
                shapes=builder.shapes([[row, 3]], ["float"], [""]),
            )
            builder.span("aten::addmm", begin + 100, 800, thread=thread, module=layer)
            builder.allocate(begin + 150, 4096 * (row + 1), 64 * (row + 1), thread=thread)
    return builder.build()


def device_trace(calls, *, shift_ns=0, launched=None):
    """Calls of a runtime as (tid, start, correlation), 200 ns long, and the kernels that they launch, 5000 ns later."""
    builder = TraceBuilder()
    thread_of = {}
    for tid, start_ns, correlation in calls:
        if tid not in thread_of:
            thread_of[tid] = builder.thread("", os_tid=tid, torch_tid=-1)
        builder.runtime(
            "cudaLaunchKernel", start_ns + shift_ns, 200, thread=thread_of[tid], correlation=correlation
        )
    builder.stream(7)
    for _, start_ns, correlation in calls:
        if launched is None or correlation in launched:
            builder.kernel(
                "gemm",
                start_ns + shift_ns + 5000,
                300,
                correlation=correlation,
                grid=(1, 2, 3),
                arguments={"queued": correlation},
            )
    return builder.build()


def launch_names(trace):
    """For each kernel the call that launched it and the operators around that, innermost first."""
    strings, names = trace.strings, trace.column("spans", "name")
    parent = trace.column("spans", "parent")
    found = []
    for host, device in zip(
        trace.column("launches", "host").tolist(), trace.column("launches", "device").tolist(), strict=True
    ):
        chain = [strings[names[device]]]
        while host >= 0:
            chain.append(strings[names[host]])
            host = int(parent[host])
        found.append(chain)
    return found


def test_kernels_belong_to_the_operators_whose_calls_launched_them():
    host = host_trace()
    device = device_trace([(MAIN, 2000 * row + 300, 10 + row) for row in range(3)])
    both = join_device(host, device)
    assert launch_names(both) == [["gemm", "cudaLaunchKernel", "aten::addmm", "aten::linear"]] * 3
    kinds = both.column("spans", "kind")
    linear = [both.strings[name] == "aten::linear" for name in both.column("spans", "name").tolist()]
    assert both.column("spans", "device_ns")[linear].tolist() == [300] * 3
    assert np.count_nonzero(kinds == SpanKind.KERNEL) == 3
    assert both.info["clock_checks"] == host.info["clock_checks"] | {
        "device_calls": 3,
        "device_calls_crossing": 0,
        "device_largest_crossing_ns": 0,
        "device_earliest_ns": -200,
        "device_latest_ns": 400,
    }
    assert both.complete
    assert both.info["process"] == host.info["process"]


def test_what_the_host_knew_is_still_there_and_led_to_the_right_rows():
    host = host_trace()
    both = join_device(host, device_trace([(MAIN, 2000 * row + 300, 10 + row) for row in range(3)]))
    rows = [
        row for row, kind in enumerate(both.column("spans", "kind").tolist()) if kind == SpanKind.OPERATOR
    ]
    for name in ("start_ns", "duration_ns", "own_stack", "own_module", "shapes", "sequence", "bytes", "path"):
        if name in STORED["spans"].column_names:
            assert both.column("spans", name)[rows].tolist() == host.column("spans", name).tolist(), name
    for table in ("stacks", "frames", "modules", "shapes", "allocations"):
        for name in both.columns(table).given:
            assert list(both.column(table, name)) == list(host.column(table, name)), (table, name)
    kernel = both.column("kernels", "span").tolist()
    assert [both.strings[both.column("spans", "name")[row]] for row in kernel] == ["gemm"] * 3
    arguments = both.column("spans", "arguments")[kernel]
    assert [both.column("arguments", "json")[row] for row in arguments] == [
        '{"queued": 10}', '{"queued": 11}', '{"queued": 12}'
    ]  # fmt: skip
    assert both.column("streams", "number").tolist() == [7]
    assert set(both.column("spans", "stream").tolist()) == {-1, 0}


def test_a_kernel_without_its_call_and_a_call_without_kernel_are_kept():
    device = device_trace([(MAIN, 300, 10), (MAIN, 2300, 11)], launched={11})
    both = join_device(host_trace(), device)
    assert len(launch_names(both)) == 1
    lonely = device_trace([(MAIN, 300, 10)])
    tables = {
        name: {column: lonely.column(name, column) for column in lonely.columns(name).given}
        for name in STORED
        if name not in ("steps", "launches")
    }
    lonely = type(lonely).from_columns(tables, strings=lonely.strings, info=lonely.info)
    both = join_device(host_trace(), lonely)
    assert launch_names(both) == []
    assert both.column("spans", "device_ns").max(initial=0) in (0, 300)


def test_a_thread_with_a_number_of_the_runtime_is_found_by_that_number():
    calls = [(-17, 2000 * row + 300, 10 + row) for row in range(3)]
    both = join_device(host_trace(), device_trace(calls), {-17 & 0xFFFFFFFF: MAIN})
    assert [chain[-1] for chain in launch_names(both)] == ["aten::linear"] * 3
    assert both.column("threads", "os_tid").tolist() == [MAIN, 7]


def test_a_thread_without_a_known_number_is_found_by_where_its_calls_lie():
    host = TraceBuilder()
    for tid, offset in ((MAIN, 0), (OTHER, 1000)):
        thread = host.thread("", os_tid=tid, torch_tid=tid)
        for row in range(10):
            host.span("aten::mm", 2000 * row + offset, 900, thread=thread)
    device = device_trace([(99, 2000 * row + 1300, row) for row in range(10)])
    both = join_device(host.build(), device)
    assert both.column("threads", "os_tid").tolist() == [MAIN, OTHER, 7]
    launching = both.column("spans", "thread")[both.column("launches", "host")]
    assert set(launching.tolist()) == {1}


@pytest.mark.parametrize("calls", [1, 10])
def test_a_thread_that_is_nobodys_is_one_more(calls):
    device = device_trace([(99, 2000 * row + 1300, row) for row in range(calls)])
    both = join_device(host_trace(operators=10), device)
    assert both.column("threads", "os_tid").tolist() == [MAIN, 99, 7]
    assert launch_names(both) == [["gemm", "cudaLaunchKernel"]] * calls


def test_what_the_devices_did_before_the_host_was_recorded_moves_the_beginning():
    host = host_trace()
    device = device_trace([(MAIN, -5000, 1), (MAIN, 300, 10)])
    both = join_device(host, device)
    assert both.column("spans", "start_ns").min() == 0
    assert both.info["start_realtime_ns"] == START_REALTIME_NS - 5000
    assert both.column("allocations", "time_ns").tolist() == [5150, 7150, 9150]
    assert launch_names(both)[-1] == ["gemm", "cudaLaunchKernel", "aten::addmm", "aten::linear"]


def test_two_recordings_that_began_at_different_times_are_on_one_clock():
    device = device_trace([(MAIN, 2000 * row + 300, 10 + row) for row in range(3)], shift_ns=-7_000_000)
    device.info["start_realtime_ns"] = START_REALTIME_NS + 7_000_000
    both = join_device(host_trace(), device)
    assert launch_names(both) == [["gemm", "cudaLaunchKernel", "aten::addmm", "aten::linear"]] * 3


def test_clocks_that_do_not_fit_are_a_loss():
    host = TraceBuilder()
    host.thread("", os_tid=MAIN, torch_tid=1)
    for row in range(2000):
        host.span("aten::add", 40 * row, 20)
    both = join_device(host.build(), device_trace([(MAIN, 800 * row, row) for row in range(50)]))
    (loss,) = both.losses
    assert loss["code"] == "device_clock_misfit"
    assert loss["count"] == 50
    assert not both.complete


def test_without_the_time_of_one_beginning_the_trace_says_so():
    device = device_trace([(MAIN, 300, 1)])
    del device.info["start_realtime_ns"]
    (loss,) = join_device(host_trace(), device).losses
    assert loss["code"] == "device_clock_unknown"


@given(
    st.lists(
        st.tuples(st.sampled_from([MAIN, OTHER, 5, -1]), st.integers(-3000, 9000), st.integers(0, 5)),
        max_size=12,
    ),
    st.integers(-10_000, 10_000),
    st.sets(st.integers(0, 5)),
)
def test_nothing_is_lost_whatever_the_devices_side_holds(calls, shift_ns, launched):
    host = host_trace(threads=(MAIN, OTHER))
    device = device_trace(calls, shift_ns=shift_ns, launched=launched)
    both = join_device(host, device)
    assert len(both.columns("spans")) == len(host.columns("spans")) + len(device.columns("spans"))
    for table in ("launches", "kernels", "allocations", "streams", "arguments"):
        assert len(both.columns(table)) == len(host.columns(table)) + len(device.columns(table))
    keys = [both.column("spans", name) for name in ("thread", "start_ns", "duration_ns")]
    assert (np.lexsort((-keys[2], keys[1], keys[0])) == np.arange(len(keys[0]))).all()
    assert keys[1].min(initial=0) >= 0

    def described(trace):
        names = trace.column("spans", "name")
        return sorted(
            (trace.strings[name], int(duration_ns), int(correlation))
            for name, duration_ns, correlation in zip(
                names, trace.column("spans", "duration_ns"), trace.column("spans", "correlation"), strict=True
            )
        )

    assert described(both) == sorted(described(host) + described(device))
    for table, column, kind in (
        ("launches", "host", SpanKind.RUNTIME),
        ("launches", "device", SpanKind.KERNEL),
        ("kernels", "span", SpanKind.KERNEL),
    ):
        rows = both.column(table, column)
        assert (both.column("spans", "kind")[rows] == kind).all()
    correlation = both.column("spans", "correlation")
    assert (
        correlation[both.column("launches", "host")] == correlation[both.column("launches", "device")]
    ).all()
