"""The allocations of files that do not say addresses: torch before 1.10 wrote only how much memory changed.

A free is then taken for that of the youngest block of its size that still lives on its device, and both get a made-up
address. So the live bytes are right at every moment, while which of several equal blocks was freed is a guess. A free
without such a block is of one from before the recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def with_addresses(allocations: Mapping[str, Any]) -> NDArray[np.uint64] | None:
    """Make up the addresses that are missing.

    Args:
        allocations: The columns of the table, in order of time.

    Returns:
        The column `address`; None where nothing is missing.
    """
    address: NDArray[np.uint64] = allocations["address"]
    taken, freed = allocations["bytes"], allocations["freed_bytes"]
    rows = np.flatnonzero((address == 0) & ((taken > 0) | (freed > 0)))
    if len(rows) == 0:
        return None
    size = np.where(taken[rows] > 0, taken[rows], freed[rows])
    begins = taken[rows] > 0
    kind, index = (allocations[name][rows] for name in ("device_type", "device_index"))
    order = np.lexsort((rows, size, index, kind))
    place = np.arange(len(order))
    new = np.ones(len(order), dtype=bool)
    keys = [values[order] for values in (kind, index, size)]
    new[1:] = np.logical_or.reduce([values[1:] != values[:-1] for values in keys])
    group = np.cumsum(new) - 1
    # How many blocks of the size live after each event, if none lived before the first and a free of none counts nothing:
    # the sum of ups and downs, less its lowest value so far below zero.
    step = np.where(begins[order], 1, -1)
    walked = np.cumsum(step)
    walked -= (walked - step)[new][group]
    # Each group in a band of its own far below the last, so that one running minimum serves all.
    band = np.int64(2 * len(order) + 2)
    lowest = np.minimum.accumulate(np.minimum(walked, 0) - group * band) + group * band
    unmatched = ~begins[order] & (walked < np.where(new, 0, np.append(0, lowest[:-1])))
    live = walked - lowest
    # Level of a block: how many of its size lie below it. A free is of the last begin at its level.
    level = np.where(begins[order], live, live + 1)
    by_level = np.lexsort((place, level, group))
    by_level = by_level[~unmatched[by_level]]
    before = np.append(-1, by_level[:-1])
    is_free = ~begins[order][by_level]
    owner = place.copy()
    owner[by_level[is_free]] = before[is_free]
    first = int(address.max()) + 1
    if first > 2**48 - len(allocations["bytes"]) - 1:
        first = 1
    made = address.copy()
    made[rows[order]] = (first + order[owner]).astype(np.uint64)
    return made
