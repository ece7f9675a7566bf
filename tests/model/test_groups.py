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
