"""Memory over time, reduced to what a screen shows without losing a peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.tables.memory_categories import CATEGORY_NAMES, MemoryCategory
from kinetoscope.tables.memory_facts import judged_blocks
from kinetoscope.trace import Column, Table
from kinetoscope.trace._arrow import to_arrow
from kinetoscope.viewer._answers import number
from kinetoscope.viewer._memory_modules import module_parts
from kinetoscope.viewer._memory_places import chosen, lasting_ns

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer._answers import Query
    from kinetoscope.viewer._memory_places import Place

    Rows = NDArray[np.int64]

MOST_POINTS = 2000
"""Of a curve. A column of two pixels gets its lowest, its highest and its last value, and those of the allocator."""

BY = ("category", "module")
# From the bottom of the stack to its top: what lasts lies below what comes and goes.
_STACKED = (
    MemoryCategory.PARAMETER, MemoryCategory.OPTIMIZER_STATE, MemoryCategory.INPUT, MemoryCategory.GRADIENT,
    MemoryCategory.ACTIVATION, MemoryCategory.AUTOGRAD_DETAIL, MemoryCategory.UNKNOWN, MemoryCategory.TEMPORARY,
)  # fmt: skip


def curve(trace: Trace, query: Query) -> pyarrow.Table:
    """Answer `memory/curve?device=&by=category|module[&start=&end=]`.

    Every row is a moment at which exactly this much was live. The columns `part0`, `part1` and so on add up to
    `total`; the meaning of each in the metadata is what it is of.

    Raises:
        ArgumentError: No such device, way to divide it, or window.
    """
    place, labels, part = _divided(trace, query)
    start, end = number(query, "start", 0.0), number(query, "end", lasting_ns(trace))
    if not start < end:
        raise ArgumentError(
            f"the window from {start:g} to {end:g} ns is empty; its end must lie after its start"
        )
    found = moments(place, part, len(labels), start, end)
    return _table(place, labels, part, found)


def at(trace: Trace, query: Query) -> pyarrow.Table:
    """Answer `memory/at?device=&by=[&time=]`: the one row of a curve at a time, at the peak without one.

    Raises:
        ArgumentError: No such device, way to divide it, or time.
    """
    place, labels, part = _divided(trace, query)
    row = place.peak_row
    if "time" in query:
        row = int(np.searchsorted(place.time_ns, number(query, "time"), side="right")) - 1
    rank = int(place.rank_of_change[row]) if row >= 0 else -2
    time = number(query, "time", float(place.time_ns[row]))
    return _table(place, labels, part, Moments(np.array([row + 1]), np.array([rank]), np.array([time])))


@dataclass(frozen=True)
class Moments:
    """Moments of a memory, in order.

    Attributes:
        changes: How many of its changes have happened.
        rank: The place of each moment among the events of the trace.
        time_ns: When.
    """

    changes: Rows
    rank: Rows
    time_ns: NDArray[np.float64]


def moments(place: Place, part: NDArray[np.int8], parts: int, start_ns: float, end_ns: float) -> Moments:
    """Choose the moments of a window that are shown.

    All of them where they are few. Else of every column of pixels the lowest, the highest and the last total and the
    highest of what the allocator counted; and the highest of each part of the whole window. The first is always the
    state in which the window begins, the last that in which it ends.

    Args:
        place: The memory.
        part: The part of each change.
        parts: How many parts there are.
        start_ns: Where the window begins.
        end_ns: Where it ends.
    """
    counts = place.counts
    # What happens at the very end of a window is still within.
    past = np.nextafter(end_ns, np.inf)
    first, last = (int(row) for row in np.searchsorted(place.time_ns, [start_ns, past]))
    told_first, told_last = (int(row) for row in np.searchsorted(counts.time_ns, [start_ns, past]))
    rows, told = np.arange(first, last), np.arange(told_first, told_last)
    if len(rows) + len(told) > MOST_POINTS - 2:
        columns = (MOST_POINTS - 2 - parts) // (5 if len(told) else 3)
        edges = np.append(np.linspace(start_ns, end_ns, columns + 1)[:-1], past)
        window = slice(first, last)
        kept = chosen_rows(place.time_ns[window], place.total_bytes[window], edges)
        rows = first + np.unique(np.concatenate([*kept, _part_peaks(place, part, parts, window)]))
        of_told = slice(told_first, told_last)
        begins = _firsts(counts.time_ns[of_told], edges)
        kept = [
            _highest(values[of_told], begins) for values in (counts.allocated_bytes, counts.reserved_bytes)
        ]
        told = told_first + np.unique(np.concatenate(kept))
    changes = np.concatenate(
        [rows + 1, np.searchsorted(place.rank_of_change, counts.rank[told], side="right")]
    )
    rank = np.concatenate([place.rank_of_change[rows], counts.rank[told]])
    time = np.concatenate([place.time_ns[rows], counts.time_ns[told]])
    order = np.lexsort((rank, changes))
    changes, rank, time = changes[order], rank[order], time[order]
    fresh = np.append(True, (changes[1:] != changes[:-1]) | (rank[1:] != rank[:-1]))[: len(rank)]
    begin = int(place.rank_of_change[first - 1]) if first else -2
    shown = np.concatenate([[start_ns], time[fresh].astype(np.float64), [end_ns]])
    return Moments(
        np.concatenate([[first], changes[fresh], [last]]),
        np.concatenate([[begin], rank[fresh], [np.max(rank[fresh], initial=begin)]]),
        np.maximum.accumulate(shown),
    )


def chosen_rows(time: Rows, value: Rows, edges: NDArray[np.float64]) -> list[Rows]:
    """The rows of the lowest, the highest and the last value between any two edges."""
    first = _firsts(time, edges)
    return [_highest(-value, first), _highest(value, first), np.append(first[1:], len(time)) - 1]


def held_after(place: Place, part: NDArray[np.int8], parts: int, changes: Rows) -> Rows:
    """What each part held after so many changes: a row for each of these rising numbers, a column a part."""
    last = int(changes[-1])
    segment = np.searchsorted(changes, np.arange(last), side="right")
    # Whole bytes are exact in floats up to 8 PiB.
    change = np.bincount(
        segment * parts + part[:last], weights=place.change_bytes[:last], minlength=len(changes) * parts
    )
    held: Rows = change.astype(np.int64).reshape(len(changes), parts).cumsum(axis=0)
    return held


def _divided(trace: Trace, query: Query) -> tuple[Place, list[str], NDArray[np.int8]]:
    """The memory that is asked about, what its parts are called, and the part of each change."""
    place, by = chosen(trace, query), query.get("by", BY[0])
    if by not in BY:
        raise ArgumentError(f"by={by[:50]!r}: memory is divided by category or by module")
    return place, *_parts(trace, place, by)


def _table(place: Place, labels: list[str], part: NDArray[np.int8], found: Moments) -> pyarrow.Table:
    """What was live at some moments."""
    held = held_after(place, part, len(labels), found.changes)
    columns: dict[str, Any] = {"time_ns": found.time_ns, "total": held.sum(axis=1)}
    columns |= {f"part{row}": held[:, row] for row in range(len(labels))}
    columns |= {
        name: _told(place.counts.rank, getattr(place.counts, f"{name}_bytes"), found.rank)
        for name in ("allocated", "reserved")
    }
    return to_arrow(_schema(labels), columns)


def _parts(trace: Trace, place: Place, by: str) -> tuple[list[str], NDArray[np.int8]]:
    """What the parts of the stack are called, from the bottom up, and the part of each change."""

    def make() -> tuple[list[str], NDArray[np.int8]]:
        judged = judged_blocks(trace)
        if by == "module":
            labels, of_block = module_parts(trace, place, judged)
            return labels, of_block[place.changed]
        category = judged.category[place.changed]
        there = np.bincount(category, minlength=len(MemoryCategory)) > 0
        order = [one for one in _STACKED if there[one]]
        part_of = np.zeros(len(MemoryCategory), np.int8)
        part_of[order] = np.arange(len(order))
        return [CATEGORY_NAMES[one] for one in order], part_of[category]

    return trace.cached(f"viewer: memory {place.key} by {by}", make)


def _part_peaks(place: Place, part: NDArray[np.int8], parts: int, rows: slice) -> Rows:
    """For each part the row of a window in which it held most."""
    found = []
    for one in range(parts):
        mine = np.flatnonzero(part[rows] == one)
        if len(mine):
            held = np.cumsum(place.change_bytes[rows][mine])
            found.append(mine[np.argmax(held)])
    return np.array(found, np.int64)


def _firsts(time: Rows, edges: NDArray[np.float64]) -> Rows:
    """The first row after each edge, as far as there is one before the next edge."""
    rows = np.searchsorted(time, edges)
    first: Rows = rows[:-1][rows[1:] > rows[:-1]]
    return first


def _highest(value: Rows, first: Rows) -> Rows:
    """The first row with the highest value from each of some rows up to the next of them."""
    if len(first) == 0:
        return first
    value = value[first[0] :]
    start = first - first[0]
    top = np.maximum.reduceat(value, start)
    rows = np.flatnonzero(value == np.repeat(top, np.diff(np.append(start, len(value)))))
    group = np.searchsorted(start, rows, side="right")
    found: Rows = first[0] + rows[np.append(True, group[1:] > group[:-1])]
    return found


def _told(events: Rows, values: Rows, rank: Rows) -> NDArray[np.float64]:
    """What the allocator had said last by each of some events; no number before it said anything."""
    if len(events) == 0 or not (values >= 0).any():
        return np.full(len(rank), np.nan)
    row = np.searchsorted(events, rank, side="right") - 1
    found = np.where(row >= 0, values[np.maximum(row, 0)], -1).astype(np.float64)
    return np.where(found >= 0, found, np.nan)


def _schema(labels: list[str]) -> Table:
    """The columns of a curve."""
    return Table(
        "curve",
        "A moment.",
        (
            Column("time_ns", "float64", "ns", "From the start of the trace."),
            Column("total", "int64", "bytes", "live memory known to the trace", 0),
            *(Column(f"part{row}", "int64", "bytes", label, 0) for row, label in enumerate(labels)),
            Column("allocated", "float64", "bytes", "allocated, as the allocator counts"),
            Column("reserved", "float64", "bytes", "reserved by the allocator"),
        ),
    )
