"""How long steps would take if something else took other times: the collectives of a job replayed.

A rank runs on its own from the end of one collective to the start of the next one that begins after it, and a collective ends some time after
its last rank has arrived. Replayed with the times that were recorded, the steps are those of the recording; with shorter ones, all ranks
wait less.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import kinetoscope._core as _core
from kinetoscope.analyses.meetings import Meetings
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows


class RankSteps(NamedTuple):
    """Steps of ranks.

    Attributes:
        rank: The row of the rank of each.
        start_ns: When it began, on the clock of its rank.
        end_ns: When it ended.
    """

    rank: Rows
    start_ns: Rows
    end_ns: Rows


class Replay:
    """The collectives of a job as a graph: which visit of a rank follows which, and how long the rank takes in between.

    A visit is a rank at a collective, in the order of `Meetings.rows`.

    Attributes:
        own_ns: How long the rank of each visit ran on its own before it; of the first visit of a rank how late it was.
        usual_ns: The median of this over the ranks of its collective.
        rank: The row of the rank of each visit.
    """

    def __init__(self, met: Meetings, start_ns: Rows, steps: RankSteps, ranks: int) -> None:
        """Take the collectives of a job.

        Args:
            met: The collectives that several ranks ran together.
            start_ns: When each record of a call began, on the clock of its rank.
            steps: The steps of all ranks, in any order.
            ranks: How many ranks there are.
        """
        start = start_ns[met.rows]
        end = start + met.duration_ns
        self.rank, self._meeting, self._transfer_ns = met.rank, met.place, met.shortest_ns
        # Numbers of 16 bits are sorted by radix. Visits of a rank are almost in order then, which a stable sort is fast with.
        of_rank = np.argsort(self.rank.astype(np.min_scalar_type(ranks)), kind="stable")
        # Rank and end as one number, which grows along `_by_end`.
        self._width = int(end.max(initial=0)) + 3
        keys = self.rank[of_rank] * self._width + end[of_rank] + 1
        in_order = np.argsort(keys, kind="stable")
        self._by_end, self._keys = of_rank[in_order], keys[in_order]
        self._first = np.append(0, np.cumsum(Groups(self.rank, ranks).sizes()))
        self._before = np.empty(len(start), dtype=np.int64)
        self._before[self._by_end] = self._last_ended(self.rank[self._by_end], start[self._by_end])
        follows = self._before >= 0
        self.own_ns = np.where(follows, start - end[self._before], met.late_of_row_ns)
        self.usual_ns = _lower_medians(self.own_ns, met.count)[self._meeting]
        self._first_visit = np.append(0, np.cumsum(met.count)).astype(np.int64)
        # From the beginning of the first step of each rank to the end of its last one.
        by_rank = Groups(steps.rank, ranks)
        self._steps = by_rank.sizes()
        # Ranks with steps and collectives only: others wait for nobody.
        self._timed = np.flatnonzero((self._steps > 0) & (np.diff(self._first) > 0))
        self._bounds = [
            by_rank.minima(steps.start_ns)[self._timed],
            by_rank.maxima(steps.end_ns)[self._timed],
        ]
        self._start_ns, self._end_ns = start, end
        # All ranks begin so long before their first collective, which says nothing of who is late.
        ahead = start[self._by_end[self._first[self._timed]]] - self._bounds[0]
        self._lead_ns = np.where(follows, 0, int(ahead.max(initial=0)))

    def shorter(self, rank: Rows, time_ns: Rows, gain_ns: Rows) -> tuple[Rows, Rows]:
        """Take time out of what ranks run on their own.

        Args:
            rank: The row of the rank of each part that gets shorter.
            time_ns: When it ran: it is before the next collective of the rank that begins after it.
            gain_ns: How much shorter it gets; at most all that the rank runs on its own before that collective.

        Returns:
            What is left of `own_ns`, and how much is taken out after the last collective of each rank, as `step_ns` takes them.
        """
        order = np.lexsort((self._start_ns, self.rank))
        width = int(max(self._start_ns.max(initial=0), time_ns.max(initial=0))) + 1
        keys = self.rank[order] * width + self._start_ns[order]
        next_visit = np.searchsorted(keys, rank * width + np.maximum(time_ns, 0), side="right")
        behind = next_visit >= self._first[rank + 1]
        gain = Groups(order[next_visit[~behind]], len(self.own_ns)).sums(gain_ns[~behind])
        tail = Groups(rank, len(self._steps)).sums(gain_ns, behind)
        return np.maximum(self.own_ns - gain, -self._lead_ns), tail

    def _last_ended(self, rank: Rows, moment_ns: Rows) -> Rows:
        """The visit of a rank that ended last by a moment of it, -1 without."""
        if len(self._keys) == 0:
            return np.full(len(rank), -1, dtype=np.int64)
        asked = rank * self._width + np.clip(moment_ns + 1, 0, self._width - 1)
        last_visit = np.searchsorted(self._keys, asked, side="right") - 1
        return np.asarray(np.where(last_visit >= self._first[rank], self._by_end[last_visit], -1))

    def recorded_ns(self) -> int:
        """The step time of the median rank as it was recorded."""
        return self._middle(self._bounds[1] - self._bounds[0])

    def step_ns(self, own_ns: Rows, tail_ns: Rows | None = None) -> int:
        """The step with other times between collectives; -1 where collectives seem to wait for each other.

        Args:
            own_ns: In place of the attribute.
            tail_ns: How much shorter what each rank runs after its last collective is; None for nothing.
        """
        left = _core.replay_collectives(
            self._meeting, self._before, own_ns + self._lead_ns, self._first_visit, self._transfer_ns
        )
        if (left < 0).any():
            return -1
        edges = []
        for moment in self._bounds:
            before = self._last_ended(self._timed, moment)
            # What begins before all collectives is where it was.
            first = self._by_end[self._first[self._timed]]
            ahead = self.own_ns[first] + self._lead_ns[first] - (self._start_ns[first] - moment)
            behind = left[self._meeting[before]] + moment - self._end_ns[before]
            edges.append(np.where(before >= 0, behind, ahead))
        if tail_ns is not None:
            edges[1] = edges[1] - tail_ns[self._timed]
        return self._middle(edges[1] - edges[0])

    def _middle(self, whole_ns: Rows) -> int:
        return int(np.median(whole_ns / self._steps[self._timed])) if len(whole_ns) else -1


def _lower_medians(values: Rows, count: Rows) -> Rows:
    """The lower median of the values of each group, of which those of a group stand in a row: of two, the smaller one."""
    medians, group = np.zeros(len(count), dtype=np.int64), np.repeat(count, count)
    for size in np.unique(count).tolist():
        middle = (size - 1) // 2
        groups_of_size = values[group == size].reshape(-1, size)
        medians[count == size] = np.partition(groups_of_size, middle, axis=1)[:, middle]
    return medians
