"""Events added up by name: the columns behind `key_averages()`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import device_spans
from kinetoscope.model.kinds import is_range
from kinetoscope.model.names import event_names
from kinetoscope.model.schema import SpanKind
from kinetoscope.torch_events.event_numbers import SIZES, SUMS, all_zero, numbers
from kinetoscope.torch_events.event_tree import (
    EventStacks,
    EventTrace,
    event_stacks,
    visible_spans,
)
from kinetoscope.torch_events.function_event import (
    FunctionEvent,
    FunctionEventAvg,
    flat_shapes,
    used_device,
)
from kinetoscope.torch_events.memory_events import MEMORY_KEY, change_on, event_at, loose_allocations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData
    from kinetoscope.torch_events.function_event import Event


@dataclass(frozen=True)
class Grouping:
    """What events are grouped by besides their name.

    Attributes:
        by_shape: Whether input shapes do.
        stack_frames: How many innermost frames do.
        by_overload: Whether overloads do.
        with_calls: Whether calls of Python functions and modules that are events are among the sums.
    """

    by_shape: bool = False
    stack_frames: int = 0
    by_overload: bool = False
    with_calls: bool = True


def averages(
    trace: TraceData, grouping: Grouping, positions: NDArray[np.int64] | None = None
) -> list[FunctionEventAvg]:
    """Add up events of a trace by name, and by what else keeps them apart.

    Args:
        trace: The trace.
        grouping: What keeps events apart.
        positions: Only these events, in this order, each once, as `event_at` takes them. None: all, in order of time.

    Returns:
        The sums, in the order in which each group first occurs.
    """
    if isinstance(trace, EventTrace) and positions is not None:
        positions = positions[(positions < 0) | ~_left_out(trace, grouping)[positions]]
    rows = None if positions is None else positions[positions >= 0]
    loose = loose_allocations(trace) if positions is None else -1 - positions[positions < 0]
    where = _chosen(trace, rows, grouping)
    groups = Groups.by(_keys(trace, grouping), where)
    earliest, order = groups.first.astype(np.int64), np.arange(len(groups))
    if rows is not None:
        _, first_places = np.unique(groups.of_row[rows], return_index=True)
        earliest, order = rows[first_places], np.argsort(first_places, kind="stable")
    elif len(groups) and len(trace.columns("threads")) > 1:
        earliest, order = _in_order_of_time(trace, groups.of_row, earliest)
    # Most recordings have no device and many no memory; adding up zeros would double the cost of the table.
    sums = {
        attribute: groups.sums(numbers(trace, name)).tolist()
        for attribute, name in SUMS.items()
        if not all_zero(trace, name)
    }
    sums["count"] = groups.sizes().tolist()
    events = [
        _sum_of_spans(
            event_at(trace, int(earliest[group])),
            {attribute: values[group] for attribute, values in sums.items()},
            grouping,
        )
        for group in order.tolist()
    ]
    if len(loose):
        # Groups that first occur before memory outside all events does come before it.
        if positions is None:
            starts_ns, moments_ns = trace.column("spans", "start_ns"), trace.column("allocations", "time_ns")
            is_earlier = starts_ns[earliest] <= moments_ns[loose[0]]
        else:
            is_earlier = np.isin(earliest, positions[: int(np.flatnonzero(positions < 0)[0])])
        events.insert(int(is_earlier[order].sum()), _sum_of_loose(trace, loose, grouping))
    return events


def _sum_of_spans(first: FunctionEvent, sums: Mapping[str, int], grouping: Grouping) -> FunctionEventAvg:
    event = FunctionEventAvg.of(first.name, sums, first.use_device)
    event.first = first
    if grouping.by_shape:
        event.input_shapes = flat_shapes(first.structured_input_shapes)
    if grouping.stack_frames:
        event.stack = first.innermost(grouping.stack_frames)
    if grouping.by_overload:
        event.overload_name = first.overload_name
    return event


def _sum_of_loose(trace: TraceData, loose: NDArray[np.int64], grouping: Grouping) -> FunctionEventAvg:
    sums = {"count": len(loose)}
    for name in SIZES:
        sums[name] = int(change_on(trace, loose, device="device" in name).sum())
    event = FunctionEventAvg.of(MEMORY_KEY, sums, used_device(trace))
    event.first = event_at(trace, -1 - int(loose[0]))
    event.input_shapes = [] if grouping.by_shape else ""
    return event


def added_up(events: Iterable[Event], grouping: Grouping) -> list[Event]:
    """Add up events one by one, which is right for any list."""
    sums: dict[Any, FunctionEventAvg] = {}
    for event in events:
        if isinstance(event, FunctionEvent) and isinstance(trace := event.trace, EventTrace):
            if _left_out(trace, grouping)[event.row]:
                continue
        elif isinstance(event, FunctionEvent) and event.is_python_function and not grouping.with_calls:
            continue
        stack = (event.stack or [])[: grouping.stack_frames]
        shapes = event.input_shapes if grouping.by_shape else ""
        overload_name = event.overload_name if grouping.by_overload else ""
        key = (
            event.key,
            event.device_type,
            event.is_user_annotation,
            str(shapes),
            tuple(stack),
            overload_name,
        )
        sums_of_key = sums.setdefault(key, FunctionEventAvg()).add(event)
        sums_of_key.stack, sums_of_key.input_shapes, sums_of_key.overload_name = stack, shapes, overload_name
    return list(sums.values())


def _left_out(trace: EventTrace, grouping: Grouping) -> NDArray[np.bool_]:
    """The calls that are not added up: rebuilt ones never, as how many there were is not known."""
    return trace.is_rebuilt if grouping.with_calls else trace.is_call


def _chosen(trace: TraceData, rows: NDArray[np.int64] | None, grouping: Grouping) -> NDArray[np.bool_] | None:
    """Which spans are added up, or None for all."""
    absorbed = visible_spans(trace).absorbed
    if isinstance(trace, EventTrace):
        left_out = _left_out(trace, grouping)
        absorbed = absorbed | left_out
    if rows is None:
        return ~absorbed if absorbed.any() else None
    where = np.zeros(len(trace.columns("spans")), dtype=bool)
    where[rows] = True
    return where


def _in_order_of_time(
    trace: TraceData, group_of: NDArray[np.int32], first: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The earliest row of each group, whatever its thread, and the order of the groups by it; longer ones first."""
    start, duration = trace.column("spans", "start_ns"), trace.column("spans", "duration_ns")
    least = _core.group_min(group_of, len(first), start)
    rows = np.flatnonzero((group_of >= 0) & (start == least[group_of]))
    # The last write wins: of equal starts the longest stays, of equal lengths the first row.
    rows = rows[np.lexsort((-rows, duration[rows]))]
    first[group_of[rows]] = rows
    return first, np.lexsort((first, -duration[first], least))


def _keys(trace: TraceData, grouping: Grouping) -> list[NDArray[np.int32]]:
    """For each span numbers that are equal where events belong in one group."""
    spans = trace.columns("spans")
    keys = [_name_keys(trace)]
    if grouping.by_overload:
        keys.append(spans["overload"])
    if grouping.by_shape:
        keys.append(_shape_keys(trace)[spans["shapes"]])
    if grouping.stack_frames > 0:
        keys.append(_stack_keys(event_stacks(trace), grouping.stack_frames))
    return keys


def _name_keys(trace: TraceData) -> NDArray[np.int32]:
    """A number for each span that is equal where name and sort of event are equal."""
    kind = trace.column("spans", "kind")
    keys: NDArray[np.int32] = event_names(trace) * np.int32(4)
    ranges = is_range(kind) | (kind == SpanKind.COLLECTIVE)
    keys[np.flatnonzero(ranges)] += 1
    on_device = device_spans(trace)
    if len(on_device):
        keys += on_device.mask * np.int32(2)
    return keys


def _shape_keys(trace: TraceData) -> NDArray[np.int32]:
    """For each row of `shapes` (and -1) a number that is equal where torch's `input_shapes` are."""
    row_of_shapes: dict[str, int] = {"[]": -1}
    keys = [
        row_of_shapes.setdefault(str(flat_shapes(json.loads(text)) if text else []), len(row_of_shapes))
        for text in trace.columns("shapes")["dims"]
    ]
    return np.array([*keys, -1], dtype=np.int32)


def _stack_keys(stacks: EventStacks, count: int) -> NDArray[np.int32]:
    """For each span a number that is equal where the innermost `count` entries of the stack are."""
    row_of_stack: dict[tuple[str, ...], int] = {}
    keys = [
        row_of_stack.setdefault(tuple(stacks.entries(row, count)), len(row_of_stack))
        for row in (*range(len(stacks.texts)), -1)
    ]
    keys_of_spans: NDArray[np.int32] = np.array(keys, dtype=np.int32)[stacks.of_span]
    return keys_of_spans
