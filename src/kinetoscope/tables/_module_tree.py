"""Adding up along the tree of modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.trace._assemble import sums_below

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace


def by_module(trace: Trace, values: NDArray[np.int64], chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Add up `values` of the `chosen` spans for each module, submodules left out."""
    modules = len(trace.columns("modules"))
    module = trace.column("spans", "module")
    rows = np.flatnonzero(chosen & (module >= 0))
    sums = np.zeros(modules, dtype=np.int64)
    np.add.at(sums, module[rows], values[rows])
    return sums


def with_submodules(trace: Trace, own: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add to each module what its submodules have."""
    modules = trace.columns("modules")
    return sums_below(modules["holder"], modules["depth"], own)


def tree_order(trace: Trace, weight: NDArray[np.int64]) -> list[int]:
    """Order modules as an outline: each followed by what it holds, siblings with the most weight first."""
    holders = trace.column("modules", "holder").tolist()
    held: dict[int, list[int]] = {}
    for row in sorted(range(len(holders)), key=lambda row: (-weight[row], row)):
        held.setdefault(holders[row], []).append(row)
    order: list[int] = []
    waiting = held.get(-1, [])[::-1]
    while waiting:
        row = waiting.pop()
        order.append(row)
        waiting.extend(held.get(row, [])[::-1])
    return order
