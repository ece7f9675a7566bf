"""The windows of time that breakdowns are made for: each step of a process, or all that was recorded of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.tables._activity import Activity, activities, owned
from kinetoscope.tables._device_work import thread_owners
from kinetoscope.tables._intervals import Intervals
from kinetoscope.trace._arrow import Labels
from kinetoscope.trace._processes import infos, of_processes
from kinetoscope.trace._steps import OPTIMIZER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace


@dataclass(frozen=True)
class Windows:
    """Windows in which one device is looked at.

    Attributes:
        activity: What the device and its host did.
        step: The row of `steps` of each, -1 for the whole trace.
        start_ns: When each begins.
        end_ns: When each ends.
        in_steps: The time in steps of the process.
    """

    activity: Activity
    step: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    in_steps: Intervals


def checked_by(by: Any) -> str:
    """Check which rows are asked for.

    Raises:
        ArgumentError: Neither `step` nor `trace`.
    """
    if by not in ("step", "trace"):
        raise ArgumentError(
            f"by={by!r} is not valid: use 'step' for one row a step, or 'trace' for the whole trace"
        )
    return str(by)


def windows(trace: Trace, by: str) -> list[Windows]:
    """Return for each device, or process without any, the steps of its process, or where it has none all that was recorded of it."""
    own, found = trace.columns("steps"), []
    thread_of_step = np.append(trace.column("spans", "thread"), -1)[own["span"]]
    for activity in activities(trace):
        steps = np.flatnonzero(owned(trace, activity.owner)[thread_of_step])
        start = own["start_ns"][steps]
        end = start + own["duration_ns"][steps]
        in_steps = Intervals.of(start, end)
        if by == "trace" or len(steps) == 0:
            first, last = recorded_extent(trace, activity.owner.process)
            steps, start, end = (np.array([value], dtype=np.int64) for value in (-1, first, last))
        found.append(Windows(activity, steps, start, end, in_steps))
    return found


def recorded_extent(trace: Trace, process: int) -> tuple[int, int]:
    """When the recording of a process, a row of `processes`, began and ended; that of the trace for -1.

    Spans that a process has outside of it, by another clock for example, count as recorded.
    """
    if process < 0:
        return extent(trace)
    table, spans = trace.columns("processes"), trace.columns("spans")
    begin = int(table["start_ns"][process])
    end = begin + int(table["duration_ns"][process])
    rows = np.flatnonzero(trace.column("threads", "process_row")[spans["thread"]] == process)
    start = spans["start_ns"][rows]
    return (
        int(start.min(initial=begin)),
        int((start + spans["duration_ns"][rows]).max(initial=max(begin, end))),
    )


def start_up_steps(trace: Trace) -> NDArray[np.bool_]:
    """For each row of `steps` whether it holds what ran before the training loop.

    That is the first of a process whose steps only the optimizer's calls tell, unless it is the only one, or the recording began
    in the loop. Every sum and share of step time leaves it out.
    """

    def make() -> NDArray[np.bool_]:
        own = trace.columns("steps")
        found = np.zeros(len(own), dtype=bool)
        thread_of_step = np.append(trace.column("spans", "thread"), -1)[own["span"]]
        owner, known = thread_owners(trace)[0][thread_of_step], infos(trace)
        for one in np.unique(owner).tolist():
            mine = np.flatnonzero(owner == one)
            first = mine[np.argmin(own["start_ns"][mine])]
            program = known[max(int(own["process_row"][first]), 0)].get("program")
            in_loop = isinstance(program, dict) and program.get("first_step") not in (None, 0)
            if len(mine) > 1 and own["source"][first] == OPTIMIZER and not in_loop:
                found[first] = True
        return found

    return trace.cached("start_up_steps", make)


def extent(trace: Trace) -> tuple[int, int]:
    """When the trace begins, which is at 0 or with a span before that, and when it ends."""
    start = trace.column("spans", "start_ns")
    return min(0, int(start.min(initial=0))), trace.duration_ns


def place_columns(trace: Trace, found: list[Windows]) -> dict[str, Any]:
    """The columns that say which window of which device a row is."""
    counts = [len(window.step) for window in found]
    names = [window.activity.device.name if window.activity.device else "cpu" for window in found]
    step, start, end = (
        np.concatenate([getattr(window, name) for window in found] or [np.zeros(0, dtype=np.int64)])
        for name in ("step", "start_ns", "end_ns")
    )
    return {
        "step": np.append(trace.column("steps", "number"), -1)[step],
        **of_processes(
            trace, np.repeat(np.array([window.activity.owner.process for window in found], np.int32), counts)
        ),
        "rank": np.repeat(np.array([window.activity.owner.rank for window in found], dtype=np.int64), counts),
        "device": Labels(np.repeat(np.arange(len(found)), counts), names),
        "start_up": np.append(start_up_steps(trace), False)[step],
        "start_ns": start,
        "duration_ns": end - start,
    }


def in_order_of_time(columns: dict[str, Any]) -> NDArray[np.int64]:
    """The order of the rows: by start, and of one start by rank and device."""
    return np.lexsort((columns["device"].ids, columns["rank"], columns["start_ns"]))
