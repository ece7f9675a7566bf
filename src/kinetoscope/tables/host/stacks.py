"""Python stacks with the time spent in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.assemble import sums_below
from kinetoscope.model.names import frame_texts, stack_texts
from kinetoscope.model.schema import Column, Phase, SpanKind, Table
from kinetoscope.tables.host.source_lines import working_stacks
from kinetoscope.tables.host.visible import host_spans

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData

STACKS_SCHEMA = Table(
    "stacks",
    "A Python call stack: its parent's with one more frame.",
    (
        Column("id", "int32", "row of stacks", "The row, which `parent` refers to."),
        Column("parent", "int32", "row of stacks", "The stack of the caller; null at the root."),
        Column("depth", "int32", "", "How many frames are below the innermost one.", 0),
        Column("frame", "category", "", "The innermost frame, as `file(line): function`."),
        Column("stack", "string", "", "All frames, root first, joined by `;`."),
        Column("self_ns", "int64", "ns", "Time of spans with exactly this stack, marks of steps left out; in backward that of the forward operator."),
        Column("total_ns", "int64", "ns", "The same, stacks that begin with this one included."),
        Column("count", "int64", "", "How many spans have exactly this stack."),
        Column("device_self_ns", "int64", "ns", "Device time of what spans with exactly this stack launched."),
        Column("device_ns", "int64", "ns", "The same, stacks that begin with this one included."),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class StackSums:
    """What ran with each stack; the totals include the stacks that begin with it."""

    depth: NDArray[np.int32]
    self_ns: NDArray[np.int64]
    backward_ns: NDArray[np.int64]
    total_ns: NDArray[np.int64]
    count: NDArray[np.int64]
    device_self_ns: NDArray[np.int64]
    device_ns: NDArray[np.int64]


def span_stacks(trace: TraceData) -> NDArray[np.int32]:
    """For each span the stack that its time counts for, -1 without: a range is not spent in what entered it."""
    stacks: NDArray[np.int32] = np.append(working_stacks(trace), np.int32(-1))[trace.column("spans", "stack")]
    return stacks


def stack_sums(trace: TraceData) -> StackSums:
    """Add up the spans by stack, once for a trace."""

    def make() -> StackSums:
        spans, stacks = trace.columns("spans"), trace.columns("stacks")
        stack, self_ns, phase = span_stacks(trace), spans["self_ns"], spans["phase"]
        known = np.flatnonzero((stack >= 0) & host_spans(trace) & (spans["kind"] != SpanKind.STEP))
        own = np.zeros(len(stacks), dtype=np.int64)
        np.add.at(own, stack[known], self_ns[known])
        backward = np.zeros(len(stacks), dtype=np.int64)
        behind = known[phase[known] == Phase.BACKWARD]
        np.add.at(backward, stack[behind], self_ns[behind])
        count = np.bincount(stack[known], minlength=len(stacks)).astype(np.int64)
        depth = _depths(stacks["parent"])
        on_device = np.zeros(len(stacks), dtype=np.int64)
        if len(trace.columns("launches")):
            launched = spans["device_self_ns"]
            starts = np.flatnonzero((stack >= 0) & (launched > 0))
            np.add.at(on_device, stack[starts], launched[starts])
        total, device_total = (sums_below(stacks["parent"], depth, values) for values in (own, on_device))
        return StackSums(depth, own, backward, total, count, on_device, device_total)

    return trace.cached("stack_sums", make)


def stacks(trace: TraceData) -> pyarrow.Table:
    """Return the `stacks` table: one row for each stack, callers first.

    Args:
        trace: The trace.

    Returns:
        The table; the meaning of its columns is in `STACKS_SCHEMA`.
    """
    own, sums = trace.columns("stacks"), stack_sums(trace)
    columns: dict[str, Any] = {
        "id": np.arange(len(own), dtype=np.int32),
        "parent": own["parent"],
        "depth": sums.depth,
        "frame": Labels(own["frame"], frame_texts(trace)),
        "stack": stack_texts(trace),
        "self_ns": sums.self_ns,
        "total_ns": sums.total_ns,
        "count": sums.count,
        "device_self_ns": sums.device_self_ns,
        "device_ns": sums.device_ns,
    }
    return to_arrow(STACKS_SCHEMA, columns)


def _depths(parents: NDArray[np.int32]) -> NDArray[np.int32]:
    """How many stacks are below each; parents come first."""
    depths: list[int] = []
    for row, parent in enumerate(parents.tolist()):
        depths.append(depths[parent] + 1 if 0 <= parent < row else 0)
    return np.array(depths, dtype=np.int32)
