"""Where the time of each step went, in parts that add up to it exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import checked_choice
from kinetoscope.ledger.ledger import ProcessLedger, communication_moments
from kinetoscope.ledger.moments import Category
from kinetoscope.ledger.parts import PARTS, device_ledgers, part_of_cells, parts_of_ledger
from kinetoscope.model.arrow import to_arrow
from kinetoscope.model.dictionary import table_definition
from kinetoscope.model.groups import Groups
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.step_kinds import kinds_of_steps
from kinetoscope.tables.windows import BY, in_order_of_time, place_columns

if TYPE_CHECKING:
    import pyarrow


def breakdown(trace: TraceData, by: str = "step") -> pyarrow.Table:
    """Return the `breakdown` table: where the time of each step, or of the whole trace, went.

    Args:
        trace: The trace.
        by: `step` for one row a step and device; `trace` for one row a device. Without steps both are the same.

    Returns:
        The table; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: Another value of `by`.
    """
    ledgers = device_ledgers(trace, checked_choice("by", by, BY))
    columns = place_columns(trace, [ledger.window for ledger in ledgers])
    none = [np.zeros(0, dtype=np.int64)]
    steps = np.concatenate([ledger.window.step for ledger in ledgers] or none)
    columns["step_kind"] = np.append(kinds_of_steps(trace), -1)[steps]
    parts = [parts_of_ledger(ledger) for ledger in ledgers]
    for name in PARTS:
        columns[name] = np.concatenate([times[name] for times in parts] or none)
    columns["unrecorded_ns"] = np.concatenate([_unrecorded_ns(ledger) for ledger in ledgers] or none)
    return to_arrow("breakdown", columns, in_order_of_time(columns))


def _unrecorded_ns(ledger: ProcessLedger) -> NDArray[np.int64]:
    """How long nothing was recorded in each unit while the host was waited for."""
    cells = ledger.cells
    is_unrecorded = (part_of_cells(ledger) == PARTS.index("host_wait_ns")) & (cells.span < 0)
    return Groups(cells.step, len(ledger.work)).sums(cells.time_ns, is_unrecorded)


def overlap(trace: TraceData, by: str = "step") -> pyarrow.Table:
    """Return the `overlap` table: how much communication and copying overlapped computing.

    Args:
        trace: The trace.
        by: `step` for one row a step and device; `trace` for one row a device. Without steps both are the same.

    Returns:
        The table; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: Another value of `by`.
    """
    ledgers = device_ledgers(trace, checked_choice("by", by, BY))
    columns = place_columns(trace, [ledger.window for ledger in ledgers])
    parts = [_overlap_parts(ledger) for ledger in ledgers]
    for name in table_definition("overlap").column_names[len(columns) :]:
        columns[name] = np.concatenate([part[name] for part in parts] or [np.zeros(0)])
    return to_arrow("overlap", columns, in_order_of_time(columns))


def _overlap_parts(ledger: ProcessLedger) -> dict[str, NDArray[Any]]:
    """The overlap columns of the units of a ledger: what is exposed is their part, and the rest of that work ran beside something else."""
    window, parts = ledger.window, parts_of_ledger(ledger)
    work = {
        "communication": (window.activity.communication, communication_moments(ledger.moments)),
        "copy": (window.activity.copies, ledger.moments.when(Category.COPY)),
    }
    columns: dict[str, NDArray[Any]] = {"compute_ns": parts["compute_ns"]}
    for kind, (ran, exposed) in work.items():
        hidden_ns = (ran - exposed).within(window.start_ns, window.end_ns)
        whole_ns = hidden_ns + parts[f"{kind}_ns"]
        columns |= {
            f"{kind}_ns": whole_ns,
            f"overlapped_{kind}_ns": hidden_ns,
            f"exposed_{kind}_ns": parts[f"{kind}_ns"],
            f"overlapped_{kind}_percent": 100.0 * hidden_ns / np.where(whole_ns == 0, np.nan, whole_ns),
        }
    return columns
