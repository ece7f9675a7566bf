"""Which ranks arrive late at collectives, how late, and what takes them longer.

Lateness compares no clocks: ranks leave a collective together, so one whose transfer took shorter arrived later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.arrow import to_arrow
from kinetoscope.model.schema import Column, Table

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.summaries.sections import Sections

    Rows = NDArray[np.int64]

# What a rank does itself before it arrives at a collective; the rest of a step is waiting, for others among it.
_OWN_PARTS = {
    "compute_ns": "compute",
    "copy_ns": "copies",
    "input_wait_ns": "input",
    "cpu_bound_ns": "host",
}
_NETWORK = "network"
_LEAST_SCORE = 5.0
"""A rank whose lateness lies this many standard deviations from that of the others is a straggler."""
_LEAST_LATE_STEPS = 2
"""One late step has happened to any rank."""
_LEAST_LATE_PERCENT = 1.0
"""And it has to delay the others by at least this share of a step."""
# Of a step: a smaller spread would make a straggler of whom a microsecond sets apart.
_FLOOR = 0.001
# The median absolute deviation of a normal distribution, times this, is its standard deviation.
_TO_DEVIATION = 1.4826

ARRIVALS = Table(
    "collective_arrivals",
    "A collective that several ranks ran together, and who arrived last. All ranks leave such a collective together, so one whose transfer "
    "took shorter arrived later; this compares no clocks.",
    (
        Column("step", "int64", "", "The number of the step."),
        Column("group", "category", "", "The name of the process group, or its ranks."),
        Column("name", "category", "", "The collective, such as all_reduce."),
        Column("number", "int32", "", "Its place among those of this step, group and name."),
        Column("ranks", "int32", "", "How many ranks' summaries have it."),
        Column("bytes", "int64", "bytes", "The size of the message."),
        Column("last_rank", "int32", "", "The rank that arrived last."),
        Column("late_ns", "int64", "ns", "How long after the first one it arrived."),
        Column("waited_ns", "int64", "ns", "How long all ranks waited for it, added up."),
        Column(
            "transfer_ns", "int64", "ns", "How long the transfer took once all had arrived: the shortest."
        ),
    ),
)
STRAGGLERS = Table(
    "stragglers",
    "A rank for which the others wait again and again. The worst first.",
    (
        Column("rank", "int32", "", "The rank."),
        Column("late_ns", "int64", "ns", "How long it holds up the others in a step: how much less than the median of these it waits for others; the "
                                           "median over steps."),
        Column("late_percent", "float64", "%", "The same as a share of a step."),
        Column("score", "float64", "", "How far this lies from the median of the other ranks, in robust standard deviations (1.4826 times the "
                                       "median absolute deviation) of theirs or of its own median, whichever is larger."),
        Column("steps_percent", "float64", "%", "In which share of the steps it held up the others most."),
        Column("persistent", "bool", "", "Whether it is late in most steps; if not, `late_ns` is of those in which it is."),
        Column("phase", "category", "", "What takes it longer than others: `input`, `host`, `compute`, `copies`, or `network` (its "
                                             "transfers, once all ranks have arrived); null if none does."),
        Column("extra_ns", "int64", "ns", "How much longer, in a step."),
    ),
)  # fmt: skip


def collective_arrivals(sections: Sections) -> pyarrow.Table:
    """Return the table `collective_arrivals`."""
    found = sections.meetings
    groups, of_record = sections.groups
    columns: dict[str, Any] = {
        name: sections.numbers("collectives", name)[found.first] for name in ("step", "number", "bytes")
    }
    columns |= {
        "group": [groups[place].name for place in of_record[found.first].tolist()],
        "name": sections.texts("collectives", "name", found.first),
        "ranks": found.count,
        "last_rank": sections.ranks[found.last],
        "late_ns": found.late_ns,
        "waited_ns": found.waited_ns,
        "transfer_ns": found.shortest_ns,
    }
    return to_arrow(ARRIVALS, columns)


def stragglers(sections: Sections) -> pyarrow.Table:
    """Return the table `stragglers`.

    A rank is one if it waits for others notably less than these do (a robust score above 5), by at least 1 % of a step: in most steps, or in
    single ones if these come to 1 % of all. A rank that is late with others because it waited for them is none.
    """
    row, step, late = less_waiting(sections)
    step_ns = np.maximum(sections.step_ns, 1)
    usually = sections.medians(row, late)
    known = np.unique(row)
    found: list[dict[str, Any]] = []
    for one in known.tolist() if len(known) > 1 else ():
        others = usually[known[known != one]]
        usual = _usual(late[row == one], others, late[row != one], float(step_ns[one]))
        if usual is not None:
            found.append({"row": one, "late_percent": 100.0 * usual["late_ns"] / step_ns[one], **usual})
    irregular = [one for one in found if not one["persistent"]]
    if len(irregular) > 1:
        # Several that are late at times: then it is the job that is irregular, and not a rank.
        found = [one for one in found if one["persistent"]]
    found.sort(key=lambda one: -one["late_ns"])
    rows = np.array([one["row"] for one in found], dtype=np.int64)
    phases, longer = _phases(sections, rows)
    columns: dict[str, Any] = {
        "rank": sections.ranks[rows],
        "late_ns": np.array([one["late_ns"] for one in found], dtype=np.int64),
        "late_percent": np.array([one["late_percent"] for one in found]),
        "score": np.array([one["score"] for one in found]),
        "steps_percent": _latest_percent(row, step, late, len(sections))[rows],
        "persistent": np.array([one["persistent"] for one in found], dtype=np.int8),
        "phase": phases,
        "extra_ns": longer,
    }
    return to_arrow(STRAGGLERS, columns)


def less_waiting(sections: Sections) -> tuple[Rows, Rows, Rows]:
    """How much less each rank waits for others in a step than the median of the other ranks: its row, the step, and the time."""
    found = sections.matched
    waited = sections.numbers("collectives", "duration_ns")[found.rows] - found.shortest_ns[found.place]
    row, step, waited = sections.by_step(found.rows, waited, np.add)
    order = np.lexsort((waited, step))
    row, step, waited = row[order], step[order], waited[order]
    first = np.flatnonzero(np.append(True, step[1:] != step[:-1])[: len(step)])
    count = np.repeat(np.diff(np.append(first, len(step))), np.diff(np.append(first, len(step))))
    first = np.repeat(first, count[first]) if len(first) else first
    place = np.arange(len(step)) - first
    several = count > 1
    row, step, first, count, place = (one[several] for one in (row, step, first, count, place))
    # Of the others: those behind its own place move up by one.
    low, high = (count - 2) // 2, (count - 1) // 2
    middle = waited[first + low + (place <= low)] + waited[first + high + (place <= high)]
    return row, step, middle // 2 - waited[several]


def _usual(own: Rows, others: Rows, late_others: Rows, step_ns: float) -> dict[str, Any] | None:
    """How late a rank is in its steps or in some of them, and how far that lies from the others; None where it is no straggler.

    Args:
        own: How late it is in each step.
        others: How late each other rank usually is.
        late_others: How late these are in single steps.
        step_ns: How long a step takes.
    """
    floor_ns = max(_FLOOR * step_ns, 1.0)
    least_ns = 0.01 * _LEAST_LATE_PERCENT * step_ns
    middle, spread = _middle(others)
    # The median of n values of a normal distribution varies by 1.2533 times their deviation over the root of n.
    usually, deviation = _middle(own)
    score = (usually - middle) / max(spread, 1.2533 * deviation / float(np.sqrt(len(own))), floor_ns)
    if score >= _LEAST_SCORE and usually >= least_ns:
        return {"late_ns": int(usually), "score": score, "persistent": 1}
    # Single steps are compared to single steps of the others.
    middle, spread = _middle(late_others)
    limit = middle + _LEAST_SCORE * max(spread, floor_ns)
    outside = own[own >= limit]
    if len(outside) < _LEAST_LATE_STEPS or (outside - middle).sum() < least_ns * len(own):
        return None
    typical = float(np.median(outside))
    if typical < least_ns:
        return None
    return {"late_ns": int(typical), "score": (typical - middle) / max(spread, floor_ns), "persistent": 0}


def _phases(sections: Sections, rows: Rows) -> tuple[list[str | None], Rows]:
    """What takes each of some ranks longer than the median rank, and how much longer in a step."""
    steps = sections.rows("steps")
    each = {
        phase: sections.medians(steps, sections.numbers("steps", name)) for name, phase in _OWN_PARTS.items()
    }
    each[_NETWORK] = _transfer_ns(sections)
    extra = {phase: values - _middle(values)[0] for phase, values in each.items()}
    names = list(extra)
    most = np.argmax([extra[phase][rows] for phase in names], axis=0).tolist() if len(rows) else []
    longer = np.array([extra[names[place]][row] for place, row in zip(most, rows.tolist(), strict=True)])
    phases = [names[place] if more > 0 else None for place, more in zip(most, longer.tolist(), strict=True)]
    return phases, np.maximum(longer, 0).astype(np.int64)


def _transfer_ns(sections: Sections) -> Rows:
    """How long the transfers of a step of each rank take once all ranks have arrived."""
    found = sections.meetings
    row, _, transfer = sections.by_step(found.rows, found.shortest_ns[found.place], np.add)
    return np.maximum(sections.medians(row, transfer), 0)


def _latest_percent(row: Rows, step: Rows, late: Rows, ranks: int) -> NDArray[np.float64]:
    """In which share of the steps each rank was the latest."""
    order = np.lexsort((late, step))
    last = np.append(step[order][1:] != step[order][:-1], True)[: len(order)]
    return np.asarray(100.0 * np.bincount(row[order][last], minlength=ranks) / max(1, int(last.sum())))


def exposed_by_rank(sections: Sections) -> Rows:
    """The exposed communication of a step of each rank; the transfers where there is no device that could compute meanwhile."""
    exposed, duration = (sections.numbers("collectives", name) for name in ("exposed_ns", "duration_ns"))
    exposed = np.where(exposed < 0, duration, exposed)
    row, _, sums = sections.by_step(np.arange(len(exposed)), exposed, np.add)
    return sections.medians(row, sums)


def _middle(values: Rows) -> tuple[float, float]:
    """The median of some values, and their robust standard deviation."""
    middle = float(np.median(values))
    return middle, _TO_DEVIATION * float(np.median(np.abs(values - middle)))
