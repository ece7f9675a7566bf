"""The memory of each category over time, on each device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.names import device_name
from kinetoscope.model.processes import thread_processes
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.memory.blocks import NEVER_NS, Blocks, blocks_of, events_of_device, keys_of, owners_of
from kinetoscope.tables.memory.categories import CATEGORY_NAMES, MemoryCategory, judged_blocks
from kinetoscope.tables.stored import memory_recorded

# What can happen to a block; the numbers are torch's, whose 3 is a change of its content.
PREEXISTING, CREATE, INCREMENT_VERSION, DESTROY = 1, 2, 3, 4
_ACTIONS = ("", "preexisting", "create", "increment version", "destroy")


class DeviceWithoutMemoryError(ArgumentError):
    """No memory of that device was recorded."""


@dataclass(frozen=True, eq=False)
class Changes:
    """What happened to the blocks of one device, in order: to those of all processes, or of one.

    Attributes:
        blocks: The blocks of the trace.
        held: Those of them that are meant, ascending.
        time_ns: When; below 0 for what was there before.
        rank: The place among the events of the trace, as `Blocks.start_rank` has it.
        block: Which block.
        action: `PREEXISTING`, `CREATE` or `DESTROY`.
        change_bytes: By how much the live memory grew.
        total_bytes: The live memory after it.
    """

    blocks: Blocks
    held: Rows
    time_ns: Rows
    rank: Rows
    block: NDArray[np.int32]
    action: NDArray[np.uint8]
    change_bytes: Rows
    total_bytes: Rows

    @cached_property
    def clock_ns(self) -> Rows:
        """The time of each change, ascending; 0 for blocks from before the recording."""
        return np.maximum.accumulate(np.maximum(self.time_ns, 0))

    @cached_property
    def peak_row(self) -> int:
        """The change that reached the peak: an allocation, if any was recorded."""
        # Memory only grows when something was allocated: the peak is there, or at the very beginning.
        rows = np.flatnonzero((self.blocks.allocation[self.block] >= 0) & (self.change_bytes > 0))
        return int(rows[np.argmax(self.total_bytes[rows])] if len(rows) else np.argmax(self.total_bytes))

    def row_at(self, time_ns: float | None) -> int:
        """The last change until a time, -1 before the first; without a time that of the peak."""
        if time_ns is None:
            return self.peak_row
        return int(np.searchsorted(self.clock_ns, time_ns, side="right")) - 1

    def rank_after(self, row: int) -> int:
        """The place among the events after a change; below all of them for -1."""
        return int(self.rank[row]) if row >= 0 else -2

    def live(self, rank: int) -> Rows:
        """The blocks that were live after the event at this place."""
        rows = self.held
        return rows[(self.blocks.start_rank[rows] <= rank) & (self.blocks.end_rank[rows] > rank)]


@dataclass(frozen=True)
class AllocatorPeak:
    """The peak that an allocator counted.

    Attributes:
        allocated_bytes: Allocated bytes, of all processes together; -1 if not recorded.
        time_ns: When that was.
        reserved_bytes: Reserved bytes; -1 if not recorded.
    """

    allocated_bytes: int
    time_ns: int
    reserved_bytes: int


@derived
def changes_of(trace: TraceData, device: int, process: int | None = None) -> Changes:
    """Return what happened to the blocks of a device, by its place in `Blocks.devices`, or to those of a process there, in order of time."""
    blocks = blocks_of(trace)
    on_device = blocks.device == device
    held = np.flatnonzero(on_device if process is None else on_device & (owners_of(trace) == process))
    ended = held[blocks.end_ns[held] < NEVER_NS]
    rank = np.concatenate([blocks.start_rank[held], blocks.end_rank[ended]])
    # What ends where another begins ends first: its address was handed out again.
    order = np.lexsort((np.arange(len(rank)) < len(held), rank))
    before = blocks.start_rank[held] < 0
    change = np.concatenate([blocks.bytes[held], -blocks.bytes[ended]])[order]
    return Changes(
        blocks=blocks,
        held=held,
        time_ns=np.concatenate([blocks.start_ns[held], blocks.end_ns[ended]])[order],
        rank=rank[order],
        block=np.concatenate([held, ended])[order].astype(np.int32),
        action=np.concatenate([
            np.where(before, PREEXISTING, CREATE), np.full(len(ended), DESTROY)
        ])[order].astype(np.uint8),
        change_bytes=change,
        total_bytes=np.cumsum(change),
    )  # fmt: skip


def device_names(trace: TraceData) -> tuple[str, ...]:
    """Return the devices whose memory was recorded, as torch writes them."""
    return tuple(device_name(kind, index) for kind, index in blocks_of(trace).devices)


def allocator_peak(
    trace: TraceData, device_type: int, device_index: int, processes: Rows | None = None
) -> AllocatorPeak:
    """Return the peak that the allocator of a device counted, of some rows of `processes` or of all together."""
    events = trace.columns("allocations")
    counted = events_of_device(trace, (device_type, device_index))
    owner = thread_processes(trace)[events["thread"]]
    if processes is not None:
        counted &= np.isin(owner, processes)
    allocated, time_ns = _most_together(events["allocated_bytes"], counted, owner)
    reserved, _ = _most_together(events["reserved_bytes"], counted, owner)
    return AllocatorPeak(allocated, int(events["time_ns"][time_ns]) if time_ns >= 0 else -1, reserved)


def _most_together(values: Rows, mine: Mask, owner: NDArray[np.int32]) -> tuple[int, int]:
    """The largest sum of the latest counts of all processes, and its row; -1 without any."""
    rows = np.flatnonzero(mine & (values >= 0))
    if len(rows) == 0:
        return -1, -1
    # How each changes the last count of its process.
    order = np.argsort(owner[rows], kind="stable")
    counts, whose = values[rows[order]], owner[rows[order]]
    before = np.where(np.append(False, whose[1:] == whose[:-1]), np.append(0, counts[:-1]), 0)
    change = np.empty(len(rows), np.int64)
    change[order] = counts - before
    together = np.cumsum(change)
    row = int(np.argmax(together))
    return int(together[row]), int(rows[row])


def find_device(trace: TraceData, device: str | None) -> int:
    """Return the place in `Blocks.devices` of a device.

    Args:
        trace: The trace.
        device: Its name, such as `cpu` or `cuda:1`, also anything whose text is one; a name without an index means the
            first of its kind. None: the one that held the most bytes at its peak, as its allocator counted where it did.

    Raises:
        DeviceWithoutMemoryError: No memory of that device was recorded.
    """
    names = device_names(trace)
    if device is None:
        peaks = [
            max(
                int(changes_of(trace, place).total_bytes.max(initial=0)),
                allocator_peak(trace, *key).allocated_bytes,
            )
            for place, key in enumerate(blocks_of(trace).devices)
        ]
        return int(np.argmax(peaks))
    text = str(device).lower()
    if text == "cpu:0" and "cpu" in names:
        return names.index("cpu")
    kinds = [name.partition(":")[0] for name in names]
    for listed in (names, kinds):
        if text in listed:
            return listed.index(text)
    raise DeviceWithoutMemoryError(
        f"device={device!r} has no recorded memory; the devices of this trace are: {', '.join(names)}"
    )


def need_memory(trace: TraceData) -> None:
    """Raise if memory was not recorded.

    Raises:
        StateError: It was not recorded.
    """
    if not memory_recorded(trace):
        raise StateError(
            "memory was not recorded: record again with profile(profile_memory=True), or with --memory on the command line."
        )


def live_by_category(changes: Changes, category: NDArray[np.uint8]) -> Rows:
    """Return the bytes each category holds after each change: a row a change, a column a category."""
    held = np.zeros((len(changes.block), len(MemoryCategory)), dtype=np.int64)
    held[np.arange(len(changes.block)), category[changes.block]] = changes.change_bytes
    return np.cumsum(held, axis=0)


def memory_timeline(trace: TraceData, *, device: str | None = None) -> ArrowTable:
    """Return the `memory_timeline` table.

    Args:
        trace: The trace.
        device: The device, such as `cpu` or `cuda:0`; None: all, one after the other.

    Returns:
        The table, without rows if no memory was recorded; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: No memory of that device was recorded.
    """
    judged = judged_blocks(trace)
    devices = range(len(judged.blocks.devices)) if device is None else [find_device(trace, device)]
    parts: dict[str, list[NDArray[Any]]] = {}
    for place in devices:
        changes = changes_of(trace, place)
        category = judged.category[changes.block]
        held = live_by_category(changes, judged.category)
        for name, values in {
            "time_ns": np.maximum(changes.time_ns, -1),
            "device": np.full(len(category), place),
            "action": changes.action,
            "category": category,
            "change_bytes": changes.change_bytes,
            "bytes": held[np.arange(len(category)), category],
            "total_bytes": changes.total_bytes,
        }.items():
            parts.setdefault(name, []).append(values)
    columns: dict[str, Any] = {name: np.concatenate(values) for name, values in parts.items()}
    texts = {"device": device_names(trace), "action": _ACTIONS, "category": CATEGORY_NAMES}
    for name, labels in texts.items():
        columns[name] = Labels(columns[name], labels)
    return to_arrow("memory_timeline", columns)


def content_changes(trace: TraceData) -> tuple[Rows, NDArray[np.int32]]:
    """Return when which block was written over.

    torch names an operator that writes into its first operand with an underscore at the end (`aten::add_`,
    `aten::_foreach_mul_`); of nested ones the outermost counts. Known only where operands were recorded.

    Args:
        trace: The trace.

    Returns:
        The times in nanoseconds, rising, and the blocks.
    """
    spans, operands = trace.columns("spans"), trace.columns("operands")
    writes = ["::" in text and text.endswith("_") and not text.endswith("__") for text in trace.strings]
    in_place = np.array(writes, dtype=bool)[spans["name"]]
    parent = spans["parent"]
    nested = (parent >= 0) & in_place[np.maximum(parent, 0)]
    span = operands["span"]
    rows = np.flatnonzero((operands["argument"] == 0) & (in_place & ~nested)[span])
    times = spans["start_ns"][span[rows]]
    block = blocks_of(trace).at(keys_of(trace, "operands", rows), times)
    in_blocks = np.flatnonzero(block >= 0)
    in_blocks = in_blocks[np.argsort(times[in_blocks], kind="stable")]
    return times[in_blocks], block[in_blocks]
