"""The memory peak, and the owners of the memory at that moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import checked_choice, checked_whole
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.groups import Groups, percent
from kinetoscope.model.hierarchy import nearest_of, spans_named
from kinetoscope.model.names import frame_texts, stack_texts
from kinetoscope.model.rows import Rows, look_up
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.operator_names import names
from kinetoscope.tables.memory.blocks import NEVER_NS, blocks_of
from kinetoscope.tables.memory.categories import CATEGORY_NAMES, judged_blocks
from kinetoscope.tables.memory.timeline import allocator_peak, changes_of, device_names, find_device
from kinetoscope.tables.stacks import user_stacks

# Operators that other operators call to allocate their results.
_EMPTY = names(
    "aten::empty aten::empty_like aten::empty_strided aten::empty_permuted aten::new_empty aten::new_empty_strided aten::resize_"
)


@dataclass(frozen=True)
class MemoryPeak:
    """The moment at which most memory of a device was live, of the memory known to the trace.

    Attributes:
        bytes: How much.
        time_ns: When, from the start of the trace.
        device: The device, as torch writes it.
        rank: Its place among the events, as `Blocks.start_rank` has it.
    """

    bytes: int
    time_ns: int
    device: str
    rank: int


def peak(trace: TraceData, *, device_type: int = 0, device: str | None = None) -> MemoryPeak | None:
    """Return the peak of a device's memory, or None if no allocation of it was recorded.

    Args:
        trace: The trace.
        device_type: 0 for the host, anything else for the device with the largest peak; not looked at with `device`.
        device: The device, such as `cpu` or `cuda:0`.

    Raises:
        ArgumentError: No memory of `device` was recorded.
    """
    kinds = [kind for kind, _ in blocks_of(trace).devices]
    places = [place for place, kind in enumerate(kinds) if (kind == 0) == (device_type == 0)]
    tops = [top_of(trace, place) for place in (places if device is None else [find_device(trace, device)])]
    return max((top for top in tops if top is not None), key=lambda top: top.bytes, default=None)


@dataclass(frozen=True)
class DevicePeak:
    """The memory peak of a device: as its allocator counted it, and the attributed part.

    Attributes:
        device: The device, as torch writes it.
        bytes: Peak of the allocated bytes as the allocator counted; if it did not, the attributed peak.
        time_ns: When that was, from the start of the trace; 0 for before.
        counted: Whether `bytes` is the allocator's number.
        attributed_bytes: Peak of the live bytes whose allocation was recorded or that were in use before the recording.
        reserved_bytes: Peak of the reserved bytes; None if not recorded.
        top: The attributed peak; None if nothing was allocated while recording.
        earlier_bytes: The part of `attributed_bytes` that was in use before the recording.
    """

    device: str
    bytes: int
    time_ns: int
    counted: bool
    attributed_bytes: int
    reserved_bytes: int | None
    top: MemoryPeak | None
    earlier_bytes: int = 0


def device_peaks(trace: TraceData) -> list[DevicePeak]:
    """Return the peak of each device whose memory was recorded, the largest first."""
    peaks, blocks = [], blocks_of(trace)
    for place, (name, key) in enumerate(zip(device_names(trace), blocks.devices, strict=True)):
        top, allocator = top_of(trace, place), allocator_peak(trace, *key)
        live = live_at(trace, top)
        attributed = 0 if top is None else top.bytes
        # An allocator that counts from the start of the recording knows no more than the trace.
        counted = allocator.allocated_bytes >= max(attributed, 1)
        if top is None and not counted:
            continue
        peaks.append(
            DevicePeak(
                device=name,
                bytes=allocator.allocated_bytes if counted else attributed,
                time_ns=max(0, allocator.time_ns if counted or top is None else top.time_ns),
                counted=counted,
                attributed_bytes=attributed,
                reserved_bytes=allocator.reserved_bytes if allocator.reserved_bytes > 0 else None,
                top=top,
                earlier_bytes=int(blocks.bytes[live][~blocks.recorded[live]].sum()),
            )
        )
    return sorted(peaks, key=lambda peak: (-peak.bytes, peak.device))


def top_of(trace: TraceData, device: int) -> MemoryPeak | None:
    """Return the peak of one device, given by its place in `Blocks.devices`; None if no allocation of it was recorded."""
    changes = changes_of(trace, device)
    if not (changes.blocks.allocation[changes.block] >= 0).any():
        return None
    row = changes.peak_row
    total_bytes, time_ns, rank = (
        int(values[row]) for values in (changes.total_bytes, changes.time_ns, changes.rank)
    )
    return MemoryPeak(total_bytes, time_ns, device_names(trace)[device], rank)


def live_at(trace: TraceData, at: MemoryPeak | None) -> Rows:
    """Return the blocks that were live at a peak."""
    if at is None:
        return np.zeros(0, dtype=np.int64)
    return changes_of(trace, find_device(trace, at.device)).live(at.rank)


HOLDERS = ("category", "module", "operator", "line")
GROUPINGS: dict[str, tuple[str, ...]] = {"all": HOLDERS} | {name: (name,) for name in HOLDERS}
"""What live blocks can be grouped by."""


def memory_peak(
    trace: TraceData,
    *,
    device: str | None = None,
    rows: int | None = None,
    at_ns: int | None = None,
    by: str = "all",
) -> ArrowTable:
    """Return the `memory_peak` table: what held the memory of a device at its peak, or at any other time.

    Args:
        trace: The trace.
        device: The device, such as `cpu` or `cuda:0`; None: the one that held the most.
        rows: At most this many rows; None: all.
        at_ns: The time, from the start of the trace; None: that of the peak. Shares are then of what was live.
        by: `category`, `module`, `operator` or `line` to group by that alone; the other three are null.

    Returns:
        The table, without rows if no memory was recorded; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: No memory of that device was recorded, another value of `by`, or a time or number of rows that is no whole number.
    """
    for name, value in (("rows", rows), ("at_ns", at_ns)):
        if value is not None:
            checked_whole(name, value, None, ", or None")
    place = find_device(trace, device)
    if at_ns is None:
        top = top_of(trace, place)
        live, live_bytes = live_at(trace, top), 0 if top is None else top.bytes
    else:
        changes = changes_of(trace, place)
        live = changes.live(changes.rank_after(changes.row_at(at_ns)))
        live_bytes = int(blocks_of(trace).bytes[live].sum())
    columns, first = by_holder(trace, live, checked_choice("by", by, tuple(GROUPINGS)))
    columns |= {
        "peak_percent": percent(columns["bytes"], live_bytes),
        "stack": Labels(judged_blocks(trace).stack[live][first], stack_texts(trace)),
        "device": Labels(np.full(len(first), place), device_names(trace)),
    }
    size = columns["bytes"]
    table = to_arrow("memory_peak", columns, np.argsort(-size, kind="stable"))
    return table if rows is None else table.slice(0, rows)


def by_holder(trace: TraceData, live: Rows, by: str) -> tuple[dict[str, Any], NDArray[np.int32]]:
    """Group blocks by one of `GROUPINGS`.

    Returns:
        The columns `bytes` and `blocks`, and the four of `HOLDERS`, of which those are None by which they are not grouped; and which of the
        blocks is the first of each group.
    """
    labels = holders(trace, live)
    groups = Groups.by([labels[name].ids for name in GROUPINGS[by]])
    columns: dict[str, Any] = {
        "bytes": groups.sums(blocks_of(trace).bytes[live]),
        "blocks": groups.sizes(),
        **dict.fromkeys(HOLDERS),
        **{name: Labels(labels[name].ids[groups.first], labels[name].texts) for name in GROUPINGS[by]},
    }
    return columns, groups.first


def holders(trace: TraceData, blocks: Rows) -> dict[str, Labels]:
    """What each of some blocks is for, and who allocated it: the labels of `HOLDERS`."""
    judged, spans = judged_blocks(trace), trace.columns("spans")
    operator = look_up(requesting_operators(trace)[judged.blocks.span[blocks]], spans["name"])
    line = look_up(look_up(judged.stack[blocks], user_stacks(trace)), trace.column("stacks", "frame"))
    return {
        "category": Labels(judged.category[blocks], CATEGORY_NAMES),
        "module": Labels(judged.module[blocks], trace.columns("modules")["path"]),
        "operator": Labels(operator, trace.strings),
        "line": Labels(line, frame_texts(trace)),
    }


@derived
def requesting_operators(trace: TraceData) -> NDArray[np.int32]:
    """For each span that only allocates an empty tensor the operator that called it, if there is one; others themselves, and -1 at the end for none."""
    spans = trace.columns("spans")
    is_called = look_up(spans["parent"], spans["kind"]) == SpanKind.OPERATOR
    return nearest_of(trace, ~(is_called & spans_named(trace, _EMPTY.__contains__)))


def memory(trace: TraceData, *, device_type: int = 0) -> ArrowTable:
    """Return the `memory` table: what was live at the peak.

    Args:
        trace: The trace.
        device_type: 0 for the host, anything else for the device with the largest peak.

    Returns:
        The table, without rows if no memory was recorded; `docs/tables.md` describes its columns.
    """
    judged, spans = judged_blocks(trace), trace.columns("spans")
    blocks = judged.blocks
    top = peak(trace, device_type=device_type)
    live = live_at(trace, top)
    operator, step = (look_up(blocks.span[live], spans[name]) for name in ("name", "step"))
    category, module, stack = judged.category[live], judged.module[live], judged.stack[live]
    groups = Groups.by([category, operator, module, stack])
    first, size = groups.first, groups.sums(blocks.bytes[live])
    columns: dict[str, Any] = {
        "bytes": size,
        "peak_percent": percent(size, top.bytes if top is not None else 0),
        "blocks": groups.sizes(),
        "category": Labels(category[first], CATEGORY_NAMES),
        "operator": Labels(operator[first], trace.strings),
        "module": Labels(module[first], trace.columns("modules")["path"]),
        "stack": Labels(stack[first], stack_texts(trace)),
        "step": np.append(trace.column("steps", "number"), -1)[step[first]],
        "first_ns": blocks.start_ns[live][first],
        "device": [top.device if top is not None else None] * len(groups),
        "never_freed": groups.sums(blocks.end_ns[live] == NEVER_NS),
    }
    return to_arrow("memory", columns, np.argsort(-size, kind="stable"))
