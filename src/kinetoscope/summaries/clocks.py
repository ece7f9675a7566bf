"""The clocks of all ranks of a job on one axis, from their collectives, their barriers, and the clocks of their machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kinetoscope.combine.clocks import OWN_CLOCK, ClockLine, Visits, lines_between
from kinetoscope.combine.ranks import BARRIERS, COLLECTIVES, CUT_OFF_NS, MICROSECOND_NS, OWN
from kinetoscope.model.arrow import to_arrow
from kinetoscope.model.dictionary import table_definition
from kinetoscope.model.groups import Groups
from kinetoscope.model.processes import MONOTONIC

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.summaries.sections import Sections

    Rows = NDArray[np.int64]


_NO_MEETINGS = "it ran no collective or barrier together with another rank, and shares no machine's clock"
_NOT_TIED = "none of the ranks that it meets meets the reference"


class Aligned(NamedTuple):
    """The clock of each rank, by its row.

    Attributes:
        reference: The row of the reference.
        lines: From the clock of the rank to that of the reference; None where it cannot be aligned.
        error_ns: How far its times may be off; -1 where it cannot be aligned.
        machine: Ranks of one number share a clock.
        kinds: At how many barriers and at how many collectives it met other machines.
    """

    reference: int
    lines: list[ClockLine | None]
    error_ns: Rows
    machine: Rows
    kinds: Rows


def clocks(sections: Sections) -> pyarrow.Table:
    """Return the table `clocks`."""
    alignment = aligned(sections)
    lines, kinds = alignment.lines, alignment.kinds
    is_aligned: NDArray[np.bool_] = np.array([line is not None for line in lines], dtype=bool)
    met = (kinds.sum(axis=0) > 0).tolist()
    nan = float("nan")
    columns: dict[str, Any] = {
        "rank": sections.ranks,
        "host": sections.summaries["host"].to_pylist(),
        "reference": np.where(is_aligned, sections.ranks[alignment.reference], -1),
        "clock": [_how(alignment, row) for row in range(len(sections))],
        "offset_ns": np.array([nan if line is None else line.offset_ns for line in lines]),
        "drift": np.array([nan if line is None else round(line.drift, 15) for line in lines]),
        "error_ns": alignment.error_ns,
        "meetings": np.where(is_aligned, kinds.sum(axis=0), -1),
        "contradiction_ns": np.array([-1 if line is None else line.violated_ns for line in lines]),
        "reason": [
            None if line is not None else _NOT_TIED if has_met else _NO_MEETINGS
            for line, has_met in zip(lines, met, strict=True)
        ],
    }
    return to_arrow(table_definition("job: clocks"), columns)


def _how(alignment: Aligned, row: int) -> str | None:
    if alignment.lines[row] is None:
        return None
    if row == alignment.reference:
        return OWN
    if alignment.machine[row] == alignment.machine[alignment.reference]:
        return MONOTONIC
    names = np.array([BARRIERS, COLLECTIVES])
    met_by = alignment.kinds[:, alignment.machine == alignment.machine[row]].any(axis=1)
    return " and ".join(names[met_by].tolist())


def aligned(sections: Sections) -> Aligned:
    """Align all ranks at once; those of one machine by its clock."""
    machine, offset_ns, reading_ns = _machines(sections)
    count = int(machine.max()) + 1
    rank, meeting, entered, left, together = _visits(sections)
    clock = machine[rank]
    # Of those of one machine, the last to enter and the first to leave.
    cells = Groups.by([clock, meeting])
    first = cells.first
    last_in = cells.maxima(entered + offset_ns[rank] - reading_ns[rank])
    first_out = cells.minima(left + offset_ns[rank] + reading_ns[rank])
    visits = Visits(clock[first], meeting[first], last_in, first_out, together[first])
    is_shared = Groups(visits.meeting, int(meeting.max(initial=-1)) + 1).sizes() > 1
    by_rank, by_machine = Groups(rank, len(sections)), Groups(machine, count)
    kinds = np.array([by_rank.sums(is_shared[meeting] & (together == kind)) for kind in (False, True)])
    begin_ns = np.minimum(by_machine.minima(offset_ns), 0)
    end_ns = np.maximum(by_machine.maxima(offset_ns + sections.identity("duration_ns")), 0)
    # Machines are numbered in order of their first ranks.
    reference = Groups(_tied(visits, count)[machine], count).largest()
    between = lines_between(visits, begin_ns, end_ns, reference)
    row = int(np.argmax(machine == reference))
    lines: list[ClockLine | None] = []
    error_ns = np.full(len(sections), -1, dtype=np.int64)
    for member, number in enumerate(machine.tolist()):
        line = between[number]
        if line is None:
            lines.append(None)
            continue
        # From the axis of the trace to that of its machine, from there to that of the reference's machine, and to that of its trace.
        here_ns = int(offset_ns[member])
        start_ns = line.offset_ns + here_ns * (1 + line.drift) - int(offset_ns[row])
        lines.append(OWN_CLOCK if member == row else ClockLine(start_ns, line.drift, line.violated_ns))
        until_ns = here_ns + int(sections.identity("duration_ns")[member])
        error_ns[member] = (
            0 if member == row else line.error_ns(here_ns, until_ns) + reading_ns[member] + reading_ns[row]
        )
    return Aligned(row, lines, error_ns, machine, kinds)


def recorded_apart(sections: Sections) -> Rows:
    """The rows of ranks that were recorded before or after the others of their machine, and at no time together with these."""
    machine, offset_ns, _ = _machines(sections)
    end_ns = offset_ns + sections.identity("duration_ns")
    apart: list[int] = []
    for number in np.unique(machine).tolist():
        rows = np.flatnonzero(machine == number)
        usual = rows[np.argsort(offset_ns[rows], kind="stable")[(len(rows) - 1) // 2]]
        away = (offset_ns[rows] > end_ns[usual]) | (end_ns[rows] < offset_ns[usual])
        apart += rows[away].tolist()
    return np.array(sorted(apart), dtype=np.int64)


def _machines(sections: Sections) -> tuple[Rows, Rows, Rows]:
    """For each rank the number of its machine, where its trace begins on the axis of this, and how far the clock's readings may be off."""
    boots = sections.summaries["boot_id"].to_pylist()
    begin_ns = sections.identity("start_monotonic_ns")
    numbers: dict[object, int] = {}
    machine = np.zeros(len(sections), dtype=np.int64)
    for row, boot in enumerate(boots):
        key: object = boot if boot and begin_ns[row] >= 0 else row
        machine[row] = numbers.setdefault(key, len(numbers))
    first = np.array([int(np.argmax(machine == number)) for number in range(len(numbers))])
    several = Groups(machine, len(numbers)).sizes()[machine] > 1
    offset_ns = np.where(several, begin_ns - begin_ns[first][machine], 0)
    return machine, offset_ns, np.where(several, sections.identity("clock_error_ns"), 0)


def _visits(sections: Sections) -> tuple[Rows, Rows, Rows, Rows, NDArray[np.bool_]]:
    """Who was at which barrier and collective: its row, the meeting, when it entered and left on its own axis, and whether it is a collective."""
    met = sections.meetings
    start, duration = (sections.numbers("collectives", name) for name in ("start_ns", "duration_ns"))
    # Sources that write whole microseconds leave out what comes behind them, of the begin and of the duration.
    fine = Groups(sections.rows("collectives"), len(sections)).sums(start % MICROSECOND_NS) > 0
    left = start[met.rows] + duration[met.rows] + np.where(fine[met.rank], 0, CUT_OFF_NS)
    marks, name = sections.rows("clock_marks"), sections.codes("clock_marks", "name").astype(np.int64)
    meetings = len(met.first)
    return (
        np.concatenate([met.rank, marks]),
        np.concatenate([met.place, meetings + name]),
        np.concatenate([start[met.rows], sections.numbers("clock_marks", "entered_ns")]),
        np.concatenate([left, sections.numbers("clock_marks", "left_ns")]),
        np.repeat([True, False], [len(met.rows), len(marks)]),
    )


def _tied(visits: Visits, count: int) -> Rows:
    """For each clock the lowest of all that meetings tie it to, over any number of others."""
    lowest = np.arange(count)
    while True:
        of_meeting = np.full(int(visits.meeting.max(initial=-1)) + 1, count)
        np.minimum.at(of_meeting, visits.meeting, lowest[visits.clock])
        after = lowest.copy()
        np.minimum.at(after, visits.clock, of_meeting[visits.meeting])
        after = after[after]
        if np.array_equal(after, lowest):
            return lowest
        lowest = after
