"""`EventList`: a sequence of events that makes each one when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.tables._visible import numbers, visible_spans
from kinetoscope.tables._widths import widest
from kinetoscope.tables.averages import SIZES, TIMES, FunctionEventAvg, averages
from kinetoscope.tables.event_table import TableOptions, event_table
from kinetoscope.tables.function_event import FunctionEvent, used_device

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

Event = FunctionEvent | FunctionEventAvg


class EventSource(Protocol):
    """What an `EventList` shows: events by place, and their numbers as columns."""

    @property
    def trace(self) -> Trace:
        """Where the events come from."""

    def __len__(self) -> int:
        """The number of events."""

    def event(self, place: int) -> Event:
        """Make one event."""

    def values(self, attribute: str) -> NDArray[Any] | None:
        """Return a number of all events, in torch's unit; None for an attribute that is not a number."""

    def widest(self, part: str) -> int:
        """Return the length of the longest key, overload, shapes or stack entry."""


class SpanEvents:
    """The single events of a trace, in order of time."""

    def __init__(self, trace: Trace) -> None:
        """Order the spans that are events by their start."""
        self.trace = trace
        self.rows = trace.cached("event_rows", self._in_order)

    def _in_order(self) -> NDArray[np.int64]:
        """The rows of the events; of equal starts the enclosing one comes first."""
        spans, absorbed = self.trace.columns("spans"), visible_spans(self.trace).absorbed
        rows = np.arange(len(spans)) if absorbed is None else np.flatnonzero(~absorbed)
        if len(self.trace.columns("threads")) > 1:
            rows = rows[np.lexsort((-spans["duration_ns"][rows], spans["start_ns"][rows]))]
        return rows

    def __len__(self) -> int:
        """The number of events."""
        return len(self.rows)

    def event(self, place: int) -> FunctionEvent:
        """Make one event."""
        return FunctionEvent(self.trace, int(self.rows[place]))

    def values(self, attribute: str) -> NDArray[Any] | None:
        """Return a number of all events, in torch's unit; None for an attribute that is not a number."""
        if attribute in ("cpu_time", "device_time"):
            attribute += "_total"
        if attribute in TIMES:
            nanoseconds: NDArray[np.int64] = numbers(self.trace, TIMES[attribute])[self.rows]
            return nanoseconds / 1000
        if attribute in SIZES:
            size: NDArray[np.int64] = numbers(self.trace, SIZES[attribute])[self.rows]
            return size
        if attribute in ("count", "flops"):
            return np.full(len(self), attribute == "count", dtype=np.int64)
        return None

    def widest(self, part: str) -> int:
        """Return the length of the longest key, overload, shapes or stack entry."""
        return widest(self.trace, self.rows, part)


class EventList(Sequence[Event]):
    """Events of a trace. Making the list costs nothing for each event; an event is made when it is indexed.

    `print(events)` prints `events.table()`.
    """

    def __init__(self, source: EventSource, places: NDArray[np.int64] | None = None) -> None:
        """Show the events of `source`, or those at `places` of it in that order."""
        self._source = source
        self._places = places

    def __len__(self) -> int:
        """The number of events."""
        return len(self._source) if self._places is None else len(self._places)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> EventList: ...
    def __getitem__(self, index: int | slice) -> Event | EventList:
        """Make one event, or a list of some of them."""
        if isinstance(index, slice):
            places = np.arange(len(self)) if self._places is None else self._places
            return EventList(self._source, places[index])
        place = range(len(self))[index]
        return self._source.event(place if self._places is None else int(self._places[place]))

    def __str__(self) -> str:
        """The table."""
        return self.table()

    def __repr__(self) -> str:
        """One line."""
        return f"<EventList of {len(self):,} events>"

    def values(self, attribute: str) -> NDArray[Any]:
        """Return a number of every event as one array, without making the events.

        Args:
            attribute: Such as `self_cpu_time_total` (microseconds), `count` or `cpu_memory_usage` (bytes).

        Raises:
            ArgumentError: The attribute is not a number.
        """
        values = self._source.values(attribute)
        if values is None:
            raise ArgumentError(f"events have no number {attribute!r}; use one of: {', '.join(SORT_KEYS)}")
        return values if self._places is None else values[self._places]

    @property
    def trace(self) -> Trace:
        """The trace the events come from."""
        return self._source.trace

    @property
    def self_cpu_time_total(self) -> float:
        """The sum of all self times on the host, in microseconds."""
        return float(self.values("self_cpu_time_total").sum())

    def sorted_by(self, attribute: str) -> EventList:
        """Return the events with the largest value of an attribute first; equal ones keep their order.

        Args:
            attribute: One of torch's sort keys; `cuda_time`, `xpu_time` and the like mean the device that was profiled.

        Raises:
            ArgumentError: Not a sort key.
        """
        name = attribute
        for device in ("cuda", "xpu", "privateuse1"):
            name = name.replace(device, "device")
        if name not in SORT_KEYS:
            raise ArgumentError(f"cannot sort by {attribute!r}; choose one of: {', '.join(SORT_KEYS)}")
        order = np.argsort(-self.values(name), kind="stable")
        return EventList(self._source, order if self._places is None else self._places[order])

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
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
                `cpu_memory_usage`, `self_cpu_memory_usage`, the same for the device, `count` or `flops`; None keeps the order.
            row_limit: Print at most this many rows; -1 prints all.
            max_src_column_width: Cut source locations to this many characters, on the left.
            max_name_column_width: Cut names to this many characters.
            max_shapes_column_width: Cut input shapes to this many characters.
            header: A line to print above the table.
            top_level_events_only: Leave out events that are inside others.
            time_unit: `s`, `ms` or `us` for all times; None chooses for each.

        Returns:
            The table, ending with the sum of all self times.

        Raises:
            ArgumentError: An unknown sort key or unit.
        """
        events = self if sort_by is None else self.sorted_by(sort_by)
        options = TableOptions(
            row_limit,
            max_src_column_width,
            max_name_column_width,
            max_shapes_column_width,
            header,
            top_level_events_only,
            time_unit,
        )
        return event_table(events, options)

    def widest(self, part: str) -> int:
        """Return the length of the longest `key`, `overload_name`, `input_shapes` or `stack` entry."""
        if self._places is None or len(self._places) == len(self._source):
            return self._source.widest(part)
        if part == "stack":
            return max((len(entry) for event in self for entry in event.stack), default=0)
        return max((len(str(getattr(event, part))) for event in self), default=0)

    def key_averages(
        self,
        group_by_input_shapes: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> EventList:
        """Add up the events of the whole trace by name; see `Trace.key_averages`."""
        return key_averages(self.trace, group_by_input_shapes, group_by_stack_n, group_by_overload_name)

    def total_average(self) -> FunctionEventAvg:
        """Return one event, `Total`, with the sums of all of them."""
        numbers = {name: round(float(self.values(name).sum()) * 1000) for name in TIMES}
        numbers |= {name: int(self.values(name).sum()) for name in SIZES}
        count = int(self.values("count").sum())
        return FunctionEventAvg("Total", count, numbers, use_device=used_device(self.trace))

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the whole trace for Perfetto and chrome://tracing, to a `.json` or `.json.gz` file.

        Raises:
            ArgumentError: Another suffix.
        """
        if not str(path).endswith((".json", ".json.gz")):
            raise ArgumentError(f"{path}: a Chrome trace is a .json or .json.gz file")
        self.trace.save(Path(path))

    def supported_export_stacks_metrics(self) -> list[str]:
        """Return the numbers that `export_stacks` can write."""
        return [f"self_{device}_time_total" for device in ("cpu", "cuda", "xpu", "privateuse1")]

    def export_stacks(self, path: str | os.PathLike[str], metric: str) -> None:
        """Write the stacks with their self times, for flame graphs: frames joined by `;`, root first, and microseconds.

        Args:
            path: Where to write.
            metric: One of `supported_export_stacks_metrics()`.

        Raises:
            ArgumentError: Another metric.
        """
        from kinetoscope.tables.stacks import write_collapsed

        if metric not in self.supported_export_stacks_metrics():
            known = ", ".join(self.supported_export_stacks_metrics())
            raise ArgumentError(f"cannot export stacks by {metric!r}; choose one of: {known}")
        on_device = metric != "self_cpu_time_total"
        write_collapsed(self.trace, Path(path), on_device=on_device)


SORT_KEYS = ("cpu_time", "device_time", *TIMES, *SIZES, "count", "flops")


def key_averages(
    trace: Trace,
    group_by_input_shape: bool = False,
    group_by_stack_n: int = 0,
    group_by_overload_name: bool = False,
) -> EventList:
    """Return the events of a trace added up by name; see `Trace.key_averages`."""
    made = averages(
        trace,
        by_shape=group_by_input_shape,
        stack_frames=group_by_stack_n,
        by_overload=group_by_overload_name,
    )
    return EventList(made)
