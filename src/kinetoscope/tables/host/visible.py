"""Which spans torch's event lists show, how these nest, and what becomes of the time of those they leave out.

`torch.profiler` hides a few bookkeeping operators, and shows a span that is the only child of a span of the same name
as one event. Here both are *absorbed*: their self time and memory go to the nearest ancestor that is shown, and their
children become its children, so totals are the same as torch's and nothing is lost.

Calls of Python functions and modules on the timeline are absorbed too, and events nest as if the calls were not there:
recording them changes no number of any event. Where the session asked for stacks, torch lists calls as events:
`kinetoscope.tables.host.event_calls` makes the trace in which they are, and there they nest with the rest. Asynchronous events and those of devices stand beside the tree, as in
torch: they are in nothing and nothing is in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.schema import FLAG_ASYNC
from kinetoscope.model.steps import MARK
from kinetoscope.model.trace_data import calls_of
from kinetoscope.tables.host.event_calls import EventTrace, nest_as_torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData

HIDDEN_NAMES = frozenset(
    {
        "[memory]",
        "[OutOfMemory]",
        "profiler::_record_function_enter",
        "profiler::_record_function_enter_new",
        "profiler::_record_function_exit",
        "aten::is_leaf",
        "aten::output_nr",
        "aten::_version",
    }
)


@dataclass(frozen=True)
class EventTree:
    """How the events nest, where that is not how all spans nest.

    Attributes:
        rows: The spans in the tree.
        parent: For every span the one around it, -1 for spans that are not in the tree.
        depth: For every span how many are around it.
        self_ns: For every span its own time, 0 for spans that are not in the tree.
        nesting: What `_core.nest` said of `rows`.
    """

    rows: NDArray[np.int64]
    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    self_ns: NDArray[np.int64]
    nesting: dict[str, NDArray[np.int32]]


@dataclass(frozen=True)
class VisibleSpans:
    """The spans that are events.

    Attributes:
        absorbed: The rows that are not events, or None when all are.
        owner: For each absorbed row the nearest shown ancestor, -1 without.
        parent: The nearest shown ancestor of every row.
    """

    absorbed: NDArray[np.bool_] | None
    owner: NDArray[np.int32]
    parent: NDArray[np.int32]

    def self_values(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """Move what absorbed rows hold of `own` to their owners."""
        if self.absorbed is None:
            return own
        rows = np.flatnonzero(self.absorbed)
        values = own.copy()
        values[rows] = 0
        kept = self.owner >= 0
        np.add.at(values, self.owner[kept], own[rows[kept]])
        return values

    def shown(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """For each row the event it belongs to: itself, or what absorbed it; -1 for -1 and for rows in no event."""
        if self.absorbed is None:
            return rows
        event_of = np.arange(len(self.absorbed) + 1, dtype=np.int32)
        event_of[-1] = -1
        event_of[:-1][self.absorbed] = self.owner
        found: NDArray[np.int32] = event_of[rows]
        return found


def visible_spans(trace: TraceData) -> VisibleSpans:
    """Find out, once for a trace, which spans are events."""
    return trace.cached("visible_spans", lambda: _find(trace))


def event_tree(trace: TraceData) -> EventTree | None:
    """How the events nest, or None where that is how all spans nest."""
    return trace.cached("event_tree", lambda: _find_tree(trace))


def event_names(trace: TraceData) -> NDArray[np.int32]:
    """For each span a row of strings that is equal where events have the same name: all marks of steps share one."""

    def make() -> NDArray[np.int32]:
        names: NDArray[np.int32] = trace.column("spans", "name")
        marks = [row for row, text in enumerate(trace.strings) if text.startswith(MARK)]
        if len(marks) < 2:
            return names
        shared = np.arange(len(trace.strings), dtype=np.int32)
        shared[marks] = marks[0]
        return shared[names]

    return trace.cached("event_names", make)


def python_calls(trace: TraceData) -> NDArray[np.bool_] | None:
    """Which spans are calls of Python functions or modules, or None when none are."""
    return calls_of(trace)


def _absorbed_calls(trace: TraceData) -> NDArray[np.bool_] | None:
    """Which spans are calls that are no events, or None when none are."""
    return None if isinstance(trace, EventTrace) else calls_of(trace)


def asynchronous(trace: TraceData) -> NDArray[np.bool_] | None:
    """Which spans ended on another thread than they began, or None when none did."""
    flags = trace.column("spans", "flags")
    if not flags.any():
        return None
    marked: NDArray[np.bool_] = (flags & FLAG_ASYNC) != 0
    return marked if marked.any() else None


def on_device_mask(trace: TraceData) -> NDArray[np.bool_] | None:
    """Which spans ran on a device, or None when none did."""
    if len(trace.columns("streams")) == 0:
        return None
    marked: NDArray[np.bool_] = trace.column("spans", "stream") >= 0
    return marked if marked.any() else None


def elsewhere(trace: TraceData) -> NDArray[np.bool_] | None:
    """Which spans are not the host's work: those of devices, and calls, which only enclose work; None without any."""
    on_device, calls = on_device_mask(trace), calls_of(trace)
    if on_device is None or calls is None:
        return on_device if calls is None else calls
    return on_device | calls


def host_spans(trace: TraceData) -> NDArray[np.bool_]:
    """Which spans are the host's work; calls are none, but what runs in them is."""
    others = elsewhere(trace)
    return np.ones(len(trace.columns("spans")), dtype=bool) if others is None else ~others


def host_total_ns(trace: TraceData) -> int:
    """All self time on the host: what shares in percent are shares of."""
    own = trace.column("spans", "self_ns")
    others = elsewhere(trace)
    return int(own.sum() if others is None else own[~others].sum())


def _find_tree(trace: TraceData) -> EventTree | None:
    """Nest again what is in the tree, if anything is not."""
    masks = (_absorbed_calls(trace), asynchronous(trace), on_device_mask(trace))
    outside = [mask for mask in masks if mask is not None]
    with_calls = isinstance(trace, EventTrace)
    if not outside and not with_calls:
        return None
    spans = trace.columns("spans")
    rows = np.flatnonzero(~np.logical_or.reduce(outside)) if outside else np.arange(len(spans))
    times = (spans["thread"][rows], spans["start_ns"][rows], spans["duration_ns"][rows])
    made: Any = nest_as_torch(*times) if with_calls else _core.nest(*times)
    # One entry more than rows, so that "no parent" stays -1.
    numbers = np.append(rows, -1).astype(np.int32)
    parent = np.full(len(spans), -1, dtype=np.int32)
    parent[rows] = numbers[made["parent"]]
    depth = np.zeros(len(spans), dtype=np.int32)
    depth[rows] = made["depth"]
    self_ns = np.zeros(len(spans), dtype=np.int64)
    self_ns[rows] = made["self_ns"]
    return EventTree(rows, parent, depth, self_ns, {"parent": made["parent"], "lane": made["lane"]})


def _find(trace: TraceData) -> VisibleSpans:
    """Mark calls and hidden names first, then only children of the same name, as torch does."""
    spans = trace.columns("spans")
    tree = event_tree(trace)
    parent: NDArray[np.int32] = spans["parent"] if tree is None else tree.parent
    if len(parent) == 0:
        return VisibleSpans(None, parent, parent)
    name = event_names(trace)
    calls = _absorbed_calls(trace)
    absorbed = None if calls is None else calls.copy()
    if calls is not None:
        # What a call launched itself belongs to the event around the call.
        parent = np.where(calls, spans["parent"], parent)
    hidden_names = [row for row, text in enumerate(trace.strings) if text in HIDDEN_NAMES]
    if hidden_names:
        is_hidden = np.zeros(len(trace.strings), dtype=bool)
        is_hidden[hidden_names] = True
        hidden = is_hidden[spans["name"]]
        absorbed = hidden if absorbed is None else absorbed | hidden
    if absorbed is not None:
        parent = _shown_parents(parent, absorbed)
    # Roots look up the last row here, which costs less than keeping them out first.
    same = name == name.take(parent, mode="wrap")
    same &= parent >= 0
    if same.any():
        inside = parent >= 0 if absorbed is None else (parent >= 0) & ~absorbed
        children = np.bincount(parent[inside], minlength=len(name))
        alone = same & (children[parent] == 1)
        if absorbed is not None:
            alone &= ~absorbed
        absorbed = alone if absorbed is None else absorbed | alone
        parent = _shown_parents(parent, absorbed)
    if absorbed is None or not absorbed.any():
        return VisibleSpans(None, parent[:0], parent)
    return VisibleSpans(absorbed, parent[absorbed], parent)


def _shown_parents(parent: NDArray[np.int32], absorbed: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Climb from each row until the parent is shown, as far again in each round, so that deep nests take few rounds."""
    shown = parent.copy()
    waiting = np.flatnonzero((parent >= 0) & absorbed[parent])
    while len(waiting):
        shown[waiting] = shown[shown[waiting]]
        still = shown[waiting]
        waiting = waiting[(still >= 0) & absorbed[still]]
    return shown
