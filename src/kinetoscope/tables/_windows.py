"""The windows of time that breakdowns are made for: each step, or the whole trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.tables._activity import Activity, activities
from kinetoscope.tables._device_work import thread_ranks
from kinetoscope.trace._arrow import Labels

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
    """

    activity: Activity
    step: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]


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
    """Return for each device, or rank without any, the steps of its rank, or where there are none the whole trace."""
    own, found = trace.columns("steps"), []
    ranks = thread_ranks(trace)[np.append(trace.column("spans", "thread"), -1)[own["span"]]]
    for activity in activities(trace):
        mine = (ranks == activity.rank) | (ranks < 0) | (activity.rank < 0)
        steps = np.flatnonzero(mine) if by == "step" else np.zeros(0, dtype=np.int64)
        if len(steps):
            start = own["start_ns"][steps]
            found.append(Windows(activity, steps, start, start + own["duration_ns"][steps]))
        else:
            start_ns, end_ns = extent(trace)
            whole = (np.array([value], dtype=np.int64) for value in (-1, start_ns, end_ns))
            found.append(Windows(activity, *whole))
    return found


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
        "rank": np.repeat(np.array([window.activity.rank for window in found], dtype=np.int64), counts),
        "device": Labels(np.repeat(np.arange(len(found)), counts), names),
        "start_ns": start,
        "duration_ns": end - start,
    }


def in_order_of_time(columns: dict[str, Any]) -> NDArray[np.int64]:
    """The order of the rows: by start, and of one start by rank and device."""
    return np.lexsort((columns["device"].ids, columns["rank"], columns["start_ns"]))
