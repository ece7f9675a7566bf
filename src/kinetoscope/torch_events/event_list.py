"""`EventList`: a list of events that are made on demand, what they add up to by name, and its table."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableSequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError, StateError, checked_switch, checked_whole
from kinetoscope._import_aside import import_aside
from kinetoscope.display.html import Cell, note, page, table
from kinetoscope.display.sentence import printable
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import device_spans, device_work_spans
from kinetoscope.model.kinds import is_call, is_range
from kinetoscope.model.names import event_names
from kinetoscope.model.rows import Mask, Rows, mask_of
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.atomic_write import file_path
from kinetoscope.tables.stored import memory_recorded
from kinetoscope.torch_events import arguments
from kinetoscope.torch_events.event_numbers import SIZES, SUMS, TIMES, all_zero, flops_counted, numbers
from kinetoscope.torch_events.event_tree import (
    EventTrace,
    event_stacks,
    lists_python_functions,
    trace_of_events,
)
from kinetoscope.torch_events.function_event import (
    Event,
    FunctionEvent,
    FunctionEventAvg,
    changed_events,
    event_at,
    event_rows,
    flat_shapes,
    flops_scale,
    numbers_at,
    passes_as,
    share_text,
    size_text,
    time_text,
    used_device,
)

NUMBER_WIDTH = 12
GAP = "  "
_ROWS_OF_A_PAGE = 50
SOURCE = "Source Location"

# Where the texts are that tables measure.
_TEXT_COLUMNS = {"key": "name", "overload_name": "overload", "input_shapes": "shapes"}

Weights = dict[tuple[str, ...], int]


def stack_weights(events: EventList, metric: str) -> Weights:
    """Add up a time of events by stack.

    Args:
        events: The events.
        metric: `self_cpu_time_total` or `self_device_time_total`.

    Returns:
        For each stack, as frames from the root, nanoseconds above 0; in the order in which the stacks were recorded.

    Raises:
        StateError: There are events, and none can have a stack.
    """
    weights = Weights()
    has_stacks = False
    for stack, nanoseconds in _times_of_stacks(events, metric):
        has_stacks = has_stacks or bool(stack)
        if stack and nanoseconds > 0:
            frames = tuple(reversed(stack))
            weights[frames] = weights.get(frames, 0) + nanoseconds
    if not has_stacks and len(events):
        trace = events.trace
        # A recording with `with_stack=True` may still have found none.
        if len(trace.columns("stacks")) == 0 and not trace.run_info.with_stack:
            raise StateError("no Python stacks were recorded: record with with_stack=True to export them")
        if events.span_rows() is None and any(isinstance(event, FunctionEventAvg) for event in events):
            raise StateError(
                "these sums are not grouped by stack: use key_averages(group_by_stack_n=...), or export the "
                "stacks of events()"
            )
    return weights


def _times_of_stacks(events: EventList, metric: str) -> Iterator[tuple[list[str], int]]:
    """Stacks with their nanoseconds: of each event, or added up by stack where the list shows a trace."""
    rows = events.span_rows()
    if rows is None:
        for event in events:
            yield event.stack or [], round(getattr(event, metric) * 1000)
        return
    trace, spans = events.trace, rows[rows >= 0]
    stacks = event_stacks(trace)
    # What a call does itself is in no operator.
    of_calls = is_call(trace.column("spans", "kind")[spans])
    by_stack = Groups(np.where(of_calls, -1, stacks.of_span[spans]), len(stacks.texts))
    sums = by_stack.sums(numbers(trace, TIMES[metric])[spans])
    for row in np.flatnonzero(sums > 0).tolist():
        yield stacks.entries(row), int(sums[row])


class EventList(MutableSequence[Event]):
    """A list of events, as `events()` and `key_averages()` return it.

    Making the list costs nothing for each event: an event is made when it is indexed, and tables and sums read columns.
    It can be used like a Python list. A slice, or a list made of chosen events, is an `EventList` too:
    `EventList(event for event in prof.events() if event.count > 1).table()`. Changing the list (`sort`, `append`,
    `events[0] = ...`) changes this list only, never the trace. Pickling a list takes its trace along, once.
    `print(events)` prints `events.table()`.
    """

    def __init__(
        self,
        events: Iterable[Event] = (),
        *,
        use_device: str | None = None,
        profile_memory: bool | None = None,
        with_flops: bool | None = None,
    ) -> None:
        """Make a list of events.

        Args:
            events: Events of Kinetoscope, single or averaged.
            use_device: The device that the table names; None takes that of the events' trace, as below.
            profile_memory: Whether the table shows memory.
            with_flops: Whether the table shows FLOPs.

        Raises:
            ArgumentError: Something in it is no event.
        """
        self._events = checked_events(events)
        # While this is not None, the list shows the events at these positions of a trace, and `_events` is empty.
        self._in_trace: tuple[TraceData, Rows] | None = None
        self._settings = (use_device, profile_memory, with_flops)

    def like(self, events: list[Event], in_trace: tuple[TraceData, Rows] | None = None) -> EventList:
        """A list of other events with the settings of this one."""
        other = EventList()
        other._events, other._in_trace, other._settings = events, in_trace, self._settings
        return other

    def __len__(self) -> int:
        """The number of events."""
        return len(self._events) if self._in_trace is None else len(self._in_trace[1])

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> EventList: ...
    def __getitem__(self, index: int | slice) -> Event | EventList:
        """Return one event, or a list of some of them."""
        if isinstance(index, slice):
            return self._part(np.arange(len(self))[index])
        if self._in_trace is None:
            return self._events[index]
        trace, positions = self._in_trace
        return event_at(trace, int(positions[index]))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Replace one event, or several."""
        several = isinstance(index, slice)
        self._listed()[index] = checked_events(value) if several else checked_event(value)

    def __delitem__(self, index: int | slice) -> None:
        """Take one event, or several, out of the list."""
        del self._listed()[index]

    def insert(self, index: int, value: Event) -> None:
        """Put an event before the one at `index`."""
        self._listed().insert(index, checked_event(value))

    def sort(self, *, key: Callable[[Event], Any] | None = None, reverse: bool = False) -> None:
        """Sort in place by what `key` returns of each event; to sort by a number, see `sorted_by`.

        Raises:
            ArgumentError: No key: events have no order of their own.
        """
        if key is None:
            raise ArgumentError("key=None is not valid: events have no natural order, pass a key function")
        self._listed().sort(key=key, reverse=reverse)

    def copy(self) -> EventList:
        """Return a list of the same events that can be changed on its own."""
        return self[:]

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """`isinstance` finds torch's class as well, and with it `list`."""
        return passes_as(self, "EventList")

    def __add__(self, other: Iterable[Event]) -> EventList:
        """Return a list with the events of both."""
        return self.like(checked_events([*self, *other]))

    def __radd__(self, other: Iterable[Event]) -> EventList:
        """Return a list with the events of both."""
        return self.like(checked_events([*other, *self]))

    def __eq__(self, other: object) -> bool:
        """Lists are equal when they hold equal events in the same order."""
        return list(self) == list(other) if isinstance(other, EventList | list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]
    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as events, which share their trace."""
        return EventList, (list(self),), {"_settings": self._settings}

    def __repr__(self) -> str:
        """One line."""
        return f"<EventList of {units.count(len(self), 'event')}>"

    def _listed(self) -> list[Event]:
        if self._in_trace is not None:
            self._events, self._in_trace = list(self), None
        return self._events

    def _part(self, indexes: NDArray[Any]) -> EventList:
        if self._in_trace is None:
            return self.like([self._events[index] for index in indexes.tolist()])
        trace, positions = self._in_trace
        return self.like([], (trace, positions[indexes]))

    def _columns(self) -> tuple[TraceData, Rows] | None:
        """The trace and the positions of these events, if its columns have their values: not once a program has changed events."""
        return None if self._in_trace is None or changed_events(self._in_trace[0]) else self._in_trace

    def _trace(self) -> TraceData | None:
        if self._in_trace is not None:
            return self._in_trace[0]
        return next((event.trace for event in self._events if event.trace is not None), None)

    @property
    def trace(self) -> TraceData:
        """The trace the events come from.

        Raises:
            StateError: The list was put together from events of no trace, or of nothing.
        """
        trace = self._trace()
        if trace is None:
            raise StateError("these events do not belong to a trace: use events() or key_averages()")
        return trace

    @property
    def use_device(self) -> str | None:
        """The device that was profiled besides the host, such as `cuda`; None without."""
        device: str | None = self._setting(0, used_device)
        return device

    @property
    def profile_memory(self) -> bool:
        """Whether the events know about memory."""
        return bool(self._setting(1, memory_recorded))

    @property
    def with_flops(self) -> bool:
        """Whether the events know about FLOPs."""
        return bool(self._setting(2, flops_counted))

    def _setting(self, number: int, recorded: Callable[[TraceData], Any]) -> Any:
        """What the program set, or else what the trace says."""
        trace = self._trace() if self._settings[number] is None else None
        return self._settings[number] if trace is None else recorded(trace)

    def values(self, attribute: str) -> NDArray[Any]:
        """Return a number of every event as one array, without making the events.

        Args:
            attribute: Such as `self_cpu_time_total` (microseconds), `count`, `cpu_memory_usage` (bytes) or `flops`.

        Raises:
            ArgumentError: The attribute is not a number.
        """
        if attribute not in arguments.SORT_KEYS:
            names = ", ".join(arguments.SORT_KEYS)
            raise ArgumentError(
                f"attribute={attribute!r}: events have no numeric attribute {attribute!r}; use one of: {names}"
            )
        if (columns := self._columns()) is None:
            kind = np.int64 if attribute in (*SIZES, "count", "flops") else np.float64
            return np.array([getattr(event, attribute) for event in self], dtype=kind)
        if attribute == "count":
            return np.ones(len(self), dtype=np.int64)
        total = f"{attribute}_total" if attribute in ("cpu_time", "device_time") else attribute
        values = numbers_at(*columns, SUMS[total])
        return values / 1000 if total in TIMES else values

    @property
    def self_cpu_time_total(self) -> float:
        """The sum of all self times on the host, in microseconds."""
        return float(self.values("self_cpu_time_total").sum())

    def total_average(self) -> FunctionEventAvg:
        """Return one event, `Total`, with the sums of all of them; its averages are those of any call."""
        sums = {name: round(float(self.values(name).sum()) * 1000) for name in TIMES}
        sums |= {name: int(self.values(name).sum()) for name in (*SIZES, "count", "flops")}
        return FunctionEventAvg.of("Total", sums, self.use_device)

    def sorted_by(self, attribute: str) -> EventList:
        """Return the events with the largest value of an attribute first; equal ones keep their order.

        Args:
            attribute: One of torch's sort keys, as `table` takes them; `cuda_time`, `xpu_time` and the like mean the
                device that was profiled.

        Raises:
            ArgumentError: Not a sort key.
        """
        name = arguments.sort_key(attribute)
        if name in arguments.TEXT_KEYS:
            texts = [getattr(event, name) or "" for event in self]
            order = np.array(sorted(range(len(texts)), key=texts.__getitem__, reverse=True), dtype=np.int64)
        else:
            order = np.argsort(-self.values(name), kind="stable")
        return self._part(order)

    def key_averages(
        self,
        group_by_input_shapes: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
        include_python_functions: bool | None = None,
    ) -> EventList:
        """Add up the events of this list by name.

        Sums are added up, too.

        Args:
            group_by_input_shapes: Keep calls with different input shapes apart.
            group_by_stack_n: Group by this many innermost Python frames.
            group_by_overload_name: Keep overloads of an operator apart.
            include_python_functions: Whether calls of Python functions and modules are among the sums; None does as
                the release of torch that recorded them: up to 2.13 they are, from 2.14 on they are not.

        Returns:
            A list of `FunctionEventAvg`, in the order in which each group first occurs.

        Raises:
            ArgumentError: An argument is not of its type.
        """
        trace = self._trace()
        if include_python_functions is None:
            include_python_functions = trace is not None and lists_python_functions(trace)
        grouping = Grouping(
            checked_switch("group_by_input_shapes", group_by_input_shapes),
            checked_whole("group_by_stack_n", group_by_stack_n, 0),
            checked_switch("group_by_overload_name", group_by_overload_name),
            checked_switch("include_python_functions", include_python_functions),
        )
        if (columns := self._columns()) is None:
            return self.like(added_up(self, grouping))
        trace, positions = columns
        return self.like(list(averages(trace, grouping, positions)))

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int | None = 100,
        max_src_column_width: int | None = 75,
        max_name_column_width: int | None = 55,
        max_shapes_column_width: int | None = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: str | None = None,
    ) -> str:
        """Return the events as a text table with torch's columns.

        Args:
            sort_by: `cpu_time`, `cpu_time_total`, `self_cpu_time_total`, the same with `device` (or `cuda`, `xpu`) for `cpu`,
                `cpu_memory_usage`, `self_cpu_memory_usage`, the same for the device, `count`, `flops`, `key` or
                `overload_name`, largest first; None keeps the order.
            row_limit: Print at most this many rows; -1 or None prints all.
            max_src_column_width: Cut source locations to this many characters, on the left; None does not cut.
            max_name_column_width: Cut names to this many characters; None does not cut.
            max_shapes_column_width: Cut input shapes to this many characters; None does not cut.
            header: A line to print above the table.
            top_level_events_only: Leave out events that are inside others.
            time_unit: `s`, `ms` or `us` for all times; None chooses for each.

        Returns:
            The table, ending with the sum of all self times; empty without events.

        Raises:
            ArgumentError: An argument is not of its type, or an unknown sort key or unit.
        """
        limit, unit = arguments.row_limit(row_limit), arguments.time_unit(time_unit)
        widths = {
            "name_limit": arguments.width("max_name_column_width", max_name_column_width),
            "shapes_limit": arguments.width("max_shapes_column_width", max_shapes_column_width),
            "source_limit": arguments.width("max_src_column_width", max_src_column_width),
        }
        top_level_only = checked_switch("top_level_events_only", top_level_events_only)
        if header is not None and not isinstance(header, str):
            raise ArgumentError(f"header={header!r} is not valid: need a string, or None for no heading")
        events = self if sort_by is None else self.sorted_by(sort_by)
        if len(events) == 0:
            return ""
        sums = _Sums(events.self_cpu_time_total, _device_total(events))
        columns = _columns(events, sums, unit, **widths)
        rule = "".join("-" * column.width + GAP for column in columns)
        wide_rule = "=" * (len(rule) - len(GAP))
        lines = [] if header is None else [wide_rule, header]
        if top_level_only:
            lines += [wide_rule, "This report only display top-level ops statistics"]
        lines += [rule, _joined(columns, [column.heading for column in columns]), rule]
        for event in _chosen(events, sums, limit, top_level_only=top_level_only):
            lines += _lines(columns, event)
        lines += [rule, *sums.texts(events.use_device, unit)]
        return "\n".join(lines) + "\n"

    __str__ = table

    def _repr_html_(self) -> str:
        return event_page(self)

    def span_rows(self) -> Rows | None:
        """Return the rows of `spans` of these events, negative for `[memory]`; None for a list put together by hand and for sums."""
        return None if self._in_trace is None else self._in_trace[1]

    def widest(self, part: str) -> int:
        """Return the length of the longest `key`, `overload_name`, `input_shapes` or `stack` entry."""
        events = self
        if (columns := self._columns()) is not None:
            trace, positions = columns
            texts = (
                event_stacks(trace).of_span if part == "stack" else trace.column("spans", _TEXT_COLUMNS[part])
            )
            # One event of each text; -2 is none of them, and stands for memory outside all events.
            _, indexes = np.unique(np.append(texts, -2)[np.maximum(positions, -1)], return_index=True)
            events = self._part(indexes)
        if part == "stack":
            return max((len(entry) for event in events for entry in event.stack or ()), default=0)
        return max((len(str(getattr(event, part) or "")) for event in events), default=0)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the whole trace these events come from, for Perfetto and chrome://tracing.

        Args:
            path: The file; a name ending in `.gz` is compressed.

        Raises:
            ArgumentError: The suffix is that of another format, or no name of a file.
            StateError: The events belong to no trace.
        """
        import_aside()
        from kinetoscope.formats.chrome.write import write_chrome_trace
        from kinetoscope.formats.suffixes import ONE_TABLE, WHOLE_TRACE

        file, formats = file_path(path), WHOLE_TRACE | ONE_TABLE
        other_suffixes = tuple(suffix for suffix, form in formats.items() if form.name != "chrome")
        if file.name.lower().endswith(other_suffixes):
            raise ArgumentError(f"path={str(path)!r}: a Chrome trace must be a .json or .json.gz file")
        trace = self.trace.source if isinstance(self.trace, EventTrace) else self.trace
        write_chrome_trace(trace, file, identity=False)

    def supported_export_stacks_metrics(self) -> list[str]:
        """Return the numbers that `export_stacks` can write."""
        return list(arguments.STACK_METRICS)

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Write the Python stacks of these events with their self times, for flame graphs.

        One line for each stack: its frames from the root, joined by `;`, a space, and whole microseconds; see
        `kinetoscope.formats.stacks`.

        Args:
            path: Where to write.
            metric: One of `supported_export_stacks_metrics()`; all devices mean the one that was profiled.

        Raises:
            ArgumentError: Another metric.
            StateError: No stacks were recorded, or these sums were not grouped by stack.
            OSError: The file cannot be written.
        """
        import_aside()
        from kinetoscope.formats.stacks import write_stacks

        write_stacks(stack_weights(self, arguments.stack_metric(metric)), path)


def events_of(trace: TraceData) -> EventList:
    """Return the events of a trace in order of time; see `Trace.events`."""
    event_trace = trace_of_events(trace)
    return EventList().like([], (event_trace, event_rows(event_trace)))


def checked_event(event: Any) -> Event:
    """An event, or an error that says what was put into the list."""
    if not isinstance(event, FunctionEvent | FunctionEventAvg):
        raise ArgumentError(
            f"{event!r} is not an event: need a FunctionEvent or a FunctionEventAvg of kinetoscope"
        )
    return event


def checked_events(events: Any) -> list[Event]:
    """Events as a new list, or an error that says what is needed."""
    if not isinstance(events, Iterable):
        raise ArgumentError(f"events={events!r} is not valid: need an iterable of events")
    return [checked_event(event) for event in events]


def write_collapsed(trace: TraceData, path: Path) -> None:
    """Write the Python stacks of a trace with their self times on the host; for `Trace.save`."""
    events_of(trace).export_stacks(path)


# Events added up by name: the columns behind `key_averages()`.


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


def averages(trace: TraceData, grouping: Grouping, positions: Rows) -> list[FunctionEventAvg]:
    """Add up events of a trace by name, and by what else keeps them apart.

    Args:
        trace: The trace.
        grouping: What keeps events apart.
        positions: The events, in their order, each once, as `event_at` takes them.

    Returns:
        The sums, in the order in which each group first occurs.
    """
    if isinstance(trace, EventTrace):
        positions = positions[(positions < 0) | ~_left_out(trace, grouping)[positions]]
    is_loose = positions < 0
    loose, rows = positions[is_loose], positions[~is_loose] if is_loose.any() else positions
    where = mask_of(rows, len(trace.columns("spans")))
    groups = Groups.by(_keys(trace, grouping), None if len(rows) == len(where) else where)
    first_place = np.searchsorted(rows, groups.first)
    if (rows[1:] < rows[:-1]).any():
        # Of several threads, or in another order. The last write wins: the first place of each group.
        first_place[groups.of_row[rows[::-1]]] = np.arange(len(rows))[::-1]
    # Most recordings have no device and many no memory; adding up zeros would double the cost of the table.
    sums = {
        attribute: groups.sums(numbers(trace, name)).tolist()
        for attribute, name in SUMS.items()
        if not all_zero(trace, name)
    }
    sums["count"] = groups.sizes().tolist()
    events = [
        _sum_of(
            event_at(trace, int(rows[first_place[group]])),
            {attribute: values[group] for attribute, values in sums.items()},
            grouping,
        )
        for group in np.argsort(first_place).tolist()
    ]
    if len(loose):
        # Before the first memory outside all events there are as many other events as it has places before it.
        is_earlier = first_place < np.argmax(is_loose)
        changes = {name: int(numbers_at(trace, loose, column).sum()) for name, column in SIZES.items()}
        memory = _sum_of(event_at(trace, int(loose[0])), {"count": len(loose), **changes}, grouping)
        events.insert(int(is_earlier.sum()), memory)
    return events


def _sum_of(first: FunctionEvent, sums: Mapping[str, int], grouping: Grouping) -> FunctionEventAvg:
    event = FunctionEventAvg.of(first.name, sums, first.use_device, first)
    if grouping.by_shape:
        event.input_shapes = flat_shapes(first.structured_input_shapes)
    if grouping.stack_frames:
        event.stack = first.innermost(grouping.stack_frames)
    if grouping.by_overload:
        event.overload_name = first.overload_name
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


def _left_out(trace: EventTrace, grouping: Grouping) -> Mask:
    """The calls that are not added up: rebuilt ones never, as how many there were is not known."""
    return trace.is_rebuilt if grouping.with_calls else trace.is_call


def _keys(trace: TraceData, grouping: Grouping) -> list[NDArray[np.int32]]:
    """For each span numbers that are equal where events belong in one group."""
    spans = trace.columns("spans")
    keys = [_name_keys(trace)]
    if grouping.by_overload:
        keys.append(spans["overload"])
    if grouping.by_shape:
        # Of -1, too: equal where torch's `input_shapes` are.
        texts = (*trace.columns("shapes")["dims"], "")
        shape_keys = _distinct(str(flat_shapes(json.loads(text)) if text else []) for text in texts)
        keys.append(shape_keys[spans["shapes"]])
    if grouping.stack_frames > 0:
        stacks = event_stacks(trace)
        rows = (*range(len(stacks.texts)), -1)
        stack_keys = _distinct(tuple(stacks.entries(row, grouping.stack_frames)) for row in rows)
        keys.append(stack_keys.take(stacks.of_span))
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


def _distinct(values: Iterable[Hashable]) -> NDArray[np.int32]:
    """A number for each value, equal for equal ones."""
    numbers_of: dict[Hashable, int] = {}
    return np.array([numbers_of.setdefault(value, len(numbers_of)) for value in values], np.int32)


# The text table: torch's columns, headings and units.


class _Column(NamedTuple):
    """One column of text: what attribute of an event its cell shows, and how."""

    heading: str
    attribute: str
    text: Callable[[Any], str]
    width: int = NUMBER_WIDTH

    def cell(self, event: Event) -> str:
        return self.text(getattr(event, self.attribute))


class _Sums(NamedTuple):
    """The sums of self times, in microseconds: on the host, and on the device if one was used."""

    host_us: float
    device_us: float | None

    def texts(self, use_device: str | None, unit: str | None = None) -> Iterator[str]:
        yield f"Self CPU time total: {time_text(self.host_us, unit)}"
        if self.device_us is not None:
            yield f"Self {(use_device or 'device').upper()} time total: {time_text(self.device_us, unit)}"


def event_page(events: EventList) -> str:
    """Return the first events as HTML, with the columns of the text table."""
    if len(events) == 0:
        return page(note("no events"))
    sums = _Sums(events.self_cpu_time_total, _device_total(events))
    columns = _columns(events, sums)
    headings = [column.heading for column in columns]
    share = headings.index("Self CPU %")
    rows = []
    for event in _chosen(events, sums, _ROWS_OF_A_PAGE):
        texts: list[Cell | str] = [column.cell(event).strip() for column in columns]
        part = event.self_cpu_time_total / sums.host_us if sums.host_us else 0.0
        texts[share] = Cell(str(texts[share]), "", part)
        if columns[-1].heading == SOURCE:
            texts[-1] = Cell(str(texts[-1]), "\n".join(event.stack or []))
        rows.append(texts)
    left = [index for index, heading in enumerate(headings) if heading in ("Name", "Overload Name", SOURCE)]
    facts = [units.count(len(events), "event"), *sums.texts(events.use_device)]
    more = f"the first {len(rows)} of them are shown; table() prints more"
    return page(
        note(", ".join(facts)),
        table(headings, rows, left=left),
        note(more) if len(events) > len(rows) else "",
    )


def _columns(
    events: EventList,
    sums: _Sums,
    unit: str | None = None,
    *,
    name_limit: int | None = None,
    shapes_limit: int | None = None,
    source_limit: int | None = None,
) -> list[_Column]:
    name, time = partial(_cut_name, limit=name_limit), partial(time_text, unit=unit)
    name_width = _width(events.widest("key"), name_limit)
    columns = [_Column("Name", "key", name, name_width)]
    if _shows(events, "capture_overload_names") and events.widest("overload_name"):
        columns.append(_Column("Overload Name", "overload_name", name, name_width))
    columns += [
        _Column("Self CPU %", "self_cpu_percent", str),
        _Column("Self CPU", "self_cpu_time_total", time),
        _Column("CPU total %", "total_cpu_percent", str),
        _Column("CPU total", "cpu_time_total", time),
        _Column("CPU time avg", "cpu_time", time),
    ]
    device = (events.use_device or "").upper()
    if sums.device_us is not None:
        columns += [
            _Column(f"Self {device}", "self_device_time_total", time),
            _Column(f"Self {device} %", "total_device_percent", str),
            _Column(f"{device} total", "device_time_total", time),
            _Column(f"{device} time avg", "device_time", time),
        ]
    if events.profile_memory:
        columns += [
            _Column("CPU Mem", "cpu_memory_usage", size_text),
            _Column("Self CPU Mem", "self_cpu_memory_usage", size_text),
        ]
        if device and (events.values("self_device_memory_usage") > 0).any():
            columns += [
                _Column(f"{device} Mem", "device_memory_usage", size_text),
                _Column(f"Self {device} Mem", "self_device_memory_usage", size_text),
            ]
    columns.append(_Column("# of Calls", "count", str))
    # An empty list prints as two characters.
    widest_shapes = events.widest("input_shapes")
    if widest_shapes > 2:
        width = _width(widest_shapes, shapes_limit)
        columns.append(_Column("Input Shapes", "input_shapes", lambda shapes: str(shapes)[:width], width))
    columns += _flops_column(events)
    widest_source = events.widest("stack") if _shows(events, "with_stack") else 0
    if widest_source:
        source_width = _width(widest_source, source_limit)
        innermost = partial(_cut_left, limit=source_width)
        columns.append(
            _Column(SOURCE, "stack", lambda stack: innermost(stack[0]) if stack else "", source_width)
        )
    return columns


def _shows(events: EventList, flag: str) -> bool:
    """Sums show what they were grouped by; single events what the session recorded by its flags."""
    has_single = events.span_rows() is not None or any(isinstance(event, FunctionEvent) for event in events)
    return not has_single or bool(getattr(events.trace.run_info, flag))


def _flops_column(events: EventList) -> list[_Column]:
    """One column of FLOPs in the unit that fits the smallest, where there are any."""
    if not events.with_flops:
        return []
    counted = events.values("flops")
    counted = counted[counted > 0]
    if len(counted) == 0:
        return []
    unit, size = flops_scale(int(counted.min()))

    def text(flops: int) -> str:
        return f"{flops / size:8.3f}" if flops > 0 else "--"

    return [_Column(f"Total {unit}", "flops", text, max(NUMBER_WIDTH, len(text(int(counted.max())))))]


def _lines(columns: list[_Column], event: Event) -> Iterator[str]:
    yield _joined(columns, [column.cell(event) for column in columns])
    if columns[-1].heading == SOURCE:
        before = [""] * (len(columns) - 1)
        for entry in [*(event.stack or [])[1:], ""]:
            yield _joined(columns, [*before, _cut_left(entry, columns[-1].width)])


def _chosen(
    events: EventList, sums: _Sums, limit: int | None, *, top_level_only: bool = False
) -> Iterator[Event]:
    """The events to print, which have their shares of the sums from now on, as in torch."""
    chosen = (event for event in events if not (top_level_only and event.cpu_parent is not None))
    for event in islice(chosen, limit):
        event.self_cpu_percent = share_text(event.self_cpu_time_total, sums.host_us)
        event.total_cpu_percent = 0 if event.is_async else share_text(event.cpu_time_total, sums.host_us)
        if sums.device_us is not None:
            event.total_device_percent = share_text(event.self_device_time_total, sums.device_us)
        yield event


def _device_total(events: EventList) -> float | None:
    """Self time of device events, in microseconds; None where no event has time on a device."""
    times = events.values("self_device_time_total")
    with_time = np.flatnonzero(times > 0)
    if len(with_time) == 0:
        return None
    # Ranges and waits are drawn on the device too, around the kernels that are counted already.
    rows = events.span_rows()
    if rows is not None:
        is_work = device_work_spans(events.trace).mask[rows[with_time]]
        return float(times[with_time[is_work]].sum())
    timed_events = ((float(times[index]), events[index]) for index in with_time.tolist())
    return sum((time for time, event in timed_events if _works(event)), 0.0)


def _works(event: Event) -> bool:
    """Whether a device did something in it: ranges and waits are none of its work."""
    first = event if isinstance(event, FunctionEvent) else event.first
    waits = first is not None and first.row >= 0 and first.kind == SpanKind.SYNC
    return bool(int(event.device_type)) and not event.is_user_annotation and not waits


def _joined(columns: list[_Column], cells: list[str]) -> str:
    return "".join(
        (cell.ljust(column.width) if column.heading == SOURCE else cell.rjust(column.width)) + GAP
        for column, cell in zip(columns, cells, strict=True)
    )


def _width(widest: int, limit: int | None) -> int:
    """Room for the widest cell and a margin, within the limit."""
    return widest + 4 if limit is None else min(widest + 4, limit)


def _cut_name(name: str | None, limit: int | None) -> str:
    """Cut a name at its end and make it fit for a terminal."""
    name = name or ""
    if limit is not None and len(name) >= limit - 3:
        name = name[: max(0, limit - 3)] + "..."
    return printable(name)


def _cut_left(path: str, limit: int) -> str:
    """Truncate a source location at its start: its end is more useful."""
    path = printable(path)
    return path if len(path) <= limit else "..." + path[len(path) - max(0, limit - 3) :]
