"""Events added up by name: the columns behind `key_averages()`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope import _core
from kinetoscope.tables import _visible
from kinetoscope.tables._device import device_type
from kinetoscope.tables._event_times import TimesAsText
from kinetoscope.tables._widths import widest
from kinetoscope.tables.function_event import FunctionEvent, flat_shapes, used_device
from kinetoscope.trace._naming import stack_frames
from kinetoscope.trace._schema import SpanKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

# Attribute of an event -> column of `spans`; times are shown in microseconds.
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
MEMORY_KEY = "[memory]"


@dataclass(eq=False)
class FunctionEventAvg(TimesAsText):
    """Events with the same key, added up.

    Attributes:
        key: Their name; all steps share one.
        count: How many there are.
        numbers: Their sums by attribute, in nanoseconds and bytes.
        first: The earliest of them, or None for a total of different events.
        input_shapes: Their input shapes where these kept them apart, else empty.
        stack: The innermost frames that kept them apart, innermost first.
        overload_name: Their overload where it kept them apart, else empty.
    """

    key: str
    count: int
    numbers: Mapping[str, int]
    first: FunctionEvent | None = None
    input_shapes: Any = ""
    stack: list[str] = field(default_factory=list)
    overload_name: str = ""
    use_device: str | None = None

    node_id = -1
    is_remote = False
    is_legacy = False
    flops = 0

    @property
    def cpu_time_total(self) -> float:
        """Host time, in microseconds; a call inside one of the same name counts in both, as in torch."""
        return self.numbers["cpu_time_total"] / 1000

    @property
    def self_cpu_time_total(self) -> float:
        """Host time without that of the events inside, in microseconds; never negative."""
        return self.numbers["self_cpu_time_total"] / 1000

    @property
    def device_time_total(self) -> float:
        """Device time, in microseconds."""
        return self.numbers["device_time_total"] / 1000

    @property
    def self_device_time_total(self) -> float:
        """Device time without that of the events inside, in microseconds."""
        return self.numbers["self_device_time_total"] / 1000

    @property
    def cpu_memory_usage(self) -> int:
        """Host bytes allocated minus freed."""
        return self.numbers["cpu_memory_usage"]

    @property
    def self_cpu_memory_usage(self) -> int:
        """The same without the events inside."""
        return self.numbers["self_cpu_memory_usage"]

    @property
    def device_memory_usage(self) -> int:
        """Device bytes allocated minus freed."""
        return self.numbers["device_memory_usage"]

    @property
    def self_device_memory_usage(self) -> int:
        """The same without the events inside."""
        return self.numbers["self_device_memory_usage"]

    @property
    def is_async(self) -> bool:
        """Whether the earliest one ended on another thread than it began."""
        return self.first is not None and self.first.is_async

    @property
    def is_user_annotation(self) -> bool:
        """Whether `record_function` or a step made them."""
        return self.first is not None and self.first.is_user_annotation

    @property
    def scope(self) -> int:
        """torch's record scope of the earliest one."""
        return self.first.scope if self.first is not None else 0

    @property
    def device_type(self) -> Any:
        """Where they ran."""
        return self.first.device_type if self.first is not None else device_type(0)

    @property
    def cpu_parent(self) -> FunctionEvent | None:
        """The event around the earliest one."""
        return self.first.cpu_parent if self.first is not None else None

    @property
    def cpu_children(self) -> list[FunctionEvent]:
        """The events inside the earliest one."""
        return self.first.cpu_children if self.first is not None else []

    def __repr__(self) -> str:
        """One line with the numbers most asked for."""
        return (
            f"<FunctionEventAvg key={self.key} count={self.count} self_cpu_time={self.self_cpu_time_total_str} "
            f"cpu_time={self.cpu_time_str} cpu_memory_usage={self.cpu_memory_usage} input_shapes={self.input_shapes}>"
        )


@dataclass(frozen=True)
class Averages:
    """The groups of `key_averages()` as columns, in the order in which each first occurs.

    Attributes:
        trace: Where they come from.
        first: The row of the earliest span of each group; -1 for memory outside all spans.
        count: How many spans each has.
        numbers: The sums, by attribute of an event: nanoseconds and bytes.
        by_shape: Whether input shapes keep groups apart.
        by_overload: Whether overloads do.
        stack_frames: How many innermost frames do.
    """

    trace: Trace
    first: NDArray[np.int64]
    count: NDArray[np.int64]
    numbers: dict[str, NDArray[np.int64]]
    by_shape: bool
    by_overload: bool
    stack_frames: int

    def __len__(self) -> int:
        """The number of groups."""
        return len(self.first)

    def event(self, place: int) -> FunctionEventAvg:
        """Make the event of one group."""
        numbers = {name: int(values[place]) for name, values in self.numbers.items()}
        count, row = int(self.count[place]), int(self.first[place])
        use_device = used_device(self.trace)
        if row < 0:
            return FunctionEventAvg(MEMORY_KEY, count, numbers, use_device=use_device)
        first = FunctionEvent(self.trace, row)
        return FunctionEventAvg(
            first.name,
            count,
            numbers,
            first=first,
            input_shapes=flat_shapes(first.structured_input_shapes) if self.by_shape else "",
            stack=first.innermost(self.stack_frames),
            overload_name=first.overload_name if self.by_overload else "",
            use_device=use_device,
        )

    def values(self, attribute: str) -> NDArray[Any] | None:
        """Return an attribute of all groups as an array, in torch's unit; None for one that is not a number."""
        if attribute == "count":
            return self.count
        if attribute in TIMES:
            return self.numbers[attribute] / 1000
        if attribute in ("cpu_time", "device_time"):
            return self.numbers[f"{attribute}_total"] / 1000 / self.count
        if attribute == "flops":
            return np.zeros(len(self), dtype=np.int64)
        return self.numbers.get(attribute)

    def widest(self, part: str) -> int:
        """Return the length of the longest key, overload, shapes or stack entry."""
        shown = {
            "stack": self.stack_frames > 0,
            "overload_name": self.by_overload,
            "input_shapes": self.by_shape,
        }
        if not shown.get(part, True):
            return 0
        of_spans = widest(self.trace, self.first[self.first >= 0], part, self.stack_frames)
        return max(of_spans, len(MEMORY_KEY)) if part == "key" and (self.first < 0).any() else of_spans


def averages(trace: Trace, *, by_shape: bool, stack_frames: int, by_overload: bool) -> Averages:
    """Add up the events of a trace by name, and by what else keeps them apart.

    Args:
        trace: The trace.
        by_shape: Keep different input shapes apart.
        stack_frames: Keep different innermost frames apart, this many.
        by_overload: Keep overloads of an operator apart.

    Returns:
        The sums.
    """
    spans, visible = trace.columns("spans"), _visible.visible_spans(trace)
    keys = [_name_keys(trace)]
    if by_overload:
        keys.append(spans["overload"])
    if by_shape:
        keys.append(_shape_keys(trace)[spans["shapes"]])
    if stack_frames > 0:
        keys.append(_stack_keys(trace, stack_frames)[spans["stack"]])
    where = None if visible.absorbed is None else ~visible.absorbed
    group_of, first = _core.group(keys, where)
    groups = len(first)
    numbers: dict[str, NDArray[np.int64]] = {}
    for attribute, name in (TIMES | SIZES).items():
        # Most recordings have no device and many no memory; adding up zeros would double the cost of the table.
        if _visible.all_zero(trace, name):
            numbers[attribute] = np.zeros(groups, dtype=np.int64)
        else:
            numbers[attribute] = _core.group_sums(group_of, groups, _visible.numbers(trace, name))
    count = _core.group_counts(group_of, groups)
    earliest = first.astype(np.int64)
    if groups and len(trace.columns("threads")) > 1:
        start = spans["start_ns"]
        least = _core.group_min(group_of, groups, start)
        rows = np.flatnonzero((group_of >= 0) & (start == least[group_of]))
        # The last write wins, so that of equal starts the first row stays.
        earliest[group_of[rows[::-1]]] = rows[::-1]
        order = np.argsort(least, kind="stable")
        earliest, count = earliest[order], count[order]
        numbers = {attribute: values[order] for attribute, values in numbers.items()}
    found = Averages(trace, earliest, count, numbers, by_shape, by_overload, max(stack_frames, 0))
    return _with_loose_memory(found)


def _name_keys(trace: Trace) -> NDArray[np.int32]:
    """A number for each span that is equal where name and sort of event are equal."""
    spans = trace.columns("spans")
    kind = spans["kind"]
    keys: NDArray[np.int32] = spans["name"] * np.int32(4)
    ranges = np.flatnonzero((kind == SpanKind.USER_ANNOTATION) | (kind == SpanKind.STEP))
    keys[ranges] += 1
    keys[ranges[kind[ranges] == SpanKind.STEP]] = -4
    on_device = _visible.on_device_mask(trace)
    if on_device is not None:
        keys += on_device * np.int32(2)
    return keys


def _shape_keys(trace: Trace) -> NDArray[np.int32]:
    """For each row of `shapes` (and -1) a number that is equal where torch's `input_shapes` are."""
    import json

    places: dict[str, int] = {"[]": -1}
    keys = [
        places.setdefault(str(flat_shapes(json.loads(text)) if text else []), len(places))
        for text in trace.columns("shapes")["dims"]
    ]
    return np.array([*keys, -1], dtype=np.int32)


def _stack_keys(trace: Trace, count: int) -> NDArray[np.int32]:
    """For each row of `stacks` (and -1) a number that is equal where the innermost `count` frames are."""
    frames = trace.columns("stacks")["frame"]
    places: dict[tuple[int, ...], int] = {}
    keys = [
        places.setdefault(tuple(stack_frames(trace, stack, count)), len(places))
        for stack in range(len(frames))
    ]
    return np.array([*keys, -1], dtype=np.int32)


def _with_loose_memory(found: Averages) -> Averages:
    """Add a group for allocations and frees outside all spans, as torch does."""
    allocations = found.trace.columns("allocations")
    if len(allocations) == 0:
        return found
    loose = np.flatnonzero(allocations["span"] < 0)
    if len(loose) == 0:
        return found
    sizes, match = allocations["bytes"], allocations["match"]
    freed = (sizes == 0) & (match >= 0)
    change = np.where(freed, -sizes[match], sizes)[loose]
    on_host = allocations["device_type"][loose] == 0
    host, device = int(change[on_host].sum()), int(change[~on_host].sum())
    sums = {"cpu_memory_usage": host, "self_cpu_memory_usage": host}
    sums |= {"device_memory_usage": device, "self_device_memory_usage": device}
    return Averages(
        found.trace,
        np.append(found.first, -1),
        np.append(found.count, len(loose)),
        {name: np.append(values, sums.get(name, 0)) for name, values in found.numbers.items()},
        found.by_shape,
        found.by_overload,
        found.stack_frames,
    )
