"""Group rows by keys or by rows of another table and aggregate each group; percentages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.rows import Mask, Rows, begins_run


class Groups:
    """The group of each row, with aggregates over the rows of each group.

    Attributes:
        of_row: The group of each row; negative for none.
        first: The first row of each group, ascending; empty if the groups are rows of another table.
    """

    def __init__(
        self, of_row: NDArray[Any], count: int | tuple[int, int], first: NDArray[np.int32] | None = None
    ) -> None:
        """Group rows by numbers below `count`, such as rows of another table."""
        self.of_row: NDArray[np.int32] = of_row.astype(np.int32, copy=False)
        self.first = np.zeros(0, np.int32) if first is None else first
        self._shape = count if isinstance(count, tuple) else (count,)
        self._count = math.prod(self._shape)

    @classmethod
    def by(cls, keys: Sequence[NDArray[Any]], where: Mask | None = None) -> Groups:
        """Group rows with equal keys, in order of first appearance; with `where`, only these rows."""
        columns: list[NDArray[Any]] = [
            np.ascontiguousarray(key, np.int64 if key.dtype.itemsize > 4 else np.int32) for key in keys
        ]
        of_row, first = _core.group(columns, where)
        return cls(of_row, len(first), first)

    @classmethod
    def runs(cls, *keys: NDArray[Any]) -> Groups:
        """Group consecutive rows with equal keys."""
        begins = begins_run(*keys)
        first = np.flatnonzero(begins).astype(np.int32)
        return cls(np.cumsum(begins) - 1, len(first), first)

    @classmethod
    def beginning_at(cls, first: NDArray[Any], count: int) -> Groups:
        """Group `count` rows: each group extends from one row in `first` to the next; rows before the first belong to none."""
        of_row = np.repeat(np.arange(-1, len(first)), np.diff(first, prepend=0, append=count))
        return cls(of_row, len(first), first.astype(np.int32))

    @classmethod
    def cells(cls, row: NDArray[Any], column: NDArray[Any], shape: tuple[int, int]) -> Groups:
        """Group rows by a pair of indices into `shape`; aggregates then have this shape."""
        number = row.astype(np.int64) * shape[1] + column
        return cls(np.where((row >= 0) & (column >= 0), number, -1), shape)

    def __len__(self) -> int:
        """Number of groups."""
        return self._count

    def sizes(self) -> Rows:
        """The number of rows of each group."""
        return _core.group_counts(self.of_row, self._count).reshape(self._shape)

    def rows(self) -> tuple[Rows, Rows]:
        """The rows of all groups, one group after the other, and the offset of each group, with the total at the end."""
        # NumPy sorts 16-bit integers by radix, in a fraction of the time.
        narrow = self.of_row.astype(np.int16) if self._count <= np.iinfo(np.int16).max else self.of_row
        order = np.argsort(narrow, kind="stable")
        return order[np.count_nonzero(self.of_row < 0) :], np.append(0, np.cumsum(self.sizes()))

    def sums(self, values: NDArray[Any], where: Mask | None = None) -> NDArray[Any]:
        """The sum of values in each group, of the rows in `where` if given: exact for integers; for bools, the number of True."""
        if values.dtype.kind != "f":
            skip = None if where is None else (~where).view(np.uint8)
            of_groups = _core.group_sums(self.of_row, self._count, _integers(values), skip)
        else:
            rows = np.flatnonzero(self.of_row >= 0 if where is None else where & (self.of_row >= 0))
            of_groups = np.bincount(self.of_row[rows], weights=values[rows], minlength=self._count)
        return of_groups.reshape(self._shape)

    def minima(self, values: NDArray[Any]) -> NDArray[Any]:
        """The smallest value in each group, 0 for an empty group."""
        if values.dtype.kind != "f":
            return _core.group_min(self.of_row, self._count, _integers(values))
        return -self.maxima(-values)

    def maxima(self, values: NDArray[Any]) -> NDArray[Any]:
        """The largest value in each group, 0 for an empty group."""
        if values.dtype.kind != "f":
            return _core.group_max(self.of_row, self._count, _integers(values))
        rows = np.flatnonzero(self.of_row >= 0)
        largest = np.full(self._count, -np.inf)
        np.maximum.at(largest, self.of_row[rows], values[rows])
        return np.where(self.sizes() > 0, largest, 0.0)

    def medians(self, values: Rows) -> Rows:
        """The median of each group, rounded down; -1 for an empty group."""
        return _core.group_medians(self.of_row, self._count, values)

    def row_of_minimum(self, values: NDArray[Any]) -> NDArray[np.int32]:
        """The first row of each group with the group's smallest value, -1 for an empty group."""
        at_minimum = np.flatnonzero(
            (self.of_row >= 0) & (values == np.append(self.minima(values), 0)[self.of_row])
        )[::-1]
        rows = np.full(self._count, -1, np.int32)
        rows[self.of_row[at_minimum]] = at_minimum
        return rows

    def largest(self, values: NDArray[Any] | None = None) -> int:
        """The non-empty group with the largest sum of values or, without values, the most rows; the first on a tie, 0 if all are empty."""
        sizes = self.sizes()
        sums = sizes if values is None else self.sums(values)
        present = np.flatnonzero(sizes)
        return int(present[np.argmax(sums[present])]) if len(present) else 0


def _integers(values: NDArray[Any]) -> Rows:
    return np.ascontiguousarray(values, dtype=np.int64)


def percent(part: Rows, whole: int | Rows) -> NDArray[np.float64]:
    """Percentages of one whole, or of one whole per part; null if the whole is 0."""
    return np.asarray(100.0 * part / np.where(whole == 0, np.nan, whole))
