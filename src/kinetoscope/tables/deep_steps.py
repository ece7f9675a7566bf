"""Which call of a deep step, which was recorded in full, each call of another step repeats: what was recorded of the one is so known of the other.

Times are those of each step itself; the shapes of its inputs, and whether its result existed already, are those of the same call in the nearest deep step.
Steps whose operators are the same, in the same order, are matched call by call. In others, calls are the same that have the same operator, line and module
at the same place among these in their step or, failing that, the nearest such call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import nearest_of
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.rows import Mask, Rows, begins_run, hashed
from kinetoscope.model.trace_data import TraceData, derived

LEAST_KNOWN = 0.5
"""A step is deep if the shapes of so many of its operators on a thread were recorded; the others have no inputs."""


@derived
def shapes_of(trace: TraceData) -> NDArray[np.int32]:
    """For each span a row of `shapes`: as recorded, or that of the same call of a deep step; -1 where unknown."""
    shapes: NDArray[np.int32] = trace.column("spans", "shapes")
    twin = twins(trace)
    return np.where((shapes < 0) & (twin >= 0), shapes[twin], shapes) if len(twin) else shapes


def deep_step_count(trace: TraceData) -> int | None:
    """In how many steps inputs were recorded, where that was not so in all; None where no steps were recorded in full."""
    if len(twins(trace)) == 0:
        return None
    spans = trace.columns("spans")
    steps = np.unique(spans["step"][spans["shapes"] >= 0])
    return int((steps >= 0).sum())


@derived
def twins(trace: TraceData, in_pairs: bool = False) -> NDArray[np.int32]:
    """For each span the row of the same call in the nearest deep step; -1 for none and in deep steps.

    Args:
        trace: The trace.
        in_pairs: Whether a step is deep only if the one before it is, too, so that what stays the same between two steps is known of it.

    Returns:
        A row for each span; empty where no steps were recorded in full.
    """
    if not any(run.deep_steps for run in (trace.run_info, *trace.run_info.processes)):
        return np.zeros(0, np.int32)
    operators = _operators(trace)
    rows, blocks, deep, has_inputs = operators.rows, operators.blocks, operators.deep, operators.has_inputs
    thread, step = operators.thread, operators.step
    if in_pairs:
        follows = ~begins_run(thread) & (step == np.append(-1, step[:-1]) + 1)[: len(step)]
        deep = deep & follows & np.append(False, deep[:-1])[: len(deep)]
        has_inputs = has_inputs & deep[blocks.of_row]
    twin = np.full(len(trace.columns("spans")), -1, np.int32)
    model = _nearest(operators.alike, deep)
    matched = (step >= 0) & ~deep & (model >= 0)
    is_matched = matched[blocks.of_row]
    twin[rows[is_matched]] = rows[(blocks.first[model][blocks.of_row] + operators.position)[is_matched]]
    left = np.flatnonzero(has_inputs | ~(deep | matched)[blocks.of_row])
    twin[rows[left]] = _of_calls(trace, rows[left], has_inputs[left])
    twin[rows[has_inputs]] = -1
    return twin


@dataclass(frozen=True, eq=False)
class _Operators:
    """The operators of the host, and the blocks that they are in: those of one thread in one step.

    Attributes:
        rows: Their rows in `spans`.
        has_inputs: Whether what deep steps have besides was recorded of each.
        position: The place of each in its block.
        blocks: The blocks.
        thread: For each block its thread.
        step: For each block its step.
        deep: For each block whether its step is deep.
        alike: Groups of the blocks that have the same operators in the same order.
    """

    rows: Rows
    has_inputs: Mask
    position: Rows
    blocks: Groups
    thread: NDArray[np.integer]
    step: NDArray[np.integer]
    deep: Mask
    alike: Groups


@derived
def _operators(trace: TraceData) -> _Operators:
    spans = trace.columns("spans")
    rows = np.flatnonzero(is_operator(spans["kind"]) & (spans["stream"] < 0))
    if any(run.record_shapes for run in (trace.run_info, *trace.run_info.processes)):
        # Then deep steps have the versions of tensors besides, which are noted of outermost operators.
        has_inputs = nearest_of(trace, np.unique(trace.column("tensor_versions", "span")))[:-1][rows] >= 0
    else:
        has_inputs = spans["shapes"][rows] >= 0
    blocks = Groups.runs(spans["thread"][rows], spans["step"][rows])
    first, size = blocks.first.astype(np.int64), blocks.sizes()
    thread, step = spans["thread"][rows[first]], spans["step"][rows[first]]
    deep = (step >= 0) & (blocks.sums(has_inputs) >= LEAST_KNOWN * size)
    position = np.arange(len(rows)) - first[blocks.of_row]
    calls = hashed(position, spans["name"][rows], spans["own_stack"][rows])
    alike = Groups.by([thread, size, blocks.sums(calls.view(np.int64))])
    return _Operators(rows, has_inputs, position, blocks, thread, step, deep, alike)


def _of_calls(trace: TraceData, rows: Rows, has_inputs: Mask) -> NDArray[np.int32]:
    """For some operators the nearest of those with inputs that is the same call, -1 for none."""
    spans = trace.columns("spans")
    calls = Groups.by([spans[name][rows] for name in ("name", "own_stack", "forward_stack", "module")])
    of_step = Groups.by([calls.of_row, spans["step"][rows]])
    order, begins = of_step.rows()
    ordinal = np.empty(len(rows), np.int64)
    ordinal[order] = np.arange(len(rows)) - np.repeat(begins[:-1], np.diff(begins))
    nearest = _nearest(Groups.by([calls.of_row, ordinal]), has_inputs)
    nearest = np.where(nearest >= 0, nearest, _nearest(calls, has_inputs))
    return np.where(nearest >= 0, rows[nearest], -1).astype(np.int32)


def _nearest(groups: Groups, chosen: Mask) -> Rows:
    """For each row the last chosen one of its group before it, or else the first one after it; -1 for none."""
    order, begins = groups.rows()
    group = groups.of_row[order]
    index = np.arange(len(order))
    before = np.maximum.accumulate(np.where(chosen[order], index, -1))
    after = np.minimum.accumulate(np.where(chosen[order], index, len(order))[::-1])[::-1]
    has_before = (before >= begins[group]) & (before >= 0)
    has_after = after < begins[group + 1]
    place = np.where(has_before, before, np.where(has_after, after, -1))
    nearest = np.empty(len(order), np.int64)
    nearest[order] = np.where(place >= 0, order[place], -1)
    return nearest
