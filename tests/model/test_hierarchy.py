"""Populations of spans: who is in them, and that their members nest as looking at each span one by one says."""

from __future__ import annotations

import numpy as np
import pytest

import kinetoscope
from kinetoscope.model.hierarchy import (
    Hierarchy,
    NestedAgain,
    asynchronous_spans,
    device_spans,
    device_work_spans,
    garbage_collections,
    host_work,
    is_outermost,
    lies_in,
    module_calls,
    operator_spans,
    recorded_calls,
    requested_calls,
)
from kinetoscope.model.kinds import is_call, is_copy, is_device_work, is_operator, is_range, is_runtime_call
from kinetoscope.model.nesting import nest
from kinetoscope.model.schema import SpanKind
from kinetoscope.trace import Trace
from tests.model.test_nesting import random_trace
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder

GROUPS = {
    is_operator: {SpanKind.OPERATOR, SpanKind.BACKWARD, SpanKind.FUSED_KERNEL},
    is_range: {SpanKind.USER_ANNOTATION, SpanKind.STEP},
    is_call: {SpanKind.PYTHON, SpanKind.MODULE},
    is_device_work: {SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET},
    is_copy: {SpanKind.MEMCPY, SpanKind.MEMSET},
    is_runtime_call: {SpanKind.RUNTIME, SpanKind.DRIVER},
}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_groups_of_kinds(group):
    kinds = np.array([*SpanKind], dtype=np.uint8)
    assert {SpanKind(kind) for kind in kinds[group(kinds)]} == GROUPS[group]


def climbed(trace: Trace, members: np.ndarray) -> list[int]:
    """The innermost member around each span, one span at a time."""
    parents = trace.column("spans", "parent").tolist()
    found = []
    for row in range(len(parents)):
        at = parents[row]
        while at >= 0 and not members[at]:
            at = parents[at]
        found.append(at)
    return found


def assert_nests(trace: Trace, population: Hierarchy, parent: list[int]) -> None:
    """Parents are those given; depths count them; what is inside is taken off the self time once."""
    rows, duration = population.rows.tolist(), trace.column("spans", "duration_ns")
    assert population.parent[rows].tolist() == [parent[row] for row in rows]
    own = {row: int(duration[row]) for row in rows}
    for row in rows:
        around, depth = parent[row], 0
        if around >= 0:
            own[around] -= int(duration[row])
        while around >= 0:
            around, depth = parent[around], depth + 1
        assert population.depth[row] == depth
    assert population.self_ns[rows].tolist() == [own[row] for row in rows]
    assert population.total_self_ns == sum(own.values())


@pytest.mark.parametrize("seed", range(10))
def test_module_calls_nest_among_themselves(seed):
    trace = random_trace(seed, calls=True)
    calls = module_calls(trace)
    assert len(calls) > 0
    assert_nests(trace, calls, climbed(trace, calls.mask))


@pytest.mark.parametrize("seed", range(10))
def test_calls_enclose_calls(seed):
    trace = random_trace(seed, calls=True)
    calls = recorded_calls(trace)
    assert_nests(trace, calls, trace.column("spans", "caller").tolist())


@pytest.mark.parametrize("seed", range(10))
def test_host_work_is_the_same_without_calls(seed):
    plain, full = host_work(random_trace(seed, calls=False)), host_work(random_trace(seed, calls=True))
    assert plain.is_everything
    assert not full.is_everything
    assert len(full) == len(plain)
    place = np.append(np.cumsum(full.mask) - 1, -1)
    np.testing.assert_array_equal(place[full.parent[full.rows]], plain.parent)
    for name in ("depth", "lane", "self_ns"):
        np.testing.assert_array_equal(getattr(full, name)[full.rows], getattr(plain, name))
    assert full.total_self_ns == plain.total_self_ns


@pytest.mark.parametrize("seed", range(10))
def test_some_spans_nest_as_if_the_others_were_not_there(seed):
    trace = random_trace(seed, calls=True)
    spans = trace.columns("spans")
    rows = np.sort(np.random.default_rng(seed).permutation(len(spans))[: len(spans) // 2])
    nesting = nest(*(spans[name][rows] for name in ("thread", "start_ns", "duration_ns")))
    again = NestedAgain(spans, rows, nesting)
    assert again.rows.tolist() == rows.tolist()
    place = np.full(len(spans) + 1, -1)
    place[rows] = np.arange(len(rows))
    assert place[again.parent[rows]].tolist() == nesting.parent.tolist()
    for name in ("depth", "lane", "self_ns"):
        assert getattr(again, name)[rows].tolist() == getattr(nesting, name).tolist()
    others = ~again.mask
    assert set(again.parent[others].tolist()) <= {-1}
    assert not again.self_ns[others].any()
    assert again.total_self_ns == int(nesting.self_ns.sum())


def test_populations_of_a_training_on_a_device():
    trace = kinetoscope.open(real_trace("a100_alexnet_small"))
    spans = trace.columns("spans")
    kinds = [SpanKind(kind) for kind in spans["kind"].tolist()]
    on_device = [stream >= 0 for stream in spans["stream"].tolist()]
    assert any(on_device)
    assert device_spans(trace).mask.tolist() == on_device
    assert device_work_spans(trace).mask.tolist() == [
        on and kind in GROUPS[is_device_work] for on, kind in zip(on_device, kinds, strict=True)
    ]
    assert operator_spans(trace).mask.tolist() == [kind in GROUPS[is_operator] for kind in kinds]
    work = [not on and kind not in GROUPS[is_call] for on, kind in zip(on_device, kinds, strict=True)]
    assert host_work(trace).mask.tolist() == work
    assert host_work(trace, with_steps=False).mask.tolist() == [
        is_work and kind != SpanKind.STEP for is_work, kind in zip(work, kinds, strict=True)
    ]


def test_asynchronous_spans():
    builder = TraceBuilder()
    builder.thread()
    builder.span("aten::add", 0, 10)
    builder.span("send", 20, 10, is_async=True)
    assert asynchronous_spans(builder.build()).rows.tolist() == [1]


def test_a_population_is_found_once():
    trace = random_trace(0, calls=True)
    for population in (
        host_work,
        operator_spans,
        recorded_calls,
        module_calls,
        device_spans,
        asynchronous_spans,
    ):
        assert population(trace) is population(trace)


def test_an_empty_trace_has_empty_populations():
    builder = TraceBuilder()
    trace = builder.build()
    for population in (
        host_work,
        operator_spans,
        recorded_calls,
        module_calls,
        device_spans,
        asynchronous_spans,
    ):
        found = population(trace)
        assert (len(found), found.rows.tolist(), found.total_self_ns) == (0, [], 0)
        assert found.depth.tolist() == []


def test_outermost_spans_lie_in_no_other_one_of_those_given():
    builder = TraceBuilder()
    _, other = builder.thread("main"), builder.thread("other")
    builder.span("a", 0, 100)
    builder.span("b", 10, 20)
    builder.span("c", 12, 18)
    builder.span("d", 100, 5)
    builder.span("e", 10, 20, thread=other)
    trace = builder.build()
    names = [trace.strings[row] for row in trace.column("spans", "name")]

    def outermost(*chosen):
        rows = np.array([row for row, name in enumerate(names) if name in chosen])
        return {names[row] for row in rows[is_outermost(trace, rows)]}

    assert outermost("a", "b", "c", "d", "e") == {"a", "d", "e"}
    assert outermost("b", "c", "e") == {"b", "e"}


@pytest.mark.parametrize("seed", range(20))
def test_some_spans_lie_in_ranges_as_all_do(seed: int) -> None:
    trace = random_trace(seed, calls=True)
    spans, random = trace.columns("spans"), np.random.default_rng(seed)
    ranges = random.choice(len(spans), size=min(5, len(spans)), replace=False)
    start, end = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    expected = [
        row in ranges
        or any(
            one < row
            and spans["thread"][one] == spans["thread"][row]
            and start[row] < end[one]
            and end[row] <= end[one]
            for one in ranges
        )
        for row in range(len(spans))
    ]
    assert lies_in(trace, ranges).tolist() == expected
    rows = random.choice(len(spans), size=len(spans) // 2)
    assert lies_in(trace, ranges, rows).tolist() == [expected[row] for row in rows]


def test_collections_of_garbage_are_calls_that_nobody_requested():
    builder = TraceBuilder()
    builder.span("step", 0, 30, kind=SpanKind.PYTHON).span("Python GC", 10, 10, kind=SpanKind.PYTHON)
    trace = builder.span("aten::mm", 40, 10).build()
    assert recorded_calls(trace).mask.tolist() == [True, True, False]
    assert garbage_collections(trace).tolist() == [False, True, False]
    assert requested_calls(trace).tolist() == [True, False, False]
