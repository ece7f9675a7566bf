"""Every known block of memory of a trace, with its lifetime from allocation to free.

A block is the result of one allocation. Most blocks are in the table `allocations`. Blocks from before the recording have
no row there; they are known because a tensor used them (`storages`) or an operator received them (`operands`), and they
live until the first event at their address. Addresses are reused, so an address and a time identify a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import spans_named
from kinetoscope.model.names import COMPILED_GRAPH
from kinetoscope.model.processes import memory_salts, thread_processes
from kinetoscope.model.rows import Mask, Rows, distinct
from kinetoscope.model.trace_data import TraceData, derived

EVERY = slice(None)
# The tables of the users of blocks.
_USERS = ("storages", "operands")
BEFORE_NS = -1
NEVER_NS = np.iinfo(np.int64).max
_NEVER_RANK = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Blocks:
    """The blocks of a trace: first those of `allocations` in order of time, then those without a row there.

    Attributes:
        start_ns: The time of its allocation; `BEFORE_NS` if before the recording.
        end_ns: The time of its free, or of the reuse of its address; `NEVER_NS` if neither was recorded.
        bytes: Its size.
        key: Its address as a key of `keys_of`.
        device: Its device, an index in `devices`.
        allocation: Its row of `allocations`, -1 for none.
        span: The innermost span that allocated it, or for which a compiled graph did; -1 for none.
        start_rank: The position of its start among all events.
        end_rank: The position of its end among all events.
        devices: torch's (device type, device index) of every device; the index is -1 without.
        event_times_ns: The times of all rows of `allocations`.
    """

    start_ns: Rows
    end_ns: Rows
    bytes: Rows
    key: NDArray[np.uint64]
    device: NDArray[np.int32]
    allocation: NDArray[np.int32]
    span: NDArray[np.int32]
    start_rank: Rows
    end_rank: Rows
    devices: tuple[tuple[int, int], ...]
    event_times_ns: Rows

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self.bytes)

    @cached_property
    def recorded(self) -> Mask:
        """Whether each block was allocated during the recording; parts of traces and snapshots also have rows of earlier blocks."""
        return (self.allocation >= 0) & (self.start_ns > BEFORE_NS)

    def at(self, keys: NDArray[np.uint64], times_ns: Rows) -> NDArray[np.int32]:
        """Return the block that was live at each address and time, -1 if unknown."""
        if len(self) == 0 or len(keys) == 0:
            return np.full(len(keys), -1, dtype=np.int32)
        addresses, order, begun = self._by_address
        numbers = np.minimum(np.searchsorted(addresses, keys), len(addresses) - 1)
        ranks = 2 * np.searchsorted(self.event_times_ns, times_ns, side="right")
        latest = np.searchsorted(begun, numbers * self._distance + ranks + 1, side="right") - 1
        row = order[np.maximum(latest, 0)]
        hit = (latest >= 0) & (self.key[row] == keys) & (ranks < self.end_rank[row])
        return np.where(hit, row, -1).astype(np.int32)

    @cached_property
    def _by_address(self) -> tuple[NDArray[np.uint64], Rows, Rows]:
        """All addresses, the blocks sorted by address and start, and for each one number that combines both."""
        addresses, number = np.unique(self.key, return_inverse=True)
        begun = number * self._distance + self.start_rank + 1
        order = np.argsort(begun, kind="stable")
        return addresses, order, begun[order]

    @property
    def _distance(self) -> int:
        """The difference between two addresses in this number; larger than any rank."""
        return 2 * len(self.event_times_ns) + 3


def keys_of(trace: TraceData, table: str, rows: slice | NDArray[Any] = EVERY) -> NDArray[np.uint64]:
    """Make addresses unique across the host, all devices and all processes.

    Args:
        trace: The trace.
        table: A table with `address`, `device_type` and `device_index`: `allocations`, `operands` or `storages`.
        rows: Which rows of it.
    """
    columns = trace.columns(table)
    kind = columns["device_type"][rows].astype(np.uint64)
    index = columns["device_index"][rows].view(np.uint8).astype(np.uint64)
    # Addresses are shorter than 48 bits; the host's stay as they are.
    device = np.where(kind == 0, np.uint64(0), kind * np.uint64(256) + index)
    keys: NDArray[np.uint64] = columns["address"][rows] ^ (device << np.uint64(48))
    if len(trace.columns("processes")) > 1:
        keys = keys ^ memory_salts(trace)[processes_of(trace, table, rows)]
    return keys


def processes_of(trace: TraceData, table: str, rows: slice | NDArray[Any] = EVERY) -> NDArray[np.int32]:
    """The row of `processes` of each row of a table that has addresses; 0 if unknown."""
    columns, of_thread = trace.columns(table), thread_processes(trace)
    if table == "storages":
        process_rows = columns["process_row"][rows]
    elif table == "operands":
        process_rows = of_thread[trace.column("spans", "thread")[columns["span"][rows]]]
    else:
        process_rows = of_thread[columns["thread"][rows]]
    return np.asarray(np.maximum(process_rows, 0).astype(np.int32))


def events_of_device(trace: TraceData, device: tuple[int, int]) -> Mask:
    """The rows of `allocations` of a device, given by type and index; the host is one device."""
    events, (kind, index) = trace.columns("allocations"), device
    on_device: Mask = events["device_type"] == kind
    return on_device if kind == 0 else on_device & (events["device_index"] == index)


@derived
def owners_of(trace: TraceData) -> NDArray[np.int32]:
    """The process of each block: that of the thread that allocated it or, if unknown, of the spans that used it."""
    blocks = blocks_of(trace)
    recorded = blocks.allocation >= 0
    owner = np.zeros(len(blocks), np.int32)
    owner[recorded] = processes_of(trace, "allocations", blocks.allocation[recorded])
    user_keys, first = np.unique(np.concatenate([keys_of(trace, name) for name in _USERS]), return_index=True)
    if len(user_keys):
        of_user = np.concatenate([processes_of(trace, name) for name in _USERS])
        user = np.minimum(np.searchsorted(user_keys, blocks.key[~recorded]), len(user_keys) - 1)
        owner[~recorded] = of_user[first][user]
    return owner


@derived
def allocating_spans(trace: TraceData) -> NDArray[np.int32]:
    """For each row of `allocations` the span that it belongs to; -1 for none.

    This is the innermost span around it, with one exception: a compiled graph allocates the output of each kernel right before it calls
    the kernel, and such a block belongs to the kernel, as in eager mode.
    """
    events, spans = trace.columns("allocations"), trace.columns("spans")
    if len(events) == 0:
        return np.zeros(0, np.int32)
    owner: NDArray[np.int32] = events["span"].copy()
    of_graph = np.append(spans_named(trace, lambda text: text.startswith(COMPILED_GRAPH)), False)
    kernels = np.flatnonzero((spans["origin"] >= 0) & of_graph[spans["parent"]])
    allocated = np.flatnonzero((events["bytes"] > 0) & of_graph[owner])
    graph = np.concatenate((owner[allocated], spans["parent"][kernels]))
    time_ns = np.concatenate((events["time_ns"][allocated], spans["start_ns"][kernels]))
    order = np.lexsort((time_ns, graph))
    is_kernel = order >= len(allocated)
    kernel_places = np.where(is_kernel, np.arange(len(order)), len(order))
    following = np.minimum.accumulate(kernel_places[::-1])[::-1]
    next_graph = np.append(graph[order], -1)[following]
    next_kernel = np.append(np.append(np.full(len(allocated), -1), kernels)[order], -1)[following]
    moved = ~is_kernel & (next_graph == graph[order])
    owner[allocated[order[moved]]] = next_kernel[moved]
    return owner


@derived
def blocks_of(trace: TraceData) -> Blocks:
    """Return the blocks of a trace."""
    events = trace.columns("allocations")
    times, size = events["time_ns"], events["bytes"]
    key = keys_of(trace, "allocations")
    codes, numbers = distinct(_device_codes(events["device_type"], events["device_index"]))
    # Only the host if nothing was recorded.
    codes = codes if len(codes) else np.zeros(1, np.int64)
    devices = [(code // 256, code % 256 - 1) for code in codes.tolist()]
    allocated = np.flatnonzero(size > 0)
    end = _ends(allocated, key, events["match"])
    has_end = end >= 0
    end_ns = np.where(has_end, np.append(times, 0)[end], NEVER_NS)
    end_rank = np.where(has_end, 2 * end + 1, _NEVER_RANK)
    recorded = {
        "start_ns": times[allocated],
        "end_ns": end_ns,
        "bytes": size[allocated],
        "key": key[allocated],
        "device": numbers[allocated].astype(np.int32),
        "allocation": allocated.astype(np.int32),
        "span": allocating_spans(trace)[allocated],
        "start_rank": 2 * allocated + 1,
        "end_rank": end_rank,
    }
    before = _unrecorded(trace, key, codes)
    columns: dict[str, Any] = {
        name: np.concatenate([values, before[name]]) for name, values in recorded.items()
    }
    return Blocks(**columns, devices=tuple(devices), event_times_ns=times)


def _device_codes(device_type: NDArray[np.uint8], device_index: NDArray[np.int8]) -> Rows:
    """A number for each device, in order of type and index; 0 for the host."""
    return device_type.astype(np.int64) * 256 + np.where(device_type == 0, -1, device_index) + 1


def _ends(made: Rows, key: NDArray[np.uint64], match: NDArray[np.int32]) -> Rows:
    """For each allocation the row that ends its block: the free, or else the next allocation at the address; -1 for none."""
    end = match[made].astype(np.int64)
    open_ended = np.flatnonzero(end < 0)
    if len(open_ended) == 0:
        return end
    # Without a recorded free, the next block at the address shows that the earlier one is gone.
    rivals = made[np.isin(key[made], np.unique(key[made[open_ended]]))]
    order = rivals[np.argsort(key[rivals], kind="stable")]
    following = np.full(len(key), -1, dtype=np.int64)
    same = key[order[:-1]] == key[order[1:]]
    following[order[:-1][same]] = order[1:][same]
    end[open_ended] = following[made[open_ended]]
    return end


def _unrecorded(trace: TraceData, event_keys: NDArray[np.uint64], codes: Rows) -> dict[str, NDArray[Any]]:
    """The blocks without an allocation, which were in use before the first event at their address.

    A block is from before the recording if it was used then, or was freed without an allocation. For all others, memory
    from other libraries (numpy arrays, mapped files), only the time of use is known. If memory was not inspected before
    the recording, they also count as from before.
    """
    events, spans = trace.columns("allocations"), trace.columns("spans")
    held, operands = trace.columns("storages"), trace.columns("operands")
    given_from = spans["start_ns"][operands["span"]]
    key = np.concatenate([keys_of(trace, name) for name in _USERS])
    size, device_type, index = (
        np.concatenate([trace.column(name, column) for name in _USERS])
        for column in ("bytes", "device_type", "device_index")
    )
    from_ns = np.concatenate([held["time_ns"], given_from])
    # Blocks that a tensor held at the end stay live.
    until_ns = np.concatenate([
        np.full(len(held), NEVER_NS), given_from + spans["duration_ns"][operands["span"]]
    ])  # fmt: skip
    first_keys, first_rows = np.unique(event_keys, return_index=True)
    event = np.searchsorted(first_keys, key)
    has_event = (event < len(first_keys)) & (np.append(first_keys, np.uint64(0))[event] == key)
    first = np.where(has_event, np.append(first_rows, -1)[event], -1)
    first_ns = np.where(has_event, np.append(events["time_ns"], 0)[first], NEVER_NS)
    code = _device_codes(device_type, index)
    # Skip devices whose memory was not recorded.
    use = np.flatnonzero((from_ns < first_ns) & (size > 0) & np.isin(code, codes))
    keys, first_use, block = np.unique(key[use], return_index=True, return_inverse=True)
    by_block = Groups(block, len(keys))
    earliest, latest = by_block.minima(from_ns[use]), by_block.maxima(until_ns[use])
    chosen = use[first_use]
    ended, end_row = first_ns[chosen], first[chosen]
    was_freed = (end_row >= 0) & (np.append(events["bytes"], 1)[end_row] == 0)
    from_before = (earliest < 0) | was_freed | (not bool((held["time_ns"] < 0).any()))
    start_ns = np.where(from_before, BEFORE_NS, earliest)
    end_ns = np.where(from_before, ended, np.minimum(ended, latest))
    times = events["time_ns"]
    at_event = end_ns == ended
    end_rank = np.where(
        at_event & (end_row >= 0), 2 * end_row + 1, 2 * np.searchsorted(times, end_ns, side="right")
    )
    return {
        "start_ns": start_ns,
        "end_ns": end_ns,
        "bytes": by_block.maxima(size[use]),
        "key": keys,
        "device": np.searchsorted(codes, code[chosen]).astype(np.int32),
        "allocation": np.full(len(keys), -1, np.int32),
        "span": np.full(len(keys), -1, np.int32),
        "start_rank": np.where(from_before, -1, 2 * np.searchsorted(times, start_ns, side="left")),
        "end_rank": np.where(end_ns == NEVER_NS, _NEVER_RANK, end_rank),
    }
