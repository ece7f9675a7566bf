"""The memories of a trace, one for each device of each process: usage over time, owners, and blocks.

`curve` has a memory over time and `at` at one moment; `live` lists who held it then, and `blocks` its blocks one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError, checked_choice
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.names import frame_texts
from kinetoscope.model.processes import process_runs, thread_processes
from kinetoscope.model.schema import Column, Table
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.memory.blocks import NEVER_NS, blocks_of, keys_of, processes_of
from kinetoscope.tables.memory.categories import CATEGORY_NAMES, MemoryCategory, judged_blocks
from kinetoscope.tables.memory.peak import GROUPINGS, by_holder, holders, look_up
from kinetoscope.tables.memory.timeline import changes_of, device_names
from kinetoscope.tables.shares import percent

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData
    from kinetoscope.tables.memory.blocks import Blocks
    from kinetoscope.tables.memory.categories import Judged

    Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Place:
    """The memory of one device as one process used it.

    Attributes:
        key: What an option `device` calls it: `cuda:0`, or `2/cuda:0` in a trace of several processes.
        device: The device, as torch writes it.
        process: The row of the process.
        rank: The rank of the process, or None.
        number: The index of the device in `Blocks.devices`.
        blocks: The blocks of the trace.
        block: The rows of the blocks in this memory, ascending.
        time_ns: The time of each change, ascending; 0 for blocks from before the recording.
        rank_of_change: The position of each change among all events of the trace, as in `Blocks.start_rank`.
        changed: The block of each change.
        change_bytes: The change of live bytes.
        total_bytes: Live bytes after the change.
        counts: The allocator's own counters.
    """

    key: str
    device: str
    process: int
    rank: int | None
    number: int
    blocks: Blocks
    block: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    rank_of_change: NDArray[np.int64]
    changed: NDArray[np.int32]
    change_bytes: NDArray[np.int64]
    total_bytes: NDArray[np.int64]
    counts: Counts

    @cached_property
    def peak_row(self) -> int:
        """The change that reached the peak, as in the table `memory_peak`: an allocation, if any was recorded."""
        rows = np.flatnonzero((self.blocks.allocation[self.changed] >= 0) & (self.change_bytes > 0))
        if len(rows) == 0:
            return int(np.argmax(self.total_bytes))
        return int(rows[np.argmax(self.total_bytes[rows])])

    def rank_at(self, time_ns: float | None) -> int:
        """Return the position after all events until a time, or after the peak."""
        if time_ns is None:
            return int(self.rank_of_change[self.peak_row])
        row = int(np.searchsorted(self.time_ns, time_ns, side="right")) - 1
        return int(self.rank_of_change[row]) if row >= 0 else -2

    def live(self, rank: int) -> NDArray[np.int64]:
        """Return the blocks that were live after the event at this position."""
        rows = self.block
        alive = (self.blocks.start_rank[rows] <= rank) & (self.blocks.end_rank[rows] > rank)
        return rows[alive]


@dataclass(frozen=True, eq=False)
class Counts:
    """The counters of an allocator after each of its events.

    Attributes:
        rank: The positions of the events among all events of the trace.
        time_ns: Their times.
        allocated_bytes: Bytes allocated to the program; -1 if not recorded.
        reserved_bytes: Bytes reserved from the device; -1 if not recorded.
    """

    rank: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    allocated_bytes: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]


@derived
def places(trace: TraceData) -> list[Place]:
    """Return the memories of a trace, sorted by process and device; cached."""
    blocks, names = blocks_of(trace), device_names(trace)
    processes = process_runs(trace)
    many = len(processes) > 1
    owner = _owners(trace, blocks) if many else np.zeros(len(blocks), np.int32)
    found = []
    for process, run in enumerate(processes):
        for device, name in enumerate(names):
            key = f"{process}/{name}" if many else name
            place = _place(trace, key, process, run.rank, device, owner if many else None)
            if place is not None:
                found.append(place)
    return found


def chosen(trace: TraceData, device: str | None) -> Place:
    """The memory of a name: the one with the highest peak without one.

    Raises:
        ArgumentError: There is no memory of that name, or none at all.
    """
    known = places(trace)
    if not known:
        raise ArgumentError("no memory was recorded in this trace; record with profile_memory=True")
    if device is None:
        return highest(known)
    for place in known:
        if place.key == device:
            return place
    keys = ", ".join(place.key for place in known[:20])
    raise ArgumentError(f"device={device[:50]!r}: no memory of it was recorded; the trace has {keys}")


def highest(known: list[Place]) -> Place:
    """Return the memory with the highest peak, by the allocator's counters if they were recorded."""
    return max(
        known,
        key=lambda place: max(
            int(place.total_bytes[place.peak_row]), int(place.counts.allocated_bytes.max(initial=-1))
        ),
    )


def lasting_ns(trace: TraceData) -> int:
    """Return the end of the trace, including all memory events."""
    return max([trace.duration_ns, 1, *(int(place.time_ns[-1]) for place in places(trace))])


def _place(
    trace: TraceData, key: str, process: int, rank: int | None, number: int, owner: NDArray[np.int32] | None
) -> Place | None:
    """Return one memory, or None if it has no events."""
    blocks, changes = blocks_of(trace), changes_of(trace, number)
    mine = slice(None) if owner is None else np.flatnonzero(owner[changes.block] == process)
    change = changes.change_bytes[mine]
    if len(change) == 0:
        return None
    here = blocks.device == number
    if owner is not None:
        here &= owner == process
    return Place(
        key=key,
        device=device_names(trace)[number],
        process=process,
        rank=rank,
        number=number,
        blocks=blocks,
        block=np.flatnonzero(here),
        time_ns=np.maximum.accumulate(np.maximum(changes.time_ns[mine], 0)),
        rank_of_change=changes.rank[mine],
        changed=changes.block[mine],
        change_bytes=change,
        total_bytes=changes.total_bytes if owner is None else np.cumsum(change),
        counts=_counts(trace, blocks.devices[number], None if owner is None else process),
    )


def _counts(trace: TraceData, device: tuple[int, int], process: int | None) -> Counts:
    """Return the counters of a device's allocator."""
    events = trace.columns("allocations")
    kind, index = device
    counted = (events["device_type"] == kind) & (
        (events["allocated_bytes"] >= 0) | (events["reserved_bytes"] >= 0)
    )
    if kind != 0:
        counted &= events["device_index"] == index
    if process is not None:
        counted &= thread_processes(trace)[events["thread"]] == process
    rows = np.flatnonzero(counted)
    return Counts(
        2 * rows + 1,
        np.maximum.accumulate(np.maximum(events["time_ns"][rows], 0)) if len(rows) else rows,
        events["allocated_bytes"][rows],
        events["reserved_bytes"][rows],
    )


def _owners(trace: TraceData, blocks: Blocks) -> NDArray[np.int32]:
    """Return the process of each block: of the thread that allocated it or, if unknown, of the spans that used it."""
    recorded = blocks.allocation >= 0
    owner = np.zeros(len(blocks), np.int32)
    owner[recorded] = processes_of(trace, "allocations", blocks.allocation[recorded])
    users = ("storages", "operands")
    known, first = np.unique(np.concatenate([keys_of(trace, name) for name in users]), return_index=True)
    if len(known):
        of_user = np.concatenate([processes_of(trace, name) for name in users])
        at = np.minimum(np.searchsorted(known, blocks.key[~recorded]), len(known) - 1)
        owner[~recorded] = of_user[first][at]
    return owner


# The largest number of modules that the memory curve shows separately, as there are distinguishable colors.
MOST_MODULES = 9
# A submodule is shown separately only if it has at least this share of its module.
_WORTH = 0.04


def module_parts(trace: TraceData, place: Place, judged: Judged) -> tuple[list[str], NDArray[np.int8]]:
    """Divide the blocks of a memory by module.

    Starting with the outermost modules, the module with the most bytes at the peak is split into its submodules, as long as there
    are colors left; small submodules stay part of their module.

    Returns:
        The label of each part, the largest first and blocks without a module last; and the part of each block.
    """
    modules = trace.columns("modules")
    holder, paths = modules["holder"], modules["path"]
    own = judged.module
    live = place.live(place.rank_at(None))
    size = np.zeros(len(holder) + 1, np.int64)
    np.add.at(size, own[live], place.blocks.bytes[live])
    used = np.zeros(len(holder) + 1, bool)
    used[own[place.block]] = True
    weight, seen = _with_submodules(holder, modules["depth"], size[:-1], used[:-1])
    children: dict[int, list[int]] = {}
    for row in np.flatnonzero(seen).tolist():
        children.setdefault(int(holder[row]), []).append(row)
    shown, opened = _opened(children, weight)
    place_of = {row: part for part, row in enumerate(shown)}
    of_module = np.full(len(holder) + 1, len(shown), np.int8)
    for row in np.argsort(modules["depth"], kind="stable").tolist():
        above = int(holder[row])
        of_module[row] = place_of.get(row, int(of_module[above]) if above >= 0 else len(shown))
    part = of_module[own]
    there = np.bincount(part[place.block], minlength=len(shown) + 1) > 0
    labels = [f"{paths[row]} (rest)" if row in opened else paths[row] for row in shown]
    labels.append("other modules or no module" if _left_out(children, shown) else "no module")
    renumbered = np.cumsum(there) - 1
    return [label for label, used_one in zip(labels, there.tolist(), strict=True) if used_one], renumbered[
        part
    ].astype(np.int8)


def _with_submodules(
    holder: NDArray[np.int32], depth: NDArray[np.int32], size: NDArray[np.int64], used: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the bytes of each module with its submodules, and whether they have any blocks."""
    weight, seen = size.copy(), used.copy()
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero((depth == level) & (holder >= 0))
        np.add.at(weight, holder[rows], weight[rows])
        np.logical_or.at(seen, holder[rows], seen[rows])
    return weight, seen


def _opened(children: dict[int, list[int]], weight: NDArray[np.int64]) -> tuple[list[int], set[int]]:
    """Return the modules to show, the largest first, and those of them of which some submodules are shown separately."""
    by_weight = sorted(children.get(-1, []), key=lambda row: -int(weight[row]))
    shown, opened = by_weight[:MOST_MODULES], set[int]()
    tried: set[int] = set()
    while True:
        open_next = [row for row in shown if row not in tried]
        if not open_next:
            break
        row = max(open_next, key=lambda one: int(weight[one]))
        tried.add(row)
        inside = [one for one in children.get(row, []) if weight[one] > _WORTH * weight[row]]
        if inside and len(shown) + len(inside) <= MOST_MODULES:
            shown += inside
            opened.add(row)
    taken = set(shown)
    alone = {
        row: int(weight[row]) - sum(int(weight[one]) for one in children.get(row, []) if one in taken)
        for row in shown
    }
    return sorted(shown, key=lambda row: -alone[row]), opened


def _left_out(children: dict[int, list[int]], shown: list[int]) -> bool:
    """Whether some outermost modules are not shown."""
    return any(row not in shown for row in children.get(-1, []))


MOST_POINTS = 2000
"""Largest number of points of a curve: for every two pixels the lowest, highest and last value, and those of the allocator."""

BY = ("category", "module")
# Order of the stacked chart, from the bottom: long-lived categories below short-lived ones.
_STACKED = (
    MemoryCategory.PARAMETER, MemoryCategory.OPTIMIZER_STATE, MemoryCategory.INPUT, MemoryCategory.GRADIENT,
    MemoryCategory.ACTIVATION, MemoryCategory.AUTOGRAD_DETAIL, MemoryCategory.UNKNOWN, MemoryCategory.TEMPORARY,
)  # fmt: skip


def curve(
    trace: TraceData,
    device: str | None = None,
    *,
    by: str = "category",
    start_ns: float = 0.0,
    end_ns: float | None = None,
) -> pyarrow.Table:
    """Return a memory over time: about as many rows as a screen has columns, and no peak is lost.

    Every row is a moment with its exact number of live bytes. The columns `part0`, `part1` and so on add up to `total`; the
    metadata of each has its label.

    Args:
        trace: The trace.
        device: As `Place.key` names it, such as `cuda:0`; without it the memory with the highest peak.
        by: How to divide it: `category` or `module`.
        start_ns: Where the window begins, from the start of the trace.
        end_ns: Where it ends; without it the end of the trace.

    Raises:
        ArgumentError: There is no such device or grouping, or the window is not valid.
    """
    place = chosen(trace, device)
    labels, part = _parts(trace, place, by)
    end_ns = lasting_ns(trace) if end_ns is None else end_ns
    if not start_ns < end_ns:
        raise ArgumentError(
            f"the window from {start_ns:g} to {end_ns:g} ns is empty; the end must come after the start"
        )
    found = moments(place, part, len(labels), start_ns, end_ns)
    return _table(place, labels, part, found)


def at(
    trace: TraceData, device: str | None = None, *, by: str = "category", time_ns: float | None = None
) -> pyarrow.Table:
    """Return the one row of `curve` at a time, at the peak without one.

    Raises:
        ArgumentError: No such device or way to divide it.
    """
    place = chosen(trace, device)
    labels, part = _parts(trace, place, by)
    row = place.peak_row
    if time_ns is not None:
        row = int(np.searchsorted(place.time_ns, time_ns, side="right")) - 1
    rank = int(place.rank_of_change[row]) if row >= 0 else -2
    time = float(place.time_ns[row]) if time_ns is None else time_ns
    return _table(place, labels, part, Moments(np.array([row + 1]), np.array([rank]), np.array([time])))


@dataclass(frozen=True)
class Moments:
    """Moments of a memory, in ascending order.

    Attributes:
        changes: The number of changes before each moment.
        rank: The position of each moment among all events of the trace.
        time_ns: The time of each moment.
    """

    changes: Rows
    rank: Rows
    time_ns: NDArray[np.float64]


def moments(place: Place, part: NDArray[np.int8], parts: int, start_ns: float, end_ns: float) -> Moments:
    """Select the moments of a window that are drawn.

    All of them if there are few. Otherwise, for each pixel the lowest, the highest and the last total, and the highest values of
    the allocator's counters; and for the whole window the highest value of each part. The first moment is always the start of
    the window, and the last one its end.

    Args:
        place: The memory.
        part: The part of each change.
        parts: The number of parts.
        start_ns: Start of the window.
        end_ns: End of the window.
    """
    counts = place.counts
    # The end of the window is included.
    past = np.nextafter(end_ns, np.inf)
    first, last = (int(row) for row in np.searchsorted(place.time_ns, [start_ns, past]))
    count_first, count_last = (int(row) for row in np.searchsorted(counts.time_ns, [start_ns, past]))
    rows, counted = np.arange(first, last), np.arange(count_first, count_last)
    if len(rows) + len(counted) > MOST_POINTS - 2:
        columns = (MOST_POINTS - 2 - parts) // (5 if len(counted) else 3)
        edges = np.append(np.linspace(start_ns, end_ns, columns + 1)[:-1], past)
        window = slice(first, last)
        kept = chosen_rows(place.time_ns[window], place.total_bytes[window], edges)
        rows = first + np.unique(np.concatenate([*kept, _part_peaks(place, part, parts, window)]))
        of_counts = slice(count_first, count_last)
        begins = _firsts(counts.time_ns[of_counts], edges)
        kept = [
            _highest(values[of_counts], begins) for values in (counts.allocated_bytes, counts.reserved_bytes)
        ]
        counted = count_first + np.unique(np.concatenate(kept))
    changes = np.concatenate(
        [rows + 1, np.searchsorted(place.rank_of_change, counts.rank[counted], side="right")]
    )
    rank = np.concatenate([place.rank_of_change[rows], counts.rank[counted]])
    time = np.concatenate([place.time_ns[rows], counts.time_ns[counted]])
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
    """Return the rows of the lowest, the highest and the last value of each interval, given by the edges."""
    first = _firsts(time, edges)
    return [_highest(-value, first), _highest(value, first), np.append(first[1:], len(time)) - 1]


def held_after(place: Place, part: NDArray[np.int8], parts: int, changes: Rows) -> Rows:
    """Return the live bytes of each part (columns) after given numbers of changes (rows), which are ascending."""
    last = int(changes[-1])
    segment = np.searchsorted(changes, np.arange(last), side="right")
    # Whole bytes are exact in floats up to 8 PiB.
    change = np.bincount(
        segment * parts + part[:last], weights=place.change_bytes[:last], minlength=len(changes) * parts
    )
    held: Rows = change.astype(np.int64).reshape(len(changes), parts).cumsum(axis=0)
    return held


def _table(place: Place, labels: list[str], part: NDArray[np.int8], found: Moments) -> pyarrow.Table:
    """Return the table of live bytes at some moments."""
    held = held_after(place, part, len(labels), found.changes)
    columns: dict[str, Any] = {"time_ns": found.time_ns, "total": held.sum(axis=1)}
    columns |= {f"part{row}": held[:, row] for row in range(len(labels))}
    columns |= {
        name: _latest_counts(place.counts.rank, getattr(place.counts, f"{name}_bytes"), found.rank)
        for name in ("allocated", "reserved")
    }
    return to_arrow(_schema(labels), columns)


def _parts(trace: TraceData, place: Place, by: str) -> tuple[list[str], NDArray[np.int8]]:
    """Return the labels of the parts of the stacked chart, from the bottom, and the part of each change."""
    checked_choice("by", by, BY)

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

    return trace.cached(f"parts of the memory {place.key} by {by}", make)


def _part_peaks(place: Place, part: NDArray[np.int8], parts: int, rows: slice) -> Rows:
    """Return for each part the row of a window with its highest value."""
    found = []
    for one in range(parts):
        mine = np.flatnonzero(part[rows] == one)
        if len(mine):
            held = np.cumsum(place.change_bytes[rows][mine])
            found.append(mine[np.argmax(held)])
    return np.array(found, np.int64)


def _firsts(time: Rows, edges: NDArray[np.float64]) -> Rows:
    """Return the first row after each edge, for edges with a row before the next edge."""
    rows = np.searchsorted(time, edges)
    first: Rows = rows[:-1][rows[1:] > rows[:-1]]
    return first


def _highest(value: Rows, first: Rows) -> Rows:
    """Return the first row with the highest value in each group of rows; `first` are the first rows of groups."""
    if len(first) == 0:
        return first
    value = value[first[0] :]
    start = first - first[0]
    top = np.maximum.reduceat(value, start)
    rows = np.flatnonzero(value == np.repeat(top, np.diff(np.append(start, len(value)))))
    group = np.searchsorted(start, rows, side="right")
    found: Rows = first[0] + rows[np.append(True, group[1:] > group[:-1])]
    return found


def _latest_counts(events: Rows, values: Rows, rank: Rows) -> NDArray[np.float64]:
    """Return the latest counters of the allocator at some events; NaN before its first event."""
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


MOST_BLOCKS = 2000
"""Of the blocks that are listed one by one."""

MOST_STACK_ROWS = 100_000

ORDERS = ("biggest", "longest", "never freed")

_SIZE = (
    Column("bytes", "int64", "bytes", "Their total size.", 0),
    Column("percent", "float64", "%", "Share of all bytes live at that time."),
    Column("blocks", "int64", "", "How many blocks.", 0),
)
_WHO = (
    Column("category", "category", "", f"Their category: {', '.join(CATEGORY_NAMES)}."),
    Column("module", "category", "", "The path of their module."),
    Column(
        "operator",
        "category",
        "",
        "The operator that allocated them; null for blocks from before the recording.",
    ),
    Column("line", "category", "", "The innermost line of the user's code that allocated them."),
)
_STACK = Column("stack", "int32", "row of stacks", "The Python stack that allocated the first of them.")
"""The column that refers to `stacks`."""
_BLOCK = Table(
    "blocks",
    "A block of memory.",
    (
        Column("time_ns", "int64", "ns", "When it was allocated; null where that was not recorded."),
        Column("bytes", "int64", "bytes", "Its size.", 0),
        Column("lifetime_ns", "int64", "ns", "From its allocation to its free, where both were recorded."),
        Column("freed_ns", "int64", "ns", "When it was freed, or its address was allocated again."),
        *_WHO,
        Column("step", "int64", "", "The number of the step in which it was allocated."),
        Column("span", "int32", "row of spans", "The span that allocated it."),
        _STACK,
    ),
)  # fmt: skip
_STACKS = Table(
    "stacks",
    "A Python call stack: its parent's with one more frame.",
    (
        Column("id", "int32", "row of stacks", "The row."),
        Column("parent", "int32", "row of stacks", "The stack of the caller."),
        Column("frame", "category", "", "The innermost frame."),
    ),
)


def live(
    trace: TraceData, device: str | None = None, *, by: str = "all", time_ns: float | None = None
) -> pyarrow.Table:
    """Return who held a memory at a moment, at its peak without one.

    Args:
        trace: The trace.
        device: As for `curve`.
        by: One of `GROUPINGS`.
        time_ns: The moment, from the start of the trace.

    Raises:
        ArgumentError: No such device or grouping.
    """
    place = chosen(trace, device)
    checked_choice("by", by, tuple(GROUPINGS))
    rows = place.live(place.rank_at(time_ns))
    columns, first = by_holder(trace, rows, by)
    size = columns["bytes"]
    columns |= {"percent": percent(size, int(size.sum())), "stack": judged_blocks(trace).stack[rows][first]}
    shown = tuple(column for column in _WHO if column.name in GROUPINGS[by])
    table = Table("live", "Blocks that were live.", (*_SIZE, *shown, _STACK))
    return to_arrow(table, columns, np.argsort(-size, kind="stable"))


def blocks(
    trace: TraceData, device: str | None = None, *, order: str = "biggest"
) -> tuple[pyarrow.Table, int]:
    """Return the first blocks of a memory in an order, and how many there are: the `biggest`, the `longest`-lived, or those `never freed`.

    Raises:
        ArgumentError: There is no such device or order.
    """
    place = chosen(trace, device)
    rows, total = _listed(place, checked_choice("order", order, ORDERS))
    known, who = place.blocks, holders(trace, rows)
    start, end = known.start_ns[rows], known.end_ns[rows]
    freed, recorded = end < NEVER_NS, known.recorded[rows]
    step = look_up(known.span[rows], trace.column("spans", "step"))
    columns: dict[str, Any] = {
        "time_ns": np.where(recorded, start, -1),
        "bytes": known.bytes[rows],
        "lifetime_ns": np.where(freed & recorded, end - start, -1),
        "freed_ns": np.where(freed, end, -1),
        "step": np.append(trace.column("steps", "number"), -1)[step],
        "span": known.span[rows],
        "stack": judged_blocks(trace).stack[rows],
    }
    return to_arrow(_BLOCK, columns | who), total


def stacks(trace: TraceData, device: str | None = None) -> pyarrow.Table:
    """Return the Python stacks to which the rows of `live` and `blocks` refer.

    Args:
        trace: The trace.
        device: As for `curve`.

    Raises:
        ArgumentError: There is no such device.
    """
    place = chosen(trace, device)
    own = judged_blocks(trace).stack
    rows = [place.live(place.rank_at(None)), *(_listed(place, order)[0] for order in ORDERS)]
    parent, frame = (trace.column("stacks", name) for name in ("parent", "frame"))
    wanted = np.zeros(len(parent) + 1, bool)
    wanted[own[np.concatenate(rows)]] = True
    # A report contains only the blocks of these tables; a server responds for any moment.
    wanted[own[place.block]] |= len(np.unique(own[place.block])) <= MOST_STACK_ROWS
    for row in np.flatnonzero(wanted[:-1])[::-1].tolist():
        above = int(parent[row])
        while 0 <= above < row and not wanted[above]:
            wanted[above] = True
            row, above = above, int(parent[above])
    found = np.flatnonzero(wanted[:-1])
    return to_arrow(
        _STACKS,
        {
            "id": found.astype(np.int32),
            "parent": parent[found],
            "frame": Labels(frame[found], frame_texts(trace)),
        },
    )


def described(trace: TraceData, place: Place) -> dict[str, Any]:
    """The summary of a memory: its peak, what is left at the end, and what was recorded of it."""
    judged = judged_blocks(trace)
    peak = int(place.total_bytes[place.peak_row])
    held = place.live(place.rank_at(None))
    unknown = judged.category[held] == MemoryCategory.UNKNOWN
    end = place.live(int(np.iinfo(np.int64).max) - 1)
    return {
        "key": place.key,
        "device": place.device,
        "process": place.process,
        "rank": place.rank,
        "blocks": len(place.block),
        "peak_bytes": peak,
        "peak_ns": int(place.time_ns[place.peak_row]),
        "unknown_percent": float(percent(place.blocks.bytes[held][unknown].sum(), peak)),
        "end_bytes": int(place.blocks.bytes[end].sum()),
        "never_freed": int(place.blocks.recorded[end].sum()),
        "allocated_bytes": _most(place.counts.allocated_bytes),
        "reserved_bytes": _most(place.counts.reserved_bytes),
        "modules": bool((judged.module[place.block] >= 0).any()),
        "stacks": bool((judged.stack[place.block] >= 0).any()),
    }


def _most(values: NDArray[np.int64]) -> int | None:
    """Return the highest value of an allocator's counter; None if it was not recorded."""
    most = int(values.max(initial=-1))
    return most if most >= 0 else None


def _listed(place: Place, order: str) -> tuple[NDArray[np.int64], int]:
    """Return the first blocks in an order, and the total number of blocks."""
    known, rows = place.blocks, place.block
    freed, recorded = known.end_ns[rows] < NEVER_NS, known.recorded[rows]
    if order == "longest":
        rows = rows[freed & recorded]
        value = known.end_ns[rows] - known.start_ns[rows]
    else:
        rows = rows[recorded & ~freed] if order == "never freed" else rows
        value = known.bytes[rows]
    if len(rows) > MOST_BLOCKS:
        kept = np.argpartition(-value, MOST_BLOCKS)[:MOST_BLOCKS]
        found = kept[np.lexsort((kept, -value[kept]))]
    else:
        found = np.argsort(-value, kind="stable")
    return rows[found], len(rows)
