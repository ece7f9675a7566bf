"""How long threads had no processor, in samples, steps and the breakdown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.analyses.findings import examine
from kinetoscope.comparison.measures import run_of
from kinetoscope.display.sentence import plain
from kinetoscope.ledger.breakdown import breakdown
from kinetoscope.ledger.parts import PARTS
from kinetoscope.model.schema import SampleState
from kinetoscope.model.time_spent import Cause
from kinetoscope.tables.processor_waits import processor_waits
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def waiting(waits_ms, *, blocked=(), step_ms=10, runtime=False, ms=MS):
    """Steps with 6 ms of an operator and 4 ms of Python, and a sample at the end of each that says how long the thread waited."""
    builder = TraceBuilder()
    stack = builder.stack(("train.py", 3, "train"))
    for step, waited_ms in enumerate(waits_ms):
        at = step * step_ms * ms
        builder.step(step, at, step_ms * ms)
        builder.span("aten::mm", at, 6 * ms, stack=stack)
        if runtime:
            builder.runtime("cudaDeviceSynchronize", at + 6 * ms, 4 * ms)
        builder.sample(
            at + step_ms * ms,
            stack,
            period_ns=step_ms * ms,
            state=SampleState.BLOCKED if step in blocked else SampleState.RUNNING,
            waited_ns=-1 if waited_ms is None else round(waited_ms * ms),
        )
    return builder


def test_the_parts_of_a_step_are_without_the_time_that_its_thread_had_no_processor():
    rows = waiting([0, 5, 9]).build().table("steps").to_pylist()
    parts = [[row[name] // 1000 for name in PARTS if any(each[name] for each in rows)] for row in rows]
    # Operators, Python, and the wait.
    assert parts == [[6000, 4000, 0], [3000, 2000, 5000], [600, 400, 9000]]


def test_steps_of_hours_are_divided_as_those_of_milliseconds_are():
    short, long = (waiting([0, 5, 9], ms=ms).build().table("steps").to_pylist() for ms in (MS, 10**6 * MS))
    for row, longer in zip(short, long, strict=True):
        assert [10**6 * row[name] for name in PARTS] == [longer[name] for name in PARTS]
        assert sum(longer[name] for name in PARTS) == longer["duration_ns"]


def test_the_breakdown_of_the_host_has_it_as_a_part():
    rows = waiting([0, 5, 9]).build().table("breakdown").to_pylist()
    assert [row["processor_wait_ns"] for row in rows] == [0, 5 * MS, 9 * MS]
    assert [row["compute_ns"] for row in rows] == [6 * MS, 3 * MS, 600_000]
    assert [row["unrecorded_ns"] for row in rows] == [row["host_wait_ns"] for row in rows]
    (whole,) = breakdown(waiting([0, 5, 9]).build(), by="trace").to_pylist()
    assert whole["processor_wait_ns"] == 14 * MS


def test_a_wait_longer_than_the_time_since_the_sample_before_began_earlier():
    """The system counts a wait when it ends."""
    trace = waiting([0, 0, 25, 0]).build()
    found = processor_waits(trace, 0)
    starts = np.arange(4) * 10 * MS
    assert found.within(starts, starts + 10 * MS).tolist() == [5 * MS, 10 * MS, 10 * MS, 0]
    assert found.within(np.array([25 * MS]), np.array([30 * MS])).tolist() == [5 * MS]


def test_a_thread_that_waits_for_a_device_or_a_lock_needs_no_processor():
    steps = waiting([0, 5], runtime=True).build().table("steps").to_pylist()
    # It ran or was ready to run for the 6 ms of the operator only.
    assert steps[1]["device_wait_ns"] == 4 * MS
    assert (steps[1]["compute_ns"], steps[1]["processor_wait_ns"]) == (MS, 5 * MS)


def test_what_was_not_recorded_is_no_wait():
    trace = waiting([None, None]).build()
    assert not processor_waits(trace, 0).known
    assert [row["processor_wait_ns"] for row in trace.table("breakdown").to_pylist()] == [0, 0]
    assert trace.table("samples").column("waited_ns").null_count == 2
    assert TraceBuilder().build().table("breakdown").num_rows == 1


@given(
    waits=st.lists(st.one_of(st.none(), st.floats(0, 60)), min_size=1, max_size=12),
    blocked=st.sets(st.integers(0, 11)),
    runtime=st.booleans(),
)
def test_parts_add_up_and_are_never_negative(waits, blocked, runtime):
    trace = waiting(waits, blocked=blocked, runtime=runtime).build()
    for row in trace.table("steps").to_pylist():
        parts = [row[name] for name in PARTS]
        assert min(parts) >= 0
        assert sum(parts) == row["duration_ns"]
    for by in ("step", "trace"):
        for row in breakdown(trace, by=by).to_pylist():
            parts = [row[name] for name in PARTS]
            assert min(parts) >= 0
            assert sum(parts) == row["duration_ns"]
            assert 0 <= row["unrecorded_ns"] <= row["host_wait_ns"]


def test_steps_that_have_no_processor_are_a_finding():
    found = {one.code: one for one in examine(waiting([9] * 12).build()).findings}
    finding = found["processor-wait"]
    assert plain(finding.finding) == (
        "The loop was ready to run but had no CPU core for 90.0 % of step time, 9 ms a step: other programs were using them"
    )
    assert finding.gain_ns is None
    assert "processor-wait" not in {one.code for one in examine(waiting([0.5] * 12).build()).findings}


@pytest.mark.parametrize(
    ("threads", "who"), [(8, "its own threads, or other programs,"), (2, "other programs")]
)
def test_more_threads_than_processors_may_be_its_own(threads, who):
    builder = waiting([9] * 12).know("cpu_count", 2).know("torch_threads", threads)
    finding = next(one for one in examine(builder.build()).findings if one.code == "processor-wait")
    assert plain(finding.finding).endswith(f": {who} were using them")
    assert ("OMP_NUM_THREADS" in finding.advice) == (threads > 2)


def test_every_door_says_the_same_of_one_wait():
    builder = waiting([5, 7, 9, 6, 8, 7] * 4, blocked={3, 7})
    for step in range(24):
        builder.span(
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            step * 10 * MS + 7 * MS,
            MS,
        )
    trace = builder.build()
    steps, report = trace.table("steps"), examine(trace)
    waits_ns = sum(steps.column("processor_wait_ns").to_pylist())
    assert waits_ns > 0
    assert sum(trace.table("breakdown").column("processor_wait_ns").to_pylist()) == waits_ns
    assert (
        sum(
            row["time_ns"]
            for row in trace.table("account").to_pylist()
            if row["cause"] == Cause.PROCESSOR.words
        )
        == waits_ns
    )
    finding = next(one for one in report.findings if one.code == "processor-wait")
    assert finding.finding["values"][1] == (round(waits_ns / 24), "ns")
    run = run_of(trace, warm_up=0)
    parts = {
        key[0]: mean
        for key, mean in zip(
            run.populations["part"].keys, run.populations["part"].means(np.full(24, 1 / 24)), strict=True
        )
    }
    assert parts[Cause.PROCESSOR.words] == pytest.approx(waits_ns / 24)
    loading_ns = sum(steps.column("data_wait_ns").to_pylist())
    assert loading_ns == 24 * MS == sum(trace.table("breakdown").column("data_wait_ns").to_pylist())
    assert parts[Cause.DATA.words] == pytest.approx(loading_ns / 24)
