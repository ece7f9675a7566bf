"""The numbers of events: columns of spans, changed to what torch's event lists show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.assemble import sums_below
from kinetoscope.model.device_time import counted_launches, operators_around
from kinetoscope.model.schema import STORED
from kinetoscope.tables.host.event_calls import EventTrace
from kinetoscope.tables.host.visible import EventTree, asynchronous, event_tree, on_device_mask, visible_spans

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData

# Attribute of an event -> its number here; times are shown in microseconds.
TIMES = {
    "cpu_time_total": "duration_ns",
    "self_cpu_time_total": "self_ns",
    "device_time_total": "device_ns",
    "self_device_time_total": "device_self_ns",
}
SIZES = {
    "cpu_memory_usage": "bytes",
    "self_cpu_memory_usage": "self_bytes",
    "device_memory_usage": "device_bytes",
    "self_device_memory_usage": "device_self_bytes",
}
FLOPS = "flops"
SUMS = TIMES | SIZES | {"flops": FLOPS}


def numbers(trace: TraceData, name: str) -> NDArray[np.int64]:
    """One number of every span as torch's events define it: nanoseconds, bytes or operations.

    Args:
        trace: The trace.
        name: One of the values of `SUMS`.

    Returns:
        One value a span. Rows that are not events hold no self time, self memory or FLOPs: those around them do. Host
        time of device spans is 0, and asynchronous spans have no self time and no self memory.
    """
    return trace.cached(f"event_{name}", lambda: _MAKERS[name](trace))


def all_zero(trace: TraceData, name: str) -> bool:
    """Whether a number is 0 for all spans, as far as that can be known without computing it."""
    if name in ("duration_ns", "self_ns"):
        return False
    if name in ("device_ns", "device_self_ns"):
        return len(trace.columns("launches")) == 0 and on_device_mask(trace) is None
    if name == FLOPS:
        return not flops_counted(trace)
    return len(trace.columns("allocations")) == 0


def flops_counted(trace: TraceData) -> bool:
    """Whether the recording was asked for FLOPs."""
    return trace.info.get("with_flops") in (1, True) and "flops" in STORED["spans"].column_names


def _duration(trace: TraceData) -> NDArray[np.int64]:
    """Host time: the duration of what ran on the host."""
    duration: NDArray[np.int64] = trace.column("spans", "duration_ns")
    on_device = on_device_mask(trace)
    return duration if on_device is None else np.where(on_device, 0, duration)


def _self(trace: TraceData) -> NDArray[np.int64]:
    """Time without that of the events inside."""
    tree = event_tree(trace)
    own: NDArray[np.int64] = trace.column("spans", "self_ns") if tree is None else tree.self_ns
    return visible_spans(trace).self_values(own)


def _flops(trace: TraceData) -> NDArray[np.int64]:
    """Operations that the span counts itself; unknown ones are none."""
    if not flops_counted(trace):
        return np.zeros(len(trace.columns("spans")), dtype=np.int64)
    counted: NDArray[np.int64] = np.maximum(trace.column("spans", "flops"), 0)
    return visible_spans(trace).self_values(counted)


def _size(column: str) -> Callable[[TraceData], NDArray[np.int64]]:
    """Bytes allocated minus freed, on the host or on devices, with or without the events inside."""
    on_device, own = column.startswith("device"), "self" in column

    def make(trace: TraceData) -> NDArray[np.int64]:
        values: NDArray[np.int64] = trace.column("spans", column)
        tree = event_tree(trace)
        if tree is not None:
            attributed = attribute_again(trace, tree, on_device=on_device)
            values = np.zeros(len(values), dtype=np.int64)
            values[tree.rows] = attributed["span_self_bytes" if own else "span_bytes"]
            beside = None if own else asynchronous(trace)
            if beside is not None:
                rows = np.flatnonzero(beside)
                values[rows] = _changed_during(trace, rows, on_device=on_device)
        return visible_spans(trace).self_values(values) if own else values

    return make


def attribute_again(trace: TraceData, tree: EventTree, *, on_device: bool) -> dict[str, Any]:
    """Attribute the allocations of the host, or of all devices, to the spans in the tree."""

    def make() -> dict[str, Any]:
        spans, allocations = trace.columns("spans"), trace.columns("allocations")
        rows = np.flatnonzero((allocations["device_type"] != 0) == on_device)
        of_spans = (spans[name][tree.rows] for name in ("thread", "start_ns", "duration_ns"))
        of_blocks = (
            allocations[name][rows] for name in ("time_ns", "thread", "address", "bytes", "freed_bytes")
        )
        made: dict[str, Any] = dict(
            _core.attribute_allocations(  # type: ignore[call-arg]
                *of_spans, tree.nesting["parent"], tree.nesting["lane"], *of_blocks
            )
        )
        made["rows"] = rows
        return made

    return trace.cached(f"event_allocations_{on_device}", make)


def changes(trace: TraceData, rows: NDArray[Any]) -> NDArray[np.int64]:
    """By how many bytes some allocations change what is live; 0 for a free of a block of unknown size."""
    allocations = trace.columns("allocations")
    sizes, match = allocations["bytes"], allocations["match"][rows]
    own = sizes[rows]
    freed = np.where(match >= 0, sizes[match], allocations["freed_bytes"][rows])
    found: NDArray[np.int64] = np.where(own == 0, -freed, own)
    return found


def _changed_during(trace: TraceData, rows: NDArray[np.int64], *, on_device: bool) -> NDArray[np.int64]:
    """By how many bytes the threads of some spans changed what is live while these ran."""
    spans, allocations = trace.columns("spans"), trace.columns("allocations")
    found = np.zeros(len(rows), dtype=np.int64)
    threads, starts = spans["thread"][rows], spans["start_ns"][rows]
    ends = starts + spans["duration_ns"][rows]
    for thread in np.unique(threads).tolist():
        mine = threads == thread
        of_thread = np.flatnonzero(
            (allocations["thread"] == thread) & ((allocations["device_type"] != 0) == on_device)
        )
        times = allocations["time_ns"][of_thread]
        sums = np.append(0, np.cumsum(changes(trace, of_thread)))
        last, first = (
            np.searchsorted(times, ends[mine], "right"),
            np.searchsorted(times, starts[mine], "left"),
        )
        found[mine] = sums[last] - sums[first]
    return found


def event_of_launch(trace: TraceData) -> NDArray[np.int32]:
    """For each launch the event that started it: the operator around a runtime call; -1 where none is."""

    def make() -> NDArray[np.int32]:
        if isinstance(trace, EventTrace):
            # A call starts nothing: the operator around it does.
            return visible_spans(trace).shown(trace.moved[event_of_launch(trace.source)])
        spans, tree = trace.columns("spans"), event_tree(trace)
        if tree is None:
            nests = spans["lane"] == 0
        else:
            nests = np.zeros(len(spans), dtype=bool)
            nests[tree.rows[tree.nesting["lane"] == 0]] = True
        host = operators_around(spans, trace.column("launches", "host"), _parents(trace), nests)
        return visible_spans(trace).shown(host)

    return trace.cached("event_of_launch", make)


def _parents(trace: TraceData) -> NDArray[np.int32]:
    """The span around each span, as events nest."""
    tree = event_tree(trace)
    found: NDArray[np.int32] = trace.column("spans", "parent") if tree is None else tree.parent
    return found


def _device_self(trace: TraceData) -> NDArray[np.int64]:
    """Time on the device of what an event launched; device events have their own."""
    duration = trace.column("spans", "duration_ns")
    launches, host = trace.columns("launches"), event_of_launch(trace)
    counted = counted_launches(trace.columns("spans"), launches)
    own = _core.group_sums(host[counted], len(duration), duration[launches["device"][counted]])
    return _with_device_events(trace, own)


def _device(trace: TraceData) -> NDArray[np.int64]:
    """The same with that of the events inside."""
    tree = event_tree(trace)
    depth = trace.column("spans", "depth") if tree is None else tree.depth
    below = sums_below(visible_spans(trace).parent, depth, numbers(trace, "device_self_ns"))
    return _with_device_events(trace, below)


def _with_device_events(trace: TraceData, of_host: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give device events their duration as device time, and asynchronous ones none."""
    on_device, loose = on_device_mask(trace), asynchronous(trace)
    values = of_host if loose is None else np.where(loose, 0, of_host)
    if on_device is None:
        return values
    return np.where(on_device, trace.column("spans", "duration_ns"), values)


_MAKERS: dict[str, Callable[[TraceData], NDArray[np.int64]]] = {
    "duration_ns": _duration,
    "self_ns": _self,
    "device_ns": _device,
    "device_self_ns": _device_self,
    FLOPS: _flops,
    **{column: _size(column) for column in SIZES.values()},
}
