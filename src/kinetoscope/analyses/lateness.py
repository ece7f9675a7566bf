"""Which ranks are late at collectives again and again, by how long each waits for others: one definition for merged traces and summaries.

Ranks leave a collective together, so one that waits less arrived later. What happens in a few steps may be the machine's, or chance. A rank
is named only if it is late in so many of the steps that chance seldom does that, and in all parts of the recording.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Mask, Rows, ends_run

FALSE_ALARMS = 0.01
"""So many jobs without a straggler may have one rank named, by chance."""
BY_CHANCE = 0.005
"""How likely it may be that a rank is late so often where each is as likely to be as any other. Steps in a row are alike, so less than above."""
LEAST_SCORE = 5.0
"""A single step in which a rank is late lies so many standard deviations from those of the others."""
LEAST_LATE_PERCENT = 1.0
"""A late rank has to delay the others by at least this share of a step."""
MUCH_MORE = 3.0
"""One that is late at times only costs so many times as much as any other rank: else it is the job that is irregular."""
PARTS_OF_RECORDING = 3
# A part that takes less than this share of a rank's lateness longer does not explain it; waiting for a core that takes this share does.
_LEAST_PART, _EXPLAINS = 0.1, 0.5
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
    """

    row: int
    late_ns: int
    score: float
    persistent: bool


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


def late_ranks(row: Rows, step: Rows, late_ns: Rows, step_ns: Rows) -> list[LateRank]:
    """Return the ranks for which the others wait, the worst first: those that are late in most steps or, without any, one that is at times.

    Args:
        row: The row of the rank of each value, as `less_waiting` returns them.
        step: Its step.
        late_ns: How long it held up the others.
        step_ns: How long a step takes, for each row.
    """
    late = _usually_late(row, step, late_ns, step_ns) or _late_at_times(row, step, late_ns, step_ns)
    return sorted(late, key=lambda rank: -rank.late_ns)


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
    if more_ns.get("processor_wait", 0) >= _EXPLAINS * late_ns:
        return "processor_wait"
    longer = [name for name, more in more_ns.items() if more > 0 and more >= _LEAST_PART * late_ns]
    return min(longer, key=lambda name: abs(more_ns[name] - late_ns), default=None)


def middle(values: Rows) -> tuple[float, float]:
    """The median of some values, and their robust standard deviation."""
    median = float(np.median(values))
    return median, _TO_DEVIATION * float(np.median(np.abs(values - median)))


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
