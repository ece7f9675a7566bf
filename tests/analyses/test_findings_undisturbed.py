"""Steps that other programs stop at any place have the times of steps that nothing stops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.analyses.findings import examine
from kinetoscope.model.schema import SampleState
from tests.support.trace_builder import TraceBuilder
from tests.support.undisturbed import undisturbed

PARTS_NS = (4_000, 300_000, 20_000, 1_000_000, 50_000, 700_000, 9_000)
STEPS = 12


def loop(pauses):
    """A loop whose parts take a while longer, by the number of the step and of the part.

    A step is: Python; a linear layer with a product in it, between two parts of its own; Python with a sample; a backward function; Python.
    """
    builder = TraceBuilder()
    builder.thread("main")
    other = builder.thread("other")
    model = builder.stack(("train.py", 3, "train"))
    loss = builder.stack(("train.py", 4, "train"))
    now = 1_000
    for step in range(STEPS):
        taken = [part + pauses.get((step, number), 0) for number, part in enumerate(PARTS_NS)]
        at = (now + np.cumsum([0, *taken])).tolist()
        builder.step(step, now, sum(taken))
        builder.span("aten::linear", at[1], at[4] - at[1], stack=model)
        builder.span("aten::addmm", at[2], at[3] - at[2], stack=model)
        builder.span("MmBackward0", at[5], at[6] - at[5], stack=loss, thread=0, scope=1)
        builder.sample(at[5], loss, period_ns=at[5] - at[4], waited_ns=pauses.get((step, 4), 0))
        builder.sample(at[3], model, period_ns=at[3] - at[2], thread=other, state=SampleState.BLOCKED)
        builder.span("aten::copy_", at[2], at[4] - at[2], thread=other)
        builder.allocate(at[2], 64 + step, 4096)
        builder.free(at[3], 64 + step)
        builder.counter("memory", at[3], 7.0)
        now = at[-1]
    return builder.build()


def all_columns(trace):
    return {
        (table, column): list(trace.column(table, column))
        for table in ("spans", "samples", "allocations", "counters", "steps")
        for column in trace.columns(table)
    }


@given(st.data())
def test_pauses_at_any_place_leave_no_trace(data):
    # In each part at least a third of the steps are left alone.
    pauses = {
        (step, part): data.draw(st.integers(1, 80_000_000))
        for part in range(len(PARTS_NS))
        for step in data.draw(st.sets(st.integers(0, STEPS - 1), max_size=STEPS - 4))
    }
    assert all_columns(undisturbed(loop(pauses))) == all_columns(loop({}))


def test_without_pauses_nothing_changes():
    assert all_columns(undisturbed(loop({}))) == all_columns(loop({}))


def test_what_runs_once_takes_as_long_as_it_did():
    builder = TraceBuilder()
    for step in range(8):
        at = step * 1_000_000
        builder.step(step, at, 1_000_000).span("aten::mm", at + 100, 900 + step)
        if step == 5:
            builder.span("aten::svd", at + 500_000, 400_000)
    trace = undisturbed(builder.build())
    durations = trace.table("spans").to_pylist()
    (svd,) = [row["duration_ns"] for row in durations if row["name"] == "aten::svd"]
    assert svd == 400_000
    # A step that does something else is no measure of the others, nor are they of it.
    assert {row["duration_ns"] for row in durations if row["name"] == "aten::mm"} == {900}


def test_each_byte_of_a_tensor_that_grows_takes_as_long_as_in_the_fastest_step():
    builder, at = TraceBuilder(), 0
    for step in range(10):
        size = 1_000 * (step + 1)
        takes = 2 * size + (50_000 if step in (1, 2, 6) else 0)
        builder.step(step, at, takes + 100).span("aten::cat", at + 50, takes)
        builder.allocate(at + 60, step + 1, size)
        at += takes + 100
    rows = undisturbed(builder.build()).table("spans").to_pylist()
    assert [row["duration_ns"] for row in rows if row["name"] == "aten::cat"] == [
        2_000 * (step + 1) for step in range(10)
    ]


def test_steps_that_other_programs_stop_have_the_findings_of_those_that_nothing_stops():
    def python_bound(paused):
        builder = TraceBuilder()
        stack, at = builder.stack(("train.py", 3, "train")), 0
        for step in range(8):
            # Other programs stop the operator, so that Python seems to take less of the step.
            taken = 2_000_000 + (300_000_000 if paused and step % 4 else 0)
            builder.step(step, at, taken + 8_000_000).span("aten::mm", at, taken, stack=stack)
            builder.sample(at + taken, stack, period_ns=taken, waited_ns=taken - 2_000_000)
            at += taken + 8_000_000
        return builder.build()

    expected = [(one.code, one.share_percent) for one in examine(python_bound(False)).findings]
    assert [code for code, _ in expected] == ["python-bound"]
    # It is found all the same: shares are of the time that had a core, which a step loses evenly.
    first, second = examine(python_bound(True)).findings
    assert (first.code, second.code, second.gain_ns) == ("python-bound", "processor-wait", None)
    found = [(one.code, one.share_percent) for one in examine(undisturbed(python_bound(True))).findings]
    assert found == [(code, pytest.approx(share)) for code, share in expected]


def test_a_loop_without_marked_steps_is_refused():
    with pytest.raises(AssertionError, match="without marked steps"):
        undisturbed(TraceBuilder().span("aten::mm", 0, 10).build())
