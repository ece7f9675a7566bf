"""What steps would take if no rank were late: a replay of the collectives, against a simulation of the job."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kinetoscope._core as _core
from kinetoscope.summaries.job import Job
from kinetoscope.summaries.lateness import without_lateness
from kinetoscope.summaries.sections import Sections
from kinetoscope.summaries.summary import summary_of
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder

RANKS = 4
# Everybody, and two pairs that meet in between; what a transfer takes.
ORDER = [([0, 1, 2, 3], 50_000), ([0, 1], 20_000), ([2, 3], 30_000)]
TAIL_NS = 10_000


def simulated(own):
    """Run a job: for each rank its steps, and its collectives as (group, begin, end). `own[step][collective][rank]` is before each."""
    now = [0] * RANKS
    steps = [[] for _ in now]
    visits = [[] for _ in now]
    for times in own:
        begin = list(now)
        for place, (group, transfer_ns) in enumerate(ORDER):
            for rank in group:
                now[rank] += times[place][rank]
            end = max(now[rank] for rank in group) + transfer_ns
            for rank in group:
                visits[rank].append((place, now[rank], end))
                now[rank] = end
        now = [one + TAIL_NS for one in now]
        for rank in range(RANKS):
            steps[rank].append((begin[rank], now[rank]))
    return steps, visits


def sections_of(own, call="all_reduce"):
    """The summaries of a simulated job, by its traces; `call` is what all its collectives are."""
    summaries = []
    for rank, (steps, visits) in enumerate(zip(*simulated(own), strict=True)):
        builder = TraceBuilder()
        builder.know("rank", rank)
        builder.thread("main")
        builder.stream(7)
        for number, (begin, end) in enumerate(steps):
            builder.step(number, begin, end - begin)
        for place, (group, begin, end) in enumerate(visits):
            ranks = ORDER[group][0]
            facts = {
                "call": call,
                "group": str(group),
                "type": "Float",
                "size": len(ranks),
                "ranks": str(ranks),
            }
            facts |= {"in_elements": 64, "out_elements": 64}
            builder.runtime("cudaLaunchKernel", begin, 10, correlation=place)
            builder.kernel("ncclDevKernel_Generic(x)", begin, end - begin, correlation=place, facts=facts)
        summaries.append(summary_of(builder.build()))
    return Sections(summaries)


TIMES = st.lists(
    st.lists(st.lists(st.integers(1_000, 10**6), min_size=RANKS, max_size=RANKS), min_size=3, max_size=3),
    min_size=2,
    max_size=4,
)


# Both wait for the last rank.
CALLS = st.sampled_from(["all_reduce", "all_to_all"])


@settings(max_examples=examples(20), deadline=None)
@given(TIMES, CALLS)
def test_a_replay_with_the_recorded_times_takes_as_long_as_the_recording(own, call):
    row, *_ = Job(sections_of(own, call)).without_lateness().to_pylist()
    assert row["replayed_ns"] == pytest.approx(row["step_ns"], abs=1)
    assert row["without_ns"] <= row["replayed_ns"]


@settings(max_examples=examples(20), deadline=None)
@given(TIMES, CALLS, st.integers(0, RANKS - 1))
def test_one_late_rank_less_is_what_a_job_without_it_takes(own, call, late):
    even = [[[min(place)] * RANKS for place in step] for step in own]
    delayed = [[list(place) for place in step] for step in even]
    for step in delayed:
        for place in step:
            place[late] += 700_000
    rows = without_lateness(sections_of(delayed, call), [late]).to_pylist()
    steps, _ = simulated(even)
    expected_ns = int(np.median([(own[-1][1] - own[0][0]) / len(even) for own in steps]))
    assert [row["rank"] for row in rows] == [None, late]
    # Of a pair the median is the one that is not late; of everybody, too.
    for row in rows:
        assert row["without_ns"] == pytest.approx(expected_ns, abs=1)


def test_whoever_waits_for_a_straggler_in_one_group_is_none_in_the_next():
    own = [[[100_000, 100_000 + step, 800_000 + step, 100_000]] * 3 for step in range(8)]
    job = Job(sections_of(own))
    # Rank 3 arrives late with everybody, because it waits for rank 2 in their own group.
    assert job.ranks()["late_ns"].to_pylist()[3] > 500_000
    assert [row["rank"] for row in job.stragglers().to_pylist()] == [2]


def test_without_collectives_there_is_nothing_to_replay():
    builder = TraceBuilder()
    builder.step(0, 0, 100)
    builder.know("rank", 0)
    job = Job(summary_of(builder.build()))
    assert job.without_lateness().num_rows == 0
    assert job.report.findings == ()


def test_columns_that_do_not_fit_together_are_refused():
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    for columns in (
        (one, two, one, two, one),
        (one, one - 2, one, two, one),
        (one + 1, one - 1, one, two, one),
    ):
        with pytest.raises(ValueError, match="replay_collectives"):
            _core.replay_collectives(*columns)
    waiting = _core.replay_collectives(one, one, one, np.array([0, 1]), one)
    assert waiting.tolist() == [-1], "a collective that waits for itself never ends"
