"""Groups of rows."""

import numpy as np
import pytest

from kinetoscope.model.groups import Groups


def test_rows_with_the_same_keys_are_a_group():
    groups = Groups.by([np.array([3, 1, 3, 1], np.uint8), np.array([7, 7, 7, 8])])
    assert groups.of_row.tolist() == [0, 1, 0, 2]
    assert groups.first.tolist() == [0, 1, 3]
    assert groups.sizes().tolist() == [2, 1, 1]


def test_rows_left_out_are_in_no_sum():
    groups = Groups.by([np.array([5, 5, 6], np.int32)], np.array([False, True, True]))
    assert groups.sums(np.array([1, 2, 4])).tolist() == [2, 4]
    assert groups.sums(np.array([0.5, 0.25, 0.125])).tolist() == [0.25, 0.125]


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.bool_])
def test_a_group_without_rows_sums_to_zero(dtype):
    groups = Groups(np.array([0, -1, 2]), 4)
    assert groups.sums(np.ones(3, dtype)).tolist() == [1, 0, 1, 0]
    assert len(groups) == 4


def test_integer_sums_are_exact():
    large = 2**53 + 1
    assert Groups(np.zeros(2, np.int32), 1).sums(np.array([large, 1])).tolist() == [large + 1]


def test_no_rows_are_no_groups():
    groups = Groups.by([np.zeros(0, np.int32)])
    assert len(groups) == 0
    assert groups.sums(np.zeros(0)).tolist() == []


def test_rows_are_added_up_only_where_they_should_be():
    groups = Groups(np.array([0, 0, 1, -1]), 2)
    where = np.array([True, False, True, True])
    assert groups.sums(np.array([1, 2, 4, 8]), where).tolist() == [1, 4]
    assert groups.sums(np.array([0.5, 0.25, 2.0, 8.0]), where).tolist() == [0.5, 2.0]


def test_rows_that_follow_each_other_with_the_same_keys_are_a_run():
    runs = Groups.runs(np.array([1, 1, 2, 1]), np.array([5.0, 5.0, 5.0, 5.0]))
    assert runs.of_row.tolist() == [0, 0, 1, 2]
    assert runs.first.tolist() == [0, 2, 3]
    assert len(Groups.runs(np.zeros(0, np.int64))) == 0


def test_sums_of_cells_have_the_shape_of_their_two_keys():
    cells = Groups.cells(np.array([0, 1, 1, -1, 0]), np.array([2, 0, 0, 1, -1]), (2, 3))
    assert cells.sums(np.array([1, 2, 4, 8, 16])).tolist() == [[0, 0, 1], [6, 0, 0]]
    assert cells.sums(np.array([0.5, 2.0, 4.0, 8.0, 1.0])).tolist() == [[0, 0, 0.5], [6, 0, 0]]
    assert cells.sizes().tolist() == [[0, 0, 1], [2, 0, 0]]


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_extremes_of_groups_leave_out_rows_in_none(dtype):
    groups = Groups(np.array([1, 1, -1, 3]), 4)
    values = np.array([-5, -7, 9, 2], dtype)
    assert groups.maxima(values).tolist() == [0, -5, 0, 2]
    assert groups.minima(values).tolist() == [0, -7, 0, 2]


def test_the_largest_group_is_the_first_of_equal_ones():
    groups = Groups(np.array([2, 1, 1, 2, 0]), 3)
    assert groups.largest() == 1
    assert groups.largest(np.array([1, 1, 1, 5, 9])) == 0


def test_rows_are_listed_group_by_group():
    order, begin = Groups(np.array([2, -1, 0, 2]), 3).rows()
    assert order.tolist() == [2, 0, 3]
    assert begin.tolist() == [0, 1, 1, 3]


def test_the_first_row_with_the_least_value_of_each_group():
    groups = Groups(np.array([0, 0, 0, 2, -1]), 3)
    assert groups.row_of_minimum(np.array([4, 3, 3, 9, 1])).tolist() == [1, -1, 3]


@pytest.mark.parametrize("first", [[], [0], [2], [1, 3, 4]])
def test_groups_that_begin_at_rows_last_to_the_next_one(first):
    groups = Groups.beginning_at(np.array(first, np.int64), 5)
    assert groups.of_row.tolist() == [sum(begin <= row for begin in first) - 1 for row in range(5)]
    assert groups.first.tolist() == first


def test_the_largest_group_has_rows_also_where_all_sums_are_zero():
    assert Groups(np.array([4, 6, 6]), 8).largest(np.zeros(3, np.int64)) == 4
    assert Groups(np.array([4, 6, 6]), 8).largest() == 6
