"""Where the time of each step went, in parts that add up to it exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.arrow import to_arrow
from kinetoscope.model.rows import ProcessRow
from kinetoscope.model.schema import Column, Table
from kinetoscope.model.time_spent import part_words
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.processor_waits import running_thread, waits_in, without_waits
from kinetoscope.tables.step_extents import start_up_steps
from kinetoscope.tables.step_kinds import kinds_of_steps
from kinetoscope.tables.windows import (
    Windows,
    checked_by,
    in_order_of_time,
    owned,
    place_columns,
    windows,
)

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData


PARTS = (
    "compute_ns",
    "communication_ns",
    "copy_ns",
    "data_wait_ns",
    "host_wait_ns",
    "processor_wait_ns",
    "idle_ns",
)
"""The parts of a row; together they are `duration_ns`. `docs/devices.md` says which moment counts for which."""

_ON_HOST = {"compute_ns": "operators", "host_wait_ns": "Python and other"}


def part_names(on_host: bool) -> tuple[str, ...]:
    """What `PARTS` are called; the host does not wait for itself."""
    return tuple(_ON_HOST[name] if on_host and name in _ON_HOST else part_words(name) for name in PARTS)


BREAKDOWN_SCHEMA = Table(
    "breakdown",
    "What a device did in a step, in parts that add up to the step exactly: each moment is assigned to the first part "
    "that applies. One row for each step of a process and device, or `cpu` if it used none; a process without steps has "
    "one row for its whole recording. Work of other processes is not counted.",
    (
        Column("step", "int64", "", "The number of the step; null for the whole recording."),
        Column("process", "int64", "", "The process id."),
        Column("rank", "int32", "", "The rank of the process."),
        Column("device", "category", "", "The device, such as `cuda:0`, or `cpu`."),
        Column("start_up", "bool", "", "Whether sums and shares of step time leave the step out: it contains what ran before the loop, as the "
                                       "first step does where steps are found from the optimizer."),
        Column("step_kind", "int64", "", "The kind of the step, as in `step_kinds`; null for start-up and the whole recording."),
        Column("start_ns", "int64", "ns", "When the step began.", 0),
        Column("duration_ns", "int64", "ns", "How long it took: the sum of the seven parts.", 0),
        Column("compute_ns", "int64", "ns", "A compute kernel ran; on `cpu` an operator or backward function ran, data "
                                            "loading and waits of FSDP excluded.", 0),
        Column("communication_ns", "int64", "ns", "Nothing computed, and a communication kernel or a backend on the "
                                                  "host moved data between ranks.", 0),
        Column("copy_ns", "int64", "ns", "Neither of these, and a copy or fill ran.", 0),
        Column("data_wait_ns", "int64", "ns", "The device was idle, and the program waited for its data loader.", 0),
        Column("host_wait_ns", "int64", "ns", "The device was idle while the program ran without waiting: it did not "
                                              "launch work in time.", 0),
        Column("processor_wait_ns", "int64", "ns", "The device was idle, or on `cpu` an operator or Python would have run, but the thread of the loop had no "
                                                   "CPU core: other programs, or other threads, had it. Taken out of `compute_ns` on `cpu` and `host_wait_ns` "
                                                   "in equal shares, from samples; 0 if they were not recorded.", 0),
        Column("idle_ns", "int64", "ns", "The device was idle, and the host waited for it, or work that was launched did not begin, or, outside of "
                                         "steps, nothing ran that was recorded or sampled.", 0),
        Column("unrecorded_ns", "int64", "ns", "The part of `host_wait_ns` in which no operator and no runtime call "
                                               "ran: Python between operators, or a wait that was not recorded.", 0),
    ),
)  # fmt: skip


def breakdown(trace: TraceData, by: str = "step") -> pyarrow.Table:
    """Return the `breakdown` table: where the time of each step, or of the whole trace, went.

    Args:
        trace: The trace.
        by: `step` for one row a step and device; `trace` for one row a device. Without steps both are the same.

    Returns:
        The table; the meaning of its columns is in `BREAKDOWN_SCHEMA`.

    Raises:
        ArgumentError: Another value of `by`.
    """
    found = windows(trace, checked_by(by))
    columns = place_columns(trace, found)
    steps = np.concatenate([window.step for window in found] or [np.zeros(0, dtype=np.int64)])
    columns["step_kind"] = np.append(kinds_of_steps(trace), -1)[steps]
    parts = [_breakdown_parts(trace, window) for window in found]
    for name in (*PARTS, "unrecorded_ns"):
        columns[name] = np.concatenate([part[name] for part in parts] or [np.zeros(0, dtype=np.int64)])
    return to_arrow(BREAKDOWN_SCHEMA, columns, in_order_of_time(columns))


@dataclass(frozen=True)
class StepTime:
    """Where the step time of a process went: the rows of `breakdown` of one device added up, start-up left out.

    Attributes:
        process: The row of the process in `processes`, -1 in a trace of one process.
        rank: Its rank, -1 where it is not known.
        device: The device, or `cpu` where the process used none.
        steps: How many steps that is; 0 where the process has none, and all that was recorded of it counts.
        duration_ns: How long they took: the sum of the parts.
        parts_ns: The time of each of `PARTS`.
    """

    process: ProcessRow
    rank: int
    device: str
    steps: int
    duration_ns: int
    parts_ns: tuple[int, ...]

    @property
    def working_ns(self) -> int:
        """The time in which the device worked: computed, communicated or copied; on the host, the time in operators."""
        return sum(self.parts_ns[:3])


@derived
def step_time(trace: TraceData) -> list[StepTime]:
    """Where the step time of each process and device went: the one source of all shares of step time that a person sees."""
    start_up = np.append(start_up_steps(trace), False)
    found = []
    for window in windows(trace, "step"):
        parts, counts = _breakdown_parts(trace, window), ~start_up[window.step]
        owner, device = window.activity.owner, window.activity.device
        found.append(
            StepTime(
                owner.process,
                owner.rank,
                "cpu" if device is None else device.name,
                int((window.step[counts] >= 0).sum()),
                int((window.end_ns - window.start_ns)[counts].sum()),
                tuple(int(parts[name][counts].sum()) for name in PARTS),
            )
        )
    return found


def busiest_places(trace: TraceData) -> dict[ProcessRow, StepTime]:
    """For each process, by its row in `processes`, the device on which it worked most."""
    places: dict[ProcessRow, StepTime] = {}
    for place in step_time(trace):
        if place.working_ns >= places.setdefault(place.process, place).working_ns:
            places[place.process] = place
    return places


def _breakdown_parts(trace: TraceData, window: Windows) -> dict[str, NDArray[np.int64]]:
    """Assign every moment of some windows to one part."""
    activity, host = window.activity, window.activity.host
    communication = activity.communication - activity.compute
    done = activity.compute | activity.communication
    copies = activity.copies - done
    done |= activity.copies
    loading = host.loading - done
    done |= host.loading
    # Where work is queued already, the device does not wait for the host.
    done |= host.waiting | activity.queued
    # A step is work of the program: inside one, it runs unless a call is known to wait. Outside, samples say whether it runs.
    running = (host.calls | host.ranges | host.sampled | window.in_steps) - done
    sets = dict(zip(PARTS, (activity.compute, communication, copies, loading, running), strict=False))
    sets["unrecorded_ns"] = running - host.calls
    made = {name: part.within(window.start_ns, window.end_ns) for name, part in sets.items()}
    # A device computes on when the host has no processor.
    of_host = ["host_wait_ns"] if activity.device is not None else ["compute_ns", "host_wait_ns"]
    every = Intervals.of(window.start_ns, window.end_ns)
    in_host = running if activity.device is not None else every - host.loading - host.waiting
    for names, moments in ((["unrecorded_ns"], running - host.calls), (of_host, in_host)):
        parts = [made[name] for name in names]
        waits_ns = np.minimum(_processor_waits(trace, window, moments), sum(parts))
        made |= dict(zip(names, without_waits(parts, waits_ns), strict=True))
    made["processor_wait_ns"] = waits_ns
    # Each loses the same share, to the nearest nanosecond.
    made["unrecorded_ns"] = np.minimum(made["unrecorded_ns"], made["host_wait_ns"])
    made["idle_ns"] = window.end_ns - window.start_ns - sum(made[name] for name in PARTS[:-1])
    return made


def _processor_waits(trace: TraceData, window: Windows, moments: Intervals) -> NDArray[np.int64]:
    """How long the thread of the loop had no processor at some moments of each window; of windows that are no steps, the thread that ran most."""
    threads = np.append(trace.column("spans", "thread"), -1)[
        np.append(trace.column("steps", "span"), -1)[window.step]
    ]
    mine = owned(trace, window.activity.owner)
    threads = np.where(threads >= 0, threads, running_thread(trace, mine)) if (threads < 0).any() else threads
    waiting = window.activity.host.waiting
    return waits_in(trace, threads, moments, waiting, window.start_ns, window.end_ns)


OVERLAP_SCHEMA = Table(
    "overlap",
    "Which work of a device overlapped in a step. One row for each step of a process and device, or `cpu` if it used "
    "none; a process without steps has one row for its whole recording. Overlapping work of one category counts once.",
    (
        Column("step", "int64", "", "The number of the step; null for the whole recording."),
        Column("process", "int64", "", "The process id."),
        Column("rank", "int32", "", "The rank of the process."),
        Column("device", "category", "", "The device, such as `cuda:0`, or `cpu`."),
        Column("start_up", "bool", "", "Whether the step is left out, as in `breakdown`."),
        Column("start_ns", "int64", "ns", "When the step began.", 0),
        Column("duration_ns", "int64", "ns", "How long it took.", 0),
        Column("compute_ns", "int64", "ns", "How long the device computed.", 0),
        Column("communication_ns", "int64", "ns", "How long data moved between ranks.", 0),
        Column("overlapped_communication_ns", "int64", "ns", "The part of it in which the device also computed.", 0),
        Column("exposed_communication_ns", "int64", "ns", "Exposed communication: the rest, which the step waits for.", 0),
        Column("overlapped_communication_percent", "float64", "%", "The overlapped share of communication; null if there is "
                                                                   "none."),
        Column("copy_ns", "int64", "ns", "How long a copy or fill ran.", 0),
        Column("overlapped_copy_ns", "int64", "ns", "The part of it in which the device also computed or communicated.", 0),
        Column("exposed_copy_ns", "int64", "ns", "Exposed copies: the rest.", 0),
        Column("overlapped_copy_percent", "float64", "%", "The overlapped share of copies and fills; null if there are none."),
    ),
)  # fmt: skip


def overlap(trace: TraceData, by: str = "step") -> pyarrow.Table:
    """Return the `overlap` table: how much communication and copying overlapped computing.

    Args:
        trace: The trace.
        by: `step` for one row a step and device; `trace` for one row a device. Without steps both are the same.

    Returns:
        The table; the meaning of its columns is in `OVERLAP_SCHEMA`.

    Raises:
        ArgumentError: Another value of `by`.
    """
    found = windows(trace, checked_by(by))
    columns = place_columns(trace, found)
    parts = [_overlap_parts(window) for window in found]
    for name in OVERLAP_SCHEMA.column_names[len(columns) :]:
        columns[name] = np.concatenate([part[name] for part in parts] or [np.zeros(0)])
    return to_arrow(OVERLAP_SCHEMA, columns, in_order_of_time(columns))


def _overlap_parts(window: Windows) -> dict[str, NDArray[Any]]:
    """Return the overlap columns of some windows."""
    activity = window.activity
    compute, communication, copies = activity.compute, activity.communication, activity.copies
    sets = {
        "compute_ns": compute,
        "communication_ns": communication,
        "exposed_communication_ns": communication - compute,
        "copy_ns": copies,
        "exposed_copy_ns": copies - (compute | communication),
    }
    made: dict[str, NDArray[Any]] = {
        name: part.within(window.start_ns, window.end_ns) for name, part in sets.items()
    }
    for sort in ("communication", "copy"):
        whole = made[f"{sort}_ns"]
        hidden = made[f"overlapped_{sort}_ns"] = whole - made[f"exposed_{sort}_ns"]
        made[f"overlapped_{sort}_percent"] = 100.0 * hidden / np.where(whole == 0, np.nan, whole)
    return made
