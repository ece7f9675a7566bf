"""What was live at the peak of the memory, by operator, module and whole stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.names import stack_texts
from kinetoscope.model.schema import Column, Table
from kinetoscope.tables.host.ops import percent
from kinetoscope.tables.memory.blocks import NEVER_NS
from kinetoscope.tables.memory.categories import CATEGORY_NAMES
from kinetoscope.tables.memory.facts import judged_blocks
from kinetoscope.tables.memory.peak import Peak, grouped, live_at, peak, through

if TYPE_CHECKING:
    import pyarrow

    from kinetoscope.model.trace_data import TraceData

__all__ = ["MEMORY_SCHEMA", "Peak", "memory", "peak"]

MEMORY_SCHEMA = Table(
    "memory",
    "Blocks that were live when memory was at its peak, put together by category, operator, module and stack. Largest"
    " first.",
    (
        Column("bytes", "int64", "bytes", "Their size together.", 0),
        Column("peak_percent", "float64", "%", "Their share of the peak of all that is attributed."),
        Column("blocks", "int64", "", "How many blocks.", 0),
        Column("category", "category", "", f"What they are for: {', '.join(CATEGORY_NAMES)}."),
        Column(
            "operator", "category", "", "The operator that allocated them; null for what was there before."
        ),
        Column("module", "category", "", "The path of the module they belong to."),
        Column(
            "stack",
            "category",
            "",
            "The Python stack, root first, joined by `;`; in backward that of the forward.",
        ),
        Column("step", "int64", "", "The number of the step in which the first of them was allocated."),
        Column("first_ns", "int64", "ns", "When the first of them was allocated; null for before."),
        Column("device", "category", "", "The device, as torch writes it."),
        Column("never_freed", "int64", "", "How many of them were not seen to be freed in the trace.", 0),
    ),
)


def memory(trace: TraceData, *, device_type: int = 0) -> pyarrow.Table:
    """Return the `memory` table: what was live at the peak.

    Args:
        trace: The trace.
        device_type: 0 for the host, anything else for the device with the largest peak.

    Returns:
        The table, without rows if no memory was recorded; the meaning of its columns is in `MEMORY_SCHEMA`.
    """
    judged, spans = judged_blocks(trace), trace.columns("spans")
    blocks = judged.blocks
    at = peak(trace, device_type=device_type)
    live = live_at(trace, at)
    operator, step = (through(blocks.span[live], spans[name]) for name in ("name", "step"))
    category, module, stack = judged.category[live], judged.module[live], judged.stack[live]
    group_of, first = grouped([category, operator, module, stack])
    groups = len(first)
    size = _core.group_sums(group_of, groups, blocks.bytes[live])
    never = blocks.end_ns[live] == NEVER_NS
    columns: dict[str, Any] = {
        "bytes": size,
        "peak_percent": percent(size, at.bytes if at is not None else 0),
        "blocks": _core.group_counts(group_of, groups),
        "category": Labels(category[first], CATEGORY_NAMES),
        "operator": Labels(operator[first], trace.strings),
        "module": Labels(module[first], trace.columns("modules")["path"]),
        "stack": Labels(stack[first], stack_texts(trace)),
        "step": np.append(trace.column("steps", "number"), -1)[step[first]],
        "first_ns": blocks.start_ns[live][first],
        "device": [at.device if at is not None else None] * groups,
        "never_freed": _core.group_sums(group_of, groups, never.astype(np.int64)),
    }
    return to_arrow(MEMORY_SCHEMA, columns).take(np.argsort(-size, kind="stable"))
