"""Reports, as text, what held the memory when it ran out."""

from __future__ import annotations

import numpy as np

from kinetoscope.display.blocks import GAP, Block, BlockColumn, TableBlock
from kinetoscope.display.lines import plain_lines
from kinetoscope.display.sentence import printable
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.names import HIDDEN_NAMES
from kinetoscope.model.trace_data import TraceData
from kinetoscope.model.units import duration, size
from kinetoscope.tables.memory.blocks import blocks_of
from kinetoscope.tables.memory.peak import memory_peak, peak
from kinetoscope.tables.memory.timeline import allocator_peak, changes_of, device_names, find_device

_HOLDERS = 30


def failure_lines(
    trace: TraceData, *, failure: str, where: str | None, requested_bytes: int | None
) -> list[str]:
    """Describe an allocation that failed.

    Args:
        trace: The trace that ends with the failure.
        failure: The error in words.
        where: The source line that failed, None if unknown.
        requested_bytes: The size of the allocation, None if unknown.
    """
    lines = [f"Out of memory: {failure.strip()}", ""]
    if requested_bytes is not None:
        lines.append(f"requested    {size(requested_bytes)}")
    if where is not None:
        lines.append(f"at           {where}")
    return lines + _last_operator(trace)


def _last_operator(trace: TraceData) -> list[str]:
    """The operator that began last, and what it ran in: nothing begins after the one that failed."""
    spans = trace.columns("spans")
    hidden = np.array([text in HIDDEN_NAMES for text in trace.strings], dtype=bool)
    rows = np.flatnonzero(is_operator(spans["kind"]) & ~hidden[spans["name"]])
    if len(rows) == 0:
        return []
    span = int(rows[np.argmax(spans["start_ns"][rows])])
    module, step = int(spans["module"][span]), int(spans["step"][span])
    names: list[str] = []
    while span >= 0 and len(names) < 50:
        names.append(printable(trace.strings[spans["name"][span]]))
        span = int(spans["parent"][span])
    lines = [f"operator     {' < '.join(names)}  (the last that began)"]
    if module >= 0:
        lines.append(f"module       {printable(trace.column('modules', 'path')[module])}")
    if step >= 0:
        lines.append(f"step         {int(trace.column('steps', 'number')[step])}")
    return lines


def memory_lines(trace: TraceData, device: str | None) -> list[str]:
    """Describe the peak of a device, and who held it.

    Args:
        trace: A trace recorded with `profile_memory`.
        device: The device; None: the one with the largest peak.

    Raises:
        ArgumentError: No memory of the device was recorded.
    """
    device_index = find_device(trace, device)
    name = device_names(trace)[device_index]
    highest = peak(trace, device=name)
    if highest is None:
        return [f"No tensor memory of {name} was allocated while recording."]
    end_bytes = int(changes_of(trace, device_index).total_bytes[-1])
    allocated = allocator_peak(trace, *blocks_of(trace).devices[device_index]).allocated_bytes
    lines = []
    if allocated > highest.bytes:
        lines.append(f"Allocated on {name}: {size(allocated)} at the peak. The trace can attribute:")
    lines += [
        f"Tensors on {name}: {size(highest.bytes)} at the peak, {duration(highest.time_ns)} after the start; {size(end_bytes)} at the end.",
        "",
    ]
    categories = tuple(
        (row["bytes"], row["peak_percent"], row["category"])
        for row in memory_peak(trace, device=name, by="category").to_pylist()
    )
    holders = []
    for row in memory_peak(trace, device=name, rows=_HOLDERS).to_pylist():
        where = ", ".join(filter(None, (row["module"], row["operator"], row["line"]))) or "-"
        blocks = f"  ({row['blocks']} blocks)" if row["blocks"] > 1 else ""
        holders.append((row["bytes"], row["peak_percent"], row["category"], where + blocks))
    columns = (
        BlockColumn("bytes", "bytes"),
        BlockColumn("share", "%"),
        BlockColumn("category", is_text=True),
    )
    tables: list[Block] = [
        TableBlock(columns, categories, title="At the peak, by category"),
        GAP,
        TableBlock(
            (*columns, BlockColumn("where", is_text=True)),
            tuple(holders),
            title="At the peak, largest holders",
        ),
    ]
    return [*lines, *plain_lines(tables)]
