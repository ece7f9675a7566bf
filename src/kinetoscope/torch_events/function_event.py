"""Single events, those of memory outside all of them, and sums of events, with the attributes that programs written for `torch.profiler` read."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, Self, SupportsIndex, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import spans_named
from kinetoscope.model.kinds import KINETO_CATEGORIES
from kinetoscope.model.names import device_name
from kinetoscope.model.rows import AllocationRow, Mask, Rows, SpanRow, look_up, mask_of
from kinetoscope.model.schema import (
    ENGINE_WRAPPER,
    EVENT_METADATA_KEY,
    FLAG_ASYNC,
    OTHER_KEYWORDS,
    PHASE_NAMES,
    SCOPE_BACKWARD,
    STORED,
    DeviceType,
    SpanKind,
)
from kinetoscope.model.steps import MARK, STEP_KEY
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.torch_events.event_numbers import (
    SIZES,
    SUMS,
    TIMES,
    attribute_again,
    changes,
    event_of_launch,
    numbers,
)
from kinetoscope.torch_events.event_tree import (
    EventTrace,
    call_numbers,
    event_stacks,
    event_tree,
    visible_spans,
)

# Attributes of single events and of sums of events, and the texts of their numbers as torch.profiler writes them.

TIME_UNITS = {"s": 1_000_000.0, "ms": 1000.0, "us": 1.0}
FLOPS_UNITS = ("FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs")
T = TypeVar("T")


def passes_as(thing: object, name: str) -> Any:
    """The class that `isinstance` finds besides the real one: torch's of this name, if the program has loaded it."""
    torchs = sys.modules.get("torch.autograd.profiler_util")
    return type(thing) if torchs is None else getattr(torchs, name)


# Attributes that torch's events store under other names from 2.15 on.
_RENAMED = {"_metadata_json": "metadata", "event_metadata": "_event_metadata"}


def _renames_metadata() -> bool:
    """Whether the torch that the program has loaded deprecates `event_metadata`, as it does from 2.15 on."""
    torchs = sys.modules.get("torch.autograd.profiler_util")
    return torchs is not None and hasattr(torchs.FunctionEvent, "event_metadata")


class Computed(Generic[T]):
    """An attribute that is computed once for an event, on demand, and can be set, as torch's can."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        """Take the function that computes the value, and its docstring."""
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        """Remember the attribute's name, under which an event keeps the value."""
        self.name = name

    @overload
    def __get__(self, event: None, owner: type) -> Computed[T]: ...
    @overload
    def __get__(self, event: object, owner: type | None = None) -> T: ...
    def __get__(self, event: Any, owner: type | None = None) -> T | Computed[T]:
        """The value, which is the event's own from now on."""
        if event is None:
            return self
        value = event.own[self.name] = self.compute(event)
        return value


class _Stores:
    """What is set on an object, in Python's own dictionary of it."""

    __slots__ = ("__dict__", "__weakref__")


_MISSING = object()
# Not `event.__dict__`, which has torch's attributes too.
own_of: Callable[[Any], dict[str, Any]] = vars(_Stores)["__dict__"].__get__


def _text_of(time: str) -> property:
    """The attribute that is one of the times with its unit."""
    return property(lambda event: time_text(getattr(event, time)), doc=f"`{time}` with its unit.")


def _old_name_of(name: str) -> property:
    """The attribute that is another one under torch's old name, with torch's warning."""
    old = name.replace("device", "cuda")

    def value(event: object) -> Any:
        warnings.warn(f"`{old}` is deprecated; use `{name}`.", FutureWarning, stacklevel=2)
        return getattr(event, name)

    return property(value, doc=f"Old name of `{name}`.")


def _average_of(time: str) -> property:
    """The attribute that is one of the times divided by the number of calls."""
    return property(
        lambda event: getattr(event, time) / event.count if event.count else 0.0,
        doc=f"`{time}` of one call, in microseconds.",
    )


class EventAttributes(_Stores):
    """What single events and sums of events share: attributes that are computed on demand until they are set, averages and texts."""

    __slots__ = ()

    # torch's name of the class, and the attributes that it stores.
    _TORCHS_CLASS: ClassVar[str]
    _OF_TORCHS: ClassVar[tuple[str, ...]]

    node_id = -1
    is_remote = False
    is_legacy = False
    self_cpu_percent: Any = -1
    total_cpu_percent: Any = -1
    total_device_percent: Any = -1

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """`isinstance` finds torch's class as well."""
        return passes_as(self, self._TORCHS_CLASS)

    @property
    def own(self) -> dict[str, Any]:
        """What was set on this object, and the lists that were handed out."""
        return own_of(self)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The values of all attributes that torch's event stores, for `vars()`, and what was set on this one."""
        attributes, renamed = self.own, _RENAMED if _renames_metadata() else {}
        for name in (renamed.get(name, name) for name in self._OF_TORCHS):
            if name not in attributes:
                attributes[name] = getattr(self, name)
        return attributes

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle as what it is made from, with what was set on it and is not as it would be computed."""
        made_from = self._made_from()
        unchanged = type(self)(*made_from)
        changes = {
            name: value for name, value in self.own.items() if getattr(unchanged, name, _MISSING) != value
        }
        return type(self), made_from, changes

    def __setstate__(self, changes: dict[str, Any]) -> None:
        """Take over what was set on the event that was pickled."""
        for name, value in changes.items():
            object.__setattr__(self, name, value)

    def _made_from(self) -> tuple[Any, ...]:
        return ()

    cpu_time = _average_of("cpu_time_total")
    device_time = _average_of("device_time_total")
    cpu_time_str = _text_of("cpu_time")
    cpu_time_total_str = _text_of("cpu_time_total")
    self_cpu_time_total_str = _text_of("self_cpu_time_total")
    device_time_str = _text_of("device_time")
    device_time_total_str = _text_of("device_time_total")
    self_device_time_total_str = _text_of("self_device_time_total")
    cuda_time = _old_name_of("device_time")
    cuda_time_total = _old_name_of("device_time_total")
    self_cuda_time_total = _old_name_of("self_device_time_total")
    cuda_memory_usage = _old_name_of("device_memory_usage")
    self_cuda_memory_usage = _old_name_of("self_device_memory_usage")


def time_text(time_us: float, unit: str | None = None) -> str:
    """Return a time with three decimals in `unit`, or in the largest unit that leaves at least 1."""
    if unit is None:
        unit = next((name for name, size in TIME_UNITS.items() if time_us >= size), "us")
    return f"{time_us / TIME_UNITS[unit]:.3f}{unit}"


def size_text(size_bytes: int) -> str:
    """Return a size in the largest binary unit that leaves at least 1; below 1 KB in bytes.

    Releases of torch differ in the letters of the units; a program that uses torch gets those of its torch.
    """
    # Looked up and not imported: reading a trace must neither need nor load torch.
    theirs = getattr(sys.modules.get("torch.autograd.profiler_util"), "_format_memory", None)
    if theirs is not None:
        return str(theirs(size_bytes))
    for power, unit in ((3, "GB"), (2, "MB"), (1, "KB")):
        if abs(size_bytes) >= 1024**power:
            return f"{size_bytes / 1024**power:.2f} {unit}"
    return f"{size_bytes} B"


def share_text(part: float, whole: float) -> str:
    """Return `part` in percent of `whole`; `NaN` if `whole` is 0."""
    return f"{part * 100 / whole:.2f}%" if whole else "NaN"


def flops_scale(smallest: int) -> tuple[str, float]:
    """Return the largest decimal unit of FLOPs that leaves at least 1 for `smallest`, and its size in FLOPs."""
    power = max(0, min(math.floor(math.log10(smallest) / 3), len(FLOPS_UNITS) - 1))
    return FLOPS_UNITS[power], 1000.0**power


def device_type(number: int) -> Any:
    """Return torch's own enum value if the program uses torch, so that comparing with it works; else ours."""
    # Looked up and not imported: reading a trace must neither need nor load torch.
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "autograd"):
        return torch.autograd.DeviceType(number)
    return DeviceType(number)


SCALARS = ("Scalar", "ScalarList")
_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}


def _value(text: Any, is_scalar: bool) -> Any:
    """An input from its recorded text: a number, truth value or list of these; a text that is none stays as it is, and an empty one is None."""
    if not isinstance(text, str):
        return text
    if not text:
        return None
    if not is_scalar:
        return text
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [_scalar(part.strip()) for part in inner.split(",")] if inner else []
    return _scalar(text)


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    for read in (int, float, complex):
        try:
            return read(text)
        except ValueError:
            continue
    return text


@derived
def _by_parent(trace: TraceData) -> tuple[Any, Any]:
    """The rows of events, those in an event after those in the one before it, and where those in each begin."""
    parent = visible_spans(trace).shown_in
    return Groups(parent, len(parent)).rows()


def used_device(trace: TraceData) -> str | None:
    """torch's name of the device that was profiled besides the host."""
    types = trace.column("streams", "device_type")
    return device_name(int(types[0]), -1) if len(types) else None


def event_name(recorded: str) -> str:
    """The name of an event: as recorded, but all steps share one."""
    return STEP_KEY if recorded.startswith(MARK) else recorded


def flat_shapes(dims: list[Any]) -> list[Any]:
    """Replace the shapes of a list of tensors by an empty one."""
    return [[] if dim and isinstance(dim, list) and isinstance(dim[0], list) else dim for dim in dims]


class Autograd(NamedTuple):
    """Of every span autograd's sequence number, and the thread (a row of `threads`) its forward ran on."""

    sequence: Rows
    forward_thread: NDArray[np.int32]


class Arrows(NamedTuple):
    """Of every span the arrow that links it with the other end of a forward-backward pair, 0 without; where it starts."""

    number: Rows
    starts: Mask


@derived
def autograd(trace: TraceData) -> Autograd:
    """Autograd's columns; the engine's wrapper around a backward function has those of the function."""
    spans, tree = trace.columns("spans"), event_tree(trace)
    sequence, thread = spans["sequence"].copy(), spans["forward_thread"].copy()
    rows = np.flatnonzero(spans["scope"] == SCOPE_BACKWARD)
    around = tree.parent[rows]
    is_wrapper = spans_named(trace, lambda text: text.startswith(ENGINE_WRAPPER))
    wrapped = (around >= 0) & is_wrapper[around]
    for values in (sequence, thread):
        values[around[wrapped]] = values[rows[wrapped]]
    # torch names a forward thread only where a number says which call on it is meant.
    thread[sequence < 0] = -1
    return Autograd(sequence, thread)


@derived
def arrows(trace: TraceData) -> Arrows:
    """Which forward operators and backward functions belong together."""
    forward = trace.column("spans", "forward")
    number = np.zeros(len(forward), dtype=np.int64)
    ends = np.flatnonzero(forward >= 0)
    # The numbers of the arrows in Chrome traces; several backward functions of one operator have that of the first.
    _, first, operator = np.unique(forward[ends], return_index=True, return_inverse=True)
    number[ends] = number[forward[ends]] = first[operator] + 1
    return Arrows(number, mask_of(forward[ends], len(forward)))


@derived
def _by_host(trace: TraceData) -> tuple[Any, Any]:
    """The rows of device events, those that an event started after those of the one before it, and where those of each begin."""
    launches, begins = Groups(event_of_launch(trace), len(trace.columns("spans"))).rows()
    return trace.column("launches", "device")[launches], begins


@derived
def _starters(trace: TraceData) -> NDArray[np.int32]:
    """For each span the event that started it, -1 without."""
    # The last one is that of device events that are not in the trace. Of several launches the first one counts.
    starters = np.full(len(trace.columns("spans")) + 1, -1, dtype=np.int32)
    starters[trace.column("launches", "device")[::-1]] = event_of_launch(trace)[::-1]
    return starters


_ANNOTATIONS = (SpanKind.USER_ANNOTATION, SpanKind.STEP, SpanKind.COLLECTIVE)


class Interval(NamedTuple):
    """A stretch of time.

    Attributes:
        start: When it begins, in microseconds from the start of the trace.
        end: When it ends, in microseconds from the start of the trace.
    """

    start: float
    end: float

    def elapsed_us(self) -> float:
        """Return the length in microseconds."""
        return self.end - self.start


class Kernel(NamedTuple):
    """Something a host event started on a device.

    Attributes:
        name: Its name.
        device: The index of the device it ran on.
        duration: How long it ran there, in microseconds.
    """

    name: str
    device: int
    duration: float


class _Recorded(Computed[T]):
    """The attribute that is a number of the trace, times in microseconds."""

    def __init__(self) -> None:
        super().__init__(self._value)

    def _value(self, event: FunctionEvent) -> Any:
        number = event.recorded(self.name)
        return number / 1000 if self.name in TIMES else number


class SpanValue(Computed[T]):
    """The attribute that is the value of the span in a column of the trace, and another one of what is no span."""

    def __init__(self, column: Callable[[TraceData], NDArray[Any]], without: Any) -> None:
        super().__init__(
            lambda event: without if event.place < 0 else column(event.trace)[event.place].item()
        )


# What a column of `spans` is in `allocations`.
_OF_ALLOCATIONS = {"thread": "thread", "start_ns": "time_ns"}


def _stored(event: FunctionEvent, column: str) -> int:
    """The value of a column of spans; of memory outside all events its moment and its thread, nothing else is known."""
    if event.place >= 0:
        return int(event.trace.column("spans", column)[event.place])
    if column in _OF_ALLOCATIONS:
        return int(event.trace.column("allocations", _OF_ALLOCATIONS[column])[-1 - event.place])
    return int(STORED["spans"].column(column).default)


def _of_stream(event: FunctionEvent, column: str, without: int) -> int:
    """The value of a column of the stream of an event, another one without a stream."""
    stream = _stored(event, "stream")
    return int(event.trace.column("streams", column)[stream]) if stream >= 0 else without


def _recorded_inputs(event: FunctionEvent, part: str) -> list[Any]:
    """What a column of `shapes` has of each input of an event."""
    shapes = _stored(event, "shapes")
    text = event.trace.columns("shapes")[part][shapes] if shapes >= 0 else ""
    return list(json.loads(text)) if text else []


class FunctionEvent(EventAttributes):
    """One event: a view of one row of the `spans` table, made when a list is indexed.

    It has the attributes of torch's class of this name. Times are in microseconds from the start of the trace, sizes in
    bytes. Values are read from the trace's columns on demand; attributes of your own may be set on an
    event and stay on that object.

    Attributes:
        trace: The trace it comes from.
        place: Which event of its trace it is: the row of the span, or -1 minus the row of an allocation.
        node_id: -1: Kinetoscope records one process.
        is_remote: False, for the same reason.
        is_legacy: False: torch's old profiler made no part of this.
        count: 1: it is one call.
        name: The name; all steps share one.
        trace_name: The name as recorded; None for memory outside all events, which traces draw as no event.
        overload_name: The overload of the operator's schema.
        cpu_time_total: Host time, in microseconds.
        self_cpu_time_total: Host time without that of the events inside it, in microseconds; never negative.
        device_time_total: Device time, in microseconds.
        self_device_time_total: Device time without that of the events inside it, in microseconds.
        cpu_memory_usage: Host bytes allocated minus freed.
        self_cpu_memory_usage: Host bytes allocated minus freed, without the events inside it.
        device_memory_usage: Device bytes allocated minus freed.
        self_device_memory_usage: Device bytes allocated minus freed, without the events inside it.
        flops: Floating-point operations of the call; 0 without `with_flops=True` or if unknown. Those of an operator inside
            another are counted once, at the operator that the formula is for.
        is_async: Whether it ended on another thread than it began, or torch says that it may; no self time is counted then.
        device_type: Where it ran: torch's `DeviceType` if torch is loaded, else an enum with the same numbers.
        device_index: The index of the device; for the host the process id, which is what torch puts there.
        stack: The Python stack, innermost entry first; in backward functions that of the forward operator. With
            `with_stack=True`, the names of the calls around it, as in torch; else frames with the line that each was at.
        input_shapes: The sizes of each tensor input; empty for lists of tensors, as torch has it.
        sequence_nr: Autograd's sequence number, -1 without; the engine's wrapper has that of the backward function in it.
        scope: torch's record scope.
        is_user_annotation: Whether `record_function` or a step made it.
        is_python_function: Whether it is a call of a Python function or of a module.
        python_id: The number of a call of a Python function or of a module, -1 for what is none.
        python_parent_id: The number of the call around a call, -1 without.
        python_module_id: The number of a called module among those of its class, -1 for other events.
        flow_id: A number that a forward operator and its backward function share, 0 without.
        flow_type: 1 for an event with a `flow_id`, else 0.
        flow_start: Whether it is the forward end of a forward-backward pair.
        use_device: The device that was profiled besides the host.
        structured_input_shapes: The sizes of each input, for lists of tensors one entry a tensor.
        structured_input_strides: The strides of each input, for lists of tensors one entry a tensor.
        input_dtypes: The type of each input.
        metadata: None: what Kineto adds to events of devices and of collectives is in other tables.
        self_cpu_percent: -1, as are `total_cpu_percent` and `total_device_percent`: shares are made by the table.
    """

    __slots__ = ("place", "trace")

    place: int
    trace: TraceData

    _TORCHS_CLASS = "FunctionEvent"
    # In torch's order.
    _OF_TORCHS = (
        "id", "node_id", "name", "overload_name", "trace_name", "time_range", "thread", "fwd_thread", "kernels", "count",
        "cpu_children", "cpu_parent", "input_shapes", "concrete_inputs", "kwinputs", "stack", "scope", "use_device",
        "cpu_memory_usage", "device_memory_usage", "is_async", "is_remote", "sequence_nr", "device_type", "device_index",
        "device_resource_id", "is_legacy", "flops", "is_user_annotation", "is_python_function", "activity_type",
        "self_cpu_percent", "total_cpu_percent", "total_device_percent", "_metadata_json", "flow_id", "flow_type", "flow_start",
        "external_id", "linked_correlation_id", "event_metadata", "structured_input_shapes", "structured_input_strides",
        "input_dtypes", "python_id", "python_parent_id", "python_module_id",
    )  # fmt: skip

    count = 1
    metadata = None
    _event_metadata = None

    name = Computed[str](lambda event: event_name(event.trace.strings[_stored(event, "name")]))
    trace_name = Computed[str | None](lambda event: event.trace.strings[_stored(event, "name")])
    overload_name = Computed[str](lambda event: event.trace.strings[_stored(event, "overload")])
    cpu_time_total = _Recorded[float]()
    self_cpu_time_total = _Recorded[float]()
    device_time_total = _Recorded[float]()
    self_device_time_total = _Recorded[float]()
    cpu_memory_usage = _Recorded[int]()
    self_cpu_memory_usage = _Recorded[int]()
    device_memory_usage = _Recorded[int]()
    self_device_memory_usage = _Recorded[int]()
    flops = _Recorded[int]()
    sequence_nr = SpanValue[int](lambda trace: autograd(trace).sequence, -1)
    scope = Computed[int](lambda event: _stored(event, "scope"))
    is_async = Computed[bool](lambda event: bool(_stored(event, "flags") & FLAG_ASYNC))
    is_user_annotation = Computed[bool](lambda event: event.kind in _ANNOTATIONS)
    is_python_function = Computed[bool](lambda event: event.kind in (SpanKind.PYTHON, SpanKind.MODULE))
    python_id = SpanValue[int](lambda trace: call_numbers(trace).own, -1)
    python_parent_id = SpanValue[int](lambda trace: call_numbers(trace).around, -1)
    python_module_id = SpanValue[int](lambda trace: call_numbers(trace).module, -1)
    flow_id = SpanValue[int](lambda trace: arrows(trace).number, 0)
    flow_type = Computed[int](lambda event: int(event.flow_id != 0))
    flow_start = SpanValue[bool](lambda trace: arrows(trace).starts, False)
    use_device = Computed[str | None](lambda event: used_device(event.trace))
    device_type = Computed[Any](lambda event: device_type(_of_stream(event, "device_type", 0)))
    device_index = Computed[int](
        lambda event: _of_stream(event, "device_index", event.trace.run_info.process or 0)
    )
    stack = Computed[list[str]](lambda event: event.innermost(None))
    input_shapes = Computed[list[Any]](lambda event: flat_shapes(_recorded_inputs(event, "dims")))
    structured_input_shapes = Computed[list[Any]](lambda event: _recorded_inputs(event, "dims"))
    structured_input_strides = Computed[list[Any]](lambda event: _recorded_inputs(event, "strides"))
    input_dtypes = Computed[list[Any]](lambda event: _recorded_inputs(event, "types"))

    def __init__(self, trace: TraceData, place: int) -> None:
        """Point at a row of `spans`, or at -1 minus a row of `allocations`."""
        # Not by assignment, which is for what programs set.
        _set_trace(self, trace)
        _set_place(self, place)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; from now on the lists of its trace show this object in its place."""
        object.__setattr__(self, name, value)
        if name not in _SHARES:
            changed_events(self.trace)[self.place] = self

    @property
    def row(self) -> SpanRow:
        """The row of `spans`, -1 for an event that is no span (`[memory]`)."""
        return SpanRow(max(self.place, -1))

    def __eq__(self, other: object) -> bool:
        """Two events are equal when they are the same row of the same trace."""
        if not issubclass(type(other), FunctionEvent):
            return NotImplemented
        return other.trace is self.trace and other.place == self.place  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash((id(self.trace), self.place))

    def _made_from(self) -> tuple[Any, ...]:
        """Its place in a trace; events of one trace share it."""
        return self.trace, self.place

    # torch's lists call these when they nest events. The numbers of an event stay those that were recorded.

    def append_kernel(self, name: str, device: int, duration: float) -> None:
        """Add something that it started on a device.

        Args:
            name: Its name.
            device: The index of the device.
            duration: How long it ran there, in microseconds.
        """
        self.kernels = [*self.kernels, Kernel(name, device, duration)]

    def append_cpu_child(self, child: FunctionEvent) -> None:
        """Add an event directly inside this one.

        Args:
            child: An event of the host.
        """
        self.cpu_children = [*self.cpu_children, child]

    def set_cpu_parent(self, parent: FunctionEvent) -> None:
        """Set the event directly around this one.

        Args:
            parent: An event of the host.
        """
        self.cpu_parent = parent

    def _events(self, grouped: tuple[Any, Any]) -> list[FunctionEvent]:
        """The events of those rows, in groups of which each belongs to an event, that belong to this one."""
        rows, begins = grouped
        if self.place < 0:
            return []
        return [
            event_at(self.trace, row) for row in rows[begins[self.place] : begins[self.place + 1]].tolist()
        ]

    def recorded(self, attribute: str) -> int:
        """Return a number of this event as event lists show it: nanoseconds, bytes or operations.

        Args:
            attribute: Such as `self_cpu_time_total`.
        """
        return int(numbers(self.trace, SUMS[attribute])[self.place])

    @Computed
    def id(self) -> int:
        """The row of the span, as in the `id` column of the `spans` table; of calls rebuilt from stacks a number behind these."""
        return int(self.trace.ids[self.place]) if isinstance(self.trace, EventTrace) else self.place

    @property
    def key(self) -> str:
        """What `key_averages` groups by: the name."""
        return self.name

    @Computed
    def time_range(self) -> Interval:
        """Start and end in microseconds from the start of the trace."""
        start_ns = _stored(self, "start_ns")
        return Interval(start_ns / 1000, (start_ns + _stored(self, "duration_ns")) / 1000)

    @Computed
    def thread(self) -> int:
        """torch's logical id of the thread."""
        return int(self.trace.column("threads", "torch_tid")[_stored(self, "thread")])

    @Computed
    def fwd_thread(self) -> int:
        """torch's logical id of the thread its forward ran on; 0 for what is neither a backward function nor its wrapper."""
        thread = int(autograd(self.trace).forward_thread[self.place])
        return int(self.trace.column("threads", "torch_tid")[thread]) if thread >= 0 else 0

    @property
    def kind(self) -> SpanKind:
        """What the event is."""
        return SpanKind(_stored(self, "kind"))

    @Computed
    def activity_type(self) -> str:
        """Kineto's word for what it is, such as `cpu_op`, `user_annotation` or `kernel`."""
        kind = self.kind
        if kind in _ANNOTATIONS and _stored(self, "stream") >= 0:
            return "gpu_user_annotation"
        return KINETO_CATEGORIES[kind]

    @Computed
    def device_resource_id(self) -> int:
        """The number of the stream; for the host the operating system's id of the thread."""
        os_tid = int(self.trace.column("threads", "os_tid")[_stored(self, "thread")])
        return _of_stream(self, "number", os_tid)

    @Computed
    def external_id(self) -> int:
        """The `External id` of Chrome traces, which links an event with what it started."""
        number = _stored(self, "external_id")
        return number if number >= 0 else self.id + 1

    @Computed
    def linked_correlation_id(self) -> int:
        """For an event of a device the `id` of the event that started it, else 0."""
        starter = int(_starters(self.trace)[self.row])
        return event_at(self.trace, starter).id if starter >= 0 else 0

    @Computed
    def concrete_inputs(self) -> list[Any]:
        """The value of each scalar input or list of scalars, None for tensors; strings and devices, which torch leaves out, are text."""
        texts, types = _recorded_inputs(self, "concrete"), self.input_dtypes
        types_of = [*types, *[""] * (len(texts) - len(types))]
        return [_value(text, kind in SCALARS) for text, kind in zip(texts, types_of, strict=False)]

    @Computed
    def kwinputs(self) -> dict[str, Any]:
        """What a range was given by keyword, such as the facts of a compiled kernel's launch; empty for operators."""
        keywords = self._arguments()
        keywords.pop(EVENT_METADATA_KEY, None)
        other_keywords = keywords.pop(OTHER_KEYWORDS, None)
        if isinstance(other_keywords, dict):
            keywords |= other_keywords
        if self.trace.run_info.engine != "native":
            # The collector of torch 2.7 adds this to every event.
            keywords.pop("finished", None)
        # What torch's collector writes of a collective was no input.
        return {} if "Collective name" in keywords else keywords

    def innermost(self, frames: int | None) -> list[str]:
        """Return the innermost frames of the stack, at most this many; None returns all."""
        stacks = event_stacks(self.trace)
        return stacks.entries(int(stacks.of_span[self.place]) if self.place >= 0 else -1, frames)

    @property
    def module(self) -> str:
        """The path of the `nn.Module` it ran in; in backward that of the forward operator."""
        module = _stored(self, "module")
        return self.trace.columns("modules")["path"][module] if module >= 0 else ""

    @property
    def phase(self) -> str:
        """`forward`, `backward` or `optimizer`."""
        return PHASE_NAMES[_stored(self, "phase")]

    @Computed
    def cpu_parent(self) -> FunctionEvent | None:
        """The event around it."""
        parent = int(visible_spans(self.trace).parent[self.place])
        return event_at(self.trace, parent) if parent >= 0 else None

    @Computed
    def cpu_children(self) -> list[FunctionEvent]:
        """The events directly inside it, in order."""
        return self._events(_by_parent(self.trace))

    @Computed
    def kernels(self) -> list[Kernel]:
        """What it started on devices."""
        events = self._events(_by_host(self.trace))
        return [Kernel(event.name, event.device_index, event.time_range.elapsed_us()) for event in events]

    @property
    def metadata_json(self) -> str | None:
        """Kineto's metadata as the inside of a JSON object, None for an event of memory; deprecated by torch.

        Only the Kineto engine has it, and only with `expose_kineto_event_metadata`; else it is empty.
        """
        warnings.warn("`metadata_json` is deprecated; use `metadata`.", FutureWarning, stacklevel=2)
        return self._metadata_json

    @Computed
    def event_metadata(self) -> None:
        """None; torch's name of `metadata` before 2.15."""
        if _renames_metadata():
            warnings.warn("`event_metadata` is deprecated; use `metadata`.", FutureWarning, stacklevel=3)

    @Computed
    def _metadata_json(self) -> str | None:
        """The same without a warning, under the name that torch stores it by."""
        return None if self.place < 0 else str(self._arguments().get(EVENT_METADATA_KEY, ""))

    def _arguments(self) -> dict[str, Any]:
        row = _stored(self, "arguments")
        return dict(json.loads(self.trace.columns("arguments")["json"][row])) if row >= 0 else {}

    def __repr__(self) -> str:
        """One line with what identifies the event."""
        span, inside = self.time_range, [child.id for child in self.cpu_children]
        return (
            f"<{type(self).__name__} id={self.id} name={self.name} overload_name={self.overload_name} "
            f"thread={self.thread} start_us={span.start} end_us={span.end} cpu_time={self.cpu_time_str} "
            f"self_cpu_time={self.self_cpu_time_total_str} device_time={self.device_time_str} cpu_children={inside} "
            f"input_shapes={self.input_shapes} cpu_memory_usage={self.cpu_memory_usage} "
            f"device_memory_usage={self.device_memory_usage} sequence_nr={self.sequence_nr} is_async={self.is_async}>"
        )


_set_place, _set_trace = (vars(FunctionEvent)[slot].__set__ for slot in FunctionEvent.__slots__)


# torch's tables note these on the events they print.
_SHARES = frozenset({"self_cpu_percent", "total_cpu_percent", "total_device_percent"})


@derived
def changed_events(trace: TraceData) -> dict[int, FunctionEvent]:
    """The events of a trace that a program has changed, by their place: lists show these objects, as torch's lists do."""
    return {}


# Memory outside all events, which event lists show as events named `[memory]`; and the rows of all events of a trace.

MEMORY_KEY = "[memory]"


@derived
def loose_allocations(trace: TraceData) -> Rows:
    """The rows of `allocations` that lie in no event, in order of time.

    Frees of blocks from before the recording whose size is not known are left out; torch lists none of them.
    So are the blocks that a window of a longer trace began with.
    """
    allocations = trace.columns("allocations")
    if len(allocations) == 0:
        return np.zeros(0, dtype=np.int64)
    is_known = (allocations["bytes"] != 0) | (allocations["match"] >= 0) | (allocations["freed_bytes"] > 0)
    is_known &= allocations["time_ns"] >= 0
    return np.flatnonzero(is_known & (visible_spans(trace).shown(span_of_allocation(trace)) < 0))


def span_of_allocation(trace: TraceData) -> NDArray[np.int32]:
    """For each allocation the innermost span it happened in, of those that nest as events; -1 without."""
    tree = event_tree(trace)
    span: NDArray[np.int32] = trace.column("allocations", "span")
    if not tree.is_everything:
        numbers = np.append(tree.rows, -1).astype(np.int32)
        span = np.full(len(span), -1, dtype=np.int32)
        for on_device in (False, True):
            part = attribute_again(trace, on_device)
            span[part["rows"]] = numbers[part["span"]]
    return span


class MemoryEvent(FunctionEvent):
    """An allocation or a free outside all events: a moment, named `[memory]`.

    Attributes:
        allocation: The row of `allocations`.
    """

    __slots__ = ()

    name = MEMORY_KEY
    trace_name = None
    activity_type = "cpu_instant_event"
    cpu_parent = None

    @property
    def allocation(self) -> AllocationRow:
        """The row of `allocations` that the event stands for."""
        return AllocationRow(-1 - self.place)

    @Computed
    def id(self) -> int:
        """A number that no other event of the trace has."""
        return len(self.trace.columns("spans")) + self.allocation

    def recorded(self, attribute: str) -> int:
        """Return the recorded bytes; 0 for times, because an allocation has no duration.

        Args:
            attribute: Such as `cpu_memory_usage`.
        """
        if attribute not in SIZES:
            return 0
        return int(numbers_at(self.trace, np.array([self.place]), SIZES[attribute])[0])

    @Computed
    def fwd_thread(self) -> int:
        """The thread that allocates or frees: no other one led to it."""
        return self.thread


def event_at(trace: TraceData, place: int) -> FunctionEvent:
    """The event at a row of `spans`, or at -1 minus a row of `allocations`; if a program has changed it, that object."""
    changed = changed_events(trace).get(place)
    if changed is not None:
        return changed
    return FunctionEvent(trace, place) if place >= 0 else MemoryEvent(trace, place)


@derived
def event_rows(trace: TraceData) -> Rows:
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


def numbers_at(trace: TraceData, positions: Rows, name: str) -> Rows:
    """One number of the events at some positions, as `event_numbers.numbers` has it."""
    loose = np.flatnonzero(positions < 0)
    if len(loose) == 0:
        return numbers(trace, name)[positions]
    values = look_up(np.maximum(positions, -1), numbers(trace, name), 0)
    if "bytes" in name:
        rows = -1 - positions[loose]
        on_device = trace.column("allocations", "device_type")[rows] != 0
        values[loose] = np.where(on_device == name.startswith("device"), changes(trace, rows), 0)
    return values


# What the sum takes over from the first event that is added.
_OF_THE_FIRST = (
    "key",
    "node_id",
    "is_remote",
    "is_legacy",
    "overload_name",
    "input_shapes",
    "stack",
    "use_device",
)


def _of_first(name: str, *, without: Any) -> Computed[Any]:
    """The attribute that is that of the earliest event; another value without one."""
    return Computed(lambda total: without if total.first is None else getattr(total.first, name))


class FunctionEventAvg(EventAttributes):
    """Events with the same key, added up. Times are in microseconds, sizes in bytes.

    `key_averages()` makes them. To add events up yourself, begin with an empty one: `total = FunctionEventAvg()`, then
    `total += event` for each event with the same key.

    Attributes:
        key: The name of the events, None before the first is added. All steps share one name.
        count: How many there are.
        cpu_time_total: Host time; a call inside one of the same name counts in both, as in torch.
        self_cpu_time_total: Host time without that of the events inside, never negative.
        device_time_total: Device time of what they and the events inside started.
        self_device_time_total: Device time of what they started themselves.
        cpu_memory_usage: Host bytes allocated minus freed.
        self_cpu_memory_usage: The same without the events inside.
        device_memory_usage: Device bytes allocated minus freed.
        self_device_memory_usage: The same without the events inside.
        flops: Floating-point operations, each counted once; 0 without `with_flops=True`.
        input_shapes: The input shapes if events are grouped by them, otherwise empty.
        stack: The innermost Python frames if events are grouped by them, innermost first, otherwise empty.
        overload_name: The overload if events are grouped by it, otherwise empty.
        use_device: The device that was profiled besides the host, such as `cuda`; None without.
        is_async: Whether the earliest one ended on another thread than it began.
        is_user_annotation: Whether `record_function` or a step made them.
        scope: torch's record scope of the earliest one.
        cpu_parent: The event around the earliest one.
        first: The earliest of them; None for a total of different events.
        node_id: -1: Kinetoscope records one process.
        is_remote: False, for the same reason.
        is_legacy: False: torch's old profiler made no part of this.
    """

    __slots__ = ("first",)

    first: FunctionEvent | None

    is_async: Computed[bool] = _of_first("is_async", without=False)
    is_user_annotation: Computed[bool] = _of_first("is_user_annotation", without=False)
    scope: Computed[int] = _of_first("scope", without=0)
    cpu_parent: Computed[FunctionEvent | None] = _of_first("cpu_parent", without=None)

    _TORCHS_CLASS = "FunctionEventAvg"
    # In torch's order.
    _OF_TORCHS = (
        "key", "count", "node_id", "is_async", "is_remote", "use_device", "cpu_time_total", "device_time_total",
        "self_cpu_time_total", "self_device_time_total", "input_shapes", "overload_name", "stack", "scope",
        "cpu_memory_usage", "device_memory_usage", "self_cpu_memory_usage", "self_device_memory_usage", "cpu_children",
        "cpu_parent", "device_type", "is_legacy", "flops", "is_user_annotation",
    )  # fmt: skip

    def __init__(self, first: FunctionEvent | None = None) -> None:
        """Begin with the sum of nothing; what `first` has is that of all."""
        self.key: str | None = None
        self.count: int = 0
        self.cpu_time_total: float = 0.0
        self.self_cpu_time_total: float = 0.0
        self.device_time_total: float = 0.0
        self.self_device_time_total: float = 0.0
        self.cpu_memory_usage = 0
        self.self_cpu_memory_usage = 0
        self.device_memory_usage = 0
        self.self_device_memory_usage = 0
        self.flops = 0
        self.input_shapes: Any = None
        self.stack: list[str] | None = None
        self.overload_name: str | None = None
        self.use_device: str | None = None
        self.first = first

    @classmethod
    def of(
        cls, key: str, numbers: Mapping[str, int], use_device: str | None, first: FunctionEvent | None = None
    ) -> Self:
        """Make a sum from its numbers.

        Args:
            key: The name of the events.
            numbers: By attribute: nanoseconds, bytes, operations, and `count`; what is missing is 0.
            use_device: The device that was profiled besides the host.
            first: The earliest of the events.

        Returns:
            The sum, with empty shapes, stack and overload.
        """
        total = cls(first)
        total.key, total.use_device = key, use_device
        for name, value in numbers.items():
            setattr(total, name, value / 1000 if name in TIMES else value)
        total.input_shapes, total.stack, total.overload_name = "", [], ""
        return total

    def add(self, other: FunctionEvent | FunctionEventAvg) -> Self:
        """Add an event, or another sum, with the same key; an empty sum takes the key of the first.

        Args:
            other: What to add.

        Returns:
            This sum, changed.

        Raises:
            ArgumentError: It is no event, or has another key; nothing is changed.
        """
        if not isinstance(other, FunctionEvent | FunctionEventAvg):
            raise ArgumentError(
                f"other={other!r} cannot be added: need a FunctionEvent or a FunctionEventAvg"
            )
        if other.key is None:
            return self
        if self.key is None:
            for name in _OF_THE_FIRST:
                setattr(self, name, getattr(other, name))
            self.first = other if isinstance(other, FunctionEvent) else other.first
        elif other.key != self.key:
            raise ArgumentError(
                f"cannot add {other.key!r} to the sum of {self.key!r}: the keys must be equal"
            )
        for name in (*TIMES, *SIZES, "count", "flops"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    __iadd__ = add

    def _made_from(self) -> tuple[Any, ...]:
        """The event that is read where nothing was added up."""
        return (self.first,)

    @property
    def trace(self) -> TraceData | None:
        """The trace the events come from, where it is known."""
        return self.first.trace if self.first is not None else None

    @Computed
    def device_type(self) -> Any:
        """Where they ran."""
        return self.first.device_type if self.first is not None else device_type(0)

    @Computed
    def cpu_children(self) -> list[FunctionEvent]:
        """The events inside the earliest one."""
        return self.first.cpu_children if self.first is not None else []

    def __repr__(self) -> str:
        """One line with the most important numbers."""
        return (
            f"<FunctionEventAvg key={self.key} count={self.count} self_cpu_time={self.self_cpu_time_total_str} "
            f"cpu_time={self.cpu_time_str} self_device_time={self.self_device_time_total_str} "
            f"device_time={self.device_time_str} cpu_memory_usage={self.cpu_memory_usage} "
            f"device_memory_usage={self.device_memory_usage} input_shapes={self.input_shapes}>"
        )


Event = FunctionEvent | FunctionEventAvg
