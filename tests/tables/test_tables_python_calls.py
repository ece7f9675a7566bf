"""Calls of Python functions and modules on the timeline change no number of any event."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.model.schema import SpanKind
from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder
from tests.tables.test_tables_properties import traces


def with_calls(trace: Trace, calls: list[tuple[int, int, int, int]]) -> Trace:
    """The same trace with calls (thread, start, duration, kind) among its spans."""
    spans = trace.columns("spans")
    known = {name: spans[name] for name in spans.given} | {"kind": spans["kind"]}
    added = {
        "thread": [call[0] for call in calls],
        "start_ns": [call[1] for call in calls],
        "duration_ns": [call[2] for call in calls],
        "kind": [call[3] for call in calls],
        "name": [1] * len(calls),
    }
    for name in ("sequence", "forward_thread", "own_stack", "own_module", "shapes", "parameter"):
        added[name] = [-1] * len(calls)
    whole = {
        name: np.concatenate((values, np.array(added.get(name, [0] * len(calls)), dtype=values.dtype)))
        for name, values in known.items()
    }
    order = np.lexsort((-whole["duration_ns"], whole["start_ns"], whole["thread"]))
    tables = {name: {column: trace.column(name, column) for column in trace.columns(name).given} for name in (
        "threads", "allocations", "stacks", "frames", "modules", "shapes", "parameters"
    )}  # fmt: skip
    tables["spans"] = {name: values[order] for name, values in whole.items()}
    return Trace.from_columns(tables, strings=trace.strings, info=trace.info)


calls = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 60),
        st.integers(0, 60),
        st.sampled_from([SpanKind.PYTHON, SpanKind.MODULE]),
    ),
    min_size=1,
    max_size=10,
)
NUMBERS = (
    "name", "count", "cpu_time_total", "self_cpu_time_total", "cpu_memory_usage", "self_cpu_memory_usage", "sequence_nr",
    "fwd_thread", "thread", "stack", "is_async", "flops",
)  # fmt: skip


def facts(events):
    """What must not change of each event: its numbers, where it is, and what is around and in it."""
    found = []
    for event in events:
        around = event.cpu_parent and (event.cpu_parent.name, event.cpu_parent.time_range)
        inside = [(child.name, child.time_range) for child in event.cpu_children]
        found.append((*(getattr(event, name) for name in NUMBERS), event.time_range, around, inside))
    return sorted(found, key=repr)


@given(traces(), calls)
def test_events_and_averages_are_the_same_as_without(trace, added):
    other = with_calls(trace, added)
    assert len(other.columns("spans")) == len(trace.columns("spans")) + len(added)
    assert facts(other.events()) == facts(trace.events())
    for options in ({}, {"group_by_stack_n": 2}):
        ours, plain = other.key_averages(**options), trace.key_averages(**options)
        assert sorted(
            (event.key, event.count, event.cpu_time_total, event.self_cpu_time_total, event.cpu_memory_usage)
            for event in ours
        ) == sorted(
            (event.key, event.count, event.cpu_time_total, event.self_cpu_time_total, event.cpu_memory_usage)
            for event in plain
        )
    assert other.events().self_cpu_time_total == trace.events().self_cpu_time_total


def test_an_operator_in_a_call_in_an_operator_is_inside_the_operator():
    builder = TraceBuilder().span("custom", 0, 100).span("aten::add", 40, 10)
    builder.allocate(45, 0x10, 64)
    builder.allocate(35, 0x20, 8)
    trace = with_calls(builder.build(), [(0, 10, 60, SpanKind.PYTHON), (0, 30, 30, SpanKind.MODULE)])
    custom, add = trace.events()
    assert [child.name for child in custom.cpu_children] == ["aten::add"]
    assert add.cpu_parent == custom
    assert custom.self_cpu_time_total == 0.09
    assert (custom.cpu_memory_usage, custom.self_cpu_memory_usage) == (72, 8)
    assert [event.count for event in trace.key_averages()] == [1, 1]
    assert "aten::add" in trace.key_averages().table()


def test_a_call_that_partly_overlaps_an_operator_takes_nothing_from_it():
    trace = TraceBuilder().span("aten::add", 40, 60).span("aten::mul", 50, 20).build()
    other = with_calls(trace, [(0, 0, 55, SpanKind.PYTHON)])
    assert (other.column("spans", "lane") > 0).any(), "the timeline itself needs a second lane"
    assert facts(other.events()) == facts(trace.events())


def test_device_work_started_by_a_call_belongs_to_the_operator_around_it():
    trace = Trace.from_columns(
        {
            "spans": {
                "thread": [0, 0, 0, 0, 1], "start_ns": [0, 10, 20, 200, 5_000],
                "duration_ns": [100, 50, 10, 10, 9_000], "name": [1, 2, 3, 3, 4], "kind": [0, 4, 9, 9, 6],
                "stream": [-1, -1, -1, -1, 0],
            },
            "threads": {"os_tid": [5, 0], "torch_tid": [1, 0]},
            "streams": {"device_type": [1], "device_index": [0], "number": [7]},
            "launches": {"host": [2], "device": [4]},
        },
        strings=["", "triton_op", "launch.py(3): run", "cudaLaunchKernel", "triton_kernel"],
    )  # fmt: skip
    operator, call, alone, kernel = trace.events()
    assert (operator.self_device_time_total, operator.device_time_total) == (9, 9)
    assert operator.kernels == [("triton_kernel", 0, 9)]
    assert (call.self_device_time_total, call.kernels, call.activity_type) == (0, [], "cuda_runtime")
    assert kernel.linked_correlation_id == operator.id
    assert alone.linked_correlation_id == 0
    assert kernel.cpu_parent is None
