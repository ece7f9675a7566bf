"""What ran in which Python functions, as flame graphs: time on the host, time on devices, or memory allocated.

`flame_graph` has the tree of frames, `flame_operators` what weighs in each of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope._errors import checked_choice
from kinetoscope.model.arrow import ArrowTable, Labels, few_texts, to_arrow
from kinetoscope.model.dictionary import Table, table_definition
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import host_work
from kinetoscope.model.names import event_names
from kinetoscope.model.nesting import depths_of, spread_down
from kinetoscope.model.processes import thread_processes
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.schema import KIND_NAMES
from kinetoscope.model.steps import MARK, STEP_KEY
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.host.python_time import charged, covered_ranges, gaps
from kinetoscope.tables.memory.blocks import allocating_spans
from kinetoscope.tables.stacks import span_stacks, user_frames

# Weighted stacks are merged into a tree of frames, top-down or inverted, small enough to be sent and drawn.
#
# Top-down, the parent of a frame is its caller; inverted, it is the frame that it called, so that the roots are the frames with
# self time. Nodes with less than a thousandth of the total weight are merged into one node of their parent, so that the children
# and the own weight of a node still add up.

LEAST_SHARE = 1_000
"""What weighs less than the whole divided by this has no node of its own."""

_NOBODY = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Stacks:
    """Stacks after hiding some frames.

    Attributes:
        row: For each stack, the stack of its innermost visible frame: itself, one of its callers, or -1.
        caller: For each stack its nearest visible caller, or -1.
        frame: The innermost frame of each.
    """

    row: NDArray[np.int32]
    caller: NDArray[np.int32]
    frame: NDArray[np.int32]


@dataclass(frozen=True)
class Flame:
    """The tree of a flame graph. A node is followed by its children, the heaviest first, and a merged one last.

    Attributes:
        parent: For each node its parent, or -1.
        frame: The frame of each node; -1 for stacks without a visible frame, and for merged nodes.
        rest: The number of nodes that were merged into it; 0 for an ordinary node.
        total: Inclusive weight.
        own: Self weight.
        count: The number of spans or allocations, inclusive.
        of_stack: For each stack its innermost node; -1 for stacks without weight.
    """

    parent: NDArray[np.int32]
    frame: NDArray[np.int32]
    rest: NDArray[np.int32]
    total: Rows
    own: Rows
    count: Rows
    of_stack: NDArray[np.int32]


def shown_stacks(parent: NDArray[np.int32], frame: NDArray[np.int32], shown: Mask | None = None) -> Stacks:
    """Hide some frames.

    Args:
        parent: For each stack the row of its caller's stack, which is less than its own; -1 for none.
        frame: The innermost frame of each.
        shown: For each frame whether it is visible; None for all.
    """
    rows = np.arange(len(parent), dtype=np.int32)
    # A parent that does not come first would be a cycle, which only damaged files have.
    parent = np.where(parent < rows, parent, np.int32(-1))
    depth = depths_of(parent)
    visible = (frame >= 0) if shown is None else np.append(shown, False)[frame]
    row = spread_down(parent, depth, np.where(visible, rows, np.int32(-1)), -1)
    caller = np.append(row, np.int32(-1))[parent]
    return Stacks(row, caller, frame)


def merged(stacks: Stacks, weight: Rows, count: Rows, *, order: str = "callees") -> Flame:
    """Merge stacks into a tree.

    Args:
        stacks: The stacks.
        weight: What weighs in exactly each stack, at least 0.
        count: How many things do.
        order: `callees` for a tree whose roots are the outermost frames, `callers` for one whose roots are the innermost ones.
    """
    items = np.flatnonzero(weight > 0)
    least = max(-(-int(weight[items].sum()) // LEAST_SHARE), 1)
    path = _paths(stacks, stacks.row[items], order)
    within = np.full(len(items), -1, np.int32)
    frame = np.append(stacks.frame, np.int32(-1))
    of_stack = np.full(len(weight), -1, np.int32)
    parents, frames, rests, nodes = [_NOBODY], [_NOBODY], [_NOBODY], 0
    inner = np.arange(len(items))
    for step, next_step in pairwise(path):
        frame_here = frame[step[inner]]
        groups = Groups.by([within, frame_here])
        group, first = groups.of_row, groups.first
        heavy = groups.sums(weight[items[inner]]) >= least
        # All light children of a node become one additional node.
        around = within[first]
        homes, home_of, counts = np.unique(around[~heavy], return_inverse=True, return_counts=True)
        number = np.empty(len(first), np.int32)
        number[heavy] = nodes + np.arange(int(heavy.sum()))
        number[~heavy] = nodes + int(heavy.sum()) + home_of
        parents += [around[heavy], homes]
        frames += [frame_here[first[heavy]], np.full(len(homes), -1, np.int32)]
        rests += [np.zeros(int(heavy.sum()), np.int32), counts.astype(np.int32)]
        nodes += int(heavy.sum()) + len(homes)
        within = of_stack[items[inner]] = number[group]
        # The last frames of stacks and merged nodes have no children.
        further = heavy[group] & (next_step[inner] >= 0)
        inner, within = inner[further], within[further]
    parent, node_frame, rest = (np.concatenate(parts).astype(np.int32) for parts in (parents, frames, rests))
    return _flame(parent, node_frame, rest, Groups(of_stack, nodes), weight, count)


def _paths(stacks: Stacks, innermost: NDArray[np.int32], order: str) -> NDArray[np.int32]:
    """Return the first visible stack of each path, the second ones and so on, -1 behind the end, which the last ones are for all."""
    callers = np.append(stacks.caller, np.int32(-1))
    steps = [innermost, callers[innermost]]
    while (steps[-1] >= 0).any():
        steps.append(callers[steps[-1]])
    path = np.stack(steps)
    if order == "callees":
        outermost = np.maximum((path >= 0).sum(axis=0) - 1, 0)
        path = np.take_along_axis(path, np.maximum(outermost - np.arange(len(path))[:, None], -1), axis=0)
    return path


def _flame(
    parent: NDArray[np.int32],
    frame: NDArray[np.int32],
    rest: NDArray[np.int32],
    by_node: Groups,
    weight: Rows,
    count: Rows,
) -> Flame:
    """A tree of nodes, parents first, with inclusive weights, each node followed by its children; `by_node` has the node of each stack."""
    self_weight, level = by_node.sums(weight), depths_of(parent)
    total, counted = (
        _core.sums_below(parent, level, values) for values in (self_weight, by_node.sums(count))
    )
    order = _outline(parent, rest, total)
    row_of = np.full(len(parent) + 1, -1, np.int32)
    row_of[order] = np.arange(len(parent))
    columns = (frame[order], rest[order], total[order], self_weight[order], counted[order])
    return Flame(row_of[parent[order]], *columns, row_of[by_node.of_row])


def _outline(parent: NDArray[np.int32], rest: NDArray[np.int32], total: Rows) -> Rows:
    held: dict[int, list[int]] = {}
    heavy_last = np.lexsort((-np.arange(len(total)), total, rest == 0)).tolist()
    parents = parent.tolist()
    for row in heavy_last:
        held.setdefault(parents[row], []).append(row)
    order: list[int] = []
    waiting = held.get(-1, [])
    while waiting:
        row = waiting.pop()
        order.append(row)
        waiting.extend(held.get(row, ()))
    return np.array(order, np.int64)


MEASURES = {"cpu": "ns", "device": "ns", "bytes": "bytes"}
# The recorded name of a built-in method contains the address of its object, which differs each time.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
ORDERS = ("callees", "callers")


@dataclass(frozen=True)
class Weights:
    """The weights of stacks by one measure, in one process or in all.

    Attributes:
        total: The total weight, including that without a stack.
        of_stack: The self weight of each stack.
        count: The number of spans or allocations of each stack.
    """

    total: int
    of_stack: Rows
    count: Rows


def flame_graph(
    trace: TraceData, *, by: str = "cpu", order: str = "callees", library: bool = True, process: int = -1
) -> ArrowTable:
    """Return the tree of a flame graph, in which a frame is followed by those inside it.

    Args:
        trace: The trace.
        by: What weighs: `cpu` and `device` for time, `bytes` for allocations.
        order: `callees` for frames in those that called them, `callers` for frames in those that they called.
        library: Whether to show the frames of torch itself.
        process: The row of a process; -1 for all.

    Raises:
        ArgumentError: Another `by` or `order`.
    """
    tree = _tree(trace, by, order, library, process)
    frames, strings = trace.columns("frames"), trace.strings
    real = {name: np.append(frames[name], -1)[tree.frame] for name in ("function", "file", "line")}
    labels: dict[str, Any] = {
        name: Labels(*few_texts(real[name], [*strings, ""])) for name in ("function", "file")
    }
    labels["function"] = Labels(
        labels["function"].ids, [_ADDRESS.sub("", text) for text in labels["function"].texts]
    )
    columns = {
        "parent": tree.parent,
        **labels,
        "line": real["line"],
        "user": np.append(user_frames(trace), False)[tree.frame] if len(frames) else tree.frame >= 0,
        "rest": tree.rest,
        "total": tree.total,
        "own": tree.own,
        "count": tree.count,
    }
    return to_arrow(_table_of("flame", MEASURES[by]), columns)


def flame_operators(
    trace: TraceData, *, by: str = "cpu", order: str = "callees", library: bool = True, process: int = -1
) -> ArrowTable:
    """Return what weighs in each node of a flame graph, by name; the options are those of `flame_graph`.

    Raises:
        ArgumentError: Another `by` or `order`.
    """
    tree, spans = _tree(trace, by, order, library, process), trace.columns("spans")
    span, stack, value = _heavy(trace, by, process)
    with_stack = np.flatnonzero(stack >= 0)
    span, node = span[with_stack], tree.of_stack[stack[with_stack]]
    # After the names of spans come the names of weights without a span, and last the one for no name.
    strings = [*trace.strings, *(_PYTHON_NAMES[number] for number in sorted(_PYTHON_NAMES)), ""]
    without_span = np.array([len(strings) - 3, len(strings) - 2, len(strings) - 1], dtype=np.int32)
    names = np.concatenate((event_names(trace), without_span))[span]
    kinds = np.append(spans["kind"].astype(np.int32), np.full(3, -1, dtype=np.int32))[span]
    groups = Groups.by([node, names, kinds])
    first = groups.first
    node, value = node[first], groups.sums(value[with_stack])
    name_ids, texts = few_texts(names[first], strings)
    columns: dict[str, Any] = {
        "node": node,
        "name": Labels(name_ids, [STEP_KEY if text.startswith(MARK) else text for text in texts]),
        "kind": Labels(kinds[first], KIND_NAMES),
        "count": groups.sizes(),
        "value": value,
    }
    rows = np.lexsort((name_ids, -value, node))
    return to_arrow(_table_of("flame_operators", MEASURES[by]), columns, rows)


@derived
def _tree(trace: TraceData, by: str, order: str, library: bool, process: int) -> Flame:
    checked_choice("by", by, tuple(MEASURES))
    checked_choice("order", order, ORDERS)
    stacks, weights = trace.columns("stacks"), weights_of(trace, by, process)
    frame = np.append(_like_frames(trace), np.int32(-1))[stacks["frame"]]
    visible = shown_stacks(stacks["parent"], frame, None if library else user_frames(trace))
    return merged(visible, weights.of_stack, weights.count, order=order)


@derived
def _like_frames(trace: TraceData) -> NDArray[np.int32]:
    """Return for each frame the first one with the same name, ignoring addresses of objects in it."""
    frames, strings = trace.columns("frames"), trace.strings
    like = np.arange(len(frames), dtype=np.int32)
    functions, files, lines = (frames[name].tolist() for name in ("function", "file", "line"))
    named = {row: _ADDRESS.sub("", strings[row]) for row in set(functions) if " at 0x" in strings[row]}
    first: dict[tuple[str, int, int], int] = {}
    for frame, function in enumerate(functions):
        if function in named:
            key = (named[function], files[frame], lines[frame])
            like[frame] = first.setdefault(key, frame)
    return like


@derived
def weights_of(trace: TraceData, by: str, process: int) -> Weights:
    """Return the weights of stacks by one measure, in one process or, for -1, in all; cached."""
    _, stack, value = _heavy(trace, by, process)
    by_stack = Groups(stack, len(trace.columns("stacks")))
    return Weights(int(value.sum()), by_stack.sums(value), by_stack.sizes())


def _heavy(trace: TraceData, by: str, process: int) -> tuple[Rows, NDArray[np.int32], Rows]:
    """Return everything with a weight: its span or -1, its stack or -1, and its weight."""
    span, stack, value, thread = _allocated(trace) if by == "bytes" else _times(trace, by)
    heavy = value > 0
    if process >= 0:
        heavy &= thread_processes(trace)[thread] == process
    rows = np.flatnonzero(heavy)
    return span[rows], stack[rows], value[rows]


# Codes instead of a span's row for time between operators.
_PYTHON, _BLOCKED = -2, -3
_PYTHON_NAMES = {_PYTHON: "Python between operators", _BLOCKED: "Blocked"}


def _times(trace: TraceData, by: str) -> tuple[Rows, NDArray[np.int32], Rows, NDArray[np.int32]]:
    """Return self times on the host, of spans and between operators, or on devices: span, stack, time and thread."""
    spans = trace.columns("spans")
    span, stack, thread = np.arange(len(spans)), span_stacks(trace), spans["thread"]
    if by == "device":
        return span, stack, spans["device_self_ns"], thread
    # The stack of a step is where it was marked, not where its time is spent. The same holds for ranges.
    work = host_work(trace, with_steps=False).mask & ~covered_ranges(trace)
    shares = gaps(trace).shares
    parts = (
        (span, np.where(shares.blocked, _BLOCKED, _PYTHON)),
        (stack, shares.stack.astype(np.int32)),
        (np.where(work, spans["self_ns"], 0), charged(trace)),
        (thread, shares.thread.astype(np.int32)),
    )
    columns = [np.concatenate(both) for both in parts]
    return columns[0], columns[1], columns[2], columns[3]


def _allocated(trace: TraceData) -> tuple[Rows, NDArray[np.int32], Rows, NDArray[np.int32]]:
    blocks = trace.columns("allocations")
    span = allocating_spans(trace)
    of_span = np.append(trace.column("spans", "stack"), np.int32(-1))[span]
    stack = np.where(blocks["stack"] >= 0, blocks["stack"], of_span)
    # Not the blocks from before the recording, whose allocation was not recorded.
    size = np.where(blocks["time_ns"] >= 0, blocks["bytes"], 0)
    return span.astype(np.int64), stack, size, blocks["thread"]


def _table_of(name: str, unit: str) -> Table:
    table = table_definition(f"viewer: {name}")
    return replace(
        table,
        columns=tuple(replace(column, unit=unit) if column.unit else column for column in table.columns),
    )
