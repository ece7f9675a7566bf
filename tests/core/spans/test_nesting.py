"""Properties of nest(), and a simple model in Python."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope._core as _core

Span = tuple[int, int, int]  # thread, start, duration


def arrays(spans: list[Span]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    columns = list(zip(*spans, strict=True)) or [(), (), ()]
    return np.array(columns[0], np.int32), np.array(columns[1], np.int64), np.array(columns[2], np.int64)


def in_order(spans: list[Span]) -> list[Span]:
    """Sort spans as in a recording: by thread and start, parents first."""
    return sorted(spans, key=lambda span: (span[0], span[1], -span[2]))


# Few threads and a short axis make equal starts, equal ends and partial overlaps common.
spans_strategy = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 30)), max_size=60
).map(in_order)


def nested_spans(draw: st.DrawFn) -> list[Span]:
    """Generate nesting spans of one thread."""
    spans: list[Span] = []

    def fill(start: int, end: int, depth: int) -> None:
        spans.append((0, start, end - start))
        at = start
        while depth < 5 and at < end and draw(st.booleans()):
            child_start = draw(st.integers(at, end))
            child_end = draw(st.integers(child_start, end))
            fill(child_start, child_end, depth + 1)
            at = child_end + 1

    fill(0, draw(st.integers(1, 200)), 0)
    return spans


def model(spans: list[Span]) -> list[tuple[int, int, int, int]]:
    """Compute (parent, depth, lane, self) of each span with a simple algorithm."""
    rows: list[list[int]] = []
    lane_ends: dict[int, list[int]] = {}
    for row, (thread, start, duration) in enumerate(spans):
        open_rows = [
            other
            for other in range(row)
            if spans[other][0] == thread and rows[other][2] == 0 and spans[other][1] + spans[other][2] > start
        ]
        innermost = open_rows[-1] if open_rows else -1
        if innermost >= 0 and start + duration > spans[innermost][1] + spans[innermost][2]:
            ends = lane_ends.setdefault(thread, [])
            lane = next((lane for lane, end in enumerate(ends) if end <= start), len(ends))
            ends[lane:] = [start + duration, *ends[lane + 1 :]]
            rows.append([-1, 0, lane + 1, 0])
            continue
        if innermost >= 0:
            rows[innermost][3] -= duration
        rows.append([innermost, len(open_rows), 0, duration])
    return [tuple(row) for row in rows]


@given(spans_strategy)
def test_agrees_with_the_model(spans):
    result = _core.nest(*arrays(spans))
    got = list(
        zip(*(result[column].tolist() for column in ("parent", "depth", "lane", "self_ns")), strict=True)
    )
    assert got == model(spans)


@given(spans_strategy)
def test_lane_0_nests_exactly_and_loses_no_time(spans):
    thread, start, duration = arrays(spans)
    result = _core.nest(thread, start, duration)
    parent, lane, self_ns = result["parent"], result["lane"], result["self_ns"]
    end = start + duration
    assert (self_ns >= 0).all()
    children = np.flatnonzero(parent >= 0)
    assert (parent[children] < children).all()
    assert (start[children] >= start[parent[children]]).all()
    assert (end[children] <= end[parent[children]]).all()
    assert (thread[children] == thread[parent[children]]).all()
    assert (result["depth"][children] == result["depth"][parent[children]] + 1).all()
    for one in set(thread.tolist()):
        of_thread = thread == one
        roots = of_thread & (lane == 0) & (parent == -1)
        assert self_ns[of_thread].sum() == duration[roots].sum()


@given(spans_strategy)
def test_siblings_are_disjoint_in_every_lane(spans):
    thread, start, duration = arrays(spans)
    result = _core.nest(thread, start, duration)
    siblings: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for row in range(len(spans)):
        key = (int(thread[row]), int(result["lane"][row]), int(result["parent"][row]))
        siblings.setdefault(key, []).append((int(start[row]), int(start[row] + duration[row])))
    for intervals in siblings.values():
        assert all(before[1] <= after[0] for before, after in pairwise(intervals))


@given(st.data())
def test_calls_stay_in_lane_0(data):
    spans = nested_spans(data.draw)
    result = _core.nest(*arrays(spans))
    assert not result["lane"].any()
    assert result["self_ns"].sum() == spans[0][2]


def test_many_overlapping_spans_take_many_lanes():
    count = 100_000
    start = np.arange(count, dtype=np.int64)
    result = _core.nest(np.zeros(count, np.int32), start, np.full(count, count, np.int64))
    assert result["lane"].tolist() == list(range(count))


def test_a_lane_is_used_again_once_it_is_free():
    spans = [(0, 0, 10), (0, 5, 10), (0, 7, 10), (0, 9, 30), (0, 15, 30)]
    assert _core.nest(*arrays(spans))["lane"].tolist() == [0, 1, 2, 3, 0]
    spans = [(0, 0, 100), (0, 90, 20), (0, 95, 10), (0, 98, 30), (0, 99, 300), (0, 99, 301)]
    assert _core.nest(*arrays(spans))["lane"].tolist() == [0, 1, 2, 3, 4, 5]


def test_times_at_the_end_of_the_axis_do_not_overflow():
    most = np.iinfo(np.int64).max
    result = _core.nest(*arrays([(0, most - 5, most), (0, most - 1, most)]))
    assert result["parent"].tolist() == [-1, 0]
    assert result["self_ns"].tolist() == [4, 1]


@pytest.mark.parametrize("spans", [[(1, 0, 1), (0, 0, 1)], [(0, 5, 1), (0, 4, 1)]], ids=["threads", "starts"])
def test_another_order_is_refused(spans):
    with pytest.raises(ValueError, match="row 1"):
        _core.nest(*arrays(spans))


def test_different_lengths_are_refused():
    with pytest.raises(ValueError, match="different lengths"):
        _core.nest(np.zeros(2, np.int32), np.zeros(1, np.int64), np.zeros(2, np.int64))


def test_another_type_is_refused_rather_than_converted():
    with pytest.raises(TypeError):
        _core.nest(np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64))


def test_results_own_their_memory():
    result = _core.nest(*arrays([(0, 0, 4), (0, 1, 2)]))
    parent = result["parent"]
    del result
    assert parent.flags["C_CONTIGUOUS"]
    assert parent.flags["WRITEABLE"]
    assert parent.tolist() == [-1, 0]


@given(st.data())
def test_the_innermost_of_some_spans_runs_at_a_moment(data):
    spans = nested_spans(data.draw)
    thread, start, duration = arrays(spans)
    chosen = np.array([data.draw(st.booleans()) for _ in spans], bool)
    nested = _core.nest(thread, start, duration)
    # Of spans that are not chosen the nearest chosen one above counts.
    nearest = np.append(_core.nearest_marked(nested["parent"], nested["depth"], chosen), np.int32(-1))
    times = data.draw(st.lists(st.integers(-2, 205), max_size=20))
    for moments in (times, sorted(times)):
        running = _core.running_at(
            start, duration, nearest[nested["parent"]], np.flatnonzero(chosen), np.array(moments, np.int64)
        )
        expected = [
            max(
                (row for row in np.flatnonzero(chosen) if start[row] <= time < start[row] + duration[row]),
                default=-1,
            )
            for time in moments
        ]
        assert running.tolist() == expected


def test_rows_that_are_none_are_refused():
    parent, times = np.array([5], np.int32), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="no row"):
        _core.nearest_marked(parent, np.zeros(1, np.int32), np.ones(1, bool))
    with pytest.raises(ValueError, match="different lengths"):
        _core.sums_below(parent, np.zeros(2, np.int32), times)
    thread = np.zeros(1, np.int32)
    for rows, problem in (([1], "out of range"), ([-1], "out of range"), ([0, -1], "out of range")):
        with pytest.raises(ValueError, match=problem):
            _core.lies_in(thread, times, times, np.array(rows))
    with pytest.raises(ValueError, match="ascending order"):
        _core.lies_in(np.zeros(2, np.int32), np.zeros(2, np.int64), np.zeros(2, np.int64), np.array([1, 0]))
    with pytest.raises(ValueError, match="different lengths"):
        _core.lies_in(thread, times, np.zeros(2, np.int64), np.array([0]))
    with pytest.raises(ValueError, match="out of range"):
        _core.running_at(times, times, np.array([-1], np.int32), np.array([1]), times)
