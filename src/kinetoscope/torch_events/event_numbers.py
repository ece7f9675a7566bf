"""The numbers of events: columns of spans, changed to what torch's event lists show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.device_time import counted_launches, operators_around
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import asynchronous_spans, device_spans, spans_named
from kinetoscope.model.rows import Rows, places_of
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.torch_events.event_tree import EventTrace, event_tree, outlasted_spans, visible_spans

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


@derived
def numbers(trace: TraceData, name: str) -> Rows:
    """One number of every span as torch's events define it: nanoseconds, bytes or operations.

    Args:
        trace: The trace.
        name: One of the values of `SUMS`.

    Returns:
        One value a span. Rows that are not events hold no self time, self memory or FLOPs: those around them do. Host
        time of device spans is 0, and asynchronous spans have no self time and no self memory.
    """
    return _MAKERS[name](trace)


def all_zero(trace: TraceData, name: str) -> bool:
    """Whether a number is 0 for all spans, as far as that can be known without computing it."""
    if name in ("duration_ns", "self_ns"):
        return False
    if name in ("device_ns", "device_self_ns"):
        return len(trace.columns("launches")) == 0 and len(device_spans(trace)) == 0
    if name == FLOPS:
        return not flops_counted(trace)
    return len(trace.columns("allocations")) == 0


def flops_counted(trace: TraceData) -> bool:
    """Whether the recording had `with_flops=True`."""
    return bool(trace.run_info.with_flops)


def _duration(trace: TraceData) -> Rows:
    """Host time: the duration of what ran on the host. Of calls that were rebuilt from stacks none was measured."""
    duration: Rows = trace.column("spans", "duration_ns")
    on_device = device_spans(trace)
    duration = np.where(on_device.mask, 0, duration) if len(on_device) else duration
    return np.where(trace.is_rebuilt, 0, duration) if isinstance(trace, EventTrace) else duration


def _self(trace: TraceData) -> Rows:
    """Time without that of the events inside."""
    own = visible_spans(trace).self_values(event_tree(trace).self_ns)
    return np.where(trace.is_rebuilt, 0, own) if isinstance(trace, EventTrace) else own


def _flops(trace: TraceData) -> Rows:
    """Operations that the span counts itself; unknown ones are none."""
    if not flops_counted(trace):
        return np.zeros(len(trace.columns("spans")), dtype=np.int64)
    if trace.run_info.flops_of_events == "torch":
        return _flops_of_torch(trace)
    counted: Rows = np.maximum(trace.column("spans", "flops"), 0)
    return visible_spans(trace).self_values(counted)


# Metadata of recordings by programs that were written for torch.profiler.
FLOPS_OF_EVENTS = "flops_of_events"


def _flops_of_torch(trace: TraceData) -> Rows:
    """The operations of each event by torch's formulas; what an absorbed span computes is not counted again."""
    spans, shapes = trace.columns("spans"), trace.columns("shapes")
    flops = np.zeros(len(spans), dtype=np.int64)
    absorbed = visible_spans(trace).absorbed
    for name in _COUNTED:
        rows = np.flatnonzero(spans_named(trace, name.__eq__) & (spans["shapes"] >= 0) & ~absorbed)
        shape_rows, shape_of_row = np.unique(spans["shapes"][rows], return_inverse=True)
        counts = [
            _flops_of_call(name, shapes["dims"][row], shapes["concrete"][row]) for row in shape_rows.tolist()
        ]
        flops[rows] = np.array([min(count, _MOST_FLOPS) for count in counts], np.int64)[shape_of_row]
    return flops


# Of these torch counts one operation for each element of the first input, of the others what our formulas give for real numbers.
_POINTWISE = ("aten::mul", "aten::add")
_COUNTED = ("aten::conv2d", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", *_POINTWISE)
# Stride, padding and dilation, which torch expects as two numbers each, of images.
_CONVOLUTION_SETTINGS = (3, 4, 5)
_MOST_FLOPS = (1 << 62) - 1


def _flops_of_call(name: str, dims: str, concrete: str) -> int:
    """The operations of a call by torch's formula; 0 where its inputs are not as torch expects them."""
    from kinetoscope.tables.costs.call import OperatorCall, parse_inputs
    from kinetoscope.tables.costs.evaluate import built_in

    inputs = parse_inputs(dims, "", concrete)
    if inputs is None:
        return 0
    call = OperatorCall(name, *inputs)
    if name in _POINTWISE:
        return call.numel(0) if call.has_tensor(0) else 1
    try:
        if name == "aten::conv2d":
            settings = [len(call.whole_list(position)) for position in _CONVOLUTION_SETTINGS]
            if len(call.shape(0)) != 4 or settings != [2, 2, 2]:
                return 0
        return built_in()[name].formula(call).flops or 0
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return 0


def _size(column: str) -> Callable[[TraceData], Rows]:
    """Bytes allocated minus freed, on the host or on devices, with or without the events inside."""
    on_device, is_self = column.startswith("device"), "self" in column

    def make(trace: TraceData) -> Rows:
        values: Rows = trace.column("spans", column)
        tree = event_tree(trace)
        if not tree.is_everything:
            attributed = attribute_again(trace, on_device)
            values = np.zeros(len(values), dtype=np.int64)
            values[tree.rows] = attributed["span_self_bytes" if is_self else "span_bytes"]
            if not is_self:
                rows = np.append(asynchronous_spans(trace).rows, outlasted_spans(trace))
                values[rows] = _changed_during(trace, rows, on_device=on_device)
        if not is_self:
            return values
        values = visible_spans(trace).self_values(values)
        if not tree.is_everything and len(outlasted := outlasted_spans(trace)):
            # As in torch: what changed in their time, without what changed in the time of the events inside.
            visible, with_inside = visible_spans(trace), numbers(trace, column.replace("self_", ""))
            of_children = Groups(visible.shown_in, len(values)).sums(with_inside)
            around = visible.parent[outlasted]
            rows = np.append(outlasted, around[around >= 0])
            values[rows] = with_inside[rows] - of_children[rows]
        return values

    return make


@derived
def attribute_again(trace: TraceData, on_device: bool) -> dict[str, Any]:
    """Attribute the allocations of the host, or of all devices, to the spans in the tree of events."""
    spans, allocations, tree = trace.columns("spans"), trace.columns("allocations"), event_tree(trace)
    rows = np.flatnonzero((allocations["device_type"] != 0) == on_device)
    of_spans = (spans[name][tree.rows] for name in ("thread", "start_ns", "duration_ns"))
    tree_row = places_of(tree.rows, len(spans))
    of_blocks = (allocations[name][rows] for name in ("time_ns", "thread", "address", "bytes", "freed_bytes"))
    parent, lane = tree_row[tree.parent[tree.rows]], tree.lane[tree.rows]
    attributed = _core.attribute_allocations(*of_spans, parent, lane, *of_blocks)  # type: ignore[call-arg]
    return {**attributed, "rows": rows}


def changes(trace: TraceData, rows: NDArray[Any]) -> Rows:
    """By how many bytes some allocations change what is live; 0 for a free of a block of unknown size."""
    allocations = trace.columns("allocations")
    sizes, match = allocations["bytes"], allocations["match"][rows]
    allocated = sizes[rows]
    freed = np.where(match >= 0, sizes[match], allocations["freed_bytes"][rows])
    changed: Rows = np.where(allocated == 0, -freed, allocated)
    return changed


def _changed_during(trace: TraceData, rows: Rows, *, on_device: bool) -> Rows:
    """By how many bytes the threads of some spans changed what is live while these ran."""
    spans, allocations = trace.columns("spans"), trace.columns("allocations")
    changed = np.zeros(len(rows), dtype=np.int64)
    threads, starts = spans["thread"][rows], spans["start_ns"][rows]
    ends = starts + spans["duration_ns"][rows]
    for thread in np.unique(threads).tolist():
        on_thread = threads == thread
        of_thread = np.flatnonzero(
            (allocations["thread"] == thread) & ((allocations["device_type"] != 0) == on_device)
        )
        times = allocations["time_ns"][of_thread]
        sums = np.append(0, np.cumsum(changes(trace, of_thread)))
        last = np.searchsorted(times, ends[on_thread], "right")
        first = np.searchsorted(times, starts[on_thread], "left")
        changed[on_thread] = sums[last] - sums[first]
    return changed


@derived
def event_of_launch(trace: TraceData) -> NDArray[np.int32]:
    """For each launch the event that started it: the operator around a runtime call; -1 where none is."""
    if isinstance(trace, EventTrace):
        # A call starts nothing: the operator around it does.
        return visible_spans(trace).shown(trace.moved[event_of_launch(trace.source)])
    spans, tree = trace.columns("spans"), event_tree(trace)
    nests = tree.mask & (tree.lane == 0)
    host = operators_around(spans, trace.column("launches", "host"), tree.parent, nests)
    return visible_spans(trace).shown(host)


def _device_self(trace: TraceData) -> Rows:
    """Time on the device of what an event launched; device events have their own."""
    duration = trace.column("spans", "duration_ns")
    launches, host = trace.columns("launches"), event_of_launch(trace)
    counted = counted_launches(trace.columns("spans"), launches)
    device_self = Groups(host[counted], len(duration)).sums(duration[launches["device"][counted]])
    return _with_device_events(trace, device_self)


def _device(trace: TraceData) -> Rows:
    """The same with that of the events inside."""
    depth = event_tree(trace).depth
    below = _core.sums_below(visible_spans(trace).parent, depth, numbers(trace, "device_self_ns"))
    return _with_device_events(trace, below)


def _with_device_events(trace: TraceData, of_host: Rows) -> Rows:
    """Give device events their duration as device time, and asynchronous ones none."""
    on_device, loose = device_spans(trace), asynchronous_spans(trace)
    values = np.where(loose.mask, 0, of_host) if len(loose) else of_host
    return (
        np.where(on_device.mask, trace.column("spans", "duration_ns"), values) if len(on_device) else values
    )


_MAKERS: dict[str, Callable[[TraceData], Rows]] = {
    "duration_ns": _duration,
    "self_ns": _self,
    "device_ns": _device,
    "device_self_ns": _device_self,
    FLOPS: _flops,
    **{column: _size(column) for column in SIZES.values()},
}
