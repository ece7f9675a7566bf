"""Which spans are in a part of a trace, and where they are cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace._trace import Trace

    Rows = NDArray[np.int64]
    Mask = NDArray[np.bool_]

BEGINLESS_NS, ENDLESS_NS = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass
class Part:
    """What of a trace is wanted.

    Attributes:
        base_ns: The moment from which the new trace counts its times.
        start_ns: Where each window of time starts, rising; `BEGINLESS_NS` for one without a start.
        end_ns: Where each ends; `ENDLESS_NS` for one without an end. They do not overlap.
        threads: Which threads are wanted, all if None.
        steps: Which rows of `steps` are wanted, all that lie in a window if None.
        by_launch: Whether a device span belongs where it was launched, and is then whole, or where it ran.
        said: What the new trace says of itself in `info["selections"]`.
    """

    base_ns: int
    start_ns: Rows
    end_ns: Rows
    threads: Mask | None = None
    steps: Rows | None = None
    by_launch: bool = False
    said: dict[str, Any] = field(default_factory=dict)


@dataclass
class Pieces:
    """The spans of a part: for each piece the span it is of, its window, and its times on the new axis."""

    row: Rows
    window: Rows
    start_ns: Rows
    duration_ns: Rows
    begun_before: Mask
    unfinished: Mask

    def take(self, order: Rows) -> Pieces:
        """The same in another order."""
        return Pieces(*(values[order] for values in vars(self).values()))


def pieces_of(trace: Trace, part: Part) -> Pieces:
    """Return the pieces of the spans of a trace that are in a part, in the order in which a trace has its spans."""
    return _sorted_pieces(_unsorted(trace, part), trace.column("spans", "thread"))


def _unsorted(trace: Trace, part: Part) -> Pieces:
    """The pieces of all spans, in the order of their spans."""
    spans = trace.columns("spans")
    whole = _window_of_launch(trace, part) if part.by_launch else None
    near = _near(trace, part, whole)
    start = spans["start_ns"][near]
    end = ends_ns(start, spans["duration_ns"][near])
    first = np.searchsorted(part.end_ns, start, side="right")
    # What takes no time belongs to the window that begins with it.
    last = np.searchsorted(part.start_ns, np.maximum(end, start + 1), side="left") - 1
    count = np.maximum(last - first + 1, 0)
    if whole is not None:
        first = np.where(whole[near] >= 0, whole[near], first)
        count[whole[near] >= 0] = 1
        count[whole[near] == -1] = 0
    at = np.repeat(np.arange(len(near)), count)
    before = np.cumsum(count) - count
    window = first[at] + np.arange(len(at)) - before[at]
    row, start, end = near[at], start[at], end[at]
    from_ns, to_ns = part.start_ns[window], part.end_ns[window]
    if whole is not None:
        uncut = whole[row] >= 0
        from_ns, to_ns = np.where(uncut, start, from_ns), np.where(uncut, end, to_ns)
    begun_before, unfinished = start < from_ns, end > to_ns
    cut_start = np.maximum(start, from_ns)
    cut_ns = np.minimum(end, to_ns) - cut_start
    duration = np.where(begun_before | unfinished, cut_ns, spans["duration_ns"][row])
    return Pieces(row, window, cut_start - part.base_ns, duration, begun_before, unfinished)


def _near(trace: Trace, part: Part, whole: Rows | None) -> Rows:
    """The spans between the first and the last moment, on wanted threads; of a long trace these are few."""
    spans = trace.columns("spans")
    found: Mask = spans["start_ns"] < part.end_ns[-1]
    rows = np.flatnonzero(found)
    start = spans["start_ns"][rows] if len(rows) < len(spans) else spans["start_ns"]
    durations = spans["duration_ns"][rows] if len(rows) < len(spans) else spans["duration_ns"]
    rows = rows[(start >= part.start_ns[0]) | (ends_ns(start, durations) > part.start_ns[0])]
    if part.threads is not None:
        rows = rows[part.threads[spans["thread"][rows]]]
    if whole is not None:
        rows = np.union1d(rows, np.flatnonzero(whole >= 0))
    return rows


def _window_of_launch(trace: Trace, part: Part) -> Rows:
    """For each device span of known launch its window, -1 for none; -2 for every other span."""
    found = np.full(len(trace.columns("spans")), -2, dtype=np.int64)
    launches = trace.columns("launches")
    host, device = launches["host"][::-1], launches["device"][::-1]  # the first launch of several decides
    known = (host >= 0) & (device >= 0)
    found[device[known]] = window_at(part, trace.column("spans", "start_ns")[host[known]])
    found[trace.column("spans", "stream") < 0] = -2
    return found


def window_at(part: Part, time_ns: Rows) -> Rows:
    """The window each moment lies in, -1 for none."""
    found = np.searchsorted(part.end_ns, time_ns, side="right")
    inside = (found < len(part.end_ns)) & (np.append(part.start_ns, ENDLESS_NS)[found] <= time_ns)
    return np.where(inside, found, -1)


def ends_ns(start_ns: Rows, duration_ns: Rows) -> Rows:
    """When each ends, however absurd its times are."""
    end = start_ns + duration_ns
    return np.where((end < start_ns) & (duration_ns > 0), ENDLESS_NS, end)


def _sorted_pieces(pieces: Pieces, threads: NDArray[np.int32]) -> Pieces:
    """Order pieces by thread, start, and the longer first, where they are not; what encloses stays before."""
    thread, start, longest = threads[pieces.row], pieces.start_ns, -pieces.duration_ns
    same = thread[1:] == thread[:-1]
    later = (start[1:] < start[:-1]) | ((start[1:] == start[:-1]) & (longest[1:] < longest[:-1]))
    wrong = np.zeros(int(threads.max(initial=-1)) + 1, dtype=bool)
    wrong[thread[1:][same & later]] = True
    rows = np.flatnonzero(wrong[thread]) if wrong.any() else np.zeros(0, dtype=np.int64)
    if len(rows) == 0:
        return pieces
    order = np.arange(len(thread))
    order[rows] = rows[np.lexsort((longest[rows], start[rows], thread[rows]))]
    return pieces.take(order)
