"""Steps: marked, or found from the optimizer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.model.steps import step_at
from tests.support.trace_builder import TraceBuilder


def steps(trace):
    columns = trace.columns("steps")
    return [
        (number, start, duration)
        for number, start, duration in zip(
            columns["number"].tolist(),
            columns["start_ns"].tolist(),
            columns["duration_ns"].tolist(),
            strict=True,
        )
    ]


def test_marked_steps_have_their_own_numbers():
    trace = (
        TraceBuilder().step(7, 0, 10).span("aten::add", 2, 3).step(8, 20, 10).span("aten::mul", 15, 2).build()
    )
    assert steps(trace) == [(7, 0, 10), (8, 20, 10)]
    assert trace.column("spans", "step").tolist() == [0, 0, -1, 1]
    assert trace.column("steps", "source").tolist() == [0, 0]


def test_a_step_holds_what_other_threads_do_in_the_meantime():
    builder = TraceBuilder()
    main, other = builder.thread("main"), builder.thread("other")
    trace = (
        builder.step(0, 0, 10, thread=main)
        .span("aten::add", 5, 50, thread=other)
        .span("x", 30, 1, thread=other)
        .build()
    )
    assert trace.column("spans", "step").tolist() == [0, 0, -1]


def test_without_marks_the_optimizer_ends_a_step():
    builder = TraceBuilder()
    for at in (50, 150, 250):
        builder.annotation("Optimizer.step#AdamW.step", at, 20).span("aten::add_", at + 5, 3)
    builder.annotation("Optimizer.step#SGD.step", 100, 5)
    trace = builder.span("aten::linear", 10, 3).span("aten::late", 300, 5).build()
    assert steps(trace) == [(0, 0, 70), (1, 70, 100), (2, 170, 100)]
    assert trace.column("steps", "source").tolist() == [1, 1, 1]
    names = [trace.strings[name] for name in trace.column("spans", "name").tolist()]
    of = dict(zip(names, trace.column("spans", "step").tolist(), strict=True))
    assert of["aten::linear"] == 0
    assert of["Optimizer.step#SGD.step"] == 1
    assert of["aten::late"] == -1


def taking_turns(lines):
    """A range of an optimizer, entered from each of some lines after the other."""
    builder = TraceBuilder()
    for number, line in enumerate(lines):
        builder.annotation(
            "Optimizer.step#Adam.step", 100 * number, 20, stack=builder.stack(("gan.py", line, "train"))
        )
    return builder.build()


def test_optimizers_that_take_turns_end_one_step_together():
    assert steps(taking_turns([7, 9] * 3)) == [(0, 0, 120), (1, 120, 200), (2, 320, 200)]
    # The last turn is not over.
    assert [number for number, _, _ in steps(taking_turns([7, 9, 12] * 3 + [7]))] == [0, 1, 2]


@pytest.mark.parametrize(
    "lines", [[7] * 3 + [9] * 3, [7, 9, 9, 9, 9, 9], [7, 9, 7, 9], [7, 9, 7, 9, 7, 9, 9]]
)
def test_other_optimizer_steps_are_steps_of_their_own(lines):
    assert len(steps(taking_turns(lines))) == len(lines)


def test_a_mark_without_a_number_is_numbered_by_its_place():
    trace = TraceBuilder().annotation("ProfilerStep#", 0, 5).annotation("ProfilerStep#²", 10, 5).build()
    assert [number for number, _, _ in steps(trace)] == [0, 1]


def test_nothing_marked_means_no_steps():
    trace = TraceBuilder().span("aten::add", 0, 5).build()
    assert steps(trace) == []
    assert trace.column("spans", "step").tolist() == [-1]
    assert steps(TraceBuilder().build()) == []


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=8),
    st.lists(st.integers(-5, 200), max_size=30),
)
def test_step_at_finds_the_step_around_a_time(gaps, times):
    starts, durations, now = [], [], 0
    for gap, duration in gaps:
        starts.append(now + gap)
        durations.append(duration)
        now += gap + duration
    expected = [
        next((row for row, start in enumerate(starts) if start <= time < start + durations[row]), -1)
        for time in times
    ]
    found = step_at(np.array(times, np.int64), np.array(starts, np.int64), np.array(durations, np.int64))
    assert found.tolist() == expected


def test_a_step_that_a_device_shows_again_is_no_step():
    builder = TraceBuilder()
    builder.thread()
    builder.step(4, 0, 100).device_annotation("ProfilerStep#4", 20, 110)
    assert builder.build().table("steps")["number"].to_pylist() == [4]
