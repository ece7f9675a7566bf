"""Counting each operation once, however operators are nested.

The outermost operator with a firm formula counts, and what is inside it counts nothing. Two things move the count inwards:

- An operator that calls itself with the same operations (autocast, variants with `out`) hands it to the inner call, which has the
  element types that were computed with.
- An operator with a deferred formula counts only where less than half of its operations were counted inside it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kinetoscope.tables.costs._evaluate import Standing

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Counted(NamedTuple):
    """Where operations are counted.

    Attributes:
        counts: The spans whose own cost counts.
        inside: The spans inside one that counts.
    """

    counts: NDArray[np.bool_]
    inside: NDArray[np.bool_]


def count_once(
    parent: NDArray[np.int32],
    depth: NDArray[np.int32],
    name: NDArray[np.int32],
    standing: NDArray[np.uint8],
    flops: NDArray[np.int64],
) -> Counted:
    """Decide which spans count.

    Args:
        parent: The enclosing span of each, -1 without.
        depth: How many spans enclose each.
        name: A number for the name of each.
        standing: A `Standing` for each.
        flops: The operations of each by its formula, 0 without.

    Returns:
        The decision for each span.
    """
    firm = standing == Standing.FIRM
    hands_in = firm & (parent >= 0) & firm[parent] & (name == name[parent]) & (flops == flops[parent])
    counts = firm.copy()
    counts[parent[hands_in]] = False
    deferred = standing == Standing.DEFERRED
    by_depth = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2))
    levels = [by_depth[start:end] for start, end in pairwise(edges)]
    if deferred.any():
        _settle_deferred(levels, parent, deferred, counts, flops)
    inside = np.zeros(len(parent), dtype=bool)
    for rows in levels[1:]:
        above = parent[rows]
        inside[rows] = (above >= 0) & (inside[above] | counts[above])
    counts &= ~inside
    return Counted(counts, inside)


def _settle_deferred(
    levels: list[NDArray[np.int64]],
    parent: NDArray[np.int32],
    deferred: NDArray[np.bool_],
    counts: NDArray[np.bool_],
    flops: NDArray[np.int64],
) -> None:
    """Let deferred formulas count where too little was counted inside; from the innermost spans outwards."""
    # As floats: sums of hostile sizes must not wrap around.
    total = np.zeros(len(parent), dtype=np.float64)
    for rows in reversed(levels):
        lacking = rows[deferred[rows]]
        counts[lacking] = total[lacking] < flops[lacking] / 2
        own = rows[counts[rows]]
        total[own] = flops[own]
        held = rows[parent[rows] >= 0]
        np.add.at(total, parent[held], total[held])
