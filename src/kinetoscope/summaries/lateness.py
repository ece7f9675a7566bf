"""Ranks that arrive late at collectives: how late, why, and the step time without their lateness.

Lateness needs no clock comparison: ranks leave a collective together, so a rank with a shorter transfer arrived later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow

from kinetoscope.analyses.lateness import (
    LEAST_SCORE,
    LEAST_WORK_PERCENT,
    NETWORK,
    OWN_PARTS,
    LateRank,
    Work,
    late_line,
    late_part,
    late_ranks,
    latest_in,
    middle,
    own_work,
)
from kinetoscope.analyses.lateness import less_waiting as less_waiting_of
from kinetoscope.analyses.loop import SourceLine
from kinetoscope.analyses.replay import RankSteps, Replay
from kinetoscope.model.arrow import rows_to_arrow, to_arrow, to_numpy
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows
from kinetoscope.summaries.sections import Sections


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

    A straggler takes clearly longer for its own work in a step than the others, or for a part of it that it does not make up for, in each third of the steps. Of 200 steps on, how
    little a rank waits for others is enough: in most steps, or in single ones that add up to 1 % of all. A rank that is late because it waited for another late rank is no straggler.
    """
    return sections.cached("stragglers", lambda: _stragglers(sections))


def _stragglers(sections: Sections) -> pyarrow.Table:
    row, step, late = less_waiting(sections)
    ranks_late = late_ranks(row, step, late, sections.step_ns, _work(sections))
    rows = np.array([rank.row for rank in ranks_late], dtype=np.int64)
    late_ns = np.array([rank.late_ns for rank in ranks_late], dtype=np.int64)
    of_ranks = _times_of_lines(sections) if ranks_late else []
    lines = [late_line(of_ranks, rank) for rank in ranks_late]
    steps = len(np.unique(step))
    columns: dict[str, Any] = {
        "rank": sections.ranks[rows],
        "late_ns": late_ns,
        "late_percent": 100.0 * late_ns / np.maximum(sections.step_ns[rows], 1),
        "score": np.array([rank.score for rank in ranks_late]),
        "steps_percent": 100.0 * latest_in(row, step, late, len(sections))[rows] / max(1, steps),
        "persistent": np.array([rank.persistent for rank in ranks_late], dtype=np.int8),
        "phase": [rank.part for rank in ranks_late],
        "extra_ns": np.array([rank.more_ns for rank in ranks_late], dtype=np.int64),
        "line": [line.named or None for line in lines],
    }
    return to_arrow("job: stragglers", columns)


def _work(sections: Sections) -> Work:
    """What may make ranks late: their own work, and their transfers once all ranks have arrived."""
    meetings = sections.meetings
    row, _, time_ns = sections.by_step(meetings.rows, meetings.shortest_ns[meetings.place], Groups.sums)
    rows = sections.rows("steps")
    parts = {part: (rows, sections.numbers("steps", f"{part}_ns")) for part in OWN_PARTS}
    # In one group, all ranks have the same transfers.
    return parts | {NETWORK: (row, time_ns)} if len(sections.groups[0]) > 1 else parts


def late_hosts(sections: Sections) -> list[tuple[str, list[int], LateRank]]:
    """The hosts of which each rank does clearly more in a step than any rank of another host, the worst first.

    Returns:
        For each its name, its ranks, and how late it is, as if it were a rank: as the one of its ranks that does least.
    """
    of_rows = np.array(sections.summaries["host"].to_pylist(), dtype=str)
    work = _work(sections)
    of_ranks = {
        part: Groups(rows, len(sections)).medians(times_ns) for part, (rows, times_ns) in work.items()
    }
    rows, own_ns = own_work(work)
    in_all = Groups(rows, len(sections)).medians(own_ns)
    late = []
    for host in np.unique(of_rows).tolist():
        is_here = of_rows == host
        if not host or is_here.sum() < 2 or is_here.all():
            continue
        usual, spread = middle(in_all[~is_here])
        least_ns, typical_ns = float(in_all[is_here].min()), float(np.median(in_all[is_here]))
        more_ns, step_ns = least_ns - usual, float(np.median(sections.step_ns[is_here]))
        score = (typical_ns - usual) / max(spread, 0.001 * step_ns)
        is_apart = least_ns > max(in_all[~is_here].max(), (usual + typical_ns) / 2)
        if is_apart and more_ns >= 0.01 * LEAST_WORK_PERCENT * step_ns and score >= LEAST_SCORE:
            more_of = {
                part: int(np.median(times[is_here]) - np.median(times[~is_here]))
                for part, times in of_ranks.items()
            }
            cause = late_part(more_of, int(more_ns))
            late_host = LateRank(-1, int(more_ns), score, True, cause, more_of.get(cause or "", 0))
            late.append((host, sections.ranks[is_here].tolist(), late_host))
    return sorted(late, key=lambda named: -named[2].late_ns)


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
    if len(met.rows) == 0 and len(of_record) and (of_record < 0).all():
        return _waits_in_any_group(sections)
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


def _waits_in_any_group(sections: Sections) -> tuple[Rows, Rows]:
    """The same where the groups of calls are unknown: all the time in collectives, in steps in which all ranks call as many.

    Ranks leave a step together, so one that is late by its own work spends the least time in all of them.
    """
    together = np.flatnonzero(
        sections.may_meet & to_numpy(sections.records("collectives")["leaves_together"])
    )
    row, step = sections.rows("collectives")[together], sections.numbers("collectives", "step")[together]
    of_ranks = Groups.by([step, row])
    by_step = Groups.by([step[of_ranks.first]])
    calls = of_ranks.sizes()
    agree = (by_step.sizes() == len(sections)) & (by_step.minima(calls) == by_step.maxima(calls))
    together = together[agree[by_step.of_row[of_ranks.of_row]]]
    return together, sections.numbers("collectives", "duration_ns")[together]


def _times_of_lines(sections: Sections) -> list[dict[tuple[SourceLine, str], float]]:
    """For each rank what its lines take in a step, by the line and the part of the step."""
    of_ranks: list[dict[tuple[SourceLine, str], float]] = [{} for _ in range(len(sections))]
    records = sections.records("lines")
    columns = (records[name].to_pylist() for name in ("row", "file", "line", "function", "part", "time_ns"))
    for row, file, line, function, part, time_ns in zip(*columns, strict=True):
        of_ranks[row][SourceLine(file, line, function), part] = time_ns
    return of_ranks


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
