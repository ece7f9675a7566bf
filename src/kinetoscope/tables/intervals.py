"""Sets of moments: stretches of time that are put together, cut out of each other and measured, in whole nanoseconds.

Every time that is reported for a device is the length of such a set, so that work that overlaps is counted once and
parts of a whole add up to it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.rows import Rows
from kinetoscope.model.trace_data import TraceData


@dataclass(frozen=True, eq=False)
class Intervals:
    """Stretches of time, in order, none empty, none touching another: each from `start_ns` up to, not at, `end_ns`."""

    start_ns: Rows
    end_ns: Rows

    @classmethod
    def none(cls) -> Self:
        """The empty set."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    @classmethod
    def between(cls, start_ns: int, end_ns: int) -> Self:
        """One stretch of time; none if it ends before it begins."""
        return cls.of(np.array([start_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64))

    @classmethod
    def of(cls, start_ns: Rows, end_ns: Rows) -> Self:
        """All moments that lie in any of some stretches of time, in any order; empty and backward ones count for nothing."""
        return cls(*_core.unite(start_ns, end_ns))

    def __len__(self) -> int:
        """The number of stretches."""
        return len(self.start_ns)

    @property
    def total_ns(self) -> int:
        """The total duration."""
        return int((self.end_ns - self.start_ns).sum())

    def __or__(self, other: Intervals) -> Intervals:
        """The union."""
        return Intervals(*_core.join(self.start_ns, self.end_ns, other.start_ns, other.end_ns))

    def __and__(self, other: Intervals) -> Intervals:
        """The intersection."""
        return Intervals(*_core.intersect(self.start_ns, self.end_ns, other.start_ns, other.end_ns))

    def __sub__(self, other: Intervals) -> Intervals:
        """The difference."""
        return Intervals(*_core.subtract(self.start_ns, self.end_ns, other.start_ns, other.end_ns))

    def within(self, start_ns: Rows, end_ns: Rows) -> Rows:
        """The duration of the part in each window; 0 for windows that end before they begin."""
        return self._before(np.maximum(start_ns, end_ns)) - self._before(start_ns)

    def _before(self, time_ns: Rows) -> Rows:
        """How long the part before each of some moments is."""
        return _core.length_before(self.start_ns, self.end_ns, time_ns)


def united_by(group: NDArray[np.integer], groups: int, start_ns: Rows, end_ns: Rows) -> list[Intervals]:
    """The moments of each group of stretches of time.

    Args:
        group: The group of each stretch, from 0.
        groups: How many there are; far fewer than stretches.
        start_ns: When each begins.
        end_ns: When each ends.
    """
    if groups == 1:
        return [Intervals.of(start_ns, end_ns)]
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(groups + 1)).tolist()
    parts = (order[first:last] for first, last in pairwise(edges))
    return [Intervals.of(start_ns[rows], end_ns[rows]) for rows in parts]


def when_ran(trace: TraceData, rows: Rows) -> Intervals:
    """The moments at which any of some spans of a trace ran."""
    spans = trace.columns("spans")
    start_ns = spans["start_ns"][rows]
    return Intervals.of(start_ns, start_ns + spans["duration_ns"][rows])


def ran_within(trace: TraceData, rows: Rows, moments: Intervals) -> Rows:
    """How long each of some spans of a trace ran at some moments."""
    spans = trace.columns("spans")
    start_ns = spans["start_ns"][rows].astype(np.int64)
    return moments.within(start_ns, start_ns + spans["duration_ns"][rows])


def united(parts: list[Intervals]) -> Intervals:
    """The moments in any of some sets."""
    parts = [Intervals.none(), *parts]
    return Intervals.of(
        np.concatenate([part.start_ns for part in parts]), np.concatenate([part.end_ns for part in parts])
    )
