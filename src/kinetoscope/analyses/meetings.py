"""The collectives that several ranks of a job ran together: which call of one rank is which of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetoscope.combine.ranks import MEETING_COLLECTIVES
from kinetoscope.model.groups import Groups
from kinetoscope.model.processes import process_runs
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.device.collectives import collectives

# Ranks leave an all_to_all at about one moment, too.
_MET = MEETING_COLLECTIVES | {"all_to_all"}


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
        meetings = Groups(self.place, len(count))
        longest, self.shortest_ns = meetings.maxima(duration_ns), meetings.minima(duration_ns)
        self.late_of_row_ns = longest[self.place] - duration_ns
        self.late_ns = longest - self.shortest_ns
        self.first = rows[begin]
        # Of several, the one of the highest rank.
        latest = np.flatnonzero(duration_ns == self.shortest_ns[self.place])
        self.last = np.zeros(len(count), dtype=np.int64)
        self.last[self.place[latest]] = rank[latest]
        self.waited_ns = meetings.sums(duration_ns - self.shortest_ns[self.place])

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
        series = Groups.by(keys).of_row
        agreed = _agreed(series, rank, number, size)
        if not agreed.all():
            records, series, number, rank = records[agreed], series[agreed], number[agreed], rank[agreed]
        groups = Groups.by([series, number])
        meeting, count = groups.of_row, groups.sizes()
        if (count < 2).any():
            several = (count > 1)[meeting]
            records, meeting, rank = records[several], meeting[several], rank[several]
        order = np.argsort(meeting, kind="stable")
        records = records[order]
        return cls(records, rank[order], duration_ns[records], count[count > 1])

    def only(self, chosen: Mask) -> Meetings:
        """The meetings that a mask over them selects."""
        if chosen.all():
            return self
        of_chosen = chosen[self.place]
        return Meetings(
            self.rows[of_chosen], self.rank[of_chosen], self.duration_ns[of_chosen], self.count[chosen]
        )


class RankMeetings(NamedTuple):
    """The collectives that ranks of a trace ran together.

    Attributes:
        met: The collectives, with each rank by its position in the argument `counted`.
        start_ns: When the transfer of each record began; so for the next ones.
        step: The number of its step, -1 outside.
        span: Its row in `spans`.
    """

    met: Meetings
    start_ns: Rows
    step: Rows
    span: Rows


def meetings_of_ranks(trace: TraceData, counted: Mapping[int, Collection[int | None]]) -> RankMeetings:
    """Find the collectives that ranks of a trace ran together.

    Args:
        trace: The trace.
        counted: For each rank the numbers of its steps that count, None for what is outside of all.
    """
    row_of = {rank: row for row, rank in enumerate(counted)}
    one_group = all(len(run.process_groups) < 2 for run in process_runs(trace))
    records: list[tuple[int, ...]] = []
    series: dict[tuple[Any, ...], int] = {}
    numbered = Counter[tuple[int, int]]()
    names = [
        "rank",
        "step",
        "group",
        "group_ranks",
        "name",
        "bytes",
        "transfer_start_ns",
        "transfer_ns",
        "span",
    ]
    rows = collectives(trace).select(names).to_pylist()
    for row in sorted(rows, key=lambda row: row["transfer_start_ns"] or 0):
        group = row["group"] or row["group_ranks"] or ("" if one_group else None)
        if row["name"] not in _MET or None in (group, row["transfer_start_ns"], row["transfer_ns"]):
            continue
        if row["step"] not in counted.get(row["rank"], ()):
            continue
        rank, step = row_of[row["rank"]], -1 if row["step"] is None else row["step"]
        kind = series.setdefault((step, group, row["name"]), len(series))
        size = row["bytes"] or 0 if row["name"] == "all_reduce" else 0
        times = row["transfer_start_ns"], row["transfer_ns"]
        records.append((rank, kind, numbered[rank, kind], size, *times, step, row["span"]))
        numbered[rank, kind] += 1
    columns = np.array(records, np.int64).reshape(-1, 8).T.copy()
    of_rank, kinds, numbers, sizes, start_ns, duration_ns, steps, spans = columns
    met = Meetings.of(np.arange(len(records)), of_rank, [kinds], numbers, sizes, duration_ns)
    return RankMeetings(met, start_ns, steps, spans)


def _agreed(series: NDArray[np.int32], row: Rows, number: Rows, size: Rows) -> Mask:
    """Which calls are of series (step, group, name) that all ranks that have them have equally often, from the same one on, and as large."""
    of_ranks = Groups.by([row, series])
    by_series = Groups(series[of_ranks.first], int(series.max(initial=-1)) + 1)
    values = (of_ranks.sizes(), of_ranks.minima(number), of_ranks.sums(size))
    agreed = [by_series.minima(value) == by_series.maxima(value) for value in values]
    return np.asarray(np.logical_and.reduce(agreed)[series])
