"""Counting each operation once, however operators are nested.

The outermost operator with a firm formula counts, and what is inside it counts nothing. Three things move the count inwards:

- An operator that calls itself with the same operations (autocast, variants with `out`) hands it to the inner call, which has the
  element types that were computed with.
- An operator inside which twice as much is counted as its own inputs tell, or more, was given stand-ins for larger tensors
  (`vmap`, nested tensors): what is inside counts. A formula of the program counts in any case.
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


class Spans(NamedTuple):
    """What the decision is made from.

    Attributes:
        parent: The enclosing span of each, -1 without.
        depth: How many spans enclose each.
        name: A number for the name of each.
        standing: A `Standing` for each.
        flops: The operations of each by its formula, 0 without.
        by_user: Whether the formula is one that the program registered.
    """

    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    name: NDArray[np.int32]
    standing: NDArray[np.uint8]
    flops: NDArray[np.int64]
    by_user: NDArray[np.bool_]


def count_once(spans: Spans) -> Counted:
    """Decide which spans count."""
    parent, depth, flops = spans.parent, spans.depth, spans.flops
    firm = spans.standing == Standing.FIRM
    if not firm.any() and not (spans.standing == Standing.DEFERRED).any():
        return Counted(firm, np.zeros(len(firm), dtype=bool))
    again = (
        firm & (parent >= 0) & firm[parent] & (spans.name == spans.name[parent]) & (flops == flops[parent])
    )
    counts = firm.copy()
    counts[parent[again & ~spans.by_user[parent]]] = False
    by_depth = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2))
    levels = [by_depth[start:end] for start, end in pairwise(edges)]
    _settle_by_inside(levels, spans, counts)
    inside = np.zeros(len(parent), dtype=bool)
    for rows in levels[1:]:
        above = parent[rows]
        inside[rows] = (above >= 0) & (inside[above] | counts[above])
    counts &= ~inside
    return Counted(counts, inside)


def _settle_by_inside(levels: list[NDArray[np.int64]], spans: Spans, counts: NDArray[np.bool_]) -> None:
    """Decide what depends on how much is counted inside, in place, from the innermost spans outwards."""
    parent, flops = spans.parent, spans.flops
    deferred = spans.standing == Standing.DEFERRED
    # As floats: sums of hostile sizes must not wrap around.
    total = np.zeros(len(parent), dtype=np.float64)
    for rows in reversed(levels):
        lacking = rows[deferred[rows]]
        counts[lacking] = total[lacking] < flops[lacking] / 2
        own = rows[counts[rows]]
        larger = own[(total[own] > 0) & (total[own] >= 2.0 * flops[own]) & ~spans.by_user[own]]
        counts[larger] = False
        own = own[counts[own]]
        total[own] = flops[own]
        held = rows[parent[rows] >= 0]
        np.add.at(total, parent[held], total[held])
