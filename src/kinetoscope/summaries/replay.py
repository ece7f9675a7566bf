"""How long steps would take if no rank were late: the collectives of a job replayed with other times between them.

A rank runs on its own from the end of one collective to the start of the next one that begins after it, and a collective ends some time after
its last rank has arrived. Replayed with the times that were recorded, the steps are those of the recording; with shorter ones, all ranks
wait less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.arrow import to_arrow
from kinetoscope.model.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.summaries.sections import Sections

    Rows = NDArray[np.int64]

WITHOUT_LATENESS = Table(
    "without_lateness",
    "The time of a step if ranks were not late: if none took longer than the median rank from one collective to the next, and if single ranks did "
    "not. An estimate, by a replay of the collectives of all ranks; waits within other calls, such as receives, stay.",
    (
        Column("rank", "int32", "", "The rank that is not late; null for all."),
        Column("step_ns", "int64", "ns", "The step that was recorded: the median of the ranks' means."),
        Column("replayed_ns", "int64", "ns", "The same in a replay with the times that were recorded: how far it is from `step_ns` says how good the estimate is."),
        Column("without_ns", "int64", "ns", "In a replay in which the rank, or none, is late."),
        Column("gain_percent", "float64", "%", "How much shorter that is than `replayed_ns`."),
    ),
)  # fmt: skip


class _Replay:
    """The collectives of a job as a graph: which visit of a rank follows which, and how long the rank takes in between.

    A visit is a rank at a collective, by its place in `sections.matched`.

    Attributes:
        own_ns: How long the rank of each visit ran on its own before it; of the first visit of a rank how late it was.
        usual_ns: The median of this over the ranks of its collective.
        rank: The row of the rank of each visit.
    """

    def __init__(self, sections: Sections) -> None:
        met = sections.matched
        start = sections.numbers("collectives", "start_ns")[met.rows]
        end = start + sections.numbers("collectives", "duration_ns")[met.rows]
        self.rank, self._meeting, self._transfer_ns = met.rank, met.place, met.shortest_ns
        # Numbers of 16 bits are sorted by radix. Visits of a rank are almost in order then, which a stable sort is fast with.
        of_rank = np.argsort(self.rank.astype(np.min_scalar_type(len(sections))), kind="stable")
        # Rank and end as one number, which grows along `_by_end`.
        self._width = int(end.max(initial=0)) + 3
        keys = self.rank[of_rank] * self._width + end[of_rank] + 1
        in_order = np.argsort(keys, kind="stable")
        self._by_end, self._keys = of_rank[in_order], keys[in_order]
        self._first = np.append(0, np.cumsum(np.bincount(self.rank, minlength=len(sections))))
        self._before = np.empty(len(start), dtype=np.int64)
        self._before[self._by_end] = self._last_ended(self.rank[self._by_end], start[self._by_end])
        follows = self._before >= 0
        self.own_ns = np.where(follows, start - end[self._before], met.late_of_row_ns)
        self.usual_ns = _lower_medians(self.own_ns, met.count)[self._meeting]
        self._first_visit = np.append(0, np.cumsum(met.count)).astype(np.int64)
        # From the beginning of the first step of each rank to the end of its last one.
        row = sections.rows("steps")
        begins = sections.numbers("steps", "start_ns")
        self._steps = np.bincount(row, minlength=len(sections))
        whole = [np.full(len(sections), limit) for limit in (np.iinfo(np.int64).max, np.iinfo(np.int64).min)]
        np.minimum.at(whole[0], row, begins)
        np.maximum.at(whole[1], row, begins + sections.numbers("steps", "duration_ns"))
        # Ranks with steps and collectives only: others wait for nobody.
        self._timed = np.flatnonzero((self._steps > 0) & (np.diff(self._first) > 0))
        self._bounds = [one[self._timed] for one in whole]
        self._start_ns, self._end_ns = start, end

    def _last_ended(self, rank: Rows, moment_ns: Rows) -> Rows:
        """The visit of a rank that ended last by a moment of it, -1 without."""
        if len(self._keys) == 0:
            return np.full(len(rank), -1, dtype=np.int64)
        asked = rank * self._width + np.clip(moment_ns + 1, 0, self._width - 1)
        place = np.searchsorted(self._keys, asked, side="right") - 1
        return np.asarray(np.where(place >= self._first[rank], self._by_end[place], -1))

    def recorded_ns(self) -> int:
        """The step that was recorded."""
        return self._middle(self._bounds[1] - self._bounds[0])

    def step_ns(self, own_ns: Rows) -> int:
        """The step with other times between collectives; -1 where collectives seem to wait for each other."""
        left = _core.replay_collectives(
            self._meeting, self._before, own_ns, self._first_visit, self._transfer_ns
        )
        if (left < 0).any():
            return -1
        edges = []
        for moment in self._bounds:
            before = self._last_ended(self._timed, moment)
            # What begins before all collectives is where it was.
            first = self._by_end[self._first[self._timed]]
            ahead = self.own_ns[first] - (self._start_ns[first] - moment)
            behind = left[self._meeting[before]] + moment - self._end_ns[before]
            edges.append(np.where(before >= 0, behind, ahead))
        return self._middle(edges[1] - edges[0])

    def _middle(self, whole_ns: Rows) -> int:
        """The median step of the ranks, by how long all of theirs take."""
        return int(np.median(whole_ns / self._steps[self._timed])) if len(whole_ns) else -1


def without_lateness(sections: Sections, ranks: Sequence[int]) -> pyarrow.Table:
    """Return the table `without_lateness`; without rows where ranks have no steps or collectives in common.

    Args:
        sections: The summaries.
        ranks: Ranks to replay as if they alone were not late.
    """
    replay = _Replay(sections)
    recorded_ns, replayed_ns = replay.recorded_ns(), replay.step_ns(replay.own_ns)
    known = recorded_ns > 0 and replayed_ns > 0 and len(replay.own_ns) > 0
    shorter = np.minimum(replay.own_ns, replay.usual_ns)
    found = []
    for rank in (-1, *ranks) if known else ():
        late = replay.rank == np.searchsorted(sections.ranks, rank) if rank >= 0 else True
        found.append((rank, replay.step_ns(np.where(late, shorter, replay.own_ns))))
    without = np.array([step_ns for _, step_ns in found], dtype=np.int64)
    columns: dict[str, Any] = {
        "rank": np.array([rank for rank, _ in found], dtype=np.int64),
        "step_ns": np.full(len(found), recorded_ns),
        "replayed_ns": np.full(len(found), replayed_ns),
        "without_ns": without,
        "gain_percent": 100.0 * (replayed_ns - without) / max(replayed_ns, 1),
    }
    return to_arrow(WITHOUT_LATENESS, columns)


def _lower_medians(values: Rows, count: Rows) -> Rows:
    """The lower median of the values of each group, of which those of a group stand in a row: of two, the smaller one."""
    found, group = np.zeros(len(count), dtype=np.int64), np.repeat(count, count)
    for size in np.unique(count).tolist():
        middle = (size - 1) // 2
        own = values[group == size].reshape(-1, size)
        found[count == size] = np.partition(own, middle, axis=1)[:, middle]
    return found
