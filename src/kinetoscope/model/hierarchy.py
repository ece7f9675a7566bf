"""The populations of spans that tables are made of: host work, calls, device work, asynchronous spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.model.nesting import call_mask
from kinetoscope.model.schema import FLAG_ASYNC

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData


def calls_of(trace: TraceData) -> NDArray[np.bool_] | None:
    """Which spans of a trace are calls; None when none is."""

    def find() -> NDArray[np.bool_] | None:
        marked = call_mask(trace.column("spans", "kind"))
        return marked if marked.any() else None

    return trace.cached("calls", find)


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
