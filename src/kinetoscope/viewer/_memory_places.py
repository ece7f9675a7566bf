"""The memories that the memory page shows: one for each device of each process, with what happened there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.tables.memory_blocks import blocks_of, keys_of, processes_of
from kinetoscope.tables.memory_timeline import changes_of, device_names
from kinetoscope.trace._processes import infos, rank_of, thread_processes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.tables.memory_blocks import Blocks
    from kinetoscope.trace import Trace
    from kinetoscope.viewer._answers import Query


@dataclass(frozen=True, eq=False)
class Place:
    """The memory of one device as one process used it.

    Attributes:
        key: What a question calls it: `cuda:0`, or `2/cuda:0` in a trace of several processes.
        device: The device, as torch writes it.
        process: The row of the process.
        rank: The rank of the process, where it has one.
        number: The place of the device in `Blocks.devices`.
        blocks: The blocks of the trace.
        block: Which of them lie there, ascending.
        time_ns: When each change happened, never falling; 0 for what was there before.
        rank_of_change: The place of each among the events of the trace, as `Blocks.start_rank` has it.
        changed: The block of each change.
        change_bytes: By how much the live memory grew.
        total_bytes: The live memory after it.
        counts: What the allocator said of itself.
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
        """The change that reached the peak, as the table `memory_peak` has it: an allocation, if any was recorded."""
        rows = np.flatnonzero((self.blocks.allocation[self.changed] >= 0) & (self.change_bytes > 0))
        if len(rows) == 0:
            return int(np.argmax(self.total_bytes))
        return int(rows[np.argmax(self.total_bytes[rows])])

    def rank_at(self, time_ns: float | None) -> int:
        """The place among the events after all that happened until then; without a time that of the peak."""
        if time_ns is None:
            return int(self.rank_of_change[self.peak_row])
        row = int(np.searchsorted(self.time_ns, time_ns, side="right")) - 1
        return int(self.rank_of_change[row]) if row >= 0 else -2

    def live(self, rank: int) -> NDArray[np.int64]:
        """The blocks that were live after that event."""
        rows = self.block
        alive = (self.blocks.start_rank[rows] <= rank) & (self.blocks.end_rank[rows] > rank)
        return rows[alive]


@dataclass(frozen=True, eq=False)
class Counts:
    """What an allocator said of itself after each of its events.

    Attributes:
        rank: The places of the events.
        time_ns: When they were.
        allocated_bytes: What it had handed out; -1 where it did not say.
        reserved_bytes: What it held of the device; -1 where it did not say.
    """

    rank: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    allocated_bytes: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]


def places(trace: Trace) -> list[Place]:
    """Find the memories of a trace, once: in order of process and device."""

    def make() -> list[Place]:
        blocks, names = blocks_of(trace), device_names(trace)
        processes = infos(trace)
        many = len(processes) > 1
        owner = _owners(trace, blocks) if many else np.zeros(len(blocks), np.int32)
        found = []
        for process, info in enumerate(processes):
            for number, name in enumerate(names):
                key = f"{process}/{name}" if many else name
                place = _place(trace, key, process, rank_of(info), number, owner if many else None)
                if place is not None:
                    found.append(place)
        return found

    return trace.cached("viewer: memory places", make)


def chosen(trace: Trace, query: Query) -> Place:
    """The memory that a question asks about: that with the highest peak, where it names none.

    Raises:
        ArgumentError: There is none of that name, or none at all.
    """
    known = places(trace)
    if not known:
        raise ArgumentError("no memory was recorded in this trace; record with profile_memory=True")
    text = query.get("device")
    if text is None:
        return highest(known)
    for place in known:
        if place.key == text:
            return place
    keys = ", ".join(place.key for place in known[:20])
    raise ArgumentError(f"device={text[:50]!r}: no memory of it was recorded; the trace has {keys}")


def highest(known: list[Place]) -> Place:
    """The memory with the highest peak, as its allocator counted where it did."""
    return max(
        known,
        key=lambda place: max(
            int(place.total_bytes[place.peak_row]), int(place.counts.allocated_bytes.max(initial=-1))
        ),
    )


def lasting_ns(trace: Trace) -> int:
    """How long the trace lasts, all that happened to memory included."""
    return max([trace.duration_ns, 1, *(int(place.time_ns[-1]) for place in places(trace))])


def _place(
    trace: Trace, key: str, process: int, rank: int | None, number: int, owner: NDArray[np.int32] | None
) -> Place | None:
    """One memory, or None if nothing happened in it."""
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


def _counts(trace: Trace, device: tuple[int, int], process: int | None) -> Counts:
    """What the allocator of a device said of itself."""
    events = trace.columns("allocations")
    kind, index = device
    told = (events["device_type"] == kind) & (
        (events["allocated_bytes"] >= 0) | (events["reserved_bytes"] >= 0)
    )
    if kind != 0:
        told &= events["device_index"] == index
    if process is not None:
        told &= thread_processes(trace)[events["thread"]] == process
    rows = np.flatnonzero(told)
    return Counts(
        2 * rows + 1,
        np.maximum.accumulate(np.maximum(events["time_ns"][rows], 0)) if len(rows) else rows,
        events["allocated_bytes"][rows],
        events["reserved_bytes"][rows],
    )


def _owners(trace: Trace, blocks: Blocks) -> NDArray[np.int32]:
    """The process of each block: of the thread that allocated it, else of what was seen to use it."""
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
