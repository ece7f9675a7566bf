"""Quantiles of many durations in little space, which can be added up over ranks.

A sketch counts values in buckets whose bounds grow by a constant factor, so every quantile is exact to a fixed relative error
whatever the distribution is, and two sketches are merged by adding up their counts. Source: Masson, Rim and Lee, "DDSketch: A Fast and
Fully-Mergeable Quantile Sketch with Relative-Error Guarantees", PVLDB 12(12), 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.groups import Groups

RELATIVE_ERROR = 0.01
_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH = float(np.log(_GROWTH))
# Bucket 0 holds what is not above 1 nanosecond.
_FIRST_NS = 1.0


@dataclass(frozen=True, eq=False)
class Sketches:
    """How often values fell in each bucket, for several groups: a row for each bucket that is not empty, in order of group and bucket.

    Attributes:
        group: The group, from 0.
        bucket: The bucket.
        count: How many values, above 0.
        total: Their sum.
    """

    group: NDArray[np.int64]
    bucket: NDArray[np.int16]
    count: NDArray[np.int64]
    total: NDArray[np.int64]

    @classmethod
    def of(cls, group: NDArray[np.int64], values: NDArray[np.int64]) -> Sketches:
        """Sketch the values of each group; those of no group (-1) are left out."""
        in_group = group >= 0
        logarithm = np.log(np.maximum(values[in_group], _FIRST_NS)) / _LOG_GROWTH
        once = np.ones(len(logarithm), dtype=np.int64)
        return cls(group[in_group], np.ceil(logarithm).astype(np.int16), once, values[in_group]).merged()

    def joined(self, other: Sketches) -> Sketches:
        """Add up these and others."""
        parts = zip(vars(self).values(), vars(other).values(), strict=True)
        return Sketches(*(np.concatenate(pair) for pair in parts)).merged()

    def merged(self) -> Sketches:
        """Add up what is of the same group and bucket."""
        width = int(self.bucket.max(initial=0)) + 1
        cell, inverse = np.unique(self.group * width + self.bucket, return_inverse=True)
        cells = Groups(inverse.ravel(), len(cell))
        buckets = (cell % width).astype(np.int16)
        return Sketches(cell // width, buckets, cells.sums(self.count), cells.sums(self.total))

    def quantile(self, part: float, groups: int) -> NDArray[np.float64]:
        """Return a quantile of each group, NaN for a group without values.

        Args:
            part: Which: 0.5 is the median.
            groups: How many groups there are.
        """
        quantiles = np.full(groups, np.nan)
        below = np.cumsum(self.count)
        first = np.searchsorted(self.group, np.arange(groups), side="left")
        last = np.searchsorted(self.group, np.arange(groups), side="right")
        some = np.flatnonzero(last > first)
        before = np.append(0, below)[first[some]]
        total = below[last[some] - 1] - before
        rows = np.searchsorted(below, before + np.floor(part * (total - 1)), side="right")
        bucket = self.bucket[rows].astype(np.float64)
        # The middle of a bucket, by the error that both of its bounds are away.
        quantiles[some] = np.where(bucket > 0, 2 * _GROWTH**bucket / (_GROWTH + 1), _FIRST_NS)
        return quantiles
