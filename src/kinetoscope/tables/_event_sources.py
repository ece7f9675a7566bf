"""What event lists show: the events of a trace, their sums, or events that a program put together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.tables._event_arguments import SORT_KEYS
from kinetoscope.tables._event_numbers import SIZES, TIMES, numbers
from kinetoscope.tables._loose_memory import MEMORY_KEY, change_on, loose_allocations
from kinetoscope.tables._visible import visible_spans
from kinetoscope.tables._widths import widest
from kinetoscope.tables.average_event import FunctionEventAvg
from kinetoscope.tables.function_event import FunctionEvent
from kinetoscope.tables.memory_event import MemoryEvent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

Event = FunctionEvent | FunctionEventAvg


class EventSource(Protocol):
    """What an `EventList` shows: events by place, and their numbers as columns."""

    @property
    def has_single(self) -> bool:
        """Whether there are single events among them, and not only sums."""

    @property
    def trace(self) -> Trace | None:
        """Where the events come from, where that is known."""

    def __len__(self) -> int:
        """The number of events."""

    def event(self, place: int) -> Event:
        """Make one event."""

    def values(self, attribute: str) -> NDArray[Any] | None:
        """Return a number of all events, in torch's unit; None for an attribute that is not a number."""

    def widest(self, part: str) -> int:
        """Return the length of the longest key, overload, shapes or stack entry."""


class SpanEvents:
    """The single events of a trace, in order of time.

    Attributes:
        trace: The trace.
        rows: For each event its row of `spans`; for memory outside all events -1 minus the row of `allocations`.
    """

    has_single = True

    def __init__(self, trace: Trace) -> None:
        """Order the spans that are events by their start."""
        self.trace = trace
        self.rows = trace.cached("event_rows", self._in_order)

    def _in_order(self) -> NDArray[np.int64]:
        """The rows of the events; of equal starts the enclosing one comes first."""
        spans, absorbed = self.trace.columns("spans"), visible_spans(self.trace).absorbed
        rows = np.arange(len(spans)) if absorbed is None else np.flatnonzero(~absorbed)
        loose = loose_allocations(self.trace)
        if len(loose) == 0 and len(self.trace.columns("threads")) <= 1:
            return rows
        moments = self.trace.column("allocations", "time_ns")[loose]
        starts = np.concatenate((spans["start_ns"][rows], moments))
        durations = np.concatenate((spans["duration_ns"][rows], np.zeros_like(moments)))
        return np.concatenate((rows, -1 - loose))[np.lexsort((-durations, starts))]

    def __len__(self) -> int:
        """The number of events."""
        return len(self.rows)

    def event(self, place: int) -> FunctionEvent:
        """Make one event."""
        row = int(self.rows[place])
        return FunctionEvent(self.trace, row) if row >= 0 else MemoryEvent(self.trace, -1 - row)

    def values(self, attribute: str) -> NDArray[Any] | None:
        """Return a number of all events, in torch's unit; None for an attribute that is not a number."""
        if attribute in ("cpu_time", "device_time"):
            attribute += "_total"
        if attribute in TIMES:
            return self._numbers(TIMES[attribute]) / 1000
        if attribute in SIZES:
            return self._numbers(SIZES[attribute])
        if attribute == "flops":
            return self._numbers(attribute)
        return np.ones(len(self), dtype=np.int64) if attribute == "count" else None

    def _numbers(self, name: str) -> NDArray[np.int64]:
        """One number of all events, in nanoseconds or bytes."""
        of_spans = numbers(self.trace, name)
        loose = np.flatnonzero(self.rows < 0)
        if len(loose) == 0:
            return of_spans[self.rows]
        found = np.append(of_spans, 0)[np.maximum(self.rows, -1)]
        if "bytes" in name:
            found[loose] = change_on(self.trace, -1 - self.rows[loose], device=name.startswith("device"))
        return found

    def widest(self, part: str) -> int:
        """Return the length of the longest key, overload, shapes or stack entry."""
        spans = self.rows[self.rows >= 0]
        of_spans = widest(self.trace, spans, part) if len(spans) else 0
        least = {"key": len(MEMORY_KEY), "input_shapes": len("[]")}.get(part, 0)
        return max(of_spans, least) if len(spans) < len(self.rows) else of_spans


class ListedEvents:
    """Events that a program chose or put together.

    Attributes:
        events: The events.
    """

    def __init__(self, events: list[Event]) -> None:
        """Keep the events."""
        self.events = events

    @property
    def has_single(self) -> bool:
        """Whether there are single events among them, and not only sums."""
        return any(isinstance(event, FunctionEvent) for event in self.events)

    @property
    def trace(self) -> Trace | None:
        """The trace of the first event that has one."""
        return next((event.trace for event in self.events if event.trace is not None), None)

    def __len__(self) -> int:
        """The number of events."""
        return len(self.events)

    def event(self, place: int) -> Event:
        """Return one event."""
        return self.events[place]

    def values(self, attribute: str) -> NDArray[Any] | None:
        """Return a number of all events, in torch's unit; None for an attribute that is not a number."""
        if attribute not in SORT_KEYS:
            return None
        kind = np.int64 if attribute in (*SIZES, "count", "flops") else np.float64
        return np.array([getattr(event, attribute) for event in self.events], dtype=kind)

    def widest(self, part: str) -> int:
        """Return the length of the longest key, overload, shapes or stack entry."""
        return longest(self.events, part)


def longest(events: Any, part: str) -> int:
    """Return the length of the longest key, overload, shapes or stack entry of some events, looking at each."""
    if part == "stack":
        return max((len(entry) for event in events for entry in event.stack or ()), default=0)
    texts = (getattr(event, part) for event in events)
    return max((len("" if text is None else str(text)) for text in texts), default=0)


def checked_event(event: Any) -> Event:
    """An event, or an error that says what was put into the list."""
    if not isinstance(event, FunctionEvent | FunctionEventAvg):
        raise ArgumentError(
            f"{event!r} is no event: need a FunctionEvent or a FunctionEventAvg of kinetoscope"
        )
    return event


def checked_events(events: Any) -> list[Event]:
    """Events as a new list, or an error that says what is needed."""
    if not isinstance(events, Iterable):
        raise ArgumentError(f"events={events!r} is not valid: need an iterable of events")
    return [checked_event(event) for event in events]
