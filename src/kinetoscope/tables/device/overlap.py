"""How much of the communication and of the copies was hidden behind computing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.arrow import to_arrow
from kinetoscope.model.schema import Column, Table
from kinetoscope.tables.windows import Windows, checked_by, in_order_of_time, place_columns, windows

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData

OVERLAP_SCHEMA = Table(
    "overlap",
    "What a device did at the same time in a step. One row for each step of a process and device, or `cpu` where it used none; for a"
    " process without steps one for all that was recorded of it. Work that overlaps work of its own sort counts once.",
    (
        Column("step", "int64", "", "The number of the step; null for all that was recorded."),
        Column("process", "int64", "", "The process id."),
        Column("rank", "int32", "", "The rank of the process."),
        Column("device", "category", "", "The device, such as `cuda:0`, or `cpu`."),
        Column("start_up", "bool", "", "Whether the step holds what ran before the training loop, as in `breakdown`."),
        Column("start_ns", "int64", "ns", "When the step began.", 0),
        Column("duration_ns", "int64", "ns", "How long it took.", 0),
        Column("compute_ns", "int64", "ns", "How long the device computed.", 0),
        Column("communication_ns", "int64", "ns", "How long data moved between ranks.", 0),
        Column("overlapped_communication_ns", "int64", "ns", "The part of that in which the device computed too.", 0),
        Column("exposed_communication_ns", "int64", "ns", "The rest, which the step waited for.", 0),
        Column("overlapped_communication_percent", "float64", "%", "The overlapped part of all communication; null without any."),
        Column("copy_ns", "int64", "ns", "How long memory was copied or filled.", 0),
        Column("overlapped_copy_ns", "int64", "ns", "The part of that in which the device computed or communicated too.", 0),
        Column("exposed_copy_ns", "int64", "ns", "The rest.", 0),
        Column("overlapped_copy_percent", "float64", "%", "The overlapped part of all copies and fillings; null without any."),
    ),
)  # fmt: skip


def overlap(trace: TraceData, by: str = "step") -> pyarrow.Table:
    """Return the `overlap` table: how much communication and copying ran beside computing.

    Args:
        trace: The trace.
        by: `step` for one row a step and device; `trace` for one row a device. Without steps both are the same.

    Returns:
        The table; the meaning of its columns is in `OVERLAP_SCHEMA`.

    Raises:
        ArgumentError: Another value of `by`.
    """
    found = windows(trace, checked_by(by))
    columns = place_columns(trace, found)
    parts = [_parts(window) for window in found]
    for name in OVERLAP_SCHEMA.column_names[len(columns) :]:
        columns[name] = np.concatenate([part[name] for part in parts] or [np.zeros(0)])
    return to_arrow(OVERLAP_SCHEMA, columns).take(in_order_of_time(columns))


def _parts(window: Windows) -> dict[str, NDArray[Any]]:
    """Measure some windows."""
    activity = window.activity
    compute, communication, copies = activity.compute, activity.communication, activity.copies
    sets = {
        "compute_ns": compute,
        "communication_ns": communication,
        "exposed_communication_ns": communication - compute,
        "copy_ns": copies,
        "exposed_copy_ns": copies - (compute | communication),
    }
    made: dict[str, NDArray[Any]] = {
        name: part.within(window.start_ns, window.end_ns) for name, part in sets.items()
    }
    for sort in ("communication", "copy"):
        whole = made[f"{sort}_ns"]
        hidden = made[f"overlapped_{sort}_ns"] = whole - made[f"exposed_{sort}_ns"]
        made[f"overlapped_{sort}_percent"] = 100.0 * hidden / np.where(whole == 0, np.nan, whole)
    return made
