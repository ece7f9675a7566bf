"""Stacks with weights put together to a tree of frames, upright or inverted, small enough to be drawn and to be sent.

Upright, a frame stands in the one that called it; inverted, in the one that it called, so that the roots are the
frames in which something was spent. What weighs less than a thousandth of the whole is put together with the others
like it in the same frame, so that the parts of a frame still add up to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope import _core
from kinetoscope.trace._assemble import spread_down, sums_below

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_SHARE = 1_000
"""What weighs less than the whole divided by this has no node of its own."""

_NOBODY = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Stacks:
    """Stacks without the frames that are not shown.

    Attributes:
        row: For each stack the one whose innermost frame is the innermost shown: itself, one of its callers, or -1.
        caller: For each stack that of its shown callers that is nearest, -1 for none.
        level: How many of its callers are shown.
        frame: The innermost frame of each.
    """

    row: NDArray[np.int32]
    caller: NDArray[np.int32]
    level: NDArray[np.int32]
    frame: NDArray[np.int32]


@dataclass(frozen=True)
class Flame:
    """A tree: a node is followed by those inside it, the heaviest first, what was put together last.

    Attributes:
        parent: For each node the one around it, -1 for none.
        frame: What it is of; -1 for stacks without a frame to show, and for what was put together.
        rest: How many nodes were put together to this one; 0 for one of its own.
        total: What weighs in it and in those inside it.
        own: The same without those inside it.
        count: How many things weigh in it and in those inside it.
        of_stack: For each stack the innermost node that it weighs in, -1 for stacks that weigh nothing.
    """

    parent: NDArray[np.int32]
    frame: NDArray[np.int32]
    rest: NDArray[np.int32]
    total: NDArray[np.int64]
    own: NDArray[np.int64]
    count: NDArray[np.int64]
    of_stack: NDArray[np.int32]


@dataclass
class _Nodes:
    """The nodes of a tree as they are found: those around others first."""

    parent: NDArray[np.int32]
    frame: NDArray[np.int32]
    rest: NDArray[np.int32]
    of_stack: NDArray[np.int32]


def shown_stacks(
    parent: NDArray[np.int32], frame: NDArray[np.int32], shown: NDArray[np.bool_] | None = None
) -> Stacks:
    """Leave out frames.

    Args:
        parent: For each stack the row of its caller's, below its own; -1 for none.
        frame: The innermost frame of each.
        shown: For each frame whether to keep it; None keeps all.
    """
    rows = np.arange(len(parent), dtype=np.int32)
    # Parents come first in every honest file; anything else would be a circle.
    parent = np.where(parent < rows, parent, np.int32(-1))
    depth = _levels(parent)
    kept = (frame >= 0) if shown is None else np.append(shown, False)[frame]
    row = spread_down(parent, depth, np.where(kept, rows, np.int32(-1)), -1)
    caller = np.append(row, np.int32(-1))[parent]
    # A caller that is shown has itself as its row.
    return Stacks(row, caller, _levels(np.where(kept, caller, np.int32(-1))), frame)


def upright(stacks: Stacks, weight: NDArray[np.int64], count: NDArray[np.int64]) -> Flame:
    """Put stacks together from their roots.

    Args:
        stacks: The stacks.
        weight: What weighs in exactly each stack, at least 0.
        count: How many things do.
    """
    node_of, parents, frames = _merged(stacks)
    heavy = weight > 0
    of_stack = np.where(heavy, node_of[stacks.row], np.int32(-1))
    bare = heavy & (stacks.row < 0)
    if bare.any():
        of_stack[bare] = len(parents)
        parents, frames = np.append(parents, np.int32(-1)), np.append(frames, np.int32(-1))
    level = _levels(parents)
    totals = sums_below(parents, level, _sums(of_stack, len(parents), weight))
    kept = totals >= _least(weight[heavy])
    number = np.where(kept, np.arange(len(parents), dtype=np.int32), np.int32(-1))
    nearest = spread_down(parents, level, number, -1)
    # What is not kept stands together in the nearest node around it that is.
    cut = np.flatnonzero(~kept & (totals > 0))
    heads = cut[np.append(kept, True)[parents[cut]]]
    homes, counts = np.unique(parents[heads], return_counts=True)
    rest_of = np.full(len(parents) + 1, -1, np.int32)
    rest_of[homes] = len(parents) + np.arange(len(homes))
    lost = np.flatnonzero((of_stack >= 0) & ~np.append(kept, True)[of_stack])
    of_stack[lost] = rest_of[nearest[of_stack[lost]]]
    names = np.concatenate((np.flatnonzero(kept), len(parents) + np.arange(len(homes))))
    place = np.full(len(parents) + len(homes) + 1, -1, np.int32)
    place[names] = np.arange(len(names))
    return _flame(
        _Nodes(
            place[np.concatenate((parents[kept], homes))],
            np.concatenate((frames[kept], np.full(len(homes), -1))).astype(np.int32),
            np.concatenate((np.zeros(int(kept.sum()), np.int64), counts)).astype(np.int32),
            place[of_stack],
        ),
        weight,
        count,
    )


def inverted(stacks: Stacks, weight: NDArray[np.int64], count: NDArray[np.int64]) -> Flame:
    """Put stacks together from their innermost frames.

    Args:
        stacks: The stacks.
        weight: What weighs in exactly each stack, at least 0.
        count: How many things do.
    """
    items = np.flatnonzero(weight > 0)
    least = _least(weight[items])
    at, within = stacks.row[items], np.full(len(items), -1, np.int32)
    frame = np.append(stacks.frame, np.int32(-1))
    of_stack = np.full(len(weight), -1, np.int32)
    parents, frames, rests, nodes = [_NOBODY], [_NOBODY], [_NOBODY], 0
    while len(items):
        group, first = _core.group([within, frame[at]])
        totals = _core.group_sums(group, len(first), weight[items])
        kept = totals >= least
        # All that is cut in one node is one node more.
        around = within[first]
        homes, place, counts = np.unique(around[~kept], return_inverse=True, return_counts=True)
        number = np.empty(len(first), np.int32)
        number[kept] = nodes + np.arange(int(kept.sum()))
        number[~kept] = nodes + int(kept.sum()) + place
        parents += [around[kept], homes]
        frames += [frame[at][first[kept]], np.full(len(homes), -1, np.int32)]
        rests += [np.zeros(int(kept.sum()), np.int32), counts.astype(np.int32)]
        nodes += int(kept.sum()) + len(homes)
        within = of_stack[items] = number[group]
        # The outermost frame, and what was put together, has nothing inside.
        further = kept[group] & (at >= 0) & (np.append(stacks.caller, np.int32(-1))[at] >= 0)
        items, within, at = items[further], within[further], stacks.caller[at[further]]
    found = [np.concatenate(parts).astype(np.int32) for parts in (parents, frames, rests)]
    return _flame(_Nodes(found[0], found[1], found[2], of_stack), weight, count)


def _merged(stacks: Stacks) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """The tree of shown frames: for each stack, and behind them for -1, its node; each node's parent and frame."""
    node_of = np.full(len(stacks.frame) + 1, -1, np.int32)
    parents, frames, nodes = [_NOBODY], [_NOBODY], 0
    for rows in _by_level(stacks.level, np.unique(stacks.row[stacks.row >= 0])):
        around = node_of[stacks.caller[rows]]
        group, first = _core.group([around, stacks.frame[rows]])
        node_of[rows] = nodes + group
        parents.append(around[first])
        frames.append(stacks.frame[rows[first]])
        nodes += len(first)
    return node_of, np.concatenate(parents), np.concatenate(frames)


def _least(weights: NDArray[np.int64]) -> int:
    """What a node must weigh to stand by itself."""
    return max(-(-int(weights.sum()) // LEAST_SHARE), 1)


def _flame(nodes: _Nodes, weight: NDArray[np.int64], count: NDArray[np.int64]) -> Flame:
    """Add up, and bring the nodes into their order."""
    size = len(nodes.parent)
    own = _sums(nodes.of_stack, size, weight)
    level = _levels(nodes.parent)
    total = sums_below(nodes.parent, level, own)
    counted = sums_below(nodes.parent, level, _sums(nodes.of_stack, size, count))
    order = _outline(nodes, total)
    place = np.full(size + 1, -1, np.int32)
    place[order] = np.arange(size)
    return Flame(
        place[nodes.parent[order]],
        nodes.frame[order],
        nodes.rest[order],
        total[order],
        own[order],
        counted[order],
        place[nodes.of_stack],
    )


def _outline(nodes: _Nodes, total: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each node followed by those inside it, the heaviest first."""
    held: dict[int, list[int]] = {}
    heavy_last = np.lexsort((-np.arange(len(total)), total, nodes.rest == 0)).tolist()
    parents = nodes.parent.tolist()
    for row in heavy_last:
        held.setdefault(parents[row], []).append(row)
    order: list[int] = []
    waiting = held.get(-1, [])
    while waiting:
        row = waiting.pop()
        order.append(row)
        waiting.extend(held.get(row, ()))
    return np.array(order, np.int64)


def _levels(parent: NDArray[np.int32]) -> NDArray[np.int32]:
    """How many rows are around each; what is around comes first."""
    levels: list[int] = []
    for above in parent.tolist():
        levels.append(levels[above] + 1 if above >= 0 else 0)
    return np.array(levels, np.int32)


def _by_level(level: NDArray[np.int32], rows: NDArray[Any]) -> list[NDArray[Any]]:
    """Some rows by their level, the lowest first."""
    order = rows[np.argsort(level[rows], kind="stable")]
    edges = np.flatnonzero(np.diff(level[order])) + 1
    return [part for part in np.split(order, edges) if len(part)]


def _sums(group: NDArray[np.int32], groups: int, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add up values by group; what has the group -1 is left out."""
    sums: NDArray[np.int64] = _core.group_sums(group.astype(np.int32), groups, values)
    return sums
