"""Ranks that arrive late at collectives: how late, why, and the step time without their lateness.

Lateness needs no clock comparison: ranks leave a collective together, so a rank with a shorter transfer arrived later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow

from kinetoscope.analyses.lateness import late_part, late_ranks, latest_in, middle
from kinetoscope.analyses.lateness import less_waiting as less_waiting_of
from kinetoscope.analyses.replay import RankSteps, Replay
from kinetoscope.model.arrow import rows_to_arrow, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows
from kinetoscope.summaries.sections import Sections

# A rank's own work before it arrives at a collective; the rest of a step is waiting, including for other ranks.
_OWN_PARTS = ("compute", "copy", "data_wait", "host_wait", "blocked", "garbage", "processor_wait")
_NETWORK = "network"


def collective_arrivals(sections: Sections) -> pyarrow.Table:
    """Return the table `collective_arrivals`."""
    meetings = sections.meetings
    groups, of_record = sections.groups
    numbers = ("step", "number", "bytes")
    columns: dict[str, Any] = {
        **{name: sections.numbers("collectives", name)[meetings.first] for name in numbers},
        "group": [groups[number].name for number in of_record[meetings.first].tolist()],
        "name": sections.texts("collectives", "name", meetings.first),
        "ranks": meetings.count,
        "last_rank": sections.ranks[meetings.last],
        "late_ns": meetings.late_ns,
        "waited_ns": meetings.waited_ns,
        "transfer_ns": meetings.shortest_ns,
    }
    return to_arrow("job: collective_arrivals", columns)


def stragglers(sections: Sections) -> pyarrow.Table:
    """Return the table `stragglers`.

    A straggler waits for other ranks clearly less than these do (by a robust score that chance seldom reaches) and by at least 1 % of a step: in most steps and in each third of
    them, or in single steps that add up to 1 % of all. Few steps are not enough: two ranks need nine steps, eight ranks four. A rank that is late because it waited for another late rank is no straggler.
    """
    row, step, late = less_waiting(sections)
    ranks_late = late_ranks(row, step, late, sections.step_ns)
    rows = np.array([rank.row for rank in ranks_late], dtype=np.int64)
    late_ns = np.array([rank.late_ns for rank in ranks_late], dtype=np.int64)
    phases, longer = _phases(sections, rows, late_ns)
    steps = len(np.unique(step))
    columns: dict[str, Any] = {
        "rank": sections.ranks[rows],
        "late_ns": late_ns,
        "late_percent": 100.0 * late_ns / np.maximum(sections.step_ns[rows], 1),
        "score": np.array([rank.score for rank in ranks_late]),
        "steps_percent": 100.0 * latest_in(row, step, late, len(sections))[rows] / max(1, steps),
        "persistent": np.array([rank.persistent for rank in ranks_late], dtype=np.int8),
        "phase": phases,
        "extra_ns": longer,
    }
    return to_arrow("job: stragglers", columns)


def late_hosts(sections: Sections) -> list[tuple[str, list[int], int]]:
    """The hosts whose ranks are all late in most steps, the worst first: the host, its ranks, and the lateness of its first rank per step."""
    of_rows = np.array(sections.summaries["host"].to_pylist(), dtype=str)
    hosts, host_of_row = np.unique(of_rows, return_inverse=True)
    if len(hosts) < 2 or len(hosts) == len(sections):
        return []
    row, step, waited = sections.by_step(*_waits(sections), Groups.sums)
    host = host_of_row[row].astype(np.int64)
    # If a whole host is late, even its longest-waiting rank does not wait.
    order = np.lexsort((waited, host, step))
    last = np.append((np.diff(step[order]) != 0) | (np.diff(host[order]) != 0), True)[: len(order)]
    longest = order[last]
    step_ns = np.array([int(np.median(sections.step_ns[host_of_row == row])) for row in range(len(hosts))])
    hosts_late = late_ranks(*less_waiting_of(host[longest], step[longest], waited[longest]), step_ns)
    ranks = [[int(rank) for rank in sections.ranks[host_of_row == row]] for row in range(len(hosts))]
    return [
        (str(hosts[late_host.row]), ranks[late_host.row], late_host.late_ns)
        for late_host in hosts_late
        if late_host.persistent and len(ranks[late_host.row]) > 1 and hosts[late_host.row]
    ]


def less_waiting(sections: Sections) -> tuple[Rows, Rows, Rows]:
    """How much less than the median of the other ranks each rank waits in a step: its row, the step, and the time."""

    def make() -> tuple[Rows, Rows, Rows]:
        return less_waiting_of(*sections.by_step(*_waits(sections), Groups.sums))

    return sections.cached("less_waiting", make)


def _waits(sections: Sections) -> tuple[Rows, Rows]:
    """How long ranks waited for others in collectives: the record, and the time.

    If a group lacks summaries, its last rank may be missing. Its transfers then count as no longer than those of complete groups of the same size, so that
    waiting for a rank without a summary counts as waiting, too.
    """
    met, (groups, of_record) = sections.matched, sections.groups
    duration = sections.numbers("collectives", "duration_ns")
    waited = duration[met.rows] - met.shortest_ns[met.place]
    if len(sections) == sections.world_size:
        return met.rows, waited
    size = sections.group_sizes
    complete = met.count >= size[met.first]
    kinds = Groups.by([sections.codes("collectives", "name"), sections.numbers("collectives", "bytes"), size])
    kind = kinds.of_row
    usual = Groups(kind[met.first][complete], len(kinds)).medians(met.shortest_ns[complete])
    transfer = np.where(usual < 0, np.iinfo(np.int64).max, usual)[kind]
    longest = np.maximum(waited, duration[met.rows] - transfer[met.rows])
    waited = np.where(complete[met.place], waited, longest)
    of_members = of_record[Groups.by([of_record, sections.rows("collectives")]).first]
    members = np.append(Groups(of_members, len(groups)).sizes(), 0)[of_record]
    alone = np.flatnonzero(
        sections.may_meet & (of_record >= 0) & (members == 1) & (size > 1) & (usual >= 0)[kind]
    )
    waited_alone = np.maximum(duration[alone] - transfer[alone], 0)
    return np.concatenate((met.rows, alone)), np.concatenate((waited, waited_alone))


def _phases(sections: Sections, rows: Rows, late_ns: Rows) -> tuple[list[str | None], Rows]:
    """The part in which each rank takes longer than the median rank, and how much longer per step; see `late_part`."""
    phase_ns = {phase: sections.usual_of_steps(f"{phase}_ns") for phase in _OWN_PARTS}
    phase_ns[_NETWORK] = _transfer_ns(sections)
    phases: list[str | None] = []
    longer = np.zeros(len(rows), dtype=np.int64)
    for index, (row, late) in enumerate(zip(rows.tolist(), late_ns.tolist(), strict=True)):
        extra = {phase: int(values[row] - middle(values)[0]) for phase, values in phase_ns.items()}
        nearest = late_part(extra, late)
        phases.append(nearest)
        longer[index] = max(extra[nearest] if nearest else max(extra.values()), 0)
    return phases, longer


def _transfer_ns(sections: Sections) -> Rows:
    """The transfer time per step of each rank, once all ranks have arrived."""
    meetings = sections.meetings
    transfers = sections.by_step(meetings.rows, meetings.shortest_ns[meetings.place], Groups.sums)
    return np.maximum(sections.usual(*transfers), 0)


def exposed_by_step(sections: Sections) -> tuple[Rows, Rows, Rows]:
    """The exposed communication of each rank and step: its row, the step, and the time. Without a device, all transfers are exposed."""
    rows, step = sections.rows("collectives").astype(np.int64), sections.numbers("collectives", "step")
    exposed_ns = sections.exposed_ns(Groups.by([rows, step]).of_row)
    return sections.by_step(np.arange(len(rows)), exposed_ns, Groups.sums)


# The step time if no rank were late: a replay of the job's collectives with other times between them, see `analyses.replay`.


def without_lateness(sections: Sections, ranks: Sequence[int]) -> pyarrow.Table:
    """Return the table `without_lateness`; empty if ranks have no steps or collectives in common.

    Args:
        sections: The summaries.
        ranks: Ranks to replay one by one as if that rank were not late.
    """
    replay, replayed_ns = _replayed(sections)
    rows = []
    for rank in (-1, *ranks) if replayed_ns else ():
        without_ns = _without_ns(sections, sections.ranks if rank < 0 else [rank])
        gain_percent = 100.0 * (replayed_ns - without_ns) / replayed_ns
        rows.append(
            {"rank": rank, "step_ns": replay.recorded_ns(), "replayed_ns": replayed_ns}
            | {"without_ns": without_ns, "gain_percent": gain_percent}
        )
    return rows_to_arrow("job: without_lateness", rows)


def gain_without(sections: Sections, ranks: Sequence[int] | Rows) -> float | None:
    """By how many percent steps are shorter in a replay in which `ranks` are not late; None without common steps or collectives."""
    _, replayed_ns = _replayed(sections)
    if not replayed_ns:
        return None
    return max(100.0 * (replayed_ns - _without_ns(sections, ranks)) / replayed_ns, 0.0)


def _without_ns(sections: Sections, ranks: Sequence[int] | Rows) -> int:
    """The step time in the replay if `ranks` are not late."""
    replay, _ = _replayed(sections)
    is_late = np.isin(replay.rank, np.searchsorted(sections.ranks, ranks))
    return replay.step_ns(np.where(is_late, np.minimum(replay.own_ns, replay.usual_ns), replay.own_ns))


def _replayed(sections: Sections) -> tuple[Replay, int]:
    """The replay, and its step time with the recorded times; 0 if nothing can be replayed."""

    def make() -> tuple[Replay, int]:
        begins = sections.numbers("steps", "start_ns")
        steps = RankSteps(sections.rows("steps"), begins, begins + sections.numbers("steps", "duration_ns"))
        starts = sections.numbers("collectives", "start_ns")
        replay = Replay(sections.matched, starts, steps, len(sections))
        is_known = len(replay.own_ns) > 0 and replay.recorded_ns() > 0
        return replay, max(replay.step_ns(replay.own_ns), 0) if is_known else 0

    return sections.cached("replay", make)
