"""Which spans torch's event lists show, and what becomes of the time of those they leave out.

`torch.profiler` hides a few bookkeeping operators, and shows a span that is the only child of a span of the same name
as one event. Here both are *absorbed*: their self time and memory go to the nearest ancestor that is shown, and their
children become its children, so totals are the same as torch's and nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.trace._schema import DEVICE_KINDS, FLAG_ASYNC

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

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


def visible_spans(trace: Trace) -> VisibleSpans:
    """Find out, once for a trace, which spans are events."""
    return trace.cached("visible_spans", lambda: _find(trace))


def _find(trace: Trace) -> VisibleSpans:
    """Mark hidden names first, then only children of the same name, as torch does."""
    spans = trace.columns("spans")
    name, parent = spans["name"], spans["parent"]
    hidden_names = [row for row, text in enumerate(trace.strings) if text in HIDDEN_NAMES]
    absorbed = np.zeros(len(name), dtype=bool)
    if hidden_names:
        is_hidden = np.zeros(len(trace.strings), dtype=bool)
        is_hidden[hidden_names] = True
        absorbed = is_hidden[name]
        parent = _shown_parents(parent, absorbed)
    same = (parent >= 0) & (name == name[parent])
    if same.any():
        children = np.bincount(parent[(parent >= 0) & ~absorbed], minlength=len(name))
        absorbed = absorbed | (same & (children[parent] == 1))
        parent = _shown_parents(parent, absorbed)
    rows = np.flatnonzero(absorbed)
    return VisibleSpans(absorbed if len(rows) else None, parent[rows], parent)


def _shown_parents(parent: NDArray[np.int32], absorbed: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Climb from each row until the parent is shown."""
    shown = parent.copy()
    waiting = np.flatnonzero((parent >= 0) & absorbed[parent])
    while len(waiting):
        shown[waiting] = parent[shown[waiting]]
        still = shown[waiting]
        waiting = waiting[(still >= 0) & absorbed[still]]
    return shown


@dataclass(frozen=True)
class Times:
    """The numbers that event lists show, one value a span, in nanoseconds and bytes; absorbed rows hold 0 self."""

    total_ns: NDArray[np.int64]
    self_ns: NDArray[np.int64]
    bytes: NDArray[np.int64]
    self_bytes: NDArray[np.int64]
    device_ns: NDArray[np.int64]
    device_self_ns: NDArray[np.int64]
    device_bytes: NDArray[np.int64]
    device_self_bytes: NDArray[np.int64]


def times(trace: Trace) -> Times:
    """Make the numbers of every span, once for a trace, as torch's events define them."""
    return trace.cached("event_times", lambda: _times(trace))


def _times(trace: Trace) -> Times:
    """Host time of device spans is 0 and the other way round; asynchronous spans have no self time."""
    spans, visible = trace.columns("spans"), visible_spans(trace)
    total, own = spans["duration_ns"], visible.self_values(spans["self_ns"])
    apart = (spans["flags"] & FLAG_ASYNC) != 0
    if apart.any():
        own = np.where(apart, 0, own)
    device, device_self = spans["device_ns"], visible.self_values(spans["device_self_ns"])
    on_device = on_device_mask(trace)
    if on_device is not None:
        device = np.where(on_device, total, device)
        device_self = np.where(on_device, total, device_self)
        total, own = np.where(on_device, 0, total), np.where(on_device, 0, own)
    return Times(
        total, own,
        spans["bytes"], visible.self_values(spans["self_bytes"]),
        device, device_self,
        spans["device_bytes"], visible.self_values(spans["device_self_bytes"]),
    )  # fmt: skip


def on_device_mask(trace: Trace) -> NDArray[np.bool_] | None:
    """Which spans ran on a device, or None when none did."""
    spans: Any = trace.columns("spans")
    if "kind" not in spans.given and len(trace.columns("streams")) == 0:
        return None
    marked: NDArray[np.bool_] = np.isin(spans["kind"], [int(kind) for kind in DEVICE_KINDS])
    return marked if marked.any() else None
