"""What can be asked of a trace: a window of time, some steps, some ranks of it, each as a trace."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.trace._cutting import cut
from kinetoscope.trace._looks import duration_text
from kinetoscope.trace._pieces import BEGINLESS_NS, ENDLESS_NS, Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kinetoscope.trace._trace import Trace

DEVICE_RULES = ("time", "launch")


class Selections:
    """The methods of a trace that return a part of it as a trace."""

    def window(self, start_ns: int = 0, end_ns: int | None = None, *, device: str = "time") -> Trace:
        """Return a window of time as a trace.

        Its times count from `start_ns`, so it looks like a recording that began there, and windows of windows are
        windows. Spans that cross an edge are cut at it: `flags` (and `unfinished` in the table `spans`) say so, and
        `info["selections"]` says how many. The times in disjoint windows add up to those of the whole. Memory is as in
        the whole: blocks that were live at `start_ns` are allocations before the start, at -1 ns.

        Args:
            start_ns: Where it starts, in nanoseconds from the start of this trace.
            end_ns: Where it ends, itself outside; None for the end of the trace.
            device: `time`: of what devices did, what ran in the window, cut at its edges. `launch`: what was launched
                in the window, whole, whenever it ran; device spans of unknown launch still by their time.

        Returns:
            A new trace; this one is as before, and may be closed.

        Raises:
            ArgumentError: The window is empty, lies outside the trace, or `device` is something else.
            StateError: The trace was closed.
        """
        trace = cast("Trace", self)
        start = _nanoseconds("start_ns", start_ns)
        end = ENDLESS_NS if end_ns is None else _nanoseconds("end_ns", end_ns)
        if end <= start:
            raise ArgumentError(
                f"the window starts at {start} ns and ends at {end} ns: the end must come after the start"
            )
        lasted_ns = trace.duration_ns
        if start > 0 and start >= lasted_ns:
            raise ArgumentError(
                f"the window starts at {duration_text(start)}, but the trace is only {duration_text(lasted_ns)} long"
            )
        # What happens at the very end belongs to a window that reaches it.
        limit = ENDLESS_NS if end >= lasted_ns else end
        said = {"window_ns": [start, None if end == ENDLESS_NS else end], "device": _device_rule(device)}
        # The first window takes what began before the trace did, too.
        begin = start if start > 0 else BEGINLESS_NS
        return cut(trace, Part(start, _one(begin), _one(limit), by_launch=device == "launch", said=said))

    def select_steps(self, numbers: Iterable[int], *, device: str = "launch") -> Trace:
        """Return some steps as a trace.

        Steps that follow each other are taken with what lies between them; a gap stays a gap in time. What crosses an
        edge is cut as in `window`, and what touches several stretches of steps is a piece in each of them.

        Args:
            numbers: Their numbers, as in the table `steps`. A number that several steps have means all of these.
            device: `launch`: of what devices did, what these steps launched, whole, also where it ran later; device
                spans of unknown launch by their time. `time`: what ran during these steps, cut at their edges.

        Returns:
            A new trace; this one is as before, and may be closed.

        Raises:
            ArgumentError: A step is not in the trace, there are none, or `device` is something else.
            StateError: The trace was closed.
        """
        trace = cast("Trace", self)
        wanted = sorted({operator.index(number) for number in numbers})
        steps = trace.columns("steps")
        known = steps["number"]
        if len(known) == 0:
            raise ArgumentError(
                "the trace has no steps; call step() in the training loop while recording, or choose a window"
            )
        missing = sorted(set(wanted) - set(known.tolist()))
        if missing or not wanted:
            problem = f"the trace has no step {ranges_text(missing)}" if missing else "no step was named"
            raise ArgumentError(f"{problem}; it has {ranges_text(known.tolist())}")
        rows = np.flatnonzero(np.isin(known, wanted))
        start, end = _stretches(rows, known, steps["start_ns"], steps["start_ns"] + steps["duration_ns"])
        if len(start) == 0:
            raise ArgumentError(f"step {ranges_text(wanted)} took no time, so there is nothing to select")
        said = {
            "steps": wanted,
            "windows_ns": np.column_stack((start, end)).tolist(),
            "device": _device_rule(device),
        }
        part = Part(int(start[0]), start, end, steps=rows, by_launch=device == "launch", said=said)
        return cut(trace, part)

    def select_ranks(self, ranks: Iterable[int]) -> Trace:
        """Return what some ranks of a distributed run did, as a trace on the same axis of time.

        Counters and what is known of the run as a whole stay; everything on threads or devices of other ranks goes.

        Args:
            ranks: Their numbers.

        Returns:
            A new trace; this one is as before, and may be closed.

        Raises:
            ArgumentError: A rank is not in the trace, or the trace does not say of which rank it is.
            StateError: The trace was closed.
        """
        from kinetoscope.trace._shown import rank

        trace = cast("Trace", self)
        wanted = sorted({operator.index(number) for number in ranks})
        whole = rank(trace)
        of_thread = trace.column("threads", "rank")
        of_thread = np.where(of_thread < 0, -1 if whole is None else whole, of_thread)
        known = sorted(set(of_thread.tolist()) - {-1} | ({whole} if whole is not None else set()))
        if not known:
            raise ArgumentError("the trace does not say of which rank it is")
        missing = sorted(set(wanted) - set(known))
        if missing or not wanted:
            problem = f"the trace has no rank {ranges_text(missing)}" if missing else "no rank was named"
            raise ArgumentError(f"{problem}; it has {ranges_text(known)}")
        threads = np.isin(of_thread, [*wanted, -1])
        part = Part(0, _one(BEGINLESS_NS), _one(ENDLESS_NS), threads=threads, said={"ranks": wanted})
        return cut(trace, part)


def ranges_text(numbers: Iterable[int]) -> str:
    """Write numbers as people do: `2-4, 7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _stretches(
    rows: NDArray[np.int64], number: NDArray[np.int64], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The windows that steps cover: those that follow each other, or overlap, as one."""
    windows: list[list[int]] = []
    previous = -2
    for row in rows.tolist():
        start, end = int(start_ns[row]), int(end_ns[row])
        follows = row == previous + 1 and number[row] - number[previous] in (0, 1)
        if windows and (follows or start <= windows[-1][1]):
            windows[-1][1] = max(end, windows[-1][1])
        else:
            windows.append([start, end])
        previous = row
    kept = [window for window in windows if window[0] < window[1]]
    return np.array([start for start, _ in kept], np.int64), np.array([end for _, end in kept], np.int64)


def _one(value: int) -> NDArray[np.int64]:
    """A column of one number."""
    return np.array([value], dtype=np.int64)


def _nanoseconds(name: str, value: Any) -> int:
    """A point in time that a user gave."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(
            f"{name} is {value!r}; pass a whole number of nanoseconds from the start of the trace"
        ) from None
    if not 0 <= number <= ENDLESS_NS:
        raise ArgumentError(f"{name} is {number}; pass nanoseconds from the start of the trace, so 0 or more")
    return number


def _device_rule(device: str) -> str:
    """Refuse a rule that there is none of."""
    if device not in DEVICE_RULES:
        raise ArgumentError(f"device={device!r}: choose one of: {', '.join(DEVICE_RULES)}")
    return device
