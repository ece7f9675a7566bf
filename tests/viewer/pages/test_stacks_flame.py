from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.analyses.flame import LEAST_SHARE, ORDERS, merged, shown_stacks
from tests.support.effort import examples

FRAMES = 5


@st.composite
def weighted_stacks(draw):
    """Stacks as (parent, frame), what weighs in each, and which frames are shown."""
    size = draw(st.integers(0, 14))
    parent = [draw(st.integers(-1, row - 1)) for row in range(size)]
    frame = [draw(st.integers(-1, FRAMES - 1)) for _ in range(size)]
    # Weights far apart, so that some are below a thousandth of the whole.
    weight = [draw(st.sampled_from([0, 0, 1, 2, 7, 900, 5_000, 40_000])) for _ in range(size)]
    count = [draw(st.integers(1, 4)) if heavy else 0 for heavy in weight]
    shown = draw(st.none() | st.lists(st.booleans(), min_size=FRAMES, max_size=FRAMES))
    return parent, frame, weight, count, shown


def path_of(parent, frame, shown, row):
    """The shown frames of a stack, root first; a stack without any has one that is no frame."""
    found = []
    while row >= 0:
        if frame[row] >= 0 and (shown is None or shown[frame[row]]):
            found.append(frame[row])
        row = parent[row]
    return tuple(found[::-1]) or (-1,)


def tree_of(flame):
    """Each node by its path of frames, with its numbers; what was put together is `rest` in its path."""
    paths, found = [], {}
    for node, (parent, frame, rest) in enumerate(
        zip(flame.parent.tolist(), flame.frame.tolist(), flame.rest.tolist(), strict=True)
    ):
        above = paths[parent] if parent >= 0 else ()
        paths.append((*above, "rest" if rest else frame))
        assert paths[-1] not in found, "one node for one path"
        found[paths[-1]] = (rest, int(flame.total[node]), int(flame.own[node]), int(flame.count[node]))
    return paths, found


def tree_one_by_one(paths, weights, counts):
    """The same, by adding up over all paths and then putting together what is too light."""
    total, own, count = Counter(), Counter(), Counter()
    for path, weight, times in zip(paths, weights, counts, strict=True):
        own[path] += weight
        for length in range(1, len(path) + 1):
            total[path[:length]] += weight
            count[path[:length]] += times
    least = -(-sum(weights) // LEAST_SHARE)
    found = {}
    for path, weight in total.items():
        if weight >= least:
            found[path] = (0, weight, own[path], count[path])
        elif path[:-1] == () or total[path[:-1]] >= least:
            rest = (*path[:-1], "rest")
            many, together, _, times = found.get(rest, (0, 0, 0, 0))
            found[rest] = (many + 1, together + weight, together + weight, times + count[path])
    return found


def built(stacks):
    parent, frame, weight, count, shown = stacks
    return (
        shown_stacks(
            np.array(parent, np.int32),
            np.array(frame, np.int32),
            None if shown is None else np.array(shown, bool),
        ),
        np.array(weight, np.int64),
        np.array(count, np.int64),
    )


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=examples(60), deadline=None)
@given(weighted_stacks())
def test_tree_is_what_adding_up_one_by_one_gives(order, stacks):
    parent, frame, weight, count, shown = stacks
    flame = merged(*built(stacks), order=order)
    heavy = [row for row, value in enumerate(weight) if value]
    paths = [path_of(parent, frame, shown, row)[:: 1 if order == "callees" else -1] for row in heavy]
    _, found = tree_of(flame)
    assert found == tree_one_by_one(paths, [weight[row] for row in heavy], [count[row] for row in heavy])


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=examples(40), deadline=None)
@given(weighted_stacks())
def test_parts_add_up_and_are_sorted(order, stacks):
    _, _, weight, _, _ = stacks
    flame = merged(*built(stacks), order=order)
    size = len(flame.parent)
    below, sums = flame.own.copy(), np.zeros(size + 1, np.int64)
    for node in range(size - 1, -1, -1):
        assert flame.parent[node] < node
        if flame.parent[node] >= 0:
            below[flame.parent[node]] += below[node]
    assert np.array_equal(below, flame.total)
    assert flame.total[flame.parent < 0].sum() == flame.own.sum() == sum(weight)
    np.add.at(sums, flame.of_stack, weight)
    assert np.array_equal(sums[:-1], flame.own)
    assert sums[-1] == 0, "only what weighs nothing is in no node"
    # Those in one node stand in the order of their weight, what was put together last.
    for around in {-1, *flame.parent.tolist()}:
        inside = np.flatnonzero(flame.parent == around)
        keys = [(flame.rest[node] > 0, -flame.total[node]) for node in inside]
        assert keys == sorted(keys)
    # A node is followed by all that is in it.
    path = []
    for node, parent in enumerate(flame.parent.tolist()):
        while path and path[-1] != parent:
            path.pop()
        assert parent == (path[-1] if path else -1)
        path.append(node)


def test_small_frames_are_merged():
    # Root 0 calls 1 with nearly all, and 2, 3, 4 with less than a thousandth each.
    stacks = shown_stacks(np.array([-1, 0, 0, 0, 2], np.int32), np.array([0, 1, 2, 3, 4], np.int32))
    flame = merged(stacks, np.array([0, 100_000, 40, 30, 20]), np.array([0, 5, 1, 1, 1]))
    assert flame.parent.tolist() == [-1, 0, 0]
    assert flame.frame.tolist() == [0, 1, -1]
    assert flame.rest.tolist() == [0, 0, 2]
    assert flame.total.tolist() == [100_090, 100_000, 90]
    assert flame.count.tolist() == [8, 5, 3]
    assert flame.of_stack.tolist() == [-1, 1, 2, 2, 2]


def test_circle_in_a_damaged_file_ends():
    stacks = shown_stacks(np.array([1, 0, 2], np.int32), np.array([0, 1, 2], np.int32))
    for order in ORDERS:
        flame = merged(stacks, np.array([1, 2, 3]), np.array([1, 1, 1]), order=order)
        assert flame.own.sum() == 6


def test_no_stacks_are_an_empty_tree():
    none = shown_stacks(np.zeros(0, np.int32), np.zeros(0, np.int32))
    for order in ORDERS:
        assert len(merged(none, np.zeros(0, np.int64), np.zeros(0, np.int64), order=order).parent) == 0
