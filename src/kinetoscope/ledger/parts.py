"""The parts of steps and requests: sums of the ledger that add up to each unit, and the only source of the time shares that users see."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kinetoscope.ledger.ledger import BLOCKED, ProcessLedger, ledger_of, raw_ledger
from kinetoscope.ledger.moments import moments_of_requests, moments_of_steps
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import ProcessRow, Rows
from kinetoscope.model.time_spent import Cause, Entry, part_words
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.host.requests import requests_of

PARTS = (
    "compute_ns", "communication_ns", "copy_ns", "data_wait_ns", "device_wait_ns", "host_wait_ns", "blocked_ns", "garbage_ns",
    "processor_wait_ns", "idle_ns",
)  # fmt: skip
"""The parts of a unit of work, which add up to its duration. `docs/devices.md` defines them."""
SUSPENDED = {"executor_ns": Cause.EXECUTOR, "others_ns": Cause.OTHERS, "waiting_ns": Cause.AWAITED}
"""Additional parts of requests: why they ran on no thread."""
REQUEST_PARTS = (*PARTS, *SUSPENDED)

_OF_WAITS = {
    Cause.COLLECTIVE: "communication_ns",
    Cause.COPY: "copy_ns",
    Cause.DATA: "data_wait_ns",
    Cause.PROCESSOR: "processor_wait_ns",
    **dict.fromkeys(BLOCKED, "blocked_ns"),
    **{cause: part for part, cause in SUSPENDED.items()},
}
_ON_HOST = {"compute_ns": "operators", "host_wait_ns": "Python"}


def part_names(on_host: bool, parts: tuple[str, ...] = PARTS) -> tuple[str, ...]:
    """The names of parts for display. On the host, compute is operators and the host wait is Python."""
    return tuple(_ON_HOST[name] if on_host and name in _ON_HOST else part_words(name) for name in parts)


def part_of_cells(ledger: ProcessLedger) -> Rows:
    """For each cell of a ledger its part, as an index in `REQUEST_PARTS`."""
    cells, on_device = ledger.cells, ledger.on_device
    waiting = np.full(len(Cause), REQUEST_PARTS.index("host_wait_ns"))
    for cause, name in _OF_WAITS.items():
        waiting[cause] = REQUEST_PARTS.index(name)
    waiting[Cause.DEVICE] = REQUEST_PARTS.index("idle_ns" if on_device else "device_wait_ns")
    between = np.full(len(Entry), REQUEST_PARTS.index("host_wait_ns"))
    between[Entry.GARBAGE_COLLECTION] = REQUEST_PARTS.index("garbage_ns")
    between[Entry.UNKNOWN] = REQUEST_PARTS.index("idle_ns")
    part = np.where(cells.entry == Entry.WAITING, waiting[cells.cause], between[cells.entry])
    computes = (cells.span >= 0) & (cells.entry != Entry.WAITING) & (cells.cause != Cause.LAUNCH)
    part[computes] = REQUEST_PARTS.index("compute_ns")
    return np.asarray(part, dtype=np.int64)


def parts_of_ledger(ledger: ProcessLedger) -> dict[str, Rows]:
    """The time of each unit in each of `REQUEST_PARTS`; the parts add up to its duration."""
    shape = (len(REQUEST_PARTS), len(ledger.work))
    by_part = Groups.cells(part_of_cells(ledger), ledger.cells.step, shape)
    return dict(zip(REQUEST_PARTS, by_part.sums(ledger.cells.time_ns), strict=True))


@derived
def device_ledgers(trace: TraceData, by: str = "step") -> list[ProcessLedger]:
    """The ledger of each device of each process, or of the host if it used none; by step or, with `trace`, of the whole recording."""
    busiest = raw_ledger(trace) if by == "step" else []
    made = {id(ledger.moments): ledger for ledger in busiest}
    return [made.get(id(moments.moments)) or ledger_of(moments) for moments in moments_of_steps(trace, by)]


@derived
def step_parts(trace: TraceData) -> dict[str, Rows]:
    """For each of `PARTS` the time of each row of `steps`, on the busiest device of the step's process."""
    parts = {name: np.zeros(len(trace.columns("steps")), np.int64) for name in PARTS}
    for ledger in raw_ledger(trace) if len(trace.columns("steps")) else ():
        for name, time_ns in parts_of_ledger(ledger).items():
            if name in parts:
                parts[name][ledger.work.row] = time_ns
    return parts


@derived
def request_parts(trace: TraceData) -> dict[str, Rows]:
    """For each of `REQUEST_PARTS` the time of each request, including unfinished ones."""
    parts = {name: np.zeros(len(requests_of(trace)), np.int64) for name in REQUEST_PARTS}
    for moments in moments_of_requests(trace, unfinished=True):
        for name, time_ns in parts_of_ledger(ledger_of(moments)).items():
            parts[name][moments.work.row] = time_ns
    return parts


def parts_of_units(ledger: ProcessLedger) -> dict[str, Rows]:
    """The time of each unit in each part, by the part's display name; empty if the unit is the whole recording."""
    if not ledger.work.unit.repeats:
        return {}
    names = REQUEST_PARTS if ledger.work.unit.overlaps else PARTS
    times = parts_of_ledger(ledger)
    words = part_names(not ledger.on_device, names)
    return {word: times[name] for word, name in zip(words, names, strict=True)}


@dataclass(frozen=True)
class StepTime:
    """Where the step time of a process went on one device, without start-up.

    Attributes:
        process: The row of the process in `processes`, -1 in a trace of one process.
        rank: Its rank, -1 if unknown.
        device: The device, or `cpu` if the process used none.
        steps: The number of steps; 0 if the process has none and its whole recording counts.
        duration_ns: The total duration of the steps: the sum of the parts.
        parts_ns: The time of each of `PARTS`.
    """

    process: ProcessRow
    rank: int
    device: str
    steps: int
    duration_ns: int
    parts_ns: tuple[int, ...]

    @cached_property
    def working_ns(self) -> int:
        """The time in which the device computed, communicated or copied."""
        return sum(self.parts_ns[:3])

    def named_parts(self) -> list[tuple[str, int]]:
        """The names and times of the parts that took time, longest first."""
        parts = zip(part_names(self.device == "cpu"), self.parts_ns, strict=True)
        return sorted(((name, part_ns) for name, part_ns in parts if part_ns), key=lambda part: -part[1])


@derived
def step_time(trace: TraceData) -> list[StepTime]:
    """The step time of each process and device."""
    times = []
    for ledger in device_ledgers(trace):
        parts, counted = parts_of_ledger(ledger), ledger.counted
        owner, device = ledger.activity.owner, ledger.activity.device
        times.append(
            StepTime(
                owner.process,
                owner.rank,
                "cpu" if device is None else device.name,
                int((ledger.work.row[counted] >= 0).sum()),
                int(ledger.duration_ns[counted].sum()),
                tuple(int(parts[name][counted].sum()) for name in PARTS),
            )
        )
    return times


def busiest_places(trace: TraceData) -> dict[ProcessRow, StepTime]:
    """The step time of each process on its busiest device, by row in `processes`."""
    busiest: dict[ProcessRow, StepTime] = {}
    for step in step_time(trace):
        if step.working_ns >= busiest.setdefault(step.process, step).working_ns:
            busiest[step.process] = step
    return busiest
