"""Rows in groups: of one key, or of a row of another table that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Groups:
    """Which group each of some rows is in, and what the rows of each group come to.

    Attributes:
        of_row: The group of each row; below 0 for a row that is in none.
        first: The first row of each group, in ascending order; empty where the groups are rows of another table.
    """

    def __init__(self, of_row: NDArray[Any], count: int, first: NDArray[np.int32] | None = None) -> None:
        """Group rows by numbers below `count`, such as rows of another table."""
        self.of_row: NDArray[np.int32] = of_row.astype(np.int32, copy=False)
        self.first = np.zeros(0, np.int32) if first is None else first
        self._count = count

    @classmethod
    def by(cls, keys: Sequence[NDArray[Any]], where: NDArray[np.bool_] | None = None) -> Groups:
        """Group rows with the same keys, in the order in which each comes first; with `where`, only those rows."""
        of_row, first = _core.group(
            [key.astype(np.int32) if key.dtype.itemsize < 4 else key for key in keys], where
        )
        return cls(of_row, len(first), first)

    def __len__(self) -> int:
        """Number of groups."""
        return self._count

    def sizes(self) -> NDArray[np.int64]:
        """The number of rows of each group."""
        return _core.group_counts(self.of_row, self._count)

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """The sum of the values of each group's rows: exact for integers; of truth values, how many are true."""
        if values.dtype.kind != "f":
            return _core.group_sums(self.of_row, self._count, values.astype(np.int64, copy=False))
        rows = np.flatnonzero(self.of_row >= 0)
        return np.bincount(self.of_row[rows], weights=values[rows], minlength=self._count)
