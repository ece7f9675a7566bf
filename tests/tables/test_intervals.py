import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.tables.intervals import Intervals, united, united_by

END = 40
STRETCHES = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=12)


def intervals(stretches):
    times = np.array(stretches, np.int64).reshape(-1, 2)
    return Intervals.of(times[:, 0], times[:, 1])


def moments(stretches):
    """The same as a set of whole numbers."""
    return {moment for start, end in stretches for moment in range(start, end)}


def moments_of(found):
    """The moments of intervals, which must be in order and apart."""
    starts, ends = found.start_ns.tolist(), found.end_ns.tolist()
    assert all(start < end for start, end in zip(starts, ends, strict=True))
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False))
    assert found.total_ns == sum(ends) - sum(starts)
    return moments(zip(starts, ends, strict=True))


@given(STRETCHES)
def test_stretches_in_any_order_become_the_moments_in_them(stretches):
    assert moments_of(intervals(stretches)) == moments(stretches)


@given(STRETCHES, STRETCHES)
def test_sets_of_moments_obey_the_laws_of_sets(one, other):
    a, b, left, right = intervals(one), intervals(other), moments(one), moments(other)
    assert moments_of(a | b) == left | right
    assert moments_of(a & b) == left & right
    assert moments_of(a - b) == left - right


@given(STRETCHES, STRETCHES)
def test_parts_add_up_to_the_whole_exactly(one, other):
    a, b = intervals(one), intervals(other)
    assert (a - b).total_ns + (a & b).total_ns == a.total_ns
    assert (a | b).total_ns == a.total_ns + b.total_ns - (a & b).total_ns


@given(STRETCHES, st.lists(st.tuples(st.integers(-3, END + 3), st.integers(-3, END + 3)), max_size=6))
def test_a_window_measures_what_lies_in_it(stretches, windows):
    times = np.array(windows, np.int64).reshape(-1, 2)
    found = intervals(stretches).within(times[:, 0], times[:, 1])
    assert found.tolist() == [len(moments(stretches) & set(range(*window))) for window in windows]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, END), st.integers(0, END)), max_size=20))
def test_groups_are_united_each_for_itself(rows):
    group, start, end = np.array(rows, np.int64).reshape(-1, 3).T
    parts = united_by(group.astype(np.int32), 4, start, end)
    for number, part in enumerate(parts):
        assert moments_of(part) == moments([row[1:] for row in rows if row[0] == number])
    assert moments_of(united(parts)) == moments([row[1:] for row in rows])


def test_times_near_the_ends_of_the_axis_do_not_overflow():
    far = 2**62
    found = intervals([(-far, -far + 3), (far - 5, far)])
    assert found.total_ns == 8
    assert found.within(np.array([-far + 1]), np.array([far - 4])).tolist() == [3]


@pytest.mark.parametrize(
    "found", [Intervals.none(), Intervals.between(7, 7), Intervals.between(9, 2), united([])]
)
def test_no_time_is_no_interval(found):
    some = Intervals.between(3, 5)
    assert (len(found), found.total_ns) == (0, 0)
    assert moments_of(found | some) == moments_of(some | found) == moments_of(some - found) == {3, 4}
    assert len(found - some) == len(found & some) == len(some & found) == 0
