"""What event lists show: the events of a trace, their sums, or events that a program put together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.model.rows import AllocationRow, SpanRow
from kinetoscope.model.schema import PHASE_NAMES
from kinetoscope.model.trace_data import derived
from kinetoscope.torch_events.arguments import SORT_KEYS
from kinetoscope.torch_events.event_numbers import SIZES, SUMS, TIMES, attribute_again, changes, numbers
from kinetoscope.torch_events.event_sums import Computed, Kept
from kinetoscope.torch_events.event_tree import event_stacks, event_tree, visible_spans
from kinetoscope.torch_events.function_event import (
    FunctionEvent,
    FunctionEventAvg,
    Interval,
    Kernel,
    changed_events,
    event_at,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData


_COLUMN = {"key": "name", "overload_name": "overload", "input_shapes": "shapes"}


def widest(trace: TraceData, rows: NDArray[Any], part: str, frames: int | None = None) -> int:
    """Return the length of the longest text of some events.

    Args:
        trace: The trace.
        rows: The rows of the events.
        part: `key`, `overload_name`, `input_shapes` or `stack` (the longest entry).
        frames: Only this many innermost frames of each stack.
    """
    if part == "stack":
        stacks = event_stacks(trace)
        stack_rows = np.unique(stacks.of_span[rows]).tolist()
        if frames is None:
            return (
                max((len(text or "") for text in stacks.texts), default=0)
                if max(stack_rows, default=-1) >= 0
                else 0
            )
        return max((len(entry) for row in stack_rows for entry in stacks.entries(row, frames)), default=0)
    values = trace.column("spans", _COLUMN[part])[rows]
    _, first_places = np.unique(values, return_index=True)
    events = (event_at(trace, row) for row in rows[first_places].tolist())
    return max((len(str(getattr(event, part))) for event in events), default=0)


MEMORY_KEY = "[memory]"


@derived
def loose_allocations(trace: TraceData) -> NDArray[np.int64]:
    """The rows of `allocations` that lie in no event, in order of time.

    Frees of blocks from before the recording whose size is not known are left out; torch lists none of them.
    So are the blocks that a window of a longer trace began with.
    """
    allocations = trace.columns("allocations")
    if len(allocations) == 0:
        return np.zeros(0, dtype=np.int64)
    is_known = (allocations["bytes"] != 0) | (allocations["match"] >= 0) | (allocations["freed_bytes"] > 0)
    is_known &= allocations["time_ns"] >= 0
    return np.flatnonzero(is_known & (_event_of_allocation(trace) < 0))


def change_on(trace: TraceData, rows: NDArray[Any], *, device: bool) -> NDArray[np.int64]:
    """By how many bytes some allocations change what is live on the host, or on devices."""
    on_device = trace.column("allocations", "device_type")[rows] != 0
    return np.where(on_device == device, changes(trace, rows), 0)


def _event_of_allocation(trace: TraceData) -> NDArray[np.int32]:
    """For each allocation the event it happened in, -1 without."""
    tree = event_tree(trace)
    span: NDArray[np.int32] = trace.column("allocations", "span")
    if not tree.is_everything:
        numbers = np.append(tree.rows, -1).astype(np.int32)
        span = np.full(len(span), -1, dtype=np.int32)
        for on_device in (False, True):
            part = attribute_again(trace, tree, on_device=on_device)
            span[part["rows"]] = numbers[part["span"]]
    return visible_spans(trace).shown(span)


class MemoryEvent(FunctionEvent):
    """An allocation or a free outside all events: a moment, named `[memory]`.

    Attributes:
        allocation: The row of `allocations`.
    """

    __slots__ = ("allocation",)

    allocation: AllocationRow

    is_user_annotation = False
    is_python_function = False
    python_id = -1
    python_parent_id = -1
    python_module_id = -1
    is_async = False
    name = MEMORY_KEY
    trace_name = None
    overload_name = ""
    sequence_nr = -1
    scope = 0
    flow_id = 0
    flow_start = False
    linked_correlation_id = 0
    cpu_parent = None
    flops = 0
    module = ""
    activity_type = "cpu_instant_event"

    def __init__(self, trace: TraceData, allocation: AllocationRow) -> None:
        """Point at a row of `allocations`."""
        super().__init__(trace, SpanRow(-1))
        _set_allocation(self, allocation)

    @property
    def place(self) -> int:
        """-1 minus the row of the allocation."""
        return -1 - self.allocation

    def _made_from(self) -> tuple[Any, ...]:
        """Its place in a trace."""
        return self._trace, self.allocation

    @Computed
    def id(self) -> int:
        """A number that no other event of the trace has."""
        return len(self._trace.columns("spans")) + self.allocation

    def _number(self, column: str) -> int:
        """The thread it happened on; nothing else of a span is known."""
        if column == "thread":
            return int(self._trace.column("allocations", "thread")[self.allocation])
        return 0 if column == "kind" else -1

    def _recorded(self, attribute: str) -> int:
        """The bytes; it takes no time."""
        if attribute not in SIZES:
            return 0
        rows = np.array([self.allocation])
        return int(change_on(self._trace, rows, device="device" in attribute)[0])

    @Computed
    def time_range(self) -> Interval:
        """The moment, as an interval of no length."""
        moment = int(self._trace.column("allocations", "time_ns")[self.allocation]) / 1000
        return Interval(moment, moment)

    @Computed
    def fwd_thread(self) -> int:
        """The thread itself."""
        return self.thread

    def innermost(self, frames: int | None) -> list[str]:
        """No stack."""
        return []

    @property
    def phase(self) -> str:
        """`forward`: no backward function is around it."""
        return PHASE_NAMES[0]

    @Kept
    def cpu_children(self) -> list[FunctionEvent]:
        """None."""
        return []

    @Kept
    def kernels(self) -> list[Kernel]:
        """None."""
        return []


_set_allocation = MemoryEvent.allocation.__set__  # type: ignore[attr-defined]
Event = FunctionEvent | FunctionEventAvg


class SpanEvents:
    """The single events of a trace, in order of time.

    Attributes:
        trace: The trace.
        rows: For each event its row of `spans`; for memory outside all events -1 minus the row of `allocations`.
    """

    has_single = True

    def __init__(self, trace: TraceData) -> None:
        """Show the events of a trace."""
        self.trace = trace
        self._changed = changed_events(trace)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of the events."""
        return self.trace.cached("event_rows", self._in_order)

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
        if (changed := self._changed.get(row)) is not None:
            return changed
        if row < 0:
            return MemoryEvent(self.trace, AllocationRow(-1 - row))
        return FunctionEvent(self.trace, SpanRow(row))

    def values(self, attribute: str) -> NDArray[Any] | None:
        """Return a number of all events, in torch's unit; None for an attribute that is not a number."""
        if attribute in ("cpu_time", "device_time"):
            attribute += "_total"
        if attribute != "count" and attribute not in SUMS:
            return None
        values: NDArray[Any] = np.ones(len(self), dtype=np.int64)
        if attribute != "count":
            values = self._numbers(SUMS[attribute])
        if attribute in TIMES:
            values = values / 1000
        if self._changed:
            changed = np.isin(self.rows, np.fromiter(self._changed, np.int64))
            values = values.copy()
            for place in np.flatnonzero(changed).tolist():
                values[place] = getattr(self.event(place), attribute)
        return values

    def _numbers(self, name: str) -> NDArray[np.int64]:
        """One number of all events, in nanoseconds or bytes."""
        of_spans = numbers(self.trace, name)
        loose = np.flatnonzero(self.rows < 0)
        if len(loose) == 0:
            return of_spans[self.rows]
        of_events = np.append(of_spans, 0)[np.maximum(self.rows, -1)]
        if "bytes" in name:
            of_events[loose] = change_on(self.trace, -1 - self.rows[loose], device=name.startswith("device"))
        return of_events

    def widest(self, part: str) -> int:
        """Return the length of the longest key, overload, shapes or stack entry."""
        if self._changed:
            return longest(map(self.event, range(len(self))), part)
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
    def trace(self) -> TraceData | None:
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
            f"{event!r} is not an event: need a FunctionEvent or a FunctionEventAvg of kinetoscope"
        )
    return event


def checked_events(events: Any) -> list[Event]:
    """Events as a new list, or an error that says what is needed."""
    if not isinstance(events, Iterable):
        raise ArgumentError(f"events={events!r} is not valid: need an iterable of events")
    return [checked_event(event) for event in events]
