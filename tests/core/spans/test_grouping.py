"""Grouping and reductions over groups, against numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope._core as _core

narrow = st.one_of(st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1))
wide = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
tables = st.integers(0, 40).flatmap(
    lambda rows: st.lists(
        st.one_of(
            st.lists(narrow, min_size=rows, max_size=rows).map(lambda key: np.array(key, np.int32)),
            st.lists(wide, min_size=rows, max_size=rows).map(lambda key: np.array(key, np.int64)),
        ),
        min_size=1,
        max_size=4,
    )
)


def model(keys: list[np.ndarray], where: np.ndarray | None) -> tuple[list[int], list[int]]:
    numbers: dict[tuple[int, ...], int] = {}
    groups, first = [], []
    for row, key in enumerate(zip(*(key.tolist() for key in keys), strict=True)):
        if where is not None and not where[row]:
            groups.append(-1)
            continue
        if key not in numbers:
            numbers[key] = len(numbers)
            first.append(row)
        groups.append(numbers[key])
    return groups, first


@given(tables, st.data())
def test_groups_agree_with_the_model(keys, data):
    where = None
    if data.draw(st.booleans()):
        rows = len(keys[0])
        where = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), bool)
    group_of, first_row = _core.group(keys, where)
    assert (group_of.tolist(), first_row.tolist()) == model(keys, where)


def test_many_groups_agree_with_numpy():
    random = np.random.default_rng(1)
    key = random.integers(-(2**62), 2**62, 30_000)
    key[::3] = key[1]
    group_of, first_row = _core.group([key])
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)
    assert first_row.tolist() == first[order].tolist()
    assert (group_of == np.argsort(order)[inverse]).all()


@given(st.data())
def test_reductions_agree_with_numpy(data):
    rows = data.draw(st.integers(0, 40))
    groups = data.draw(st.integers(1, 5))

    def column(values, kind):
        return np.array(data.draw(st.lists(values, min_size=rows, max_size=rows)), kind)

    group_of = column(st.integers(-1, groups - 1), np.int32)
    values = column(st.integers(-(2**40), 2**40), np.int64)
    skip = column(st.integers(0, 1), np.uint8) if data.draw(st.booleans()) else None
    counted = (group_of >= 0) & (True if skip is None else skip == 0)
    own = [values[counted & (group_of == group)] for group in range(groups)]
    assert _core.group_counts(group_of, groups, skip).tolist() == [len(part) for part in own]
    assert _core.group_sums(group_of, groups, values, skip).tolist() == [part.sum() for part in own]
    assert _core.group_min(group_of, groups, values, skip).tolist() == [min(part, default=0) for part in own]
    assert _core.group_max(group_of, groups, values, skip).tolist() == [max(part, default=0) for part in own]


@given(st.lists(st.tuples(st.integers(-1, 30), st.integers(-2, 3)), max_size=30))
def test_descends_from_same_agrees_with_the_model(rows):
    parent = [min(parent, row - 1) for row, (parent, _) in enumerate(rows)]
    key = [key for _, key in rows]
    expected = []
    for row in range(len(rows)):
        above = parent[row]
        while above >= 0 and key[above] != key[row]:
            above = parent[above]
        expected.append(int(above >= 0))
    assert _core.descends_from_same(np.array(parent, np.int32), np.array(key, np.int32)).tolist() == expected


def test_descends_from_same_goes_deep():
    depth = 200_000
    parent = np.arange(-1, depth - 1, dtype=np.int32)
    key = np.arange(depth, dtype=np.int32)
    key[-1] = 0
    assert _core.descends_from_same(parent, key).sum() == 1


def test_a_root_between_children_does_not_hide_their_ancestors():
    # Row 2 is in a separate lane, without parent.
    parent = np.array([-1, 0, -1, 1, 0], np.int32)
    key = np.array([7, 8, 7, 8, 7], np.int32)
    assert _core.descends_from_same(parent, key).tolist() == [0, 0, 0, 1, 1]


def test_bad_arguments_are_refused():
    one, two = np.zeros(1, np.int32), np.zeros(2, np.int32)
    with pytest.raises(ValueError, match="at least one key"):
        _core.group([])
    with pytest.raises(ValueError, match="different lengths"):
        _core.group([one, two])
    with pytest.raises(ValueError, match="different lengths"):
        _core.group([one], np.zeros(2, bool))
    with pytest.raises(TypeError, match="int32 or int64"):
        _core.group([np.zeros(1, np.float64)])
    with pytest.raises(ValueError, match="a group >= groups"):
        _core.group_counts(np.array([3], np.int32), 3)
    with pytest.raises(ValueError, match="after its child"):
        _core.descends_from_same(np.array([0], np.int32), one)


@given(st.lists(st.tuples(st.integers(-1, 4), wide), max_size=40))
def test_medians_are_those_of_sorted_groups(rows):
    group, values = np.array(rows, np.int64).reshape(-1, 2).T
    expected = []
    for one in range(6):
        own = sorted(value for place, value in rows if place == one)
        expected.append((own[(len(own) - 1) // 2] + own[len(own) // 2]) // 2 if own else -1)
    found = _core.group_medians(group.astype(np.int32), 6, np.ascontiguousarray(values))
    assert found.tolist() == expected


def test_medians_need_a_value_for_each_row():
    with pytest.raises(ValueError, match="different lengths"):
        _core.group_medians(np.zeros(2, np.int32), 1, np.zeros(1, np.int64))
