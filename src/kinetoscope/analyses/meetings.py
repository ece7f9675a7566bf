"""The collectives that several ranks of a job ran together: which call of one rank is which of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Rows = NDArray[np.int64]


class Meetings:
    """The collectives that several ranks ran together, in order of their first records.

    Ranks that do not agree on the calls of a step, name and group are not compared: the second call of one may be the first of another.

    Attributes:
        rows: The records of `collectives` that are of one, those of a meeting in a row.
        rank: The row of the rank of each of these; so for the next ones.
        place: Its meeting.
        duration_ns: How long it took.
        late_of_row_ns: How much later than the first rank it arrived.
        first: The first record of each meeting; so for the next ones.
        count: How many ranks it has.
        last: The row of the rank that arrived last.
        late_ns: How late that was.
        waited_ns: How long the others waited for it, added up.
        shortest_ns: The shortest transfer.
    """

    def __init__(self, rows: Rows, rank: Rows, duration_ns: Rows, count: Rows) -> None:
        """Take meetings.

        Args:
            rows: The records, those of a meeting in a row.
            rank: The row of the rank of each.
            duration_ns: How long each took.
            count: How many records each meeting has.
        """
        self.rows, self.rank, self.count, self.duration_ns = rows, rank, count, duration_ns
        begin = np.cumsum(count) - count
        self.place = np.repeat(np.arange(len(count)), count)
        longest = np.maximum.reduceat(duration_ns, begin) if len(begin) else duration_ns
        self.shortest_ns = np.minimum.reduceat(duration_ns, begin) if len(begin) else duration_ns
        self.late_of_row_ns = longest[self.place] - duration_ns
        self.late_ns = longest - self.shortest_ns
        self.first = rows[begin]
        # Of several, the one of the highest rank.
        latest = np.flatnonzero(duration_ns == self.shortest_ns[self.place])
        self.last = np.zeros(len(count), dtype=np.int64)
        self.last[self.place[latest]] = rank[latest]
        self.waited_ns = _core.group_sums(
            self.place.astype(np.int32), len(count), duration_ns - self.shortest_ns[self.place]
        )

    @classmethod
    def of(
        cls,
        records: Rows,
        rank: Rows,
        keys: Sequence[NDArray[Any]],
        number: Rows,
        size: Rows,
        duration_ns: Rows,
    ) -> Meetings:
        """Find which calls are of one meeting: those of one series, by their place in it.

        Args:
            records: The rows of the calls in `duration_ns`; so for the next four.
            rank: The row of the rank of each.
            keys: What calls of a series have in common: the step, the process group, and the name.
            number: The place of each in the series of its rank.
            size: The bytes of each where all ranks have as many, else 0.
            duration_ns: How long each call took, of all calls.
        """
        series, _ = _core.group([np.ascontiguousarray(key, dtype=np.int64) for key in keys])
        agreed = _agreed(series, rank, number, size)
        if not agreed.all():
            records, series, number, rank = records[agreed], series[agreed], number[agreed], rank[agreed]
        which, first = _core.group([series, number])
        count = _core.group_counts(which, len(first))
        if (count < 2).any():
            several = (count > 1)[which]
            records, which, rank = records[several], which[several], rank[several]
        order = np.argsort(which, kind="stable")
        records = records[order]
        return cls(records, rank[order], duration_ns[records], count[count > 1])

    def only(self, chosen: NDArray[np.bool_]) -> Meetings:
        """The meetings that a mask over them selects."""
        if chosen.all():
            return self
        of_chosen = chosen[self.place]
        return Meetings(
            self.rows[of_chosen], self.rank[of_chosen], self.duration_ns[of_chosen], self.count[chosen]
        )


def _agreed(series: NDArray[np.int32], row: Rows, number: Rows, size: Rows) -> NDArray[np.bool_]:
    """Which calls are of series (step, group, name) that all ranks that have them have equally often, from the same one on, and as large."""
    cell, first = _core.group([np.ascontiguousarray(row), series.astype(np.int64)])
    whose = series[first].astype(np.int32)
    agreed = np.ones(int(series.max(initial=-1)) + 1, dtype=bool)
    least = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(least, cell, number)
    bytes_in_all = np.zeros(len(first), dtype=np.int64)
    np.add.at(bytes_in_all, cell, size)
    for value in (np.bincount(cell, minlength=len(first)), least, bytes_in_all):
        limits = np.iinfo(np.int64)
        low, high = np.full(len(agreed), limits.max), np.full(len(agreed), limits.min)
        np.minimum.at(low, whose, value)
        np.maximum.at(high, whose, value)
        agreed &= low == high
    return agreed[series]
