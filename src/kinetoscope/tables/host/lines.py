"""The `stacks` and `lines` tables: the time spent in each stack and source line."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.groups import Groups, percent
from kinetoscope.model.hierarchy import host_work
from kinetoscope.model.names import frame_texts, stack_texts
from kinetoscope.model.nesting import depths_of
from kinetoscope.model.schema import Phase
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.device.launches import captured_time
from kinetoscope.tables.host.python_time import charged, covered_ranges, gaps
from kinetoscope.tables.stacks import in_user_code, span_stacks, user_stacks


@derived
def stack_sums(trace: TraceData) -> dict[str, NDArray[Any]]:
    """Sums over the spans of each stack, as columns of `stacks`; totals include the stacks below it."""
    spans, stacks = trace.columns("spans"), trace.columns("stacks")
    stack, self_ns, phase = span_stacks(trace), spans["self_ns"], spans["phase"]
    covered = covered_ranges(trace)
    self_ns = np.where(covered, 0, self_ns)
    by_stack = Groups(np.where(host_work(trace, with_steps=False).mask, stack, -1), len(stacks))
    depth = depths_of(stacks["parent"])
    on_device = np.zeros(len(stacks), dtype=np.int64)
    if len(trace.columns("launches")):
        on_device = Groups(stack, len(stacks)).sums(spans["device_self_ns"])
        on_device += captured_time(trace, stack, len(stacks))
    shares, time_ns = gaps(trace).shares, charged(trace)
    between = Groups(shares.stack, len(stacks))
    sums = {
        "self_ns": by_stack.sums(self_ns),
        "python_self_ns": between.sums(time_ns, ~shares.blocked),
        "blocked_self_ns": between.sums(time_ns, shares.blocked),
        "device_self_ns": on_device,
    }
    totals = {}
    for name, values in sums.items():
        total = "total_ns" if name == "self_ns" else name.replace("_self", "")
        totals[total] = _core.sums_below(stacks["parent"], depth, values)
    backward_ns = by_stack.sums(self_ns, phase == Phase.BACKWARD)
    return {"depth": depth, **sums, **totals, "backward_self_ns": backward_ns, "count": by_stack.sizes()}


def stacks(trace: TraceData) -> ArrowTable:
    """Return the `stacks` table: one row for each stack, callers first.

    Args:
        trace: The trace.

    Returns:
        The table; `docs/tables.md` describes its columns.
    """
    stored = trace.columns("stacks")
    columns: dict[str, Any] = {
        "id": np.arange(len(stored), dtype=np.int32),
        "parent": stored["parent"],
        "frame": Labels(stored["frame"], frame_texts(trace)),
        "stack": stack_texts(trace),
    }
    return to_arrow("stacks", columns | stack_sums(trace))


def lines(trace: TraceData) -> ArrowTable:
    """Return the `lines` table: one row for each line that called an operator or ran Python between operators.

    Args:
        trace: The trace.

    Returns:
        The table; `docs/tables.md` describes its columns.
    """
    stacks, frames = trace.columns("stacks"), trace.columns("frames")
    sums = stack_sums(trace)
    # Time in torch's frames counts for the user frame that called them.
    of_shown = Groups(user_stacks(trace), len(stacks))
    self_columns = {
        name: of_shown.sums(sums[name]) for name in (*_OWN, "backward_self_ns", "count", "device_self_ns")
    }
    line_of, first = line_groups(trace)
    below = (*_BELOW, "device_ns")
    line_of_stack = np.append(line_of, -1)[stacks["frame"]].astype(np.int32)
    is_user = in_user_code(trace).copy()
    is_user |= np.logical_or.reduce([values > 0 for values in self_columns.values()])
    by_line = Groups(np.where(is_user, line_of_stack, -1), len(first))
    inner = _core.descends_from_same(stacks["parent"], line_of_stack)
    columns: dict[str, Any] = {
        "file": Labels(frames["file"][first], trace.strings),
        "line": frames["line"][first],
        "function": Labels(frames["function"][first], trace.strings),
    }
    columns |= {name: by_line.sums(values) for name, values in self_columns.items()}
    columns |= {name: by_line.sums(sums[name], inner == 0) for name in below}
    everything = host_work(trace).total_self_ns
    columns["self_percent"] = percent(columns["self_ns"], everything)
    columns["total_percent"] = percent(columns["total_ns"], everything)
    rows = np.flatnonzero(np.logical_or.reduce([columns[name] > 0 for name in ("count", *below)]))
    weights = [sum(columns[name][rows] for name in names) for names in (_BELOW, _OWN)]
    return to_arrow("lines", columns, rows[np.lexsort([-weight for weight in weights])])


_OWN = ("self_ns", "python_self_ns", "blocked_self_ns")
_BELOW = ("total_ns", "python_ns", "blocked_ns")


def line_groups(trace: TraceData) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Group frames by file, line and function."""
    frames = trace.columns("frames")
    groups = Groups.by([frames[name] for name in ("file", "line", "function")])
    return groups.of_row, groups.first
