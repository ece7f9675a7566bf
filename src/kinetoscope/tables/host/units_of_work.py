"""Units of work, which analyses examine one by one: steps; without steps, complete requests; without both, the whole recording of a process."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.processes import thread_processes
from kinetoscope.model.rows import Mask, ProcessRow, Rows, places_of
from kinetoscope.model.steps import step_at
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.host.requests import kinds_of_requests, request_at, requests_as_steps, requests_of
from kinetoscope.tables.step_extents import start_up_steps, step_extents
from kinetoscope.tables.step_kinds import kinds_of_steps
from kinetoscope.tables.windows import recorded_extent


class Unit(Enum):
    """A kind of unit of work, with its words for sentences.

    Attributes:
        noun: Its name.
        subject: The name of the code that runs in it.
        repeats: Whether a trace has many units, to count and compare; there is only one recording.
        overlaps: Whether several units run at once and on several threads, as requests do.
        time: The base of percentages, as in `5 % of step time`.
        each: The suffix of an amount per unit; empty if there is only one.
        in_each: The suffix of an event that occurs in each unit.
    """

    STEP = ("step", "The loop")
    REQUEST = ("request", "A request")
    RECORDING = ("run", "The program")

    def __init__(self, noun: str, subject: str) -> None:
        """A unit by its noun, and by what runs in it."""
        self.noun, self.subject = noun, subject
        self.repeats, self.overlaps = noun != "run", noun == "request"
        self.time = f"{noun} time" if self.repeats else "recorded time"
        self.each = f" a {noun}" if self.repeats else ""
        self.in_each = f" in each {noun}" if self.repeats else ""


@dataclass(frozen=True, eq=False)
class UnitsOfWork:
    """Units of work in order; each array has one entry per unit.

    Attributes:
        trace: The trace.
        unit: Their kind.
        row: The row of `steps` or the number of the request; -1 for a recording.
        process: The row of the process in `processes`, -1 in a trace of one process.
        start_ns: The start; for steps, as in `step_extents`.
        end_ns: The end.
        mark_start_ns: When the host began the unit; host work belongs to the unit in which it runs.
        mark_end_ns: When the host ended the unit.
        is_start_up: Whether the unit is start-up, which sums and shares exclude.
        kind: The kind of step as in `step_kinds`, or the index of a request's name in `names_by_time`; -1 for start-up and recordings.
    """

    trace: TraceData
    unit: Unit
    row: Rows
    process: Rows
    start_ns: Rows
    end_ns: Rows
    mark_start_ns: Rows
    mark_end_ns: Rows
    is_start_up: Mask
    kind: Rows

    def __len__(self) -> int:
        """The number of units."""
        return len(self.row)

    def __getitem__(self, chosen: Rows | Mask) -> UnitsOfWork:
        """The units at some indices, or where a mask is true."""
        columns = (field.name for field in fields(self)[2:])
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})

    def of_process(self, process: int) -> UnitsOfWork:
        """The units of a process, including start-up."""
        return self[self.process == process]

    @property
    def duration_ns(self) -> Rows:
        """How long each unit took, in nanoseconds."""
        return self.end_ns - self.start_ns

    @property
    def numbers(self) -> Rows:
        """The number of each, as in `steps` or in `requests`; 0 of a recording."""
        if self.unit is Unit.STEP:
            return np.asarray(self.trace.column("steps", "number")[self.row], dtype=np.int64)
        return np.maximum(self.row, 0)

    def place_at(self, time_ns: Rows, thread: NDArray[Any]) -> Rows:
        """The place of the unit that the host works for at some moments of threads; -1 for none."""
        if self.unit is Unit.REQUEST:
            return self._place_of_row[request_at(self.trace, thread, time_ns)]
        return step_at(time_ns, self.mark_start_ns, self.mark_end_ns - self.mark_start_ns).astype(np.int64)

    def place_in(self, step: NDArray[Any], start_ns: Rows, thread: NDArray[Any]) -> Rows:
        """The place of the unit of what starts in some rows of `steps`, at some moments, on some threads; -1 for none."""
        if self.unit is Unit.STEP:
            return np.asarray(self._place_of_row[step], dtype=np.int64)
        return self.place_at(start_ns, thread) if self.unit is Unit.REQUEST else np.zeros(len(step), np.int64)

    def place_of(self, rows: Rows) -> Rows:
        """The place of the unit of some rows of `spans`; -1 for none, and for work of a device where units are requests."""
        spans = self.trace.columns("spans")
        index = self.place_in(spans["step"][rows], spans["start_ns"][rows], spans["thread"][rows])
        index[(spans["stream"][rows] >= 0) & (self.unit is Unit.REQUEST)] = -1
        return index

    @cached_property
    def _place_of_row(self) -> Rows:
        """For each row of `steps`, or request, its place here; -1 for others, and at the end for none."""
        rows = len(self.trace.columns("steps")) if self.unit is Unit.STEP else len(requests_of(self.trace))
        return places_of(self.row, rows).astype(np.int64)


@derived
def units_of_work(trace: TraceData) -> UnitsOfWork:
    """The units of work of a trace: of all its processes, start-up included."""
    steps = trace.columns("steps")
    if len(steps):
        extents, mark_ns = step_extents(trace), steps["start_ns"].astype(np.int64)
        marks = mark_ns, mark_ns + steps["duration_ns"]
        return UnitsOfWork(
            trace, Unit.STEP, np.arange(len(steps)), steps["process_row"].astype(np.int64), extents.start_ns, extents.end_ns, *marks,
            start_up_steps(trace), kinds_of_steps(trace),
        )  # fmt: skip
    if len(requests_as_steps(trace)):
        return requests_as_work(trace)
    processes = len(trace.columns("processes"))
    return recordings_of(trace, [*range(processes)] or [-1])


def requests_as_work(trace: TraceData, *, unfinished: bool = False) -> UnitsOfWork:
    """The requests that began and ended in the recording, or all of them with `unfinished`."""
    marked = requests_of(trace)
    rows = np.arange(len(marked)) if unfinished else np.flatnonzero(marked.complete)
    process = thread_processes(trace)[marked.thread[rows]].astype(np.int64)
    extent, is_start_up = (marked.start_ns[rows], marked.end_ns[rows]), np.zeros(len(rows), bool)
    kind = kinds_of_requests(trace)[rows]
    return UnitsOfWork(trace, Unit.REQUEST, rows, process, *extent, *extent, is_start_up, kind)


def recordings_of(trace: TraceData, processes: list[int]) -> UnitsOfWork:
    """All that was recorded of each of some processes, rows of `processes`, as one unit of work; of -1 that of the trace."""
    extents = np.array([recorded_extent(trace, ProcessRow(row)) for row in processes], np.int64)
    none, is_start_up = np.full(len(processes), -1), np.zeros(len(processes), bool)
    extent = extents[:, 0], extents[:, 1]
    return UnitsOfWork(trace, Unit.RECORDING, none, np.array(processes), *extent, *extent, is_start_up, none)
