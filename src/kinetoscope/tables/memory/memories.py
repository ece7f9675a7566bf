"""The memories of a trace, one for each device of each process: usage over time, owners, and blocks.

`curve` has a memory over time and `at` at one moment; `live` lists who held it then, and `blocks` its blocks one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope._errors import ArgumentError, checked_choice
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.dictionary import Column, Table
from kinetoscope.model.groups import Groups, percent
from kinetoscope.model.names import frame_texts
from kinetoscope.model.nesting import depths_of, spread_down
from kinetoscope.model.processes import process_runs, thread_processes
from kinetoscope.model.rows import Rows, begins_run, look_up, mask_of, places_of
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.memory.blocks import NEVER_NS, blocks_of, events_of_device
from kinetoscope.tables.memory.categories import CATEGORY_NAMES, Judged, MemoryCategory, judged_blocks
from kinetoscope.tables.memory.peak import GROUPINGS, by_holder, holders
from kinetoscope.tables.memory.timeline import Changes, changes_of, device_names


@dataclass(frozen=True, eq=False)
class MemoryPool:
    """The memory of one device as one process used it.

    Attributes:
        key: What an option `device` calls it: `cuda:0`, or `2/cuda:0` in a trace of several processes.
        device: The device, as torch writes it.
        process: The row of the process.
        rank: The rank of the process, or None.
        number: The index of the device in `Blocks.devices`.
        changes: What happened to its blocks.
        counts: The allocator's own counters.
    """

    key: str
    device: str
    process: int
    rank: int | None
    number: int
    changes: Changes
    counts: Counts

    @property
    def peak_bytes(self) -> int:
        """The live bytes at its peak."""
        return int(self.changes.total_bytes[self.changes.peak_row])

    def live(self, time_ns: float | None = None) -> Rows:
        """Return the blocks that were live after all events until a time, or after the peak."""
        return self.changes.live(self.changes.rank_after(self.changes.row_at(time_ns)))


@dataclass(frozen=True, eq=False)
class Counts:
    """The counters of an allocator after each of its events.

    Attributes:
        rank: The positions of the events among all events of the trace.
        time_ns: Their times.
        allocated_bytes: Bytes allocated to the program; -1 if not recorded.
        reserved_bytes: Bytes reserved from the device; -1 if not recorded.
    """

    rank: Rows
    time_ns: Rows
    allocated_bytes: Rows
    reserved_bytes: Rows


@derived
def memory_pools(trace: TraceData) -> list[MemoryPool]:
    """Return the memories of a trace, sorted by process and device; cached."""
    pools = []
    processes = process_runs(trace)
    for process, run in enumerate(processes):
        owner = process if len(processes) > 1 else None
        for number, device in enumerate(device_names(trace)):
            changes = changes_of(trace, number, owner)
            if len(changes.block):
                key = device if owner is None else f"{process}/{device}"
                counts = _counts(trace, blocks_of(trace).devices[number], owner)
                pools.append(MemoryPool(key, device, process, run.rank, number, changes, counts))
    return pools


def chosen(trace: TraceData, device: str | None) -> MemoryPool:
    """The memory of a name: the one with the highest peak without one.

    Raises:
        ArgumentError: There is no memory of that name, or none at all.
    """
    pools = memory_pools(trace)
    if not pools:
        raise ArgumentError("no memory was recorded in this trace; record with profile_memory=True")
    if device is None:
        return highest(pools)
    for pool in pools:
        if pool.key == device:
            return pool
    keys = ", ".join(pool.key for pool in pools[:20])
    raise ArgumentError(f"device={device[:50]!r}: no memory of it was recorded; the trace has {keys}")


def highest(pools: list[MemoryPool]) -> MemoryPool:
    """Return the memory with the highest peak, by the allocator's counters if they were recorded."""
    return max(pools, key=lambda pool: max(pool.peak_bytes, int(pool.counts.allocated_bytes.max(initial=-1))))


def lasting_ns(trace: TraceData) -> int:
    """Return the end of the trace, including all memory events."""
    return max([trace.duration_ns, 1, *(int(pool.changes.clock_ns[-1]) for pool in memory_pools(trace))])


def _counts(trace: TraceData, device: tuple[int, int], process: int | None) -> Counts:
    events = trace.columns("allocations")
    counted = events_of_device(trace, device)
    counted &= (events["allocated_bytes"] >= 0) | (events["reserved_bytes"] >= 0)
    if process is not None:
        counted &= thread_processes(trace)[events["thread"]] == process
    rows = np.flatnonzero(counted)
    return Counts(
        2 * rows + 1,
        np.maximum.accumulate(np.maximum(events["time_ns"][rows], 0)) if len(rows) else rows,
        events["allocated_bytes"][rows],
        events["reserved_bytes"][rows],
    )


# The largest number of modules that the memory curve shows separately, as there are distinguishable colors.
MOST_MODULES = 9
# A submodule is shown separately only if it has at least this share of its module.
_WORTH = 0.04


def module_parts(trace: TraceData, pool: MemoryPool, judged: Judged) -> tuple[list[str], NDArray[np.int8]]:
    """Divide the blocks of a memory by module.

    Starting with the outermost modules, the module with the most bytes at the peak is split into its submodules, as long as there
    are colors left; small submodules stay part of their module.

    Returns:
        The label of each part, the largest first and blocks without a module last; and the part of each block.
    """
    modules = trace.columns("modules")
    holder, depth, paths = modules["holder"], modules["depth"], modules["path"]
    of_block, held, live = judged.module, pool.changes.held, pool.live()
    size = Groups(of_block[live], len(holder)).sums(pool.changes.blocks.bytes[live])
    weight = _core.sums_below(holder, depth, size)
    with_blocks = _core.sums_below(holder, depth, Groups(of_block[held], len(holder)).sizes()) > 0
    children: dict[int, list[int]] = {}
    for row in np.flatnonzero(with_blocks).tolist():
        children.setdefault(int(holder[row]), []).append(row)
    parts, opened = _opened(children, weight)
    of_module = spread_down(holder, depth, places_of(np.array(parts, np.int64), len(holder))[:-1], -1)
    part = np.append(np.where(of_module >= 0, of_module, len(parts)), len(parts))[of_block]
    has_blocks = Groups(part[held], len(parts) + 1).sizes() > 0
    labels = [f"{paths[row]} (rest)" if row in opened else paths[row] for row in parts]
    is_complete = all(row in parts for row in children.get(-1, []))
    labels.append("no module" if is_complete else "other modules or no module")
    renumbered = np.cumsum(has_blocks) - 1
    return [labels[row] for row in np.flatnonzero(has_blocks).tolist()], renumbered[part].astype(np.int8)


def _opened(children: dict[int, list[int]], weight: Rows) -> tuple[list[int], set[int]]:
    """Return the modules to show, the largest first, and those of them of which some submodules are shown separately."""
    by_weight = sorted(children.get(-1, []), key=lambda row: -int(weight[row]))
    shown, opened = by_weight[:MOST_MODULES], set[int]()
    waiting = list(shown)
    while waiting:
        row = max(waiting, key=lambda module: int(weight[module]))
        waiting.remove(row)
        inside = [module for module in children.get(row, []) if weight[module] > _WORTH * weight[row]]
        if inside and len(shown) + len(inside) <= MOST_MODULES:
            shown += inside
            waiting += inside
            opened.add(row)
    taken = set(shown)
    alone = {
        row: int(weight[row])
        - sum(int(weight[module]) for module in children.get(row, []) if module in taken)
        for row in shown
    }
    return sorted(shown, key=lambda row: -alone[row]), opened


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
) -> ArrowTable:
    """Return a memory over time: about as many rows as a screen has columns, and no peak is lost.

    Every row is a moment with its exact number of live bytes. The columns `part0`, `part1` and so on add up to `total`; the
    metadata of each has its label.

    Args:
        trace: The trace.
        device: As `MemoryPool.key` names it, such as `cuda:0`; without it the memory with the highest peak.
        by: How to divide it: `category` or `module`.
        start_ns: Where the window begins, from the start of the trace.
        end_ns: Where it ends; without it the end of the trace.

    Raises:
        ArgumentError: There is no such device or grouping, or the window is not valid.
    """
    pool = chosen(trace, device)
    labels, part = _parts(trace, pool, by)
    end_ns = lasting_ns(trace) if end_ns is None else end_ns
    if not start_ns < end_ns:
        raise ArgumentError(
            f"the window from {start_ns:g} to {end_ns:g} ns is empty; the end must come after the start"
        )
    return _table(pool, labels, part, moments(pool, part, len(labels), start_ns, end_ns))


def at(
    trace: TraceData, device: str | None = None, *, by: str = "category", time_ns: float | None = None
) -> ArrowTable:
    """Return the one row of `curve` at a time, at the peak without one.

    Raises:
        ArgumentError: No such device or way to divide it.
    """
    pool = chosen(trace, device)
    labels, part = _parts(trace, pool, by)
    changes = pool.changes
    row = changes.row_at(time_ns)
    time = float(changes.clock_ns[row]) if time_ns is None else time_ns
    moment = Moments(np.array([row + 1]), np.array([changes.rank_after(row)]), np.array([time]))
    return _table(pool, labels, part, moment)


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


def moments(pool: MemoryPool, part: NDArray[np.int8], parts: int, start_ns: float, end_ns: float) -> Moments:
    """Select the moments of a window that are drawn.

    All of them if there are few. Otherwise, for each pixel the lowest, the highest and the last total, and the highest values of
    the allocator's counters; and for the whole window the highest value of each part. The first moment is always the start of
    the window, and the last one its end.

    Args:
        pool: The memory.
        part: The part of each change.
        parts: The number of parts.
        start_ns: Start of the window.
        end_ns: End of the window.
    """
    counts, all_changes = pool.counts, pool.changes
    # The end of the window is included.
    past = np.nextafter(end_ns, np.inf)
    first, last = (int(row) for row in np.searchsorted(all_changes.clock_ns, [start_ns, past]))
    count_first, count_last = (int(row) for row in np.searchsorted(counts.time_ns, [start_ns, past]))
    rows, counted = np.arange(first, last), np.arange(count_first, count_last)
    if len(rows) + len(counted) > MOST_POINTS - 2:
        columns = (MOST_POINTS - 2 - parts) // (5 if len(counted) else 3)
        edges = np.append(np.linspace(start_ns, end_ns, columns + 1)[:-1], past)
        window = slice(first, last)
        chosen = chosen_rows(all_changes.clock_ns[window], all_changes.total_bytes[window], edges)
        rows = first + np.unique(np.concatenate([*chosen, _part_peaks(pool, part, parts, window)]))
        of_counts = slice(count_first, count_last)
        begins = _firsts(counts.time_ns[of_counts], edges)
        highest_rows = [
            _highest(values[of_counts], begins) for values in (counts.allocated_bytes, counts.reserved_bytes)
        ]
        counted = count_first + np.unique(np.concatenate(highest_rows))
    changes = np.concatenate(
        [rows + 1, np.searchsorted(all_changes.rank, counts.rank[counted], side="right")]
    )
    rank = np.concatenate([all_changes.rank[rows], counts.rank[counted]])
    time = np.concatenate([all_changes.clock_ns[rows], counts.time_ns[counted]])
    order = np.lexsort((rank, changes))
    changes, rank, time = changes[order], rank[order], time[order]
    fresh = begins_run(changes, rank)
    begin = all_changes.rank_after(first - 1)
    moments_ns = np.concatenate([[start_ns], time[fresh].astype(np.float64), [end_ns]])
    return Moments(
        np.concatenate([[first], changes[fresh], [last]]),
        np.concatenate([[begin], rank[fresh], [np.max(rank[fresh], initial=begin)]]),
        np.maximum.accumulate(moments_ns),
    )


def chosen_rows(time: Rows, value: Rows, edges: NDArray[np.float64]) -> list[Rows]:
    """Return the rows of the lowest, the highest and the last value of each interval, given by the edges."""
    first = _firsts(time, edges)
    return [_highest(-value, first), _highest(value, first), np.append(first[1:], len(time)) - 1]


def held_after(pool: MemoryPool, part: NDArray[np.int8], parts: int, changes: Rows) -> Rows:
    """Return the live bytes of each part (columns) after given numbers of changes (rows), which are ascending."""
    last = int(changes[-1])
    segment = np.searchsorted(changes, np.arange(last), side="right")
    change: Rows = Groups.cells(segment, part[:last], (len(changes), parts)).sums(
        pool.changes.change_bytes[:last]
    )
    return change.cumsum(axis=0)


def _table(pool: MemoryPool, labels: list[str], part: NDArray[np.int8], shown: Moments) -> ArrowTable:
    held = held_after(pool, part, len(labels), shown.changes)
    columns: dict[str, Any] = {"time_ns": shown.time_ns, "total": held.sum(axis=1)}
    columns |= {f"part{row}": held[:, row] for row in range(len(labels))}
    columns |= {
        name: _latest_counts(pool.counts.rank, getattr(pool.counts, f"{name}_bytes"), shown.rank)
        for name in ("allocated", "reserved")
    }
    return to_arrow(_schema(labels), columns)


def _parts(trace: TraceData, pool: MemoryPool, by: str) -> tuple[list[str], NDArray[np.int8]]:
    """Return the labels of the parts of the stacked chart, from the bottom, and the part of each change."""
    checked_choice("by", by, BY)

    def make() -> tuple[list[str], NDArray[np.int8]]:
        judged = judged_blocks(trace)
        if by == "module":
            labels, of_block = module_parts(trace, pool, judged)
            return labels, of_block[pool.changes.block]
        category = judged.category[pool.changes.block]
        there = Groups(category, len(MemoryCategory)).sizes() > 0
        order = [stacked for stacked in _STACKED if there[stacked]]
        part_of = np.zeros(len(MemoryCategory), np.int8)
        part_of[order] = np.arange(len(order))
        return [CATEGORY_NAMES[stacked] for stacked in order], part_of[category]

    return trace.cached(f"parts of the memory {pool.key} by {by}", make)


def _part_peaks(pool: MemoryPool, part: NDArray[np.int8], parts: int, rows: slice) -> Rows:
    """Return for each part the row of a window with its highest value."""
    peaks = []
    for number in range(parts):
        of_part = np.flatnonzero(part[rows] == number)
        if len(of_part):
            held = np.cumsum(pool.changes.change_bytes[rows][of_part])
            peaks.append(of_part[np.argmax(held)])
    return np.array(peaks, np.int64)


def _firsts(time: Rows, edges: NDArray[np.float64]) -> Rows:
    """Return the first row after each edge, for edges with a row before the next edge."""
    rows = np.searchsorted(time, edges)
    return np.asarray(rows[:-1][rows[1:] > rows[:-1]])


def _highest(value: Rows, first: Rows) -> Rows:
    """Return the first row with the highest value in each group of rows; `first` are the first rows of groups."""
    return Groups.beginning_at(first, len(value)).row_of_minimum(-value).astype(np.int64)


def _latest_counts(events: Rows, values: Rows, rank: Rows) -> NDArray[np.float64]:
    """Return the latest counters of the allocator at some events; NaN before its first event."""
    latest = look_up(np.searchsorted(events, rank, side="right") - 1, values)
    return np.where(latest >= 0, latest, np.nan)


def _schema(labels: list[str]) -> Table:
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


def live(
    trace: TraceData, device: str | None = None, *, by: str = "all", time_ns: float | None = None
) -> ArrowTable:
    """Return who held a memory at a moment, at its peak without one.

    Args:
        trace: The trace.
        device: As for `curve`.
        by: One of `GROUPINGS`.
        time_ns: The moment, from the start of the trace.

    Raises:
        ArgumentError: No such device or grouping.
    """
    pool = chosen(trace, device)
    checked_choice("by", by, tuple(GROUPINGS))
    rows = pool.live(time_ns)
    columns, first = by_holder(trace, rows, by)
    size = columns["bytes"]
    columns |= {"percent": percent(size, int(size.sum())), "stack": judged_blocks(trace).stack[rows][first]}
    return to_arrow("viewer: live", columns, np.argsort(-size, kind="stable"))


def blocks(trace: TraceData, device: str | None = None, *, order: str = "biggest") -> tuple[ArrowTable, int]:
    """Return the first blocks of a memory in an order, and how many there are: the `biggest`, the `longest`-lived, or those `never freed`.

    Raises:
        ArgumentError: There is no such device or order.
    """
    pool = chosen(trace, device)
    rows, total = _listed(pool, checked_choice("order", order, ORDERS))
    all_blocks, who = pool.changes.blocks, holders(trace, rows)
    start, end = all_blocks.start_ns[rows], all_blocks.end_ns[rows]
    freed, recorded = end < NEVER_NS, all_blocks.recorded[rows]
    step = look_up(all_blocks.span[rows], trace.column("spans", "step"))
    columns: dict[str, Any] = {
        "time_ns": np.where(recorded, start, -1),
        "bytes": all_blocks.bytes[rows],
        "lifetime_ns": np.where(freed & recorded, end - start, -1),
        "freed_ns": np.where(freed, end, -1),
        "step": np.append(trace.column("steps", "number"), -1)[step],
        "span": all_blocks.span[rows],
        "stack": judged_blocks(trace).stack[rows],
    }
    return to_arrow("viewer: blocks", columns | who), total


def stacks(trace: TraceData, device: str | None = None) -> ArrowTable:
    """Return the Python stacks to which the rows of `live` and `blocks` refer.

    Args:
        trace: The trace.
        device: As for `curve`.

    Raises:
        ArgumentError: There is no such device.
    """
    pool = chosen(trace, device)
    stack_of = judged_blocks(trace).stack
    rows = [pool.live(), *(_listed(pool, order)[0] for order in ORDERS)]
    parent, frame = (trace.column("stacks", name) for name in ("parent", "frame"))
    wanted = mask_of(stack_of[np.concatenate(rows)], len(parent) + 1)
    # A report contains only the blocks of these tables; a server responds for any moment.
    wanted[stack_of[pool.changes.held]] |= len(np.unique(stack_of[pool.changes.held])) <= MOST_STACK_ROWS
    # With the stacks that they begin with.
    stack_rows = np.flatnonzero(_core.sums_below(parent, depths_of(parent), wanted[:-1].astype(np.int64)))
    return to_arrow(
        "viewer: stacks",
        {
            "id": stack_rows.astype(np.int32),
            "parent": parent[stack_rows],
            "frame": Labels(frame[stack_rows], frame_texts(trace)),
        },
    )


def described(trace: TraceData, pool: MemoryPool) -> dict[str, Any]:
    """The summary of a memory: its peak, what is left at the end, and what was recorded of it."""
    judged, changes = judged_blocks(trace), pool.changes
    blocks, live = changes.blocks, pool.live()
    unknown = judged.category[live] == MemoryCategory.UNKNOWN
    end = changes.live(int(np.iinfo(np.int64).max) - 1)
    return {
        "key": pool.key,
        "device": pool.device,
        "process": pool.process,
        "rank": pool.rank,
        "blocks": len(changes.held),
        "peak_bytes": pool.peak_bytes,
        "peak_ns": int(changes.clock_ns[changes.peak_row]),
        "unknown_percent": float(percent(blocks.bytes[live][unknown].sum(), pool.peak_bytes)),
        "end_bytes": int(blocks.bytes[end].sum()),
        "never_freed": int(blocks.recorded[end].sum()),
        "allocated_bytes": _most(pool.counts.allocated_bytes),
        "reserved_bytes": _most(pool.counts.reserved_bytes),
        "modules": bool((judged.module[changes.held] >= 0).any()),
        "stacks": bool((judged.stack[changes.held] >= 0).any()),
    }


def _most(values: Rows) -> int | None:
    most = int(values.max(initial=-1))
    return most if most >= 0 else None


def _listed(pool: MemoryPool, order: str) -> tuple[Rows, int]:
    all_blocks, rows = pool.changes.blocks, pool.changes.held
    freed, recorded = all_blocks.end_ns[rows] < NEVER_NS, all_blocks.recorded[rows]
    if order == "longest":
        rows = rows[freed & recorded]
        value = all_blocks.end_ns[rows] - all_blocks.start_ns[rows]
    else:
        rows = rows[recorded & ~freed] if order == "never freed" else rows
        value = all_blocks.bytes[rows]
    order_rows = np.argsort(-value, kind="stable")[:MOST_BLOCKS]
    return rows[order_rows], len(rows)
