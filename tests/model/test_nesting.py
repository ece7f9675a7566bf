"""Calls among the spans: they nest in everything, and leave every number of everything else as it was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from kinetoscope.model.hierarchy import recorded_calls
from kinetoscope.model.kinds import is_call
from kinetoscope.model.schema import SCOPE_MODULE, SCOPE_PYTHON, STORED, SpanKind
from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder


def random_trace(seed: int, *, calls: bool) -> Trace:
    """Operators, backward functions, ranges and memory; with `calls` the same inside and around calls."""
    chance = random.Random(seed)
    builder = TraceBuilder()
    builder.thread()
    builder.thread("worker")
    modules = [builder.module("Net")]
    modules += [builder.module("Linear", name=f"fc{number}", parent=modules[0]) for number in range(2)]
    stacks = [builder.stack(("train.py", line, "train")) for line in range(3)]
    alone = builder.stack(("train.py", 1, "called"))
    sequence = 0

    def call(start: int, duration: int, thread: int) -> None:
        # Drawn in any case, so that both traces hold the same operators.
        scope = chance.choice((SCOPE_PYTHON, SCOPE_MODULE))
        own = chance.choice((-1, *modules))
        # Names of operators too: what a call is follows from its scope alone.
        called = chance.choice(("called", "aten::add", "MulBackward0"))
        if calls:
            builder.span(called, start, duration, scope=scope, thread=thread, module=own, stack=alone)

    def fill(start: int, end: int, depth: int, thread: int) -> None:
        nonlocal sequence
        while end - start > 40 and chance.random() < 0.85:
            first = start + chance.randrange(1, 10)
            last = min(end - 1, first + chance.randrange(30, 400))
            if last - first < 20:
                return
            more: dict[str, Any] = {"thread": thread, "stack": chance.choice(stacks)}
            sort = chance.random()
            if sort < 0.3:
                call(first, last - first, thread)
            elif sort < 0.45:
                builder.backward("MulBackward0", first + 1, last - first - 2, sequence=sequence, **more)
            elif sort < 0.55:
                builder.annotation("range", first, last - first, **more)
                # As record_function() is entered from Python: the call ends after the range has begun.
                call(first - 1, 5, thread)
            else:
                sequence += 1
                builder.span(
                    chance.choice(("aten::add", "aten::mul")), first, last - first,
                    sequence=sequence, module=chance.choice((-1, *modules)), **more,
                )  # fmt: skip
            address = 4096 * chance.randrange(1, 9)
            if chance.random() < 0.5:
                events.append((first + 6, address, chance.randrange(2) * 64, thread))
            if depth < 6:
                fill(first + 6, last - 6, depth + 1, thread)
            start = last + 1

    events: list[tuple[int, int, int, int]] = []
    builder.step(0, 0, 2500)
    builder.step(1, 2500, 2500)
    for thread in (0, 1):
        call(0, 5000, thread)
        fill(10, 4990, 0, thread)
    for time_ns, address, size_bytes, thread in sorted(events):
        builder.allocate(time_ns, address, size_bytes, thread=thread)
    builder.info["profile_memory"] = "true"
    return builder.build()


@pytest.mark.parametrize("seed", range(30))
def test_calls_change_nothing_of_what_is_no_call(seed: int) -> None:
    plain, full = random_trace(seed, calls=False), random_trace(seed, calls=True)
    marked = recorded_calls(full).mask
    assert marked.any()
    assert len(recorded_calls(plain)) == 0
    work = np.flatnonzero(~marked)
    moved = np.append(np.cumsum(~marked) - 1, -1)
    rows_of_spans = {"parent", "forward"}
    for column in STORED["spans"].column_names:
        if column == "caller":
            continue
        mine, theirs = full.column("spans", column)[work], plain.column("spans", column)
        if column in rows_of_spans:
            assert not marked[mine[mine >= 0]].any(), column
            mine = moved[mine]
        if column not in {"name", "overload"}:  # rows of two tables of strings
            np.testing.assert_array_equal(mine, theirs, err_msg=column)
    blocks = full.columns("allocations"), plain.columns("allocations")
    np.testing.assert_array_equal(moved[blocks[0]["span"]], blocks[1]["span"])
    np.testing.assert_array_equal(blocks[0]["total_bytes"], blocks[1]["total_bytes"])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("table", ["ops", "modules", "lines", "stacks", "steps", "memory"])
def test_tables_are_the_same_with_calls(seed: int, table: str) -> None:
    plain, full = random_trace(seed, calls=False).table(table), random_trace(seed, calls=True).table(table)
    # Calls say whose Python it is, which operators alone only suggest.
    of_calls = {
        "modules": ["calls", "call_ns", "call_self_ns", "python_self_ns", "python_ns", "span"],
        "lines": ["python_self_ns", "python_ns"],
        "stacks": ["python_self_ns", "python_ns"],
        "steps": ["span", "largest_gap_ns", "largest_gap_file", "largest_gap_line"],
    }.get(table, [])
    plain, full = plain.drop_columns(of_calls), full.drop_columns(of_calls)
    if table == "lines":
        plain, full = (one.filter(pc.greater(one["total_ns"], 0)) for one in (plain, full))
    if table == "stacks":
        # The stacks of the calls themselves are there too, and nothing ran with them.
        assert set(full["count"].to_pylist()[plain.num_rows :]) <= {0}
        full = full.slice(0, plain.num_rows)
    # Steps are in order; their names are a dictionary, which Arrow does not sort by.
    key = [name for name in ("id", "name", "line") if name in plain.column_names and table != "steps"]
    order = [(name, "ascending") for name in key]
    if order:
        plain, full = plain.sort_by(order), full.sort_by(order)
    assert full.to_pylist() == plain.to_pylist()


@pytest.mark.parametrize("seed", range(10))
def test_events_are_the_same_with_calls(seed: int) -> None:
    plain, full = random_trace(seed, calls=False), random_trace(seed, calls=True)
    for by_shape, by_stack in ((False, 0), (True, 2)):
        assert full.key_averages(by_shape, by_stack).table() == plain.key_averages(by_shape, by_stack).table()
    mine, theirs = full.events(), plain.events()
    assert len(mine) == len(theirs)
    for event, other in zip(mine, theirs, strict=True):
        assert (event.name, event.self_cpu_time_total) == (other.name, other.self_cpu_time_total)
        around, other_around = event.cpu_parent, other.cpu_parent
        assert (around is None) == (other_around is None)
        assert around is None or around.name == other_around.name  # type: ignore[union-attr]
        assert len(event.cpu_children) == len(other.cpu_children)


@pytest.mark.parametrize("seed", range(10))
def test_calls_nest_in_everything(seed: int) -> None:
    trace = random_trace(seed, calls=True)
    spans = trace.columns("spans")
    start, end = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    marked = is_call(spans["kind"])
    for row in np.flatnonzero(marked).tolist():
        parent = int(spans["parent"][row])
        if parent >= 0:
            assert start[parent] <= start[row]
            assert end[row] <= end[parent]
            assert spans["depth"][row] == spans["depth"][parent] + 1
        else:
            assert spans["depth"][row] == 0
        assert 0 <= spans["self_ns"][row] <= spans["duration_ns"][row]


def test_the_self_time_of_a_call_is_what_nothing_inside_took() -> None:
    builder = TraceBuilder()
    builder.thread()
    builder.span("outer", 0, 100, scope=SCOPE_PYTHON)
    builder.span("aten::add", 10, 20)
    builder.span("inner", 40, 30, scope=SCOPE_PYTHON)
    builder.span("aten::mul", 45, 10)
    trace = builder.build()
    spans = trace.columns("spans")
    own = {trace.strings[text]: ns for text, ns in zip(spans["name"], spans["self_ns"], strict=True)}
    assert own == {"outer": 50, "aten::add": 20, "inner": 20, "aten::mul": 10}


def test_kinds_of_calls() -> None:
    builder = TraceBuilder()
    builder.thread()
    builder.span("f", 0, 10, scope=SCOPE_PYTHON).span("Linear", 1, 5, scope=SCOPE_MODULE)
    assert builder.build().column("spans", "kind").tolist() == [SpanKind.PYTHON, SpanKind.MODULE]


@pytest.mark.parametrize("seed", range(20))
def test_lanes_nest_exactly(seed: int) -> None:
    trace = random_trace(seed, calls=True)
    spans = trace.columns("spans")
    start, end, lane = spans["start_ns"], spans["start_ns"] + spans["duration_ns"], spans["lane"]
    for thread in (0, 1):
        for number in range(int(lane.max()) + 1):
            open_ends: list[int] = []
            for row in np.flatnonzero((spans["thread"] == thread) & (lane == number)).tolist():
                while open_ends and open_ends[-1] <= start[row]:
                    open_ends.pop()
                assert not open_ends or (number == 0 and end[row] <= open_ends[-1])
                open_ends.append(int(end[row]))


def test_the_call_that_enters_a_range_stands_beside() -> None:
    builder = TraceBuilder()
    builder.thread()
    builder.span("outer", 0, 100, scope=SCOPE_PYTHON)
    builder.span("__enter__", 5, 10, scope=SCOPE_PYTHON).span("enter", 8, 4, scope=SCOPE_PYTHON)
    builder.annotation("range", 10, 50)
    builder.span("aten::add", 20, 10)
    builder.span("__exit__", 55, 10, scope=SCOPE_PYTHON)
    trace = builder.build()
    spans = trace.columns("spans")
    seen = {
        trace.strings[name]: (int(lane), trace.strings[spans["name"][parent]] if parent >= 0 else None)
        for name, lane, parent in zip(spans["name"], spans["lane"], spans["parent"], strict=True)
    }
    assert seen == {
        "outer": (0, None), "__enter__": (1, None), "enter": (2, None), "range": (0, None),
        "aten::add": (0, "range"), "__exit__": (1, None),
    }  # fmt: skip


def test_the_caller_of_a_span_is_found_through_what_lies_between() -> None:
    builder = TraceBuilder()
    builder.thread()
    builder.span("outer", 0, 100, scope=SCOPE_PYTHON)
    builder.span("custom", 10, 80).span("backward", 20, 60, scope=SCOPE_PYTHON).span("aten::mul", 30, 10)
    builder.span("aten::add", 95, 2)
    trace = builder.build()
    spans = trace.columns("spans")
    caller = {
        trace.strings[name]: trace.strings[spans["name"][row]] if row >= 0 else None
        for name, row in zip(spans["name"], spans["caller"], strict=True)
    }
    assert caller == {
        "outer": None, "custom": "outer", "backward": "outer", "aten::mul": "backward", "aten::add": "outer"
    }  # fmt: skip
    plain = TraceBuilder()
    plain.thread()
    plain.span("custom", 10, 80).span("aten::mul", 30, 10)
    assert plain.build().column("spans", "caller").tolist() == [-1, -1]
