"""Memory outside all events, which event lists show as events named `[memory]`; and the rows of all events of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.rows import AllocationRow, SpanRow
from kinetoscope.model.schema import STORED
from kinetoscope.model.trace_data import derived
from kinetoscope.torch_events.event_numbers import SIZES, attribute_again, changes, numbers
from kinetoscope.torch_events.event_sums import Computed
from kinetoscope.torch_events.event_tree import event_tree, visible_spans
from kinetoscope.torch_events.function_event import (
    FunctionEvent,
    Interval,
    Kernel,
    changed_events,
    event_of_span,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData


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
            part = attribute_again(trace, on_device)
            span[part["rows"]] = numbers[part["span"]]
    return visible_spans(trace).shown(span)


class MemoryEvent(FunctionEvent):
    """An allocation or a free outside all events: a moment, named `[memory]`.

    Attributes:
        allocation: The row of `allocations`.
    """

    __slots__ = ("allocation",)

    allocation: AllocationRow

    python_id = -1
    python_parent_id = -1
    python_module_id = -1
    name = MEMORY_KEY
    trace_name = None
    overload_name = ""
    sequence_nr = -1
    flow_id = 0
    flow_start = False
    linked_correlation_id = 0
    cpu_parent = None
    flops = 0
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
        return self._trace, self.allocation

    @Computed
    def id(self) -> int:
        """A number that no other event of the trace has."""
        return len(self._trace.columns("spans")) + self.allocation

    def _number(self, column: str) -> int:
        """The thread it happened on; nothing else of a span is known."""
        if column == "thread":
            return int(self._trace.column("allocations", "thread")[self.allocation])
        return int(STORED["spans"].column(column).default)

    def recorded(self, attribute: str) -> int:
        """Return the recorded bytes; 0 for times, because an allocation has no duration.

        Args:
            attribute: Such as `cpu_memory_usage`.
        """
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

    @Computed
    def cpu_children(self) -> list[FunctionEvent]:
        """None."""
        return []

    @Computed
    def kernels(self) -> list[Kernel]:
        """None."""
        return []


_set_allocation = MemoryEvent.allocation.__set__  # type: ignore[attr-defined]


def event_at(trace: TraceData, place: int) -> FunctionEvent:
    """The event at a row of `spans`, or at -1 minus a row of `allocations`; if a program has changed it, that object."""
    if place >= 0:
        return event_of_span(trace, SpanRow(place))
    changed = changed_events(trace).get(place)
    return MemoryEvent(trace, AllocationRow(-1 - place)) if changed is None else changed


@derived
def event_rows(trace: TraceData) -> NDArray[np.int64]:
    """The positions of the events of a trace in order of time, as `event_at` takes them; of equal starts the enclosing one comes first."""
    spans, absorbed = trace.columns("spans"), visible_spans(trace).absorbed
    rows = np.flatnonzero(~absorbed)
    loose = loose_allocations(trace)
    if len(loose) == 0 and len(trace.columns("threads")) <= 1:
        return rows
    moments = trace.column("allocations", "time_ns")[loose]
    starts = np.concatenate((spans["start_ns"][rows], moments))
    durations = np.concatenate((spans["duration_ns"][rows], np.zeros_like(moments)))
    return np.concatenate((rows, -1 - loose))[np.lexsort((-durations, starts))]


def numbers_at(trace: TraceData, positions: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """One number of the events at some positions, as `event_numbers.numbers` has it."""
    loose = np.flatnonzero(positions < 0)
    if len(loose) == 0:
        return numbers(trace, name)[positions]
    values = np.append(numbers(trace, name), 0)[np.maximum(positions, -1)]
    if "bytes" in name:
        values[loose] = change_on(trace, -1 - positions[loose], device=name.startswith("device"))
    return values
