"""One event of a trace, with the attributes that programs written for `torch.profiler` read."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetoscope._errors import ArgumentError
from kinetoscope.model.rows import SpanRow
from kinetoscope.model.schema import (
    EVENT_METADATA_KEY,
    FLAG_ASYNC,
    OTHER_KEYWORDS,
    PHASE_NAMES,
    SpanKind,
)
from kinetoscope.model.trace_data import derived
from kinetoscope.torch_events.event_facts import (
    arrows,
    autograd,
    children,
    device_type,
    event_name,
    flat_shapes,
    launches,
    python_values,
    used_device,
)
from kinetoscope.torch_events.event_numbers import SUMS, TIMES, numbers
from kinetoscope.torch_events.event_sums import Computed, EventAttributes, Kept, own_of
from kinetoscope.torch_events.event_tree import call_numbers, event_ids, event_stacks, visible_spans

if TYPE_CHECKING:
    from kinetoscope.model.trace_data import TraceData


_ANNOTATIONS = (SpanKind.USER_ANNOTATION, SpanKind.STEP, SpanKind.COLLECTIVE)
_ACTIVITIES = {
    SpanKind.USER_ANNOTATION: "user_annotation",
    SpanKind.STEP: "user_annotation",
    SpanKind.COLLECTIVE: "user_annotation",
    SpanKind.PYTHON: "python_function",
    SpanKind.MODULE: "python_function",
    SpanKind.KERNEL: "kernel",
    SpanKind.MEMCPY: "gpu_memcpy",
    SpanKind.MEMSET: "gpu_memset",
    SpanKind.RUNTIME: "cuda_runtime",
    SpanKind.DRIVER: "cuda_driver",
    SpanKind.SYNC: "cuda_sync",
    SpanKind.OVERHEAD: "overhead",
}


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


class FunctionEvent(EventAttributes):
    """One event: a view of one row of the `spans` table, made when a list is indexed.

    It has the attributes of torch's class of this name. Times are in microseconds from the start of the trace, sizes in
    bytes. Values are read from the trace's columns on demand; attributes of your own may be set on an
    event and stay on that object.

    Attributes:
        row: The row of `spans`, -1 for an event that is no span (`[memory]`).
        node_id: -1: Kinetoscope records one process.
        is_remote: False, for the same reason.
        is_legacy: False: torch's old profiler made no part of this.
        count: 1: it is one call.
        event_metadata: None: what Kineto adds to events of devices and of collectives is in other tables.
        metadata: None, likewise; torch's name for it from 2.15 on.
        self_cpu_percent: -1, as are `total_cpu_percent` and `total_device_percent`: shares are made by the table.
    """

    __slots__ = ("_trace", "row")

    _trace: TraceData
    row: SpanRow

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
    event_metadata = None
    metadata = None

    def __init__(self, trace: TraceData, row: SpanRow) -> None:
        """Point at a row."""
        # Not by assignment, which is for what programs set.
        _set_trace(self, trace)
        _set_row(self, row)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; from now on the lists of its trace show this object in its place."""
        object.__setattr__(self, name, value)
        if name not in _SHARES:
            changed_events(self._trace)[self.place] = self

    @property
    def place(self) -> int:
        """Which event of its trace it is: the row of the span, or -1 minus the row of an allocation."""
        return self.row

    def __eq__(self, other: object) -> bool:
        """Two events are equal when they are the same row of the same trace."""
        if not issubclass(type(other), FunctionEvent):
            return NotImplemented
        return other._trace is self._trace and other.place == self.place  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash((id(self._trace), self.place))

    def _made_from(self) -> tuple[Any, ...]:
        """Its place in a trace; events of one trace share it."""
        return self._trace, self.row

    def append_kernel(self, name: str, device: int, duration: float) -> None:
        """Add something that it started on a device.

        Args:
            name: Its name.
            device: The index of the device.
            duration: How long it ran there, in microseconds.

        Raises:
            ArgumentError: This event is not one of the host.
        """
        _need_host("append_kernel", self)
        self.kernels = [*self.kernels, Kernel(name, device, duration)]

    def append_cpu_child(self, child: FunctionEvent) -> None:
        """Add an event directly inside this one; its time is no longer part of the self time.

        Args:
            child: An event of the host.

        Raises:
            ArgumentError: One of the two is not an event of the host.
        """
        _need_host("append_cpu_child", self, child)
        self.cpu_children = [*self.cpu_children, child]

    def set_cpu_parent(self, parent: FunctionEvent) -> None:
        """Set the event directly around this one.

        Args:
            parent: An event of the host.

        Raises:
            ArgumentError: One of the two is not an event of the host.
        """
        _need_host("set_cpu_parent", self, parent)
        self.cpu_parent = parent

    @property
    def trace(self) -> TraceData:
        """The trace it comes from."""
        return self._trace

    def _number(self, column: str) -> int:
        """The value of a stored column as a Python number."""
        return int(self._trace.column("spans", column)[self.row])

    def _shape_part(self, part: str) -> list[Any]:
        """One part of what is known about the inputs."""
        shapes = self._number("shapes")
        text = self._trace.columns("shapes")[part][shapes] if shapes >= 0 else ""
        return list(json.loads(text)) if text else []

    def _recorded(self, attribute: str) -> int:
        """A number of this event as event lists show it: nanoseconds, bytes or operations."""
        return int(numbers(self._trace, SUMS[attribute])[self.row])

    def _without_inside(self, attribute: str, part: str) -> float:
        """A number without that of the events inside it, which a program may have changed, as it may the part that it is made of."""
        if own_of(self) and self._is_set(part, "cpu_children"):
            inside: float = sum(getattr(child, attribute) for child in self.cpu_children)
            return getattr(self, attribute) - inside if self._nests() else 0
        recorded = self._recorded(f"self_{attribute}")
        return recorded / 1000 if attribute in TIMES else recorded

    def _nests(self) -> bool:
        """Whether the events inside it count: torch has none in asynchronous events and those of devices."""
        return not self.is_async and not int(self.device_type)

    # The numbers that torch derives follow what a program has set.

    @property
    def cpu_time_total(self) -> float:
        """Host time, in microseconds."""
        if own_of(self) and self._is_set("time_range"):
            return 0.0 if int(self.device_type) else float(self.time_range.elapsed_us())
        return self._recorded("cpu_time_total") / 1000

    @property
    def self_cpu_time_total(self) -> float:
        """Host time without that of the events inside it, in microseconds; never negative."""
        return float(self._without_inside("cpu_time_total", "time_range"))

    @property
    def device_time_total(self) -> float:
        """Device time, in microseconds."""
        if self._has_other_kernels():
            return self.self_device_time_total + sum(child.device_time_total for child in self.cpu_children)
        return self._recorded("device_time_total") / 1000

    @property
    def self_device_time_total(self) -> float:
        """Device time without that of the events inside it, in microseconds."""
        if self._has_other_kernels():
            return float(sum(kernel.duration for kernel in self.kernels))
        return self._recorded("self_device_time_total") / 1000

    def _has_other_kernels(self) -> bool:
        """Whether a program has set what its device time is made of."""
        return bool(own_of(self)) and self._nests() and self._is_set("kernels", "cpu_children")

    @Computed
    def cpu_memory_usage(self) -> int:
        """Host bytes allocated minus freed."""
        return self._recorded("cpu_memory_usage")

    @property
    def self_cpu_memory_usage(self) -> int:
        """The same without the events inside it."""
        return int(self._without_inside("cpu_memory_usage", "cpu_memory_usage"))

    @Computed
    def device_memory_usage(self) -> int:
        """Device bytes allocated minus freed."""
        return self._recorded("device_memory_usage")

    @property
    def self_device_memory_usage(self) -> int:
        """The same without the events inside it."""
        return int(self._without_inside("device_memory_usage", "device_memory_usage"))

    @Computed
    def flops(self) -> int:
        """Floating-point operations of the call; 0 without `with_flops=True` or if unknown.

        Those of an operator inside another are counted once, at the operator that the formula is for.
        """
        return self._recorded("flops")

    @Computed
    def id(self) -> int:
        """The row of the span, as in the `id` column of the `spans` table; of calls rebuilt from stacks a number behind these."""
        ids = event_ids(self._trace)
        return self.row if ids is None else int(ids[self.row])

    @Computed
    def trace_name(self) -> str | None:
        """The name as recorded; None for memory outside all events, which traces draw as no event."""
        return self._trace.strings[self._number("name")]

    @Computed
    def name(self) -> str:
        """The name; all steps share one."""
        return event_name(self._trace.strings[self._number("name")])

    @property
    def key(self) -> str:
        """What `key_averages` groups by: the name."""
        return self.name

    @Computed
    def overload_name(self) -> str:
        """The overload of the operator's schema."""
        return self._trace.strings[self._number("overload")]

    @Computed
    def time_range(self) -> Interval:
        """Start and end in microseconds from the start of the trace."""
        start_ns = self._number("start_ns")
        return Interval(start_ns / 1000, (start_ns + self._number("duration_ns")) / 1000)

    @Computed
    def thread(self) -> int:
        """torch's logical id of the thread."""
        return int(self._trace.column("threads", "torch_tid")[self._number("thread")])

    @Computed
    def fwd_thread(self) -> int:
        """torch's logical id of the thread its forward ran on; 0 for what is neither a backward function nor its wrapper."""
        thread = int(autograd(self._trace).forward_thread[self.row])
        return int(self._trace.column("threads", "torch_tid")[thread]) if thread >= 0 else 0

    @Computed
    def sequence_nr(self) -> int:
        """Autograd's sequence number, -1 without; the engine's wrapper has that of the backward function in it."""
        return int(autograd(self._trace).sequence[self.row])

    @Computed
    def scope(self) -> int:
        """torch's record scope."""
        return self._number("scope")

    @property
    def kind(self) -> SpanKind:
        """What the event is."""
        return SpanKind(self._number("kind"))

    @Computed
    def is_user_annotation(self) -> bool:
        """Whether `record_function` or a step made it."""
        return self.kind in _ANNOTATIONS

    @Computed
    def is_python_function(self) -> bool:
        """Whether it is a call of a Python function or of a module."""
        return self.kind in (SpanKind.PYTHON, SpanKind.MODULE)

    @Computed
    def python_id(self) -> int:
        """The number of a call of a Python function or of a module, -1 for what is none."""
        return self._call_number("own")

    @Computed
    def python_parent_id(self) -> int:
        """The number of the call around a call, -1 without."""
        return self._call_number("around")

    @Computed
    def python_module_id(self) -> int:
        """The number of a called module among those of its class, -1 for other events."""
        return self._call_number("module")

    def _call_number(self, which: str) -> int:
        """A number of a call; -1 where calls are no events."""
        numbers_of_calls = call_numbers(self._trace, visible_spans(self._trace).parent)
        return -1 if numbers_of_calls is None else int(getattr(numbers_of_calls, which)[self.row])

    @Computed
    def is_async(self) -> bool:
        """Whether it ended on another thread than it began, or torch says that it may; no self time is counted then."""
        return bool(self._number("flags") & FLAG_ASYNC)

    @Computed
    def activity_type(self) -> str:
        """Kineto's word for what it is, such as `cpu_op`, `user_annotation` or `kernel`."""
        kind = self.kind
        if kind in _ANNOTATIONS and self._number("stream") >= 0:
            return "gpu_user_annotation"
        return _ACTIVITIES.get(kind, "cpu_op")

    @Computed
    def device_type(self) -> Any:
        """Where it ran: torch's `DeviceType` if torch is loaded, else an enum with the same numbers."""
        stream = self._number("stream")
        return device_type(int(self._trace.column("streams", "device_type")[stream]) if stream >= 0 else 0)

    @Computed
    def device_index(self) -> int:
        """The index of the device; for the host the process id, which is what torch puts there."""
        stream = self._number("stream")
        if stream >= 0:
            return int(self._trace.column("streams", "device_index")[stream])
        return self._trace.run_info.process or 0

    @Computed
    def device_resource_id(self) -> int:
        """The number of the stream; for the host the operating system's id of the thread."""
        stream = self._number("stream")
        if stream >= 0:
            return int(self._trace.column("streams", "number")[stream])
        return int(self._trace.column("threads", "os_tid")[self._number("thread")])

    @Computed
    def external_id(self) -> int:
        """The `External id` of Chrome traces, which links an event with what it started."""
        number = -1 if self.row < 0 else self._number("external_id")
        return number if number >= 0 else self.id + 1

    @Computed
    def linked_correlation_id(self) -> int:
        """For an event of a device the `id` of the event that started it, else 0."""
        starter = launches(self._trace).starter_of(self.row)
        return event_at(self._trace, starter).id if starter >= 0 else 0

    @Computed
    def flow_id(self) -> int:
        """A number that a forward operator and its backward function share, 0 without."""
        return int(arrows(self._trace).number[self.row])

    @Computed
    def flow_type(self) -> int:
        """1 for an event with a `flow_id`, else 0."""
        return int(self.flow_id != 0)

    @Computed
    def flow_start(self) -> bool:
        """Whether it is the forward end of a forward-backward pair."""
        return bool(arrows(self._trace).starts[self.row])

    @Computed
    def use_device(self) -> str | None:
        """The device that was profiled besides the host."""
        return used_device(self._trace)

    @Kept
    def input_shapes(self) -> list[Any]:
        """The sizes of each tensor input; empty for lists of tensors, as torch has it."""
        return flat_shapes(self._shape_part("dims"))

    @Kept
    def structured_input_shapes(self) -> list[Any]:
        """The sizes of each input, for lists of tensors one entry a tensor."""
        return self._shape_part("dims")

    @Kept
    def input_dtypes(self) -> list[Any]:
        """The type of each input."""
        return self._shape_part("types")

    @Computed
    def structured_input_strides(self) -> list[Any]:
        """The strides of each input, for lists of tensors one entry a tensor."""
        return self._shape_part("strides")

    @Kept
    def concrete_inputs(self) -> list[Any]:
        """The value of each scalar input or list of scalars, None for tensors; strings and devices are text."""
        return python_values(self._shape_part("concrete"), self._shape_part("types"))

    @Kept
    def kwinputs(self) -> dict[str, Any]:
        """What a range was given by keyword, such as the facts of a compiled kernel's launch; empty for operators."""
        given = self._arguments()
        given.pop(EVENT_METADATA_KEY, None)
        others = given.pop(OTHER_KEYWORDS, None)
        if isinstance(others, dict):
            given |= others
        if self._trace.run_info.engine != "native":
            # The collector of torch 2.7 adds this to every event.
            given.pop("finished", None)
        # What torch's collector writes of a collective was no input.
        return {} if "Collective name" in given else given

    @Kept
    def stack(self) -> list[str]:
        """The Python stack, innermost entry first; in backward functions that of the forward operator.

        With `with_stack=True`, the names of the calls around it, as in torch; else frames with the line that each was at.
        """
        return self.innermost(None)

    def innermost(self, frames: int | None) -> list[str]:
        """Return the innermost frames of the stack, at most this many; None returns all."""
        stacks = event_stacks(self._trace)
        return stacks.entries(int(stacks.of_span[self.row]), frames)

    @property
    def module(self) -> str:
        """The path of the `nn.Module` it ran in; in backward that of the forward operator."""
        module = self._number("module")
        return self._trace.columns("modules")["path"][module] if module >= 0 else ""

    @property
    def phase(self) -> str:
        """`forward`, `backward` or `optimizer`."""
        return PHASE_NAMES[self._number("phase")]

    @Computed
    def cpu_parent(self) -> FunctionEvent | None:
        """The event around it."""
        parent = SpanRow(int(visible_spans(self._trace).parent[self.row]))
        return event_at(self._trace, parent) if parent >= 0 else None

    @Kept
    def cpu_children(self) -> list[FunctionEvent]:
        """The events directly inside it, in order."""
        return [event_at(self._trace, row) for row in children(self._trace, self.row)]

    @Kept
    def kernels(self) -> list[Kernel]:
        """What it started on devices."""
        events = [event_at(self._trace, row) for row in launches(self._trace).started_by(self.row)]
        return [Kernel(event.name, event.device_index, event.time_range.elapsed_us()) for event in events]

    @property
    def metadata_json(self) -> str | None:
        """Kineto's metadata as the inside of a JSON object, None for an event of memory; deprecated by torch.

        Only the Kineto engine has it, and only with `expose_kineto_event_metadata`; else it is empty.
        """
        warnings.warn("`metadata_json` is deprecated; use `event_metadata`.", FutureWarning, stacklevel=2)
        return self._metadata_json

    @Computed
    def _metadata_json(self) -> str | None:
        """The same without a warning, under the name that torch stores it by."""
        return None if self.row < 0 else str(self._arguments().get(EVENT_METADATA_KEY, ""))

    def _arguments(self) -> dict[str, Any]:
        """Further metadata of the call from its source."""
        row = self._number("arguments")
        return dict(json.loads(self._trace.columns("arguments")["json"][row])) if row >= 0 else {}

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


_set_trace, _set_row = FunctionEvent._trace.__set__, FunctionEvent.row.__set__  # type: ignore[attr-defined]


# torch's tables note these on the events they print.
_SHARES = frozenset({"self_cpu_percent", "total_cpu_percent", "total_device_percent"})


@derived
def changed_events(trace: TraceData) -> dict[int, FunctionEvent]:
    """The events of a trace that a program has changed, by their place: lists show these objects, as torch's lists do."""
    return {}


def event_at(trace: TraceData, row: SpanRow) -> FunctionEvent:
    """The event of a span."""
    changed = changed_events(trace).get(row)
    return FunctionEvent(trace, row) if changed is None else changed


def _need_host(call: str, *events: Any) -> None:
    """Refuse what torch's event trees do not hold."""
    for event in events:
        if not isinstance(event, FunctionEvent) or int(event.device_type):
            raise ArgumentError(f"{call}() is not possible with {event!r}: need events of the host")
