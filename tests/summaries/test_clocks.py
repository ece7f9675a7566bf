"""Clocks of all ranks by their summaries: no moment is further off than its error, over any number of groups."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.combine.clocks import MOST_DRIFT
from kinetoscope.summaries.job import Job
from kinetoscope.summaries.summary import summary_of
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder

LENGTH_NS = 10**8


def rank_trace(rank, visits, groups=None, **info):
    """A rank that ran collectives: (group, its ranks, begin, end), carried out by kernels, all in one step."""
    builder = TraceBuilder()
    builder.know("rank", rank)
    builder.thread("main")
    builder.stream(7)
    builder.step(0, 0, LENGTH_NS)
    for place, (group, ranks, begin, end) in enumerate(visits):
        facts = {
            "call": "all_reduce",
            "group": group,
            "type": "Float",
            "size": len(ranks),
            "ranks": str(ranks),
        }
        facts |= {"in_elements": 64, "out_elements": 64}
        builder.runtime("cudaLaunchKernel", max(begin - 100, 0), 10, correlation=place)
        builder.kernel("ncclDevKernel_Generic(x)", begin, end - begin, correlation=place, facts=facts)
    trace = builder.build()
    trace.info.update(info)
    return trace


def job_of(traces):
    return Job(pa.concat_tables([summary_of(trace) for trace in traces]))


@st.composite
def jobs(draw):
    """Ranks with clocks of their own in rows and columns of a grid: who is in neither of the first rank's meets it over others only."""
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(2, 3))
    ranks = range(rows * columns)
    rates = [1 + draw(st.floats(-0.49 * MOST_DRIFT, 0.49 * MOST_DRIFT)) for _ in ranks]
    starts = [draw(st.integers(0, 10**7)) for _ in ranks]
    groups = [[row * columns + column for column in range(columns)] for row in range(rows)]
    groups += (
        [[row * columns + column for row in range(rows)] for column in range(columns)] if rows > 1 else []
    )
    visits = [[] for _ in ranks]
    now = 10**7 + 1_000
    for _ in range(draw(st.integers(1, 4))):
        for number, group in enumerate(groups):
            came = {rank: now + draw(st.integers(1, 10**6)) for rank in group}
            for rank in group:
                left = max(came.values()) + draw(st.integers(1, 10**5))
                begin, end = ((moment - starts[rank]) * rates[rank] for moment in (came[rank], left))
                visits[rank].append((str(number), group, int(np.floor(begin)), int(np.ceil(end))))
        now += 12 * 10**5 + draw(st.integers(0, 10**7))
    return rates, starts, visits


@settings(max_examples=examples(30), deadline=None)
@given(jobs())
def test_no_moment_of_a_rank_is_further_off_than_its_error(job):
    rates, starts, visits = job
    found = job_of(rank_trace(rank, own) for rank, own in enumerate(visits)).clocks().to_pylist()
    assert (found[0]["clock"], found[0]["offset_ns"], found[0]["error_ns"]) == ("own", 0, 0)
    for row, rate, start in zip(found, rates, starts, strict=True):
        assert row["reference"] == 0
        assert row["contradiction_ns"] == 0
        for own_ns in (0, LENGTH_NS // 3, LENGTH_NS):
            by_the_first = (own_ns / rate + start - starts[0]) * rates[0]
            assert abs(row["offset_ns"] + own_ns * (1 + row["drift"]) - by_the_first) <= row["error_ns"] + 1


def test_meetings_of_others_bound_a_clock_more_tightly_than_those_with_the_reference_alone():
    def visits(*moments):
        return [("a", [0, 1, 2], begin, end) for begin, end in moments]

    # Of each collective of all three, rank 1 is early: how late its clock may be, only its meeting with rank 2 says.
    first = rank_trace(0, visits((10_000_000, 20_000_000), (29_999_000, 30_000_000)))
    early = visits((10_000_000, 20_000_000), (20_500_000, 30_000_000))
    other = visits((19_999_000, 20_000_000), (20_500_000, 30_000_000))
    pair = [("b", [1, 2], 39_999_000, 40_000_000)]
    alone = job_of([first, rank_trace(1, early), rank_trace(2, other)])
    helped = job_of([first, rank_trace(1, early + pair), rank_trace(2, other + pair)])
    error_ns = [job.clocks()["error_ns"].to_pylist()[1] for job in (alone, helped)]
    assert error_ns[0] > 5_000_000
    assert error_ns[1] < 200_000


def test_a_rank_that_cannot_be_aligned_is_said_and_why():
    pair = [("0", [0, 1], 1_000, 9_000)]
    others = [("1", [3, 4], 1_000, 9_000)]
    found = job_of([
        rank_trace(0, pair), rank_trace(1, pair), rank_trace(2, []), rank_trace(3, others), rank_trace(4, others),
    ]).clocks().to_pylist()  # fmt: skip
    assert [row["clock"] for row in found] == ["own", "collectives", None, None, None]
    assert [row["reference"] for row in found] == [0, 0, None, None, None]
    assert [row["offset_ns"] for row in found[2:]] == [None] * 3
    assert [row["error_ns"] for row in found[2:]] == [None] * 3
    assert "no collective" in found[2]["reason"]
    assert "none of the ranks that it meets" in found[3]["reason"]


def test_ranks_of_one_machine_share_its_clock_and_barriers_tie_machines():
    def on(rank, boot, begin_ns, *marks):
        names = {f"job/{place}": [begin_ns + moment for moment in mark] for place, mark in enumerate(marks)}
        return rank_trace(rank, [], boot_id=boot, start_monotonic_ns=begin_ns, clock_marks=names)

    ends = ((1_000, 2_000), (LENGTH_NS - 2_000, LENGTH_NS - 1_000))
    traces = [on(0, "x", 5_000, *ends), on(1, "x", 8_000), on(2, "y", 77, *ends), on(3, "y", 177)]
    found = job_of(traces).clocks().to_pylist()
    assert [row["clock"] for row in found] == ["own", "monotonic", "barriers", "barriers"]
    assert found[1]["offset_ns"] == 3_000
    # Of one machine each reading may be off by a microsecond.
    assert [row["error_ns"] <= 10_000 for row in found] == [True] * 4
    assert abs(found[3]["offset_ns"] - found[2]["offset_ns"] - 100) < 1


def test_calls_that_ranks_do_not_agree_on_align_nothing():
    pair = [("0", [0, 1], 1_000, 9_000), ("0", [0, 1], 11_000, 19_000)]
    found = job_of([rank_trace(0, pair), rank_trace(1, pair[1:])]).clocks().to_pylist()
    assert [row["clock"] for row in found] == ["own", None]


def test_ranks_without_a_summary_and_ranks_of_another_time_are_named():
    def on(rank, begin_ns):
        return rank_trace(
            rank,
            [],
            boot_id="x",
            start_monotonic_ns=begin_ns,
            distributedInfo={"rank": rank, "world_size": 4},
        )

    assert job_of([on(rank, 1_000 * rank) for rank in range(4)]).notes == []
    missing, apart = job_of([on(0, 0), on(1, 1_000), on(3, 2 * LENGTH_NS)]).notes
    assert missing == "3 of 4 ranks have a summary here; without one: rank 2."
    assert apart.startswith("When rank 3 recorded, the other ranks of the machine did not")
