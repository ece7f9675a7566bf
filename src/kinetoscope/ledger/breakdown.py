"""Where the time of each step went, in parts that add up to it exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.ledger.ledger import ProcessLedger, communication_moments
from kinetoscope.ledger.moments import Category
from kinetoscope.ledger.parts import PART_COLUMNS, PARTS, device_ledgers, part_of_cells, parts_of_ledger
from kinetoscope.model.arrow import to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.schema import Column, Table
from kinetoscope.tables.step_kinds import kinds_of_steps
from kinetoscope.tables.windows import (
    checked_by,
    in_order_of_time,
    place_columns,
)

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData


_PLACE_COLUMNS = (
    Column("step", "int64", "", "The number of the step; null for the whole recording."),
    Column("process", "int64", "", "The process id."),
    Column("rank", "int32", "", "The rank of the process."),
    Column("device", "category", "", "The device, such as `cuda:0`, or `cpu`."),
)  # fmt: skip

BREAKDOWN_SCHEMA = Table(
    "breakdown",
    "What a device did in a step, in parts that add up to the step exactly: each moment is assigned to the first part "
    "that applies. One row for each step of a process and device, or `cpu` if it used none; a process without steps has "
    "one row for its whole recording. Work of other processes is not counted.",
    (
        *_PLACE_COLUMNS,
        Column("start_up", "bool", "", "Whether sums and shares of step time leave the step out: it contains what ran before the loop, as the "
                                       "first step does where steps are found from the optimizer."),
        Column("step_kind", "int64", "", "The kind of the step, as in `step_kinds`; null for start-up and the whole recording."),
        Column("start_ns", "int64", "ns", "When the step began.", 0),
        Column("duration_ns", "int64", "ns", "How long it took: the sum of the ten parts that follow.", 0),
        *PART_COLUMNS,
        Column("unrecorded_ns", "int64", "ns", "The part of `host_wait_ns` in which no operator and no runtime call "
                                               "ran: Python between operators, or a wait that was not recorded.", 0),
    ),
)  # fmt: skip


def breakdown(trace: TraceData, by: str = "step") -> pyarrow.Table:
    """Return the `breakdown` table: where the time of each step, or of the whole trace, went.

    Args:
        trace: The trace.
        by: `step` for one row a step and device; `trace` for one row a device. Without steps both are the same.

    Returns:
        The table; the meaning of its columns is in `BREAKDOWN_SCHEMA`.

    Raises:
        ArgumentError: Another value of `by`.
    """
    ledgers = device_ledgers(trace, checked_by(by))
    columns = place_columns(trace, [ledger.window for ledger in ledgers])
    none = [np.zeros(0, dtype=np.int64)]
    steps = np.concatenate([ledger.window.step for ledger in ledgers] or none)
    columns["step_kind"] = np.append(kinds_of_steps(trace), -1)[steps]
    parts = [parts_of_ledger(ledger) for ledger in ledgers]
    for name in PARTS:
        columns[name] = np.concatenate([times[name] for times in parts] or none)
    columns["unrecorded_ns"] = np.concatenate([_unrecorded_ns(ledger) for ledger in ledgers] or none)
    return to_arrow(BREAKDOWN_SCHEMA, columns, in_order_of_time(columns))


def _unrecorded_ns(ledger: ProcessLedger) -> NDArray[np.int64]:
    """How long nothing was recorded in each unit while the host was waited for."""
    cells = ledger.cells
    is_unrecorded = (part_of_cells(ledger) == PARTS.index("host_wait_ns")) & (cells.span < 0)
    return Groups(cells.step, len(ledger.work)).sums(cells.time_ns, is_unrecorded)


OVERLAP_SCHEMA = Table(
    "overlap",
    "Which work of a device overlapped in a step. One row for each step of a process and device, or `cpu` if it used "
    "none; a process without steps has one row for its whole recording. Overlapping work of one category counts once.",
    (
        *_PLACE_COLUMNS,
        Column("start_up", "bool", "", "Whether the step is left out, as in `breakdown`."),
        Column("start_ns", "int64", "ns", "When the step began.", 0),
        Column("duration_ns", "int64", "ns", "How long it took.", 0),
        Column("compute_ns", "int64", "ns", "How long the device computed.", 0),
        Column("communication_ns", "int64", "ns", "How long data moved between ranks.", 0),
        Column("overlapped_communication_ns", "int64", "ns", "The part of it in which the device also computed.", 0),
        Column("exposed_communication_ns", "int64", "ns", "Exposed communication: the rest, which the step waits for.", 0),
        Column("overlapped_communication_percent", "float64", "%", "The overlapped share of communication; null if there is "
                                                                   "none."),
        Column("copy_ns", "int64", "ns", "How long a copy or fill ran.", 0),
        Column("overlapped_copy_ns", "int64", "ns", "The part of it in which the device also computed or communicated.", 0),
        Column("exposed_copy_ns", "int64", "ns", "Exposed copies: the rest.", 0),
        Column("overlapped_copy_percent", "float64", "%", "The overlapped share of copies and fills; null if there are none."),
    ),
)  # fmt: skip


def overlap(trace: TraceData, by: str = "step") -> pyarrow.Table:
    """Return the `overlap` table: how much communication and copying overlapped computing.

    Args:
        trace: The trace.
        by: `step` for one row a step and device; `trace` for one row a device. Without steps both are the same.

    Returns:
        The table; the meaning of its columns is in `OVERLAP_SCHEMA`.

    Raises:
        ArgumentError: Another value of `by`.
    """
    ledgers = device_ledgers(trace, checked_by(by))
    columns = place_columns(trace, [ledger.window for ledger in ledgers])
    parts = [_overlap_parts(ledger) for ledger in ledgers]
    for name in OVERLAP_SCHEMA.column_names[len(columns) :]:
        columns[name] = np.concatenate([part[name] for part in parts] or [np.zeros(0)])
    return to_arrow(OVERLAP_SCHEMA, columns, in_order_of_time(columns))


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
