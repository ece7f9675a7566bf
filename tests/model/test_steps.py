"""Steps: marked, or found from the optimizer."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.model.columns import Columns
from kinetoscope.model.schema import STORED
from kinetoscope.model.steps import step_at, steps_counted_from, steps_of_ring
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


@pytest.mark.parametrize(("after_ns", "step_count"), [(400_000_000, 3), (900_000_000, 3), (1_200_000_000, 0)])
def test_a_program_that_runs_longer_after_its_steps_than_in_them_has_none(after_ns, step_count):
    builder = TraceBuilder()
    for number in range(3):
        builder.annotation("Optimizer.step#SGD.step", 500_000_000 * number, 1000)
    trace = builder.span("aten::topk", 1_000_001_000, after_ns).build()
    assert len(steps(trace)) == step_count
    assert trace.column("spans", "step")[-1] == -1


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


def ring(*ends, source=1):
    """Steps as they are found in what a ring has left, each 10 long, and their ranges, the rows 100, 101 ..."""
    return {
        "number": np.arange(len(ends)),
        "start_ns": np.array([0, *ends], dtype=np.int64)[: len(ends)],
        "duration_ns": np.diff(np.array([0, *ends])),
        "span": np.arange(100, 100 + len(ends), dtype=np.int32),
        "source": np.full(len(ends), source, dtype=np.uint8),
        "process_row": np.full(len(ends), -1, dtype=np.int32),
    }


def columns_of(given):
    return Columns(STORED["steps"], len(given["number"]), given, threading.RLock())


def test_what_a_ring_has_left_begins_with_its_first_whole_step():
    found = steps_of_ring(columns_of(ring(500, 510, 520)), np.arange(90, 110), np.arange(1_000, 1_020))
    assert found["number"].tolist() == [1_011, 1_012]
    assert found["start_ns"].tolist() == [500, 510]
    assert found["span"].tolist() == [101, 102]


def test_steps_of_which_each_has_several_ranges_are_counted_once():
    found = steps_of_ring(columns_of(ring(500, 510, 520)), np.arange(100, 103), np.array([11, 14, 17]))
    assert found["number"].tolist() == [4, 5]


def test_marks_in_what_a_ring_has_left_stay_as_they_are():
    none = np.zeros(0, dtype=np.int64)
    assert steps_of_ring(columns_of(ring(500, 510, source=0)), none, none) is None
    assert steps_of_ring(columns_of(ring()), none, none) is None


def test_ranges_of_earlier_releases_have_no_number():
    none = np.zeros(0, dtype=np.int64)
    found = steps_of_ring(columns_of(ring(500, 510, 520)), none, none)
    assert found["number"].tolist() == [1, 2]
    assert found["start_ns"].tolist() == [500, 510]


def test_steps_of_a_recording_that_began_later_count_from_there():
    found = steps_counted_from(columns_of(ring(10, 20, 30)), 7)
    assert found["number"].tolist() == [7, 8, 9]
    assert found["start_ns"].tolist() == [0, 10, 20]
    assert steps_counted_from(columns_of(found), 7) is None
    assert steps_counted_from(columns_of(ring(10, 20)), 0) is None
    assert steps_counted_from(columns_of(ring(10, 20, source=0)), 7) is None
    left = steps_of_ring(columns_of(ring(500, 510)), np.arange(100, 102), np.arange(40, 42), 7)
    assert left["number"].tolist() == [48]


@pytest.mark.parametrize(("importing", "step_count"), [(False, 0), (True, 3)])
def test_a_program_that_prepares_data_for_far_longer_than_its_steps_has_none(importing, step_count):
    builder = TraceBuilder()
    frames = [("prepare.py", 3, "<module>")]
    frames += [("<frozen importlib._bootstrap>", 1, "_find_and_load")] * importing
    stack = builder.stack(*frames, ("re.py", 9, "sub"))
    for moment in range(200):
        builder.sample(10_000_000 * moment, stack, period_ns=10_000_000)
    for number in range(3):
        builder.annotation("Optimizer.step#SGD.step", 2_000_000_000 + 1_000_000 * number, 1000)
    assert len(steps(builder.build())) == step_count
