"""Runs: Python functions and modules over time if their calls were not recorded, reconstructed from the stacks of operators.

Consecutive operators of a thread with a common function (or module) in their stacks are one run of it, from the start of the
first to the end of the last. Two calls in a row without an operator between them become one run; a call without operators has
none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.kinds import is_call
from kinetoscope.model.schema import SpanKind
from kinetoscope.tables.host.rebuilt_calls import shown_frames
from kinetoscope.viewer.timeline.rows import PYTHON, tracks_of_items

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.timeline.rows import Track

_KNOWS_MODULES = np.zeros(256, dtype=bool)
_KNOWS_MODULES[
    [
        SpanKind.OPERATOR,
        SpanKind.BACKWARD,
        SpanKind.USER_ANNOTATION,
        SpanKind.COLLECTIVE,
        SpanKind.FUSED_KERNEL,
    ]
] = True


@dataclass(frozen=True)
class Runs:
    """Columns of runs.

    Attributes:
        thread: The row of the thread of each run, ascending.
        level: The nesting depth of each run; runs of the same thread and level do not overlap, and are sorted by time.
        start_ns: Start of each run.
        end_ns: End of each run.
        node: The function or module: a node of the call tree or module tree.
    """

    thread: NDArray[np.int32]
    level: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    node: NDArray[np.int32]


def run_tracks(trace: Trace, sort: int, process: NDArray[np.int32]) -> list[Track]:
    """Return the tracks of runs, one for each thread that has runs.

    Args:
        trace: The trace.
        sort: `PYTHON` or `MODULES`. A thread whose calls were recorded has no runs.
        process: For each thread the row of its process.
    """
    if len(trace.columns("stacks" if sort == PYTHON else "modules")) == 0:
        return []
    nodes, parent, names, texts = _functions(trace) if sort == PYTHON else _modules(trace)
    if not (nodes >= 0).any():
        return []
    of_threads = _operators(trace, nodes, sort)
    if not (of_threads[-1] >= 0).any():
        return []
    runs = joined(*of_threads, parent)
    kind = SpanKind.PYTHON if sort == PYTHON else SpanKind.MODULE
    labels = (names[runs.node], texts, kind)
    return tracks_of_items(
        sort, runs.thread, runs.level, runs.start_ns, runs.end_ns - runs.start_ns, labels, process
    )


def joined(
    thread: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    node: NDArray[np.int32],
    parent: NDArray[np.int32],
) -> Runs:
    """Join consecutive spans of the same nodes into runs.

    Args:
        thread: The thread of each span, ascending. Spans of one thread are nested, and sorted by start, outer ones first.
        start_ns: Start of each span.
        end_ns: End of each span.
        node: The innermost node of each span in the tree; -1 for none.
        parent: The tree: for each node its parent, -1 for a root.

    Returns:
        The runs. A run ends with its last span, but not after the start of the next span that is not part of it.
    """
    distinct, path = np.unique(node, return_inverse=True)
    above = parent.tolist()
    begins, steps = [0], list[int]()
    for innermost in distinct.tolist():
        around = []
        while innermost >= 0:
            around.append(innermost)
            innermost = above[innermost]
        steps += reversed(around)
        begins.append(len(steps))
    keys = np.array(steps, np.int32)
    calls = _core.rebuild_calls(
        thread,
        start_ns,
        end_ns - start_ns,
        path.astype(np.int32),
        # Nothing says where one call ended and the next began.
        np.zeros(len(thread), np.uint16),
        np.array(begins, np.int32),
        keys,
        np.zeros_like(keys),
    )
    order = np.lexsort((calls["start_ns"], calls["depth"], calls["thread"]))
    start_ns = calls["start_ns"][order]
    return Runs(
        calls["thread"][order],
        calls["depth"][order],
        start_ns,
        start_ns + calls["duration_ns"][order],
        keys[calls["step"][order]],
    )


def _operators(
    trace: Trace, nodes: NDArray[np.int32], sort: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Return the spans from which runs are reconstructed: thread, start, end and node."""
    spans = trace.columns("spans")
    kind, parent = spans["kind"], spans["parent"]
    node = nodes.copy()
    # A runtime call has no stack of its own, so it gets that of the span around it.
    bare = np.flatnonzero((node < 0) & (parent >= 0))
    while len(bare):
        node[bare] = node[parent[bare]]
        has_node = node[bare] >= 0
        if not has_node.any():
            break
        bare = bare[~has_node]
    used = (spans["lane"] == 0) & (spans["stream"] < 0) & ~is_call(kind)
    recorded = SpanKind.PYTHON if sort == PYTHON else SpanKind.MODULE
    with_calls = np.zeros(len(trace.columns("threads")) + 1, dtype=bool)
    with_calls[spans["thread"][kind == recorded]] = True
    used &= ~with_calls[spans["thread"]]
    has_node = node >= 0
    used &= has_node if sort == PYTHON else has_node | _KNOWS_MODULES[kind]
    rows = np.flatnonzero(used)
    start = spans["start_ns"][rows]
    return spans["thread"][rows], start, start + np.maximum(spans["duration_ns"][rows], 0), node[rows]


def _functions(trace: Trace) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], list[str]]:
    """Return for each span its innermost call, the call tree, and the names of its nodes.

    A call is identified by the line of its caller, its function and its file; different lines in the function are the same call.
    """
    stacks, frames = trace.columns("stacks"), trace.columns("frames")
    tree = shown_frames(trace)
    rows = np.flatnonzero(tree.row[:-1] == np.arange(len(stacks)))
    frame = stacks["frame"][rows]
    function, file = np.append(frames["function"], 0)[frame], np.append(tree.file, 0)[frame]
    called, name = np.unique(function * np.int64(len(tree.strings)) + file, return_inverse=True)
    around = tree.parent[rows].astype(np.int64) + 1
    keys, of_row = np.unique(around * max(len(called), 1) + name, return_inverse=True)
    node_of = np.full(len(stacks) + 1, -1, np.int32)
    node_of[rows] = of_row
    above, names = np.divmod(keys, max(len(called), 1))
    texts = [_call_name(tree.strings, *divmod(pair, len(tree.strings))) for pair in called.tolist()]
    nodes = node_of[tree.row[trace.column("spans", "own_stack")]]
    return nodes, node_of[above - 1], names.astype(np.int32), texts


def _call_name(strings: list[str], function: int, file: int) -> str:
    """Format a call as `function (file)`, with the last two components of the file's path."""
    if not strings[file]:
        return strings[function]
    return f"{strings[function]} ({'/'.join(strings[file].split('/')[-2:])})"


def _modules(trace: Trace) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], list[str]]:
    """Return for each span its module, in backward that of its forward operator; the module tree, and the modules' paths."""
    modules = trace.columns("modules")
    return (
        trace.column("spans", "module"),
        modules["holder"],
        np.arange(len(modules), dtype=np.int32),
        modules["path"],
    )
