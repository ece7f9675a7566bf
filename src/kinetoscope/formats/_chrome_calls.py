"""Python calls rebuilt from the stacks of operators, for traces in which the calls themselves were not recorded.

A call is seen as long as operators run in it: its slice lasts from the first of them to the last. Calls of one function
from one line, with nothing else between them, are one slice. A function that runs no operator has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.trace import SpanKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.formats._chrome_stacks import ShownStacks
    from kinetoscope.trace import Trace


@dataclass(frozen=True)
class RebuiltCalls:
    """Calls as columns, in no order.

    Attributes:
        thread: The row of the thread of each.
        start_ns: When its first operator began.
        duration_ns: The time from there to the end of its last.
        stack: The row of the stack whose innermost frame it is.
        depth: How many calls are around it.
    """

    thread: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    stack: NDArray[np.int32]
    depth: NDArray[np.int32]


def rebuilt_calls(trace: Trace, shown: ShownStacks) -> RebuiltCalls | None:
    """Rebuild the calls of a trace whose session asked for Python stacks.

    Args:
        trace: The trace.
        shown: Its stacks, without the frames that are not shown.

    Returns:
        The calls; None where nobody asked, where there are no stacks, and where calls were recorded.
    """
    spans = trace.columns("spans")
    if not trace.info.get("with_stack") or (spans["kind"] == SpanKind.PYTHON).any():
        return None
    stack, parent = shown.row[spans["own_stack"]], spans["parent"]
    entered = (stack >= 0) & (spans["lane"] == 0) & ((parent < 0) | (stack != stack[parent]))
    events = np.flatnonzero(entered)
    if len(events) == 0:
        return None
    walk = _Walk(trace, shown)
    columns = (spans["thread"], spans["start_ns"], spans["duration_ns"])
    thread, start_ns, duration_ns = (column[events].tolist() for column in columns)
    for on, began_ns, lasted_ns, place in zip(
        thread, start_ns, duration_ns, stack[events].tolist(), strict=True
    ):
        walk.enter(on, began_ns, began_ns + lasted_ns, place)
    return walk.calls()


@dataclass
class _Call:
    """A call around the present operator: what tells it from others, its row of `stacks`, and its time so far."""

    key: tuple[int, int, int]
    stack: int
    start_ns: int
    end_ns: int


class _Walk:
    """Goes through the operators of one thread after the other and keeps the calls around the present one."""

    def __init__(self, trace: Trace, shown: ShownStacks) -> None:
        frames = trace.columns("frames")
        self._function, self._file = frames["function"].tolist(), frames["file"].tolist()
        self._frame, self._parent = trace.columns("stacks")["frame"].tolist(), shown.parent.tolist()
        self._paths: dict[int, list[tuple[tuple[int, int, int], int]]] = {}
        # Outermost first; only the innermost one's end is up to date, it passes its own on when it is closed.
        self._open: list[_Call] = []
        self._thread = -1
        self._place = -1
        self._rows: list[tuple[int, int, int, int, int]] = []

    def enter(self, thread: int, start_ns: int, end_ns: int, place: int) -> None:
        """Take the next operator: threads one after the other, and on each in the order of time."""
        if thread != self._thread:
            self._close(0, None)
            self._thread, self._place = thread, -1
        if place != self._place:
            path = self._path(place)
            same = 0
            for call, (key, _) in zip(self._open, path, strict=False):
                if call.key != key:
                    break
                same += 1
            self._close(same, start_ns)
            self._open.extend(_Call(key, stack, start_ns, start_ns) for key, stack in path[same:])
            self._place = place
        innermost = self._open[-1]
        innermost.end_ns = max(innermost.end_ns, end_ns)

    def calls(self) -> RebuiltCalls:
        """End what is still open, and return everything."""
        self._close(0, None)
        thread, start_ns, end_ns, stack, depth = np.array(self._rows, np.int64).reshape(-1, 5).T
        return RebuiltCalls(
            thread.astype(np.int32),
            start_ns,
            end_ns - start_ns,
            stack.astype(np.int32),
            depth.astype(np.int32),
        )

    def _close(self, keep: int, now_ns: int | None) -> None:
        """End all calls but the outermost `keep`."""
        while len(self._open) > keep:
            call = self._open.pop()
            depth = len(self._open)
            if depth:
                self._open[-1].end_ns = max(self._open[-1].end_ns, call.end_ns)
            # A range may outlast the call that opened it: the next operator shows that the call is over.
            end_ns = call.end_ns if now_ns is None else min(call.end_ns, now_ns)
            self._rows.append((self._thread, call.start_ns, end_ns, call.stack, depth))

    def _path(self, place: int) -> list[tuple[tuple[int, int, int], int]]:
        """The calls of a stack, outermost first: what tells each from others, and its row of `stacks`."""
        if (known := self._paths.get(place)) is not None:
            return known
        path = []
        row = place
        while row >= 0:
            frame = self._frame[row]
            path.append(((self._parent[row], self._function[frame], self._file[frame]), row))
            row = self._parent[row]
        path.reverse()
        self._paths[place] = path
        return path
