"""The cycles of a recording: the windows in which a session recorded, numbered over its whole life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.trace._arrow import to_arrow
from kinetoscope.trace._processes import PROCESS_COLUMNS, of_processes
from kinetoscope.trace._schema import STORED, Column, Table
from kinetoscope.trace._steps import step_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.trace._columns import Columns
    from kinetoscope.trace._trace import Trace

CYCLES_SCHEMA = Table(
    "cycles",
    STORED["cycles"].row,
    (
        *(column for column in STORED["cycles"].columns if column.name != "process_row"),
        Column(
            "first_step", "int64", "", "The number of the first step that began in it; null without steps."
        ),
        Column("steps", "int64", "", "How many steps began in it.", 0),
        Column("spans", "int64", "", "How many spans began in it.", 0),
        *PROCESS_COLUMNS,
    ),
)


def one_cycle(info: Mapping[str, Any], duration_ns: int) -> dict[str, list[int]]:
    """The table `cycles` of a recording that holds one, whose number the session wrote into the metadata."""
    known = info.get("cycle")
    number = known.get("number") if isinstance(known, dict) else 0
    if not isinstance(number, int) or not 0 <= number < 2**62:
        number = 0
    return {"number": [int(number)], "start_ns": [0], "duration_ns": [max(0, duration_ns)]}


def cycle_of_spans(start_ns: NDArray[np.int64], table: Columns) -> NDArray[np.int32]:
    """The row of the cycle each span began in: the only one there is or, among several, by its time."""
    if len(table) == 1:
        return np.zeros(len(start_ns), dtype=np.int32)
    return step_at(start_ns, table["start_ns"], table["duration_ns"])


def cycles(trace: Trace) -> pyarrow.Table:
    """Return the `cycles` table."""
    own, steps = trace.columns("cycles"), trace.columns("steps")
    of_step = _cycle_of_steps(trace) if len(own) else np.zeros(0, dtype=np.int32)
    first = np.full(len(own), -1, dtype=np.int64)
    inside = np.flatnonzero(of_step >= 0)[::-1]
    first[of_step[inside]] = steps["number"][inside]
    columns = {name: own[name] for name in own} | {
        "first_step": first,
        "steps": _counted(of_step, len(own)),
        "spans": _counted(trace.column("spans", "cycle"), len(own)),
        **of_processes(trace, own["process_row"]),
    }
    return to_arrow(CYCLES_SCHEMA, columns)


def _cycle_of_steps(trace: Trace) -> NDArray[np.int32]:
    """The row of the cycle that each step began in: of its own process."""
    own, steps = trace.columns("cycles"), trace.columns("steps")
    if len(trace.columns("processes")) == 0:
        return cycle_of_spans(steps["start_ns"], own)
    found = np.full(len(steps), -1, dtype=np.int32)
    for process in np.unique(steps["process_row"]).tolist():
        mine, rows = (np.flatnonzero(table["process_row"] == process) for table in (steps, own))
        windows = own["start_ns"][rows], own["duration_ns"][rows]
        found[mine] = np.append(rows, -1)[step_at(steps["start_ns"][mine], *windows)]
    return found


def _counted(rows: NDArray[Any], length: int) -> NDArray[np.int64]:
    """How often each row of a table of some length is named."""
    return np.bincount(rows[rows >= 0], minlength=length).astype(np.int64)
