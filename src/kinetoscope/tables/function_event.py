"""One event of a trace, with the attributes that programs written for `torch.profiler` read."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetoscope.tables._concrete_inputs import python_values
from kinetoscope.tables._device import device_type
from kinetoscope.tables._event_facts import children, event_name, flat_shapes, used_device
from kinetoscope.tables._event_links import arrows, autograd, launches
from kinetoscope.tables._event_numbers import numbers
from kinetoscope.tables._event_times import EventSums
from kinetoscope.tables._visible import visible_spans
from kinetoscope.tables.event_calls import call_numbers, event_ids
from kinetoscope.trace._naming import frame_texts, stack_frames
from kinetoscope.trace._schema import EVENT_METADATA_KEY, FLAG_ASYNC, PHASE_NAMES, SpanKind

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

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


class FunctionEvent(EventSums):
    """One event: a view of one row of the `spans` table, made when a list is indexed.

    It has the attributes of torch's class of this name. Times are in microseconds from the start of the trace, sizes in
    bytes. Values are read from the trace's columns when they are asked for; attributes of your own may be set on an
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

    __slots__ = ("__dict__", "_trace", "row")

    node_id = -1
    is_remote = False
    is_legacy = False
    count = 1
    event_metadata = None
    metadata = None
    self_cpu_percent: Any = -1
    total_cpu_percent: Any = -1
    total_device_percent: Any = -1

    def __init__(self, trace: Trace, row: int) -> None:
        """Point at a row."""
        self._trace = trace
        self.row = row

    def __eq__(self, other: object) -> bool:
        """Two events are equal when they are the same row of the same trace."""
        return isinstance(other, FunctionEvent) and other._trace is self._trace and other.id == self.id

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a place in a trace; events of one trace share it."""
        return type(self), (self._trace, self.row), self.__dict__

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash((id(self._trace), self.id))

    @property
    def trace(self) -> Trace:
        """The trace it comes from."""
        return self._trace

    def _number(self, column: str) -> int:
        """The value of a stored column as a Python number."""
        return int(self._trace.column("spans", column)[self.row])

    def _time(self, name: str) -> int:
        """A number of this event as event lists show it."""
        return int(numbers(self._trace, name)[self.row])

    def _shape_part(self, part: str) -> Any:
        """One part of what is known about the inputs."""
        shapes = self._number("shapes")
        if shapes < 0:
            return []
        text = self._trace.columns("shapes")[part][shapes]
        return json.loads(text) if text else []

    @property
    def id(self) -> int:
        """The row of the span, as in the `id` column of the `spans` table; of calls rebuilt from stacks a number behind these."""
        ids = event_ids(self._trace)
        return self.row if ids is None else int(ids[self.row])

    @property
    def trace_name(self) -> str | None:
        """The name as recorded; None for memory outside all events, which traces draw as no event."""
        return self._trace.strings[self._number("name")]

    @property
    def name(self) -> str:
        """The name; all steps share one."""
        return event_name(self._trace.strings[self._number("name")])

    @property
    def key(self) -> str:
        """What `key_averages` groups by: the name."""
        return self.name

    @property
    def overload_name(self) -> str:
        """The overload of the operator's schema."""
        return self._trace.strings[self._number("overload")]

    @property
    def time_range(self) -> Interval:
        """Start and end in microseconds from the start of the trace."""
        start_ns = self._number("start_ns")
        return Interval(start_ns / 1000, (start_ns + self._number("duration_ns")) / 1000)

    @property
    def thread(self) -> int:
        """torch's logical id of the thread."""
        return int(self._trace.column("threads", "torch_tid")[self._number("thread")])

    @property
    def fwd_thread(self) -> int:
        """torch's logical id of the thread its forward ran on; 0 for what is neither a backward function nor its wrapper."""
        thread = int(autograd(self._trace).forward_thread[self.row])
        return int(self._trace.column("threads", "torch_tid")[thread]) if thread >= 0 else 0

    @property
    def sequence_nr(self) -> int:
        """Autograd's sequence number, -1 without; the engine's wrapper has that of the backward function in it."""
        return int(autograd(self._trace).sequence[self.row])

    @property
    def scope(self) -> int:
        """torch's record scope."""
        return self._number("scope")

    @property
    def kind(self) -> SpanKind:
        """What the event is."""
        return SpanKind(self._number("kind"))

    @property
    def is_user_annotation(self) -> bool:
        """Whether `record_function` or a step made it."""
        return self.kind in _ANNOTATIONS

    @property
    def is_python_function(self) -> bool:
        """Whether it is a call of a Python function or of a module."""
        return self.kind in (SpanKind.PYTHON, SpanKind.MODULE)

    @property
    def python_id(self) -> int:
        """The number of a call of a Python function or of a module, -1 for what is none."""
        return self._call_number("own")

    @property
    def python_parent_id(self) -> int:
        """The number of the call around a call, -1 without."""
        return self._call_number("around")

    @property
    def python_module_id(self) -> int:
        """The number of a called module among those of its class, -1 for other events."""
        return self._call_number("module")

    def _call_number(self, which: str) -> int:
        """A number of a call; -1 where calls are no events."""
        numbers_of_calls = call_numbers(self._trace, visible_spans(self._trace).parent)
        return -1 if numbers_of_calls is None else int(getattr(numbers_of_calls, which)[self.row])

    @property
    def is_async(self) -> bool:
        """Whether it ended on another thread than it began, or torch says that it may; no self time is counted then."""
        return bool(self._number("flags") & FLAG_ASYNC)

    @property
    def activity_type(self) -> str:
        """Kineto's word for what it is, such as `cpu_op`, `user_annotation` or `kernel`."""
        kind = self.kind
        if kind in _ANNOTATIONS and self._number("stream") >= 0:
            return "gpu_user_annotation"
        return _ACTIVITIES.get(kind, "cpu_op")

    @property
    def device_type(self) -> Any:
        """Where it ran: torch's `DeviceType` if torch is loaded, else an enum with the same numbers."""
        stream = self._number("stream")
        return device_type(int(self._trace.column("streams", "device_type")[stream]) if stream >= 0 else 0)

    @property
    def device_index(self) -> int:
        """The index of the device; for the host the process id, which is what torch puts there."""
        stream = self._number("stream")
        if stream >= 0:
            return int(self._trace.column("streams", "device_index")[stream])
        process = self._trace.info.get("process")
        return process if isinstance(process, int) else 0

    @property
    def device_resource_id(self) -> int:
        """The number of the stream; for the host the operating system's id of the thread."""
        stream = self._number("stream")
        if stream >= 0:
            return int(self._trace.column("streams", "number")[stream])
        return int(self._trace.column("threads", "os_tid")[self._number("thread")])

    @property
    def external_id(self) -> int:
        """The `id`: what links an event with what it started."""
        return self.id

    @property
    def linked_correlation_id(self) -> int:
        """For an event of a device the `id` of the event that started it, else 0."""
        starter = launches(self._trace).starter_of(self.row)
        return FunctionEvent(self._trace, starter).id if starter >= 0 else 0

    @property
    def flow_id(self) -> int:
        """A number that a forward operator and its backward function share, 0 without."""
        return int(arrows(self._trace).number[self.row])

    @property
    def flow_type(self) -> int:
        """1 for an event with a `flow_id`, else 0."""
        return int(self.flow_id != 0)

    @property
    def flow_start(self) -> bool:
        """Whether it is the forward end of a forward-backward pair."""
        return bool(arrows(self._trace).starts[self.row])

    @property
    def use_device(self) -> str | None:
        """The device that was profiled beside the host."""
        return used_device(self._trace)

    @property
    def input_shapes(self) -> list[Any]:
        """The sizes of each tensor input; empty for lists of tensors, as torch has it."""
        return flat_shapes(self._shape_part("dims"))

    @property
    def structured_input_shapes(self) -> list[Any]:
        """The sizes of each input, for lists of tensors one entry a tensor."""
        dims: list[Any] = self._shape_part("dims")
        return dims

    @property
    def input_dtypes(self) -> list[Any]:
        """The type of each input."""
        types: list[Any] = self._shape_part("types")
        return types

    @property
    def structured_input_strides(self) -> list[Any]:
        """Empty: strides are not recorded."""
        return []

    @property
    def concrete_inputs(self) -> list[Any]:
        """The value of each scalar input or list of scalars, None for tensors; strings and devices are kept as text."""
        return python_values(self._shape_part("concrete"), self._shape_part("types"))

    @property
    def kwinputs(self) -> dict[str, Any]:
        """What a range was given by keyword, such as the facts of a compiled kernel's launch; empty for operators."""
        given = self._arguments()
        given.pop(EVENT_METADATA_KEY, None)
        # What torch's collector writes of a collective was no input.
        return {} if "Collective name" in given else given

    @property
    def stack(self) -> list[str]:
        """The Python stack, innermost frame first; in backward that of the forward operator."""
        return self.innermost(None)

    def innermost(self, frames: int | None) -> list[str]:
        """Return the innermost frames of the stack, at most this many; None returns all."""
        if frames == 0:
            return []
        texts = frame_texts(self._trace)
        return [texts[frame] for frame in stack_frames(self._trace, self._number("stack"), frames)]

    @property
    def module(self) -> str:
        """The path of the `nn.Module` it ran in; in backward that of the forward operator."""
        module = self._number("module")
        return self._trace.columns("modules")["path"][module] if module >= 0 else ""

    @property
    def phase(self) -> str:
        """`forward`, `backward` or `optimizer`."""
        return PHASE_NAMES[self._number("phase")]

    @property
    def cpu_parent(self) -> FunctionEvent | None:
        """The event around it."""
        parent = int(visible_spans(self._trace).parent[self.row])
        return FunctionEvent(self._trace, parent) if parent >= 0 else None

    @property
    def cpu_children(self) -> list[FunctionEvent]:
        """The events directly inside it, in order."""
        return [FunctionEvent(self._trace, row) for row in children(self._trace, self.row)]

    @property
    def kernels(self) -> list[Kernel]:
        """What it started on devices."""
        events = [FunctionEvent(self._trace, row) for row in launches(self._trace).started_by(self.row)]
        return [Kernel(event.name, event.device_index, event.time_range.elapsed_us()) for event in events]

    @property
    def metadata_json(self) -> str | None:
        """Kineto's metadata as the inside of a JSON object, None for an event of memory; deprecated by torch.

        Only the Kineto engine has it, and only with `expose_kineto_event_metadata`; else it is empty.
        """
        warnings.warn("`metadata_json` is deprecated; use `event_metadata`.", FutureWarning, stacklevel=2)
        return None if self.row < 0 else str(self._arguments().get(EVENT_METADATA_KEY, ""))

    def _arguments(self) -> dict[str, Any]:
        """What the source said of the call beyond what has columns."""
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
