"""What must hold for any trace, however odd its spans."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.model.schema import SpanKind
from kinetoscope.tables.host.python_time import charged, covered_ranges, gaps
from kinetoscope.trace.tables import TABLES
from tests.support.effort import examples
from tests.support.hostile import hostile_text
from tests.support.trace_builder import TraceBuilder


@st.composite
def traces(draw, *, lost_frees=False, nested=False):
    """Any spans and allocations, nested or not, in any modules, stacks and scopes.

    Args:
        draw: Of hypothesis.
        lost_frees: Whether addresses are allocated again without a free.
        nested: Whether no span begins in another one of its thread that ends before it.
    """
    builder = TraceBuilder()
    for name in ("main", "other"):
        builder.thread(name)
    modules = [builder.module("Net"), builder.module("Linear", name="fc", parent=0), builder.module("Net")]
    stacks = [
        -1,
        builder.stack(("a.py", 1, "f")),
        builder.stack(("a.py", 1, "f"), ("a.py", 1, "f"), ("b.py", 2, "g")),
    ]
    names = [
        "f",
        "f",
        "g",
        "ProfilerStep#1",
        "Optimizer.step#SGD.step",
        "aten::is_leaf",
        "autograd::engine::evaluate_function: X",
    ]
    placed: list[tuple[int, int, int]] = []
    for _ in range(draw(st.integers(0, 14))):
        start, duration, thread = (draw(st.integers(0, most)) for most in (60, 60, 1))
        if nested and any(
            thread == other
            and (start < begin < start + duration < end or begin < start < end < start + duration)
            for begin, end, other in placed
        ):
            continue
        placed.append((start, start + duration, thread))
        builder.span(
            draw(st.one_of(st.sampled_from(names), hostile_text)),
            start,
            duration,
            thread=thread,
            scope=draw(st.sampled_from([0, 0, 1, 7])),
            sequence=draw(st.integers(-1, 3)),
            forward_thread=draw(st.integers(-1, 1)),
            module=draw(st.sampled_from([-1, *modules])),
            stack=draw(st.sampled_from(stacks)),
            is_async=draw(st.booleans()),
        )
    live: set[int] = set()
    for time_ns in sorted(draw(st.lists(st.integers(0, 120), max_size=8))):
        address, thread, size = (
            draw(st.integers(1, 3)),
            draw(st.integers(0, 1)),
            draw(st.sampled_from([0, 0, 8, 100])),
        )
        if lost_frees or size == 0 or address not in live:
            builder.allocate(time_ns, address, size, thread=thread)
            live = live | {address} if size else live - {address}
    return builder.build()


@given(traces())
def test_self_times_are_never_negative_and_add_up(trace):
    spans = trace.columns("spans")
    assert (spans["self_ns"] >= 0).all()
    roots = (spans["parent"] < 0) & (spans["lane"] == 0)
    everything = int(spans["duration_ns"][roots].sum())
    assert int(spans["self_ns"].sum()) == everything
    ops = trace.table("ops").to_pylist()
    assert sum(row["self_ns"] for row in ops) == everything
    if everything:
        assert sum(row["self_percent"] for row in ops) == pytest.approx(100)
        assert all(0 <= row["self_percent"] <= row["total_percent"] + 1e-9 <= 100 + 1e-6 for row in ops)


@given(traces())
def test_children_lie_within_their_parents(trace):
    spans = trace.columns("spans")
    start, end = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    for row, parent in enumerate(spans["parent"].tolist()):
        if parent >= 0:
            assert parent < row
            assert start[parent] <= start[row] <= end[row] <= end[parent]
            assert spans["depth"][row] == spans["depth"][parent] + 1
            assert spans["thread"][row] == spans["thread"][parent]


@given(traces())
def test_averages_agree_with_the_events_they_add_up(trace):
    events, averages = list(trace.events()), trace.key_averages()
    for name in (
        "count",
        "cpu_time_total",
        "self_cpu_time_total",
        "cpu_memory_usage",
        "self_cpu_memory_usage",
    ):
        assert sum(getattr(event, name) for event in averages) == pytest.approx(
            sum(getattr(event, name) for event in events)
        )
    for average in averages:
        same = [
            event
            for event in events
            if event.key == average.key and event.is_user_annotation == average.is_user_annotation
        ]
        assert average.count == len(same)
        if average.first is not None:
            assert average.first.time_range.start == min(event.time_range.start for event in same)
    assert all(event.self_cpu_time_total >= 0 for event in events)


# In events that partly overlap, the same bytes count in both, as in torch.
@given(traces(nested=True))
def test_the_memory_of_events_adds_up(trace):
    if len(trace.columns("allocations")):
        changed = sum(event.self_cpu_memory_usage for event in trace.events() if not event.is_async)
        assert changed == int(trace.column("allocations", "total_bytes")[-1])


@settings(max_examples=examples(25))
@given(traces())
def test_parts_of_modules_lines_and_steps_add_up(trace):
    own = trace.columns("spans")["self_ns"]
    modules = trace.table("modules").to_pylist()
    in_modules = int(own[trace.column("spans", "module") >= 0].sum())
    assert sum(row["self_ns"] for row in modules) == in_modules
    assert sum(row["total_ns"] for row in modules if row["parent"] is None) == in_modules
    for row in modules:
        assert row["forward_ns"] + row["backward_ns"] == row["total_ns"]
        assert row["self_ns"] <= row["total_ns"]
        inside = sum(other["total_ns"] for other in modules if other["parent"] == row["id"])
        assert row["self_ns"] + inside == row["total_ns"]
    # A step is time around work, and in a range is Python that has lines of its own.
    works = (trace.column("spans", "kind") != SpanKind.STEP) & ~covered_ranges(trace)
    with_stack = int(own[(trace.column("spans", "stack") >= 0) & works].sum())
    lines = trace.table("lines").to_pylist()
    assert sum(row["self_ns"] for row in lines) == with_stack
    python = int(charged(trace)[gaps(trace).shares.stack >= 0].sum())
    assert sum(row["python_self_ns"] + row["blocked_self_ns"] for row in lines) == python
    assert all(row["self_ns"] <= row["total_ns"] <= with_stack for row in lines)
    for row in trace.table("steps").to_pylist():
        assert row["forward_ns"] >= 0
        assert row["backward_ns"] >= 0
        assert row["optimizer_ns"] >= 0


@given(traces(lost_frees=True))
def test_live_memory_is_never_negative_and_holders_make_the_peak(trace):
    totals = trace.column("allocations", "total_bytes")
    assert (totals >= 0).all()
    holders = trace.table("memory").to_pylist()
    assert sum(row["bytes"] for row in holders) == int(totals.max(initial=0))


@settings(max_examples=examples(25))
@given(traces(lost_frees=True))
def test_every_table_can_be_made(trace):
    for name in TABLES:
        table = trace.table(name)
        table.validate(full=True)
        trace.to_pandas(name)
        trace.to_polars(name)
    trace.key_averages(True, 2, True).table(row_limit=-1).encode()
    trace.events().table(top_level_events_only=True).encode()
