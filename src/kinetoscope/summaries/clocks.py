"""Align the clocks of all ranks of a job by collectives, barriers, and the clocks of their machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow

from kinetoscope.combine.clocks import Aligned, Machines, Visits, machines_of
from kinetoscope.combine.clocks import aligned as align
from kinetoscope.combine.ranks import CUT_OFF_NS, MICROSECOND_NS
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows
from kinetoscope.summaries.sections import Sections

_NO_MEETINGS = "it ran no collective or barrier together with another rank, and shares no machine's clock"
_NOT_TIED = "none of the ranks that it meets meets the reference"


def clocks(sections: Sections) -> pyarrow.Table:
    """Return the table `clocks`."""
    alignment = aligned(sections)
    is_aligned, met = alignment.is_aligned, alignment.kinds.sum(axis=0)
    columns: dict[str, Any] = {
        "rank": sections.ranks,
        "host": sections.summaries["host"].to_pylist(),
        "reference": np.where(is_aligned, sections.ranks[alignment.reference], -1),
        "clock": [alignment.clock(row) for row in range(len(sections))],
        "offset_ns": alignment.values("offset_ns"),
        "drift": alignment.values("drift").round(15),
        "error_ns": alignment.error_ns,
        "meetings": np.where(is_aligned, met, -1),
        "contradiction_ns": np.where(is_aligned, alignment.values("violated_ns"), -1).astype(np.int64),
        "reason": Labels(np.where(is_aligned, -1, met > 0), (_NO_MEETINGS, _NOT_TIED)),
    }
    return to_arrow("job: clocks", columns)


def aligned(sections: Sections) -> Aligned:
    """Align all ranks at once; ranks of one machine by its clock."""
    return align(_visits(sections), _machines(sections), sections.identity("duration_ns"))


def recorded_apart(sections: Sections) -> Rows:
    """The rows of ranks whose recording does not overlap those of the other ranks of their machine."""
    machine, offset_ns, _ = _machines(sections)
    end_ns = offset_ns + sections.identity("duration_ns")
    apart: list[int] = []
    for number in np.unique(machine).tolist():
        rows = np.flatnonzero(machine == number)
        usual = rows[np.argsort(offset_ns[rows], kind="stable")[(len(rows) - 1) // 2]]
        away = (offset_ns[rows] > end_ns[usual]) | (end_ns[rows] < offset_ns[usual])
        apart += rows[away].tolist()
    return np.array(sorted(apart), dtype=np.int64)


def _machines(sections: Sections) -> Machines:
    begin_ns, error_ns = (sections.identity(name) for name in ("start_monotonic_ns", "clock_error_ns"))
    return machines_of(sections.summaries["boot_id"].to_pylist(), begin_ns, error_ns)


def _visits(sections: Sections) -> Visits:
    """The barriers and collectives of each rank, in the rank's own time."""
    met = sections.meetings
    start, duration = (sections.numbers("collectives", name) for name in ("start_ns", "duration_ns"))
    # Sources that write whole microseconds leave out what comes behind them, of the begin and of the duration.
    fine = Groups(sections.rows("collectives"), len(sections)).sums(start % MICROSECOND_NS) > 0
    left = start[met.rows] + duration[met.rows] + np.where(fine[met.rank], 0, CUT_OFF_NS)
    marks, name = sections.rows("clock_marks"), sections.codes("clock_marks", "name").astype(np.int64)
    meetings = len(met.first)
    return Visits(
        np.concatenate([met.rank, marks]),
        np.concatenate([met.place, meetings + name]),
        np.concatenate([start[met.rows], sections.numbers("clock_marks", "entered_ns")]),
        np.concatenate([left, sections.numbers("clock_marks", "left_ns")]),
        np.repeat([True, False], [len(met.rows), len(marks)]),
    )
