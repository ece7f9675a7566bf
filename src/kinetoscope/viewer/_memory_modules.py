"""Which modules the memory curve tells apart: as many as colours can, where most of the memory is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.tables.memory_facts import Judged
    from kinetoscope.trace import Trace
    from kinetoscope.viewer._memory_places import Place

MOST_MODULES = 9
# A submodule with less than this share of its module is not worth a colour.
_WORTH = 0.04


def module_parts(trace: Trace, place: Place, judged: Judged) -> tuple[list[str], NDArray[np.int8]]:
    """Divide the blocks of a memory by module.

    The outermost modules are opened, the one that held most at the peak first, as long as there is room for their
    submodules; small ones stay with the module around them.

    Returns:
        What each part is called, the largest first and what belongs to no module last; and the part of each block.
    """
    modules = trace.columns("modules")
    holder, paths = modules["holder"], modules["path"]
    own = judged.module
    live = place.live(place.rank_at(None))
    size = np.zeros(len(holder) + 1, np.int64)
    np.add.at(size, own[live], place.blocks.bytes[live])
    used = np.zeros(len(holder) + 1, bool)
    used[own[place.block]] = True
    weight, seen = _with_submodules(holder, modules["depth"], size[:-1], used[:-1])
    children: dict[int, list[int]] = {}
    for row in np.flatnonzero(seen).tolist():
        children.setdefault(int(holder[row]), []).append(row)
    shown, opened = _opened(children, weight)
    place_of = {row: part for part, row in enumerate(shown)}
    of_module = np.full(len(holder) + 1, len(shown), np.int8)
    for row in np.argsort(modules["depth"], kind="stable").tolist():
        above = int(holder[row])
        of_module[row] = place_of.get(row, int(of_module[above]) if above >= 0 else len(shown))
    part = of_module[own]
    there = np.bincount(part[place.block], minlength=len(shown) + 1) > 0
    labels = [f"{paths[row]} (rest)" if row in opened else paths[row] for row in shown]
    labels.append("other modules and none" if _left_out(children, shown) else "no module")
    renumbered = np.cumsum(there) - 1
    return [label for label, used_one in zip(labels, there.tolist(), strict=True) if used_one], renumbered[
        part
    ].astype(np.int8)


def _with_submodules(
    holder: NDArray[np.int32], depth: NDArray[np.int32], size: NDArray[np.int64], used: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The bytes of each module with its submodules, and whether any block is theirs."""
    weight, seen = size.copy(), used.copy()
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero((depth == level) & (holder >= 0))
        np.add.at(weight, holder[rows], weight[rows])
        np.logical_or.at(seen, holder[rows], seen[rows])
    return weight, seen


def _opened(children: dict[int, list[int]], weight: NDArray[np.int64]) -> tuple[list[int], set[int]]:
    """The modules to show, those with most first, and which of them are shown without some of their submodules."""
    by_weight = sorted(children.get(-1, []), key=lambda row: -int(weight[row]))
    shown, opened = by_weight[:MOST_MODULES], set[int]()
    tried: set[int] = set()
    while True:
        open_next = [row for row in shown if row not in tried]
        if not open_next:
            break
        row = max(open_next, key=lambda one: int(weight[one]))
        tried.add(row)
        inside = [one for one in children.get(row, []) if weight[one] > _WORTH * weight[row]]
        if inside and len(shown) + len(inside) <= MOST_MODULES:
            shown += inside
            opened.add(row)
    taken = set(shown)
    alone = {
        row: int(weight[row]) - sum(int(weight[one]) for one in children.get(row, []) if one in taken)
        for row in shown
    }
    return sorted(shown, key=lambda row: -alone[row]), opened


def _left_out(children: dict[int, list[int]], shown: list[int]) -> bool:
    """Whether there are outermost modules that are not shown."""
    return any(row not in shown for row in children.get(-1, []))
