"""What is known of all steps from deep ones: shapes, operations and repeated work."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import kinetoscope
from kinetoscope.collect.sources.deep_steps import is_deep
from kinetoscope.ledger.avoidable_work.repeats import repeats_of
from kinetoscope.tables.costs.flops import counted_flops
from kinetoscope.tables.deep_steps import deep_step_count, shapes_of, twins
from tests.support.trace_builder import TraceBuilder


def trace_of_steps(steps, deep, *, flagged=True):
    """A trace of steps with these operators, each a name and a size, of which only those in `deep` have shapes."""
    builder = TraceBuilder()
    if flagged:
        builder.know("deep_steps", 1)
    row_of, at = {}, 0
    for number, operators in enumerate(steps):
        start = at
        for name, size in operators:
            row = row_of.setdefault(size, builder.shapes([[size]])) if number in deep else -1
            builder.span(name, at, 10, shapes=row)
            at += 10
        builder.step(number, start, max(at - start, 1))
        at += 1
    return builder.build()


def sizes_of(trace, shapes):
    """The size of each operator in order of time; None where it is unknown."""
    spans, dims = trace.columns("spans"), trace.column("shapes", "dims")
    rows = np.flatnonzero(spans["kind"] == 0)
    return [int(dims[row].strip("[]")) if row >= 0 else None for row in shapes[rows].tolist()]


def test_equal_steps_have_the_shapes_of_the_nearest_deep_one():
    steps = [[("a", 1 + number), ("b", 10 + number)] for number in range(6)]
    trace = trace_of_steps(steps, deep={1, 4})
    assert sizes_of(trace, shapes_of(trace)) == [2, 11, 2, 11, 2, 11, 2, 11, 5, 14, 5, 14]
    assert deep_step_count(trace) == 2


def test_calls_of_an_unequal_step_are_found_by_their_place_among_the_same():
    steps = [[("a", 1), ("a", 2), ("b", 3)], [("b", 0), ("a", 0), ("a", 0), ("a", 0), ("c", 0)]]
    trace = trace_of_steps(steps, deep={0})
    # The third call has no counterpart, and the nearest is the last of the deep step.
    assert sizes_of(trace, shapes_of(trace)) == [1, 2, 3, 3, 1, 2, 2, None]


def test_shapes_that_were_recorded_stay():
    trace = trace_of_steps([[("a", 1)], [("a", 2)]], deep={0, 1})
    assert sizes_of(trace, shapes_of(trace)) == [1, 2]
    assert (twins(trace) < 0).all()


def test_without_the_option_nothing_is_estimated():
    trace = trace_of_steps([[("a", 1)], [("a", 2)]], deep={0}, flagged=False)
    assert sizes_of(trace, shapes_of(trace)) == [1, None]
    assert deep_step_count(trace) is None


def test_a_trace_without_deep_steps_has_no_shapes():
    trace = trace_of_steps([[("a", 1)], [("a", 2)]], deep=set())
    assert (shapes_of(trace) < 0).all()
    assert deep_step_count(trace) == 0


def test_what_stays_between_steps_is_known_from_pairs_of_deep_steps():
    steps = [[("a", number), ("b", number)] for number in range(8)]
    trace = trace_of_steps(steps, deep={1, 2, 5})
    spans = trace.columns("spans")
    rows = np.flatnonzero(spans["kind"] == 0)
    step = spans["step"][rows]
    twin = twins(trace, in_pairs=True)[rows]
    assert step[twin >= 0].tolist() == [0, 0, 1, 1, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    assert set(spans["step"][twin[twin >= 0]].tolist()) == {2}


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), max_size=6), min_size=1, max_size=8
    ),
    st.sets(st.integers(0, 7)),
)
def test_an_estimate_is_of_the_same_operator_in_a_deep_step(steps, deep):
    trace = trace_of_steps(steps, deep)
    spans, twin = trace.columns("spans"), twins(trace)
    rows = np.flatnonzero(twin >= 0)
    assert (spans["shapes"][rows] < 0).all()
    assert (spans["name"][rows] == spans["name"][twin[rows]]).all()
    assert (spans["shapes"][twin[rows]] >= 0).all()
    recorded = {name for number in deep if number < len(steps) for name, _ in steps[number]}
    operators = np.flatnonzero(spans["kind"] == 0)
    for row in operators[shapes_of(trace)[operators] < 0].tolist():
        assert trace.strings[spans["name"][row]] not in recorded


def program(prof):
    """Steps that compute something twice, and something that never changes."""
    torch.manual_seed(0)
    model, fixed = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(13):
        x = torch.randn(4, 8)
        optimizer.zero_grad()
        fixed.exp()
        model(x)
        model(x).sum().backward()
        optimizer.step()
        prof.step()


@pytest.fixture(scope="module")
def recorded_both():
    """The traces of the same program, recorded in full and with deep steps."""
    traces = []
    for options in ({"record_shapes": True, "tensor_versions": True}, {"deep_steps": True}):
        schedule = kinetoscope.schedule(wait=0, warmup=1, active=12, repeat=1)
        with kinetoscope.profile(schedule=schedule, with_stack=True, **options) as prof:
            program(prof)
        traces.append(prof.trace)
    return traces


def test_operations_of_a_program_are_those_of_a_full_recording(recorded_both):
    full, deep = recorded_both
    assert deep_step_count(deep) == sum(map(is_deep, range(12))) < 12
    assert counted_flops(deep).flops == counted_flops(full).flops > 0
    assert counted_flops(deep).covered_percent == counted_flops(full).covered_percent


def test_repeated_work_of_a_program_is_that_of_a_full_recording(recorded_both):
    counts = []
    for trace in recorded_both:
        name, repeats = trace.column("spans", "name"), repeats_of(trace)
        # What the first recorded step repeats of the one before is in no recording of the first step in full.
        step = np.append(trace.column("spans", "step"), -1)
        counts.append(
            [
                sorted(
                    (trace.strings[name[row]], int(step[row]))
                    for row in np.flatnonzero(rows >= 0)
                    if step[row] > 0
                )
                for rows in (repeats.same_step, repeats.earlier_step, repeats.overwritten_by)
            ]
        )
    assert counts[0] == counts[1]
    assert counts[0][0]
    assert counts[0][1]
