"""The source lines in which the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.schema import Column, Table
from kinetoscope.tables.host.ops import percent
from kinetoscope.tables.host.source_lines import user_frames, user_stacks
from kinetoscope.tables.host.stacks import stack_sums
from kinetoscope.tables.host.visible import host_total_ns

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData
    from kinetoscope.tables.host.breakdown import HostShares

LINES_SCHEMA = Table(
    "lines",
    "A line of the user's source code. Operators count for the innermost frame outside torch and this package, backward"
    " operators for the line of their forward operator. Largest self time first.",
    (
        Column("file", "category", "", "The file."),
        Column("line", "int32", "", "The line being executed.", 0),
        Column("function", "category", "", "The qualified name of the function."),
        Column("self_ns", "int64", "ns", "Time of what this line itself started, in torch and its callees."),
        Column("total_ns", "int64", "ns", "The same, user code called from this line included."),
        Column("backward_self_ns", "int64", "ns", "The part of `self_ns` that ran in backward."),
        Column("self_percent", "float64", "%", "Share of all self time of the trace."),
        Column("total_percent", "float64", "%", "Share of all self time of the trace; never above 100."),
        Column("count", "int64", "", "How many spans this line itself started."),
        Column(
            "device_self_ns",
            "int64",
            "ns",
            "Device time of what this line itself launched, in torch and its callees.",
        ),
        Column("device_ns", "int64", "ns", "The same, user code called from this line included."),
    ),
)


def lines(trace: TraceData) -> pyarrow.Table:
    """Return the `lines` table: one row for each line that some operator was started from.

    Args:
        trace: The trace.

    Returns:
        The table; the meaning of its columns is in `LINES_SCHEMA`.
    """
    stacks, frames = trace.columns("stacks"), trace.columns("frames")
    sums = stack_sums(trace)
    # What torch's own frames did counts for the user frame that called them.
    shown = user_stacks(trace)
    self_ns, backward_ns, count, launched_ns = (
        _moved(values, shown) for values in (sums.self_ns, sums.backward_ns, sums.count, sums.device_self_ns)
    )
    line_of, first = _line_groups(trace)
    total_ns = sums.total_ns
    line_of_stack = np.append(line_of, -1)[stacks["frame"]].astype(np.int32)
    is_user = np.append(user_frames(trace), False)[stacks["frame"]] | (self_ns > 0) | (count > 0)
    is_user |= launched_ns > 0
    rows = np.where(is_user, line_of_stack, -1).astype(np.int32)
    inner = _core.descends_from_same(stacks["parent"], line_of_stack)
    groups = len(first)
    own = _core.group_sums(rows, groups, self_ns)
    total = _core.group_sums(rows, groups, total_ns, inner)
    everything = host_total_ns(trace)
    columns: dict[str, Any] = {
        "file": Labels(frames["file"][first], trace.strings),
        "line": frames["line"][first],
        "function": Labels(frames["function"][first], trace.strings),
        "self_ns": own,
        "total_ns": total,
        "backward_self_ns": _core.group_sums(rows, groups, backward_ns),
        "self_percent": percent(own, everything),
        "total_percent": percent(total, everything),
        "count": _core.group_sums(rows, groups, count),
        "device_self_ns": _core.group_sums(rows, groups, launched_ns),
        "device_ns": _core.group_sums(rows, groups, sums.device_ns, inner),
    }
    seen = np.flatnonzero((total > 0) | (columns["count"] > 0) | (columns["device_ns"] > 0))
    order = seen[np.lexsort((-total[seen], -own[seen]))]
    return to_arrow(LINES_SCHEMA, columns).take(order)


def lines_in(trace: TraceData, shares: HostShares) -> list[dict[str, Any]]:
    """The lines that started anything in the part of a trace that shares are of, those with most time first.

    Returns:
        For each its `file`, `line`, `function`, `count` of spans and `self_ns`.
    """
    spans, frames, strings = trace.columns("spans"), trace.columns("frames"), trace.strings
    line_of, first = _line_groups(trace)
    of_stack = np.append(line_of, np.int32(-1))[trace.column("stacks", "frame")]
    stack = np.append(user_stacks(trace), np.int32(-1))[spans["stack"]]
    of_span = np.where(shares.counts, np.append(of_stack, np.int32(-1))[stack], -1).astype(np.int32)
    own = _core.group_sums(of_span, len(first), shares.own_ns)
    count = _core.group_counts(of_span, len(first))
    file, line, function = (frames[name][first].tolist() for name in ("file", "line", "function"))
    return [
        {
            "file": strings[file[row]],
            "line": line[row],
            "function": strings[function[row]],
            "count": int(count[row]),
            "self_ns": int(own[row]),
        }
        for row in np.argsort(-own, kind="stable").tolist()
        if count[row]
    ]


def _line_groups(trace: TraceData) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Put frames of one file, line and function together."""
    frames = trace.columns("frames")
    if len(frames) == 0:
        nothing = np.zeros(0, dtype=np.int32)
        return nothing, nothing
    return _core.group([frames[name] for name in ("file", "line", "function")])


def _moved(values: NDArray[np.int64], to: NDArray[np.int32]) -> NDArray[np.int64]:
    """Add each value to the row it moves to."""
    moved = np.zeros_like(values)
    np.add.at(moved, to, values)
    return moved
