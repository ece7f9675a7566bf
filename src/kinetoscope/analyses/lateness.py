"""Which ranks are late at collectives again and again, by how long each waits for others: one definition for merged traces and summaries.

Ranks leave a collective together, so one that waits less arrived later. What happens in a few steps may be the machine's, or chance. A rank
is named only if it is late in so many of the steps that chance seldom does that, and in all parts of the recording.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from kinetoscope.analyses.loop import SourceLine
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Mask, Rows, ends_run

OWN_PARTS = ("compute", "copy", "data_wait", "host_wait", "blocked", "garbage", "processor_wait")
"""A rank's own work before it arrives at a collective; the rest of a step is waiting, including for other ranks."""
PROCESSOR_WAIT = "processor_wait"
NETWORK, PART_OF_NETWORK = "network", "communication"
"""What makes a rank late whose transfers take longer, and the part of a step that has them."""
FALSE_ALARMS = 0.01
"""So many jobs without a straggler may have one rank named, by chance."""
BY_CHANCE = 0.005
"""How likely it may be that a rank is late so often where each is as likely to be as any other. Steps in a row are alike, so less than above."""
LEAST_SCORE = 5.0
"""A single step in which a rank is late lies so many standard deviations from those of the others."""
LEAST_SCORE_IN_ALL = 2.0
"""A rank that one part of a step takes longer is late by that if its work in all is so many standard deviations longer."""
LEAST_LATE_PERCENT = 1.0
"""A late rank has to delay the others by at least this share of a step."""
LEAST_WORK_PERCENT, LEAST_WAITED = 2.0, 0.3
"""A rank is late by a part of the step that takes it so much longer, as a share of the step, if it waits so much of that less for the others."""
FEWEST_UNEXPLAINED = 200
"""In fewer steps, a rank is not late by how little it waits alone: something has to take it so much longer."""
FEWEST_OF_WORK = 6
"""A rank is not late by a part of its steps if fewer steps are known of it, or of another one."""
MUCH_MORE = 3.0
"""One that is late at times only costs so many times as much as any other rank: else it is the job that is irregular."""
PARTS_OF_RECORDING = 3
_BY_SAMPLES = ("host_wait", "blocked", PROCESSOR_WAIT)
# A part that takes less than this share of a rank's lateness longer does not explain it; waiting for a core that takes this share does.
_LEAST_PART, _EXPLAINS = 0.1, 0.5
# A line takes at least this part of the lateness longer than on the median of the other ranks, or it does not explain it.
_LEAST_OF_LINE = 0.25
# Of a step: a smaller spread would make a straggler of whom a microsecond sets apart.
_FLOOR = 0.001
# The median absolute deviation of a normal distribution, times this, is its standard deviation.
_TO_DEVIATION = 1.4826


@dataclass(frozen=True)
class LateRank:
    """A rank that others wait for.

    Attributes:
        row: Its row.
        late_ns: How long it holds up the others in a step, of those in which it does.
        score: How far this lies from the others, in standard deviations.
        persistent: Whether it is late in most steps.
        part: What makes it late, see `late_part`.
        more_ns: How much longer that takes it in a step than the median of the other ranks.
    """

    row: int
    late_ns: int
    score: float
    persistent: bool
    part: str | None = None
    more_ns: int = 0


Work = Mapping[str, tuple[Rows, Rows]]
"""What makes ranks late: for each part of a step the row of the rank and the time of each step, the steps of a rank in order."""


def less_waiting(row: Rows, step: Rows, waited_ns: Rows) -> tuple[Rows, Rows, Rows]:
    """How much less each rank waits for others in a step than the median of the other ranks.

    Args:
        row: The row of the rank of each value.
        step: Its step.
        waited_ns: How long the rank waited for others in it.

    Returns:
        The row, the step and the time, in order of step; steps with one rank are left out.
    """
    order = np.lexsort((waited_ns, step))
    row, step, waited = row[order], step[order], waited_ns[order]
    steps = Groups.runs(step)
    first, count = steps.first[steps.of_row].astype(np.int64), steps.sizes()[steps.of_row]
    order_in = np.arange(len(step)) - first
    several = count > 1
    row, step, first, count, order_in = (values[several] for values in (row, step, first, count, order_in))
    # Of the others: those behind its own place move up by one.
    low, high = (count - 2) // 2, (count - 1) // 2
    middle = waited[first + low + (order_in <= low)] + waited[first + high + (order_in <= high)]
    return row, step, middle // 2 - waited[several]


def late_ranks(
    row: Rows, step: Rows, late_ns: Rows, step_ns: Rows, work: Work | None = None
) -> list[LateRank]:
    """Return the ranks for which the others wait, the worst first: those that are late in most steps or, without any, one that is at times.

    A rank is late in most steps by how little it waits, or by a part of the step that takes it longer than all others, if it waits less, too. On a
    machine that is busy, waits vary far more than what ranks do themselves.

    Args:
        row: The row of the rank of each value, as `less_waiting` returns them.
        step: Its step.
        late_ns: How long it held up the others.
        step_ns: How long a step takes, for each row.
        work: What the ranks do themselves; None where that is not to be looked at.
    """
    in_all = _excesses(*own_work(work), step_ns) if work and len(row) else {}
    late = _late_by_work(row, late_ns, step_ns, work or {}, in_all)
    is_long = len(np.unique(step)) >= FEWEST_UNEXPLAINED
    # On a busy machine, the waits of a few steps name ranks by chance.
    if is_long or not in_all:
        by_work = {rank.row for rank in late}
        late += [rank for rank in _usually_late(row, step, late_ns, step_ns) if rank.row not in by_work]
    late = late or _late_at_times(row, step, late_ns, step_ns)
    late = [_with_part(rank, work or {}) for rank in sorted(late, key=lambda rank: -rank.late_ns)]
    if is_long or not work:
        return late
    return [rank for rank in late if not rank.persistent or rank.more_ns >= LEAST_WAITED * rank.late_ns]


def _with_part(late: LateRank, work: Work) -> LateRank:
    more_ns = {}
    for part, (rows, values) in work.items():
        if (rows == late.row).any() and (rows != late.row).any():
            medians = [np.median(values[rows == rank]) for rank in np.unique(rows[rows != late.row])]
            more_ns[part] = int(np.median(values[rows == late.row]) - np.median(medians))
    # What a rank does itself varies less than how long it waits.
    own_ns = sum(more for part, more in more_ns.items() if part != NETWORK)
    cause = late_part(more_ns, own_ns if late.more_ns and own_ns > 0 else late.late_ns)
    return replace(late, part=cause, more_ns=more_ns[cause] if cause else max([0, *more_ns.values()]))


def latest_in(row: Rows, step: Rows, late_ns: Rows, rows: int) -> Rows:
    """In how many steps each rank was the latest."""
    order = np.lexsort((late_ns, step))
    return Groups(row[order][ends_run(step[order])], rows).sizes()


def late_part(more_ns: Mapping[str, int], late_ns: int) -> str | None:
    """What makes a rank late, of what takes it longer in a step than the median rank; None if nothing does.

    Ranks that do different work differ in more than makes one of them late: it is what comes nearest to how late it is. A thread without a CPU
    core is late in whatever it does, so that comes first.

    Args:
        more_ns: How much longer each part of a step takes it, by the names of the parts.
        late_ns: How late it is in a step.
    """
    if more_ns.get(PROCESSOR_WAIT, 0) >= _EXPLAINS * late_ns:
        return PROCESSOR_WAIT
    longer = [name for name, more in more_ns.items() if more > 0 and more >= _LEAST_PART * late_ns]
    return min(longer, key=lambda name: abs(more_ns[name] - late_ns), default=None)


def late_line(of_ranks: Sequence[Mapping[tuple[SourceLine, str], float]], late: LateRank) -> SourceLine:
    """The line of the program that takes a rank longest, compared with the median of the others; none where no line explains it.

    Args:
        of_ranks: For each rank what its lines take in a step, by the line and the part of the step.
        late: The rank that is late.
    """
    part = f"{PART_OF_NETWORK if late.part == NETWORK else late.part}_ns"
    of_other_ranks = [times for row, times in enumerate(of_ranks) if row != late.row]
    more_ns = {
        line: time_ns - median([times.get((line, part), 0) for times in of_other_ranks])
        for (line, of_part), time_ns in of_ranks[late.row].items()
        if of_part == part
    }
    worst = max(more_ns, key=lambda line: more_ns[line], default=SourceLine())
    return worst if more_ns.get(worst, 0) >= _LEAST_OF_LINE * late.late_ns else SourceLine()


def middle(values: Rows) -> tuple[float, float]:
    """The median of some values, and their robust standard deviation."""
    median = float(np.median(values))
    return median, _TO_DEVIATION * float(np.median(np.abs(values - median)))


@dataclass(frozen=True)
class _Excess:
    """How much longer something takes a rank in a step than the median of the others, and how many standard deviations that is.

    `throughout` if it takes longer in each third of the steps.
    """

    more_ns: float
    score: float
    throughout: bool


def _excesses(rows: Rows, values: Rows, step_ns: Rows) -> dict[int, _Excess]:
    of_ranks = {rank: values[rows == rank] for rank in np.unique(rows).tolist()}
    if len(of_ranks) < 2 or min(map(len, of_ranks.values())) < FEWEST_OF_WORK:
        return {}
    medians = {rank: float(np.median(times)) for rank, times in of_ranks.items()}
    errors = {rank: 1.2533 * middle(times)[1] / math.sqrt(len(times)) for rank, times in of_ranks.items()}
    excesses = {}
    # A few steps may be alike by chance.
    usual_error_ns = median(errors.values())
    for rank, times in of_ranks.items():
        other_medians = np.array([medians[other] for other in of_ranks if other != rank])
        usual, spread = middle(other_medians)
        more_ns = medians[rank] - usual
        error_ns = max(errors[rank], usual_error_ns) * math.sqrt(1 + 1 / len(other_medians))
        thirds = np.array_split(times, PARTS_OF_RECORDING)
        excesses[rank] = _Excess(
            more_ns,
            more_ns / max(spread, error_ns, _FLOOR * float(step_ns[rank]), 1.0),
            all(np.median(third) - usual >= more_ns / 3 for third in thirds),
        )
    return excesses


def own_work(work: Work) -> tuple[Rows, Rows]:
    """The row of the rank and the time of all that it does itself, for each step: it varies far less than how long ranks wait for each other."""
    parts = [work[part] for part in OWN_PARTS if part in work]
    return parts[0][0], np.sum([times_ns for _, times_ns in parts], axis=0)


def _late_by_work(
    row: Rows, late_ns: Rows, step_ns: Rows, work: Work, in_all: Mapping[int, _Excess]
) -> list[LateRank]:
    """The ranks that their own work, or one part of it, takes clearly longer than the others, in each third of their steps.

    Ranks do a step together, so the others wait for one that works longer in all. It is not late by a part that it makes up for by another.
    """
    if not in_all:
        return []
    # By these parts it is not known well: whether a thread slept or had no core, a few samples say.
    divided = [part for part in _BY_SAMPLES if part in work]
    parts = {part: values for part, values in work.items() if part not in _BY_SAMPLES}
    parts["by samples"] = work[divided[0]][0], np.sum([work[part][1] for part in divided], axis=0)
    late: dict[int, LateRank] = {}
    of_parts = {part: _excesses(*values, step_ns) for part, values in parts.items()}
    for part, excesses in {"all": in_all, **of_parts}.items():
        tests = max(len(excesses), 1) * (1 if part == "all" else len(parts))
        least_score = math.sqrt(2 * math.log(tests / FALSE_ALARMS))
        for rank, excess in excesses.items():
            more_ns, less = excess.more_ns, late_ns[row == rank]
            less_ns, varies_ns = middle(less) if len(less) else (0.0, 0.0)
            less_error_ns = 1.2533 * varies_ns / math.sqrt(max(len(less), 1))
            if part == NETWORK:
                is_later = less_ns - less_error_ns >= LEAST_WAITED * more_ns
            else:
                in_all_ns = in_all[rank].more_ns if in_all[rank].score >= LEAST_SCORE_IN_ALL else 0.0
                is_later = in_all_ns >= _EXPLAINS * more_ns and less_ns + 3 * less_error_ns >= -more_ns
            if (
                is_later
                and rank not in late
                and excess.score >= least_score
                and excess.throughout
                and more_ns >= 0.01 * LEAST_WORK_PERCENT * step_ns[rank]
            ):
                # Where waits vary, the work itself says best how late it is.
                waits_less = less_ns > 0 and abs(less_ns - more_ns) > 2 * less_error_ns
                held_up_ns = int(min(less_ns, more_ns) if waits_less else more_ns)
                late[rank] = LateRank(rank, held_up_ns, excess.score, persistent=True, more_ns=int(more_ns))
    return [*late.values()]


def _usually_late(row: Rows, step: Rows, late_ns: Rows, step_ns: Rows) -> list[LateRank]:
    ranks = np.unique(row)
    if len(ranks) == 0:
        return []
    usually = np.zeros(len(step_ns), dtype=np.int64)
    order = np.lexsort((step, row))
    edges = [*np.searchsorted(row[order], ranks, side="left").tolist(), len(order)]
    of_rank = {rank: order[edges[index] : edges[index + 1]] for index, rank in enumerate(ranks.tolist())}
    for rank, values_of in of_rank.items():
        usually[rank] = int(np.median(late_ns[values_of]))
    latest = latest_in(row, step, late_ns, len(step_ns))
    among_latest, part = _in_latest_quarter(step, late_ns, len(ranks))
    # By chance, one of many ranks is further off than one of a few: the bound on the tail of a normal distribution.
    least_score = float(np.sqrt(2 * np.log(max(1, len(ranks)) / FALSE_ALARMS)))
    late = []
    for rank, values_of in of_rank.items():
        its_ns, own_step_ns = late_ns[values_of], float(step_ns[rank])
        least_ns = 0.01 * LEAST_LATE_PERCENT * own_step_ns
        if usually[rank] < least_ns:
            continue
        median, spread = middle(usually[ranks[ranks != rank]])
        # The median of n values of a normal distribution varies by 1.2533 times their deviation over the root of n.
        error_ns = 1.2533 * middle(its_ns)[1] / math.sqrt(len(its_ns))
        score = (usually[rank] - median) / max(spread, error_ns, _FLOOR * own_step_ns, 1.0)
        by_chance = min(
            _at_least(int(latest[rank]), len(its_ns), 1 / len(ranks)),
            _at_least(int((among_latest[values_of] & (its_ns >= least_ns)).sum()), len(its_ns), part),
        )
        throughout = all(
            np.median(part) >= usually[rank] / 2
            for part in np.array_split(its_ns, PARTS_OF_RECORDING)
            if len(part)
        )
        if score >= least_score and by_chance * len(ranks) < BY_CHANCE and throughout:
            late.append(LateRank(rank, int(usually[rank]), score, persistent=True))
    return late


def _in_latest_quarter(step: Rows, late_ns: Rows, ranks: int) -> tuple[Mask, float]:
    """Which values are among the latest quarter of their step, and which part of the ranks that is."""
    most = -(-ranks // 4)
    order = np.lexsort((-late_ns, step))
    steps = Groups.runs(step[order])
    rank_in_step = np.arange(len(order)) - steps.first[steps.of_row]
    is_latest = np.zeros(len(order), dtype=bool)
    is_latest[order] = rank_in_step < most
    return is_latest, most / ranks


def _late_at_times(row: Rows, step: Rows, late_ns: Rows, step_ns: Rows) -> list[LateRank]:
    """The rank that is late in some steps, unless there is none or another is late nearly as often or as much."""
    if len(row) == 0:
        return []
    ranks = np.unique(row)
    median, spread = middle(late_ns)
    usual_step_ns = float(np.median(step_ns[ranks]))
    spread = max(spread, _FLOOR * usual_step_ns, 1.0)
    limit = median + max(LEAST_SCORE * spread, 0.01 * LEAST_LATE_PERCENT * usual_step_ns)
    outside = late_ns >= limit
    sums = Groups(row, len(step_ns)).sums(late_ns - median, outside)
    latest, *next_latest = np.argsort(-sums, kind="stable")[:2].tolist()
    its_late_ns = late_ns[outside & (row == latest)]
    least_ns = 0.01 * LEAST_LATE_PERCENT * usual_step_ns * int((row == latest).sum())
    if sums[latest] < max(least_ns, MUCH_MORE * sums[next_latest].max(initial=0.0)):
        return []
    # Late steps in a row are one event: the machine was busy for so long.
    order = np.lexsort((step, row))
    is_late, whose = outside[order], row[order]
    starts = is_late & ~np.append(False, is_late[:-1] & (np.diff(whose) == 0))
    events, all_events = int((starts & (whose == latest)).sum()), int(starts.sum())
    if _at_least(events, all_events, 1 / len(ranks)) * len(ranks) >= BY_CHANCE:
        return []
    typical = float(np.median(its_late_ns))
    return [LateRank(latest, int(typical), (typical - median) / spread, persistent=False)]


def _at_least(successes: int, trials: int, chance: float) -> float:
    return sum(
        math.comb(trials, count) * chance**count * (1 - chance) ** (trials - count)
        for count in range(successes, trials + 1)
    )
