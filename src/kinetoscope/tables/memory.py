"""Where the memory went: the peak, and what was live at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope import _core
from kinetoscope.tables.ops import percent
from kinetoscope.trace import Column, Table
from kinetoscope.trace._arrow import Labels, to_arrow
from kinetoscope.trace._naming import stack_texts

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

MEMORY_SCHEMA = Table(
    "memory",
    "Blocks that were live when memory was at its peak, put together by operator, module and stack. Largest first.",
    (
        Column("bytes", "int64", "bytes", "Their size together.", 0),
        Column("peak_percent", "float64", "%", "Their share of the peak."),
        Column("blocks", "int64", "", "How many blocks.", 0),
        Column("operator", "category", "", "The operator that allocated them."),
        Column("module", "category", "", "The path of the module it ran in."),
        Column(
            "stack",
            "category",
            "",
            "The Python stack, root first, joined by `;`; in backward that of the forward.",
        ),
        Column("step", "int64", "", "The number of the step in which the first of them was allocated."),
        Column("first_ns", "int64", "ns", "When the first of them was allocated.", 0),
        Column("never_freed", "int64", "", "How many of them were not seen to be freed in the trace.", 0),
    ),
)


@dataclass(frozen=True)
class Peak:
    """The moment at which most memory was live, of what the trace saw allocated.

    Attributes:
        bytes: How much.
        time_ns: When, from the start of the trace.
        allocation: The row of `allocations` that reached it.
        span: The span that ran then, -1 without.
        step: The row of `steps`, -1 outside all.
    """

    bytes: int
    time_ns: int
    allocation: int
    span: int
    step: int


def peak(trace: Trace, *, device_type: int = 0) -> Peak | None:
    """Return the peak of a device's memory, or None if no allocation of it was recorded.

    Args:
        trace: The trace.
        device_type: torch's number of the device type, 0 for the host.
    """
    blocks = trace.columns("allocations")
    rows = np.flatnonzero((blocks["device_type"] == 0) == (device_type == 0))
    if len(rows) == 0:
        return None
    row = int(rows[np.argmax(blocks["total_bytes"][rows])])
    span = int(blocks["span"][row])
    step = int(trace.column("spans", "step")[span]) if span >= 0 else -1
    return Peak(int(blocks["total_bytes"][row]), int(blocks["time_ns"][row]), row, span, step)


def memory(trace: Trace, *, device_type: int = 0) -> pyarrow.Table:
    """Return the `memory` table: what was live at the peak.

    Args:
        trace: The trace.
        device_type: torch's number of the device type, 0 for the host.

    Returns:
        The table, without rows if no memory was recorded; the meaning of its columns is in `MEMORY_SCHEMA`.
    """
    blocks, spans = trace.columns("allocations"), trace.columns("spans")
    at = peak(trace, device_type=device_type)
    live = _live(trace, at, device_type)
    span = blocks["span"][live]
    operator, module, step = (_through(span, spans[name]) for name in ("name", "module", "step"))
    # A block has a stack of its own where the recorder took one, else that of its operator.
    own_stack = blocks["stack"][live]
    stack = np.where(own_stack >= 0, own_stack, _through(span, spans["stack"]))
    if len(live):
        group_of, first = _core.group([operator, module, stack.astype(np.int32)])
    else:
        group_of = first = np.zeros(0, dtype=np.int32)
    groups = len(first)
    size = _core.group_sums(group_of, groups, blocks["bytes"][live])
    columns: dict[str, Any] = {
        "bytes": size,
        "peak_percent": percent(size, at.bytes if at is not None else 0),
        "blocks": _core.group_counts(group_of, groups),
        "operator": Labels(operator[first], trace.strings),
        "module": Labels(module[first], trace.columns("modules")["path"]),
        "stack": Labels(stack[first], stack_texts(trace)),
        "step": np.append(trace.column("steps", "number"), -1)[step[first]],
        "first_ns": blocks["time_ns"][live][first],
        "never_freed": _core.group_sums(group_of, groups, (blocks["match"][live] < 0).astype(np.int64)),
    }
    return to_arrow(MEMORY_SCHEMA, columns).take(np.argsort(-size, kind="stable"))


def _live(trace: Trace, at: Peak | None, device_type: int) -> NDArray[np.int64]:
    """The allocations that were live at a moment."""
    if at is None:
        return np.zeros(0, dtype=np.int64)
    blocks = trace.columns("allocations")
    same = (blocks["device_type"] == 0) == (device_type == 0)
    made = same & (blocks["bytes"] > 0)
    made[at.allocation + 1 :] = False
    # Where the free of a block was not seen, the next block at its address shows that it is gone.
    latest = np.flatnonzero(made)[::-1]
    _, places = np.unique(blocks["address"][latest], return_index=True)
    rows = np.sort(latest[places])
    match = blocks["match"][rows]
    still: NDArray[np.int64] = rows[(match < 0) | (match > at.allocation)]
    return still


def _through(rows: NDArray[np.int32], values: NDArray[Any]) -> NDArray[np.int32]:
    """Look up `values` at `rows`, and -1 where the row is -1."""
    return np.where(rows >= 0, np.append(values, -1)[rows], -1).astype(np.int32)
