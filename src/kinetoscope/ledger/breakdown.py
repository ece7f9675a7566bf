"""The `breakdown` and `overlap` tables: the parts of each step, which add up to it exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import checked_choice
from kinetoscope.ledger.ledger import ProcessLedger, communication_moments
from kinetoscope.ledger.moments import Category
from kinetoscope.ledger.parts import PARTS, device_ledgers, part_of_cells, parts_of_ledger
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.dictionary import table_definition
from kinetoscope.model.groups import Groups, percent
from kinetoscope.model.processes import of_processes
from kinetoscope.model.trace_data import TraceData

BY = ("step", "trace")
"""The choices of `by`: one row per step, or one for the trace."""


def breakdown(trace: TraceData, by: str = "step") -> ArrowTable:
    """Return the `breakdown` table: where the time of each step or of the whole trace went.

    Args:
        trace: The trace.
        by: `step` for one row per step and device; `trace` for one row per device. Without steps both are the same.

    Returns:
        The table; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: `by` has another value.
    """
    return _of_ledgers(trace, "breakdown", by, _breakdown_parts)


def _breakdown_parts(ledger: ProcessLedger) -> dict[str, NDArray[Any]]:
    """The step kind and the parts of each unit, and the part of its host wait in which nothing was recorded."""
    cells = ledger.cells
    is_unrecorded = (part_of_cells(ledger) == PARTS.index("host_wait_ns")) & (cells.span < 0)
    unrecorded_ns = Groups(cells.step, len(ledger.work)).sums(cells.time_ns, is_unrecorded)
    return {"step_kind": ledger.work.kind, "unrecorded_ns": unrecorded_ns, **parts_of_ledger(ledger)}


def overlap(trace: TraceData, by: str = "step") -> ArrowTable:
    """Return the `overlap` table: how much communication and copying overlapped compute.

    Args:
        trace: The trace.
        by: `step` for one row per step and device; `trace` for one row per device. Without steps both are the same.

    Returns:
        The table; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: `by` has another value.
    """
    return _of_ledgers(trace, "overlap", by, _overlap_parts)


def _overlap_parts(ledger: ProcessLedger) -> dict[str, NDArray[Any]]:
    """The overlap columns: exposed time is the part of the breakdown; the rest of that work overlapped something else."""
    activity, work, parts = ledger.activity, ledger.work, parts_of_ledger(ledger)
    kinds = {
        "communication": (activity.communication, communication_moments(ledger)),
        "copy": (activity.copies, ledger.when(Category.COPY)),
    }
    columns: dict[str, NDArray[Any]] = {"compute_ns": parts["compute_ns"]}
    for kind, (ran, exposed) in kinds.items():
        hidden_ns = (ran - exposed).within(work.start_ns, work.end_ns)
        total_ns = hidden_ns + parts[f"{kind}_ns"]
        columns |= {
            f"{kind}_ns": total_ns,
            f"overlapped_{kind}_ns": hidden_ns,
            f"exposed_{kind}_ns": parts[f"{kind}_ns"],
            f"overlapped_{kind}_percent": percent(hidden_ns, total_ns),
        }
    return columns


def _of_ledgers(
    trace: TraceData, table: str, by: str, columns_of: Callable[[ProcessLedger], dict[str, NDArray[Any]]]
) -> ArrowTable:
    """A table with one row per unit and device, in order of time, and the columns that `columns_of` makes from each ledger."""
    ledgers = device_ledgers(trace, checked_choice("by", by, BY))
    parts = [
        {
            "step": np.append(trace.column("steps", "number"), -1)[ledger.work.row],
            "process_row": np.full(len(ledger.work), ledger.process, np.int32),
            "rank": np.full(len(ledger.work), ledger.activity.owner.rank),
            "device": np.full(len(ledger.work), number),
            "start_up": ledger.work.is_start_up,
            "start_ns": ledger.work.start_ns,
            "duration_ns": ledger.duration_ns,
            **columns_of(ledger),
        }
        for number, ledger in enumerate(ledgers)
    ]
    columns: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts] or [np.zeros(0, np.int64)])
        for name in (*table_definition(table).column_names, "process_row")
        if name != "process"
    }
    order = np.lexsort((columns["device"], columns["rank"], columns["start_ns"]))
    columns["process"] = of_processes(trace, columns["process_row"].astype(np.int32))["process"]
    devices = [ledger.activity.device for ledger in ledgers]
    columns["device"] = Labels(columns["device"], [device.name if device else "cpu" for device in devices])
    return to_arrow(table, columns, order)
