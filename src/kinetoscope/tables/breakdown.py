"""Where the time of each step went, in parts that add up to it exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.tables._intervals import Intervals
from kinetoscope.tables._windows import Windows, checked_by, in_order_of_time, place_columns, windows
from kinetoscope.trace import Column, Table
from kinetoscope.trace._arrow import to_arrow

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

PARTS = ("compute_ns", "communication_ns", "copy_ns", "input_wait_ns", "cpu_bound_ns", "idle_ns")
"""The parts of a row; together they are `duration_ns`. `docs/devices.md` says which moment counts for which."""

BREAKDOWN_SCHEMA = Table(
    "breakdown",
    "What a device did in a step, in parts that add up to the step exactly: each moment counts for the first of the parts that"
    " fits. One row for each step and device, or `cpu` where a rank used none; without steps one for the whole trace.",
    (
        Column("step", "int64", "", "The number of the step; null for the whole trace."),
        Column("rank", "int32", "", "The rank of the process."),
        Column("device", "category", "", "The device, such as `cuda:0`, or `cpu`."),
        Column("start_ns", "int64", "ns", "When the step began.", 0),
        Column("duration_ns", "int64", "ns", "How long it took: the sum of the six parts.", 0),
        Column("compute_ns", "int64", "ns", "A kernel computed; on `cpu` an operator or backward function ran, loading of data left out.", 0),
        Column("communication_ns", "int64", "ns", "Nothing computed, and a kernel or a backend on the host moved data between ranks.", 0),
        Column("copy_ns", "int64", "ns", "Neither, and memory was copied or filled.", 0),
        Column("input_wait_ns", "int64", "ns", "The device did nothing, and the program waited for its data loader.", 0),
        Column("cpu_bound_ns", "int64", "ns", "The device did nothing, and the program ran without waiting: it had not asked for work in time.", 0),
        Column("idle_ns", "int64", "ns", "The device did nothing, and the host waited for it or did nothing that is known.", 0),
        Column("unrecorded_ns", "int64", "ns", "The part of `cpu_bound_ns` in which no operator and no call of a runtime ran: Python between"
               " operators, or a wait that no profiler sees.", 0),
    ),
)  # fmt: skip


def breakdown(trace: Trace, by: str = "step") -> pyarrow.Table:
    """Return the `breakdown` table: where the time of each step, or of the whole trace, went.

    Args:
        trace: The trace.
        by: `step` for one row a step and device; `trace` for one row a device. Without steps both are the same.

    Returns:
        The table; the meaning of its columns is in `BREAKDOWN_SCHEMA`.

    Raises:
        ArgumentError: Another value of `by`.
    """
    found = windows(trace, checked_by(by))
    columns = place_columns(trace, found)
    parts = [_parts(trace, window) for window in found]
    for name in (*PARTS, "unrecorded_ns"):
        columns[name] = np.concatenate([part[name] for part in parts] or [np.zeros(0, dtype=np.int64)])
    return to_arrow(BREAKDOWN_SCHEMA, columns).take(in_order_of_time(columns))


def _parts(trace: Trace, window: Windows) -> dict[str, NDArray[np.int64]]:
    """Give every moment of some windows to one part."""
    activity, host, steps = window.activity, window.activity.host, trace.columns("steps")
    communication = activity.communication - activity.compute
    done = activity.compute | activity.communication
    copies = activity.copies - done
    done |= activity.copies
    loading = host.loading - done
    done |= host.loading
    done |= host.waiting
    # A step is work of the program: inside one, it runs unless a call is known to wait.
    in_steps = Intervals.of(steps["start_ns"], steps["start_ns"] + steps["duration_ns"])
    running = (host.calls | host.ranges | in_steps) - done
    sets = dict(zip(PARTS, (activity.compute, communication, copies, loading, running), strict=False))
    sets["unrecorded_ns"] = running - host.calls
    made = {name: part.within(window.start_ns, window.end_ns) for name, part in sets.items()}
    made["idle_ns"] = window.end_ns - window.start_ns - sum(made[name] for name in PARTS[:-1])
    return made
