"""Which spans torch's event lists show, and what becomes of the time of those they leave out.

`torch.profiler` hides a few bookkeeping operators, and shows a span that is the only child of a span of the same name
as one event. Here both are *absorbed*: their self time and memory go to the nearest ancestor that is shown, and their
children become its children, so totals are the same as torch's and nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.trace._schema import FLAG_ASYNC

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
    if len(name) == 0:
        return VisibleSpans(None, parent, parent)
    hidden_names = [row for row, text in enumerate(trace.strings) if text in HIDDEN_NAMES]
    absorbed = None
    if hidden_names:
        is_hidden = np.zeros(len(trace.strings), dtype=bool)
        is_hidden[hidden_names] = True
        absorbed = is_hidden[name]
        parent = _shown_parents(parent, absorbed)
    # Roots look up the last row here, which costs less than keeping them out first.
    same = name == name.take(parent, mode="wrap")
    same &= parent >= 0
    if same.any():
        inside = parent >= 0 if absorbed is None else (parent >= 0) & ~absorbed
        children = np.bincount(parent[inside], minlength=len(name))
        alone = same & (children[parent] == 1)
        absorbed = alone if absorbed is None else absorbed | alone
        parent = _shown_parents(parent, absorbed)
    if absorbed is None or not absorbed.any():
        return VisibleSpans(None, parent[:0], parent)
    return VisibleSpans(absorbed, parent[absorbed], parent)


def _shown_parents(parent: NDArray[np.int32], absorbed: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Climb from each row until the parent is shown."""
    shown = parent.copy()
    waiting = np.flatnonzero((parent >= 0) & absorbed[parent])
    while len(waiting):
        shown[waiting] = parent[shown[waiting]]
        still = shown[waiting]
        waiting = waiting[(still >= 0) & absorbed[still]]
    return shown


# What event lists show of a span, as columns of `spans`; the `self` ones also take what absorbed spans hold.
NUMBERS = (
    "duration_ns", "self_ns", "bytes", "self_bytes",
    "device_ns", "device_self_ns", "device_bytes", "device_self_bytes",
)  # fmt: skip
HOST_TIMES = ("duration_ns", "self_ns")


def numbers(trace: Trace, name: str) -> NDArray[np.int64]:
    """One number of every span as torch's events define it: nanoseconds or bytes; absorbed rows hold 0 self.

    Args:
        trace: The trace.
        name: One of `NUMBERS`.

    Returns:
        One value a span. Host time of device spans is 0, and asynchronous spans have no self time.
    """
    return trace.cached(f"event_{name}", lambda: _numbers(trace, name))


def all_zero(trace: Trace, name: str) -> bool:
    """Whether a number is 0 for all spans, as far as that can be known without computing it."""
    if name in HOST_TIMES:
        return False
    if name in ("device_ns", "device_self_ns"):
        return len(trace.columns("launches")) == 0 and on_device_mask(trace) is None
    return len(trace.columns("allocations")) == 0


def _numbers(trace: Trace, name: str) -> NDArray[np.int64]:
    """Start from the column and take away what events do not show."""
    spans = trace.columns("spans")
    values: NDArray[np.int64] = spans[name]
    if "self" in name:
        values = visible_spans(trace).self_values(values)
    if name == "self_ns" and spans["flags"].any():
        values = np.where((spans["flags"] & FLAG_ASYNC) != 0, 0, values)
    on_device = on_device_mask(trace)
    if on_device is not None and name in HOST_TIMES:
        values = np.where(on_device, 0, values)
    elif on_device is not None and name in ("device_ns", "device_self_ns"):
        values = np.where(on_device, spans["duration_ns"], values)
    return values


def on_device_mask(trace: Trace) -> NDArray[np.bool_] | None:
    """Which spans ran on a device, or None when none did."""
    if len(trace.columns("streams")) == 0:
        return None
    marked: NDArray[np.bool_] = trace.column("spans", "stream") >= 0
    return marked if marked.any() else None


def host_spans(trace: Trace) -> NDArray[np.bool_]:
    """Which spans ran on the host."""
    on_device = on_device_mask(trace)
    return np.ones(len(trace.columns("spans")), dtype=bool) if on_device is None else ~on_device


def host_total_ns(trace: Trace) -> int:
    """All self time on the host: what shares in percent are shares of."""
    own = trace.column("spans", "self_ns")
    on_device = on_device_mask(trace)
    return int(own.sum() if on_device is None else own[~on_device].sum())
