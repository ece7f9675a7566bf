"""attribute_allocations against a simple model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope._core as _core

spans_strategy = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 30)), max_size=40
).map(lambda spans: sorted(spans, key=lambda span: (span[0], span[1], -span[2])))
events_strategy = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 3), st.integers(1, 6), st.sampled_from([0, 0, 1, 10, 100])),
    max_size=60,
).map(lambda events: sorted(events, key=lambda event: event[0]))


def attribute(spans, events):
    """Nest spans and attribute allocations; return both results."""
    thread, start, duration = (
        np.array([span[column] for span in spans], kind)
        for column, kind in enumerate((np.int32, np.int64, np.int64))
    )
    nesting = _core.nest(thread, start, duration)
    time, event_thread, address, size = (
        np.array([event[column] for event in events], kind)
        for column, kind in enumerate((np.int64, np.int32, np.uint64, np.int64))
    )
    result = _core.attribute_allocations(
        thread, start, duration, nesting["parent"], nesting["lane"], time, event_thread, address, size
    )
    return result, nesting


@given(spans_strategy, events_strategy)
def test_agrees_with_the_model(spans, events):
    result, nesting = attribute(spans, events)
    parent, lane = nesting["parent"].tolist(), nesting["lane"].tolist()
    live: dict[int, int] = {}
    total = unmatched = 0
    match, totals, owners = [-1] * len(events), [], []
    own, below = [0] * len(spans), [0] * len(spans)
    for row, (time, thread, address, size) in enumerate(events):
        if size:
            total += size - (events[live[address]][3] if address in live else 0)
            live[address] = row
            change = size
        elif address in live:
            match[row] = live.pop(address)
            match[match[row]] = row
            change = -events[match[row]][3]
            total += change
        else:
            unmatched += 1
            change = 0
        covering = [
            span
            for span, (span_thread, start, duration) in enumerate(spans)
            if lane[span] == 0 and span_thread == thread and start <= time <= start + duration
        ]
        span = covering[-1] if covering else -1
        owners.append(span)
        totals.append(total)
        if span >= 0:
            own[span] += change
        while span >= 0:
            below[span] += change
            span = parent[span]
    assert result["span"].tolist() == owners
    assert result["match"].tolist() == match
    assert result["total_bytes"].tolist() == totals
    assert result["span_self_bytes"].tolist() == own
    assert result["span_bytes"].tolist() == below
    assert result["unmatched_frees"] == unmatched


def test_an_event_at_the_end_of_a_span_belongs_to_it_unless_another_begins_there():
    """Where a clock advances by 10 ns, an operator's last allocation is as late as its end."""
    spans = [(0, 0, 10), (0, 2, 3), (0, 7, 1), (0, 8, 1)]
    result, _ = attribute(
        spans, [(2, 0, 1, 8), (5, 0, 2, 16), (6, 0, 1, 0), (8, 0, 3, 1), (10, 0, 4, 2), (11, 0, 2, 0)]
    )
    assert result["span"].tolist() == [1, 1, 0, 3, 0, -1]
    assert result["span_self_bytes"].tolist() == [-6, 24, 0, 1]
    assert result["span_bytes"].tolist() == [19, 24, 0, 1]


def test_sizes_that_overflow_wrap_around():
    most = np.iinfo(np.int64).max
    result, _ = attribute([(0, 0, 10)], [(1, 0, 1, most), (2, 0, 2, most)])
    assert result["total_bytes"].tolist() == [most, -2]


def test_many_addresses():
    count = 20_000
    events = [(row, 0, 64 * row, 64) for row in range(count)]
    events += [(count + row, 0, 64 * row, 0) for row in range(count)]
    result, _ = attribute([], events)
    assert result["match"].tolist() == [*range(count, 2 * count), *range(count)]
    assert result["total_bytes"][-1] == 0


def test_events_out_of_order_are_refused():
    with pytest.raises(ValueError, match="sorted by time"):
        attribute([], [(5, 0, 1, 1), (4, 0, 1, 1)])


def test_frees_of_unknown_blocks_count_to_their_span_what_their_source_says():
    spans = [np.array(values, kind) for values, kind in (([0], np.int32), ([0], np.int64), ([9], np.int64))]
    nesting = _core.nest(*spans)
    events = (
        np.array([1, 2, 3], np.int64), np.zeros(3, np.int32), np.array([7, 8, 7], np.uint64), np.array([10, 0, 0]),
    )  # fmt: skip
    known = _core.attribute_allocations(
        *spans, nesting["parent"], nesting["lane"], *events, freed_bytes=np.array([0, 64, 10])
    )
    assert known["span_self_bytes"].tolist() == [-64]
    assert known["span_bytes"].tolist() == [-64]
    assert known["total_bytes"].tolist() == [10, 10, 0]
    assert known["unmatched_frees"] == 1
    with pytest.raises(ValueError, match="different lengths"):
        _core.attribute_allocations(
            *spans, nesting["parent"], nesting["lane"], *events, freed_bytes=np.array([0])
        )
