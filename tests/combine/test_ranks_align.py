"""Where traces of several machines are put: no moment further off than is told, whoever met whom."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.combine.clocks import MOST_DRIFT
from kinetoscope.combine.ranks import aligned
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder

MOMENT = st.integers(0, 10**9)


@st.composite
def jobs(draw):
    """Machines with clocks of their own, and barriers at which some of them were.

    What a trace is asked for is the true time of its moments: `true = (own - zero) / rate`.
    """
    count = draw(st.integers(2, 4))
    # The difference of any two stays within what is taken for possible, seen from either.
    rates = [1 + draw(st.floats(-0.49 * MOST_DRIFT, 0.49 * MOST_DRIFT)) for _ in range(count)]
    zeros = [draw(st.integers(-(10**9), 10**9)) for _ in range(count)]
    marks: list[dict] = [{} for _ in range(count)]
    for number in range(draw(st.integers(1, 6))):
        there = draw(st.sets(st.integers(0, count - 1), min_size=2))
        came = {rank: draw(MOMENT) for rank in there}
        # Nobody leaves before all have come.
        left = {rank: max(came.values()) + draw(st.integers(0, 10**6)) for rank in there}
        for rank in there:
            marks[rank][f"job/{number}"] = [
                int(np.floor(zeros[rank] + rates[rank] * came[rank])),
                int(np.ceil(zeros[rank] + rates[rank] * left[rank])),
            ]
    return rates, zeros, marks


@settings(max_examples=examples(60), deadline=None)
@given(jobs())
def test_no_moment_of_a_trace_is_further_off_than_its_error(job):
    rates, zeros, marks = job
    traces = []
    for rank, met in enumerate(marks):
        trace = TraceBuilder().span("aten::add", 0, 10**9).build()
        trace.info.update(rank=rank, boot_id=f"{rank}", start_monotonic_ns=zeros[rank], clock_marks=met)
        traces.append(trace)
    places = aligned(traces)
    assert (places[0].offset_ns, places[0].error_ns) == (0, 0)
    for place, rate in zip(places, rates, strict=True):
        if place.error_ns < 0:
            assert place.clock == "wall"
            continue
        assert "violated_ns" not in place.facts
        for own_ns in (0, 10**9 // 3, 10**9):
            # Both count from their zeros, which lie at one true moment.
            by_the_first = own_ns / rate * rates[0]
            found = int(place.at(np.array([own_ns]))[0])
            assert abs(found - by_the_first) <= place.error_ns + 1


def test_whoever_meets_nobody_is_the_only_one_that_is_not_known():
    traces = []
    for rank, met in enumerate([{"a": [0, 5]}, {}, {"a": [1, 6]}]):
        trace = TraceBuilder().span("aten::add", 0, 10).build()
        trace.info.update(rank=rank, boot_id=f"{rank}", start_monotonic_ns=0, clock_marks=met)
        traces.append(trace)
    assert [place.clock for place in aligned(traces)] == ["own", "wall", "barriers"]
