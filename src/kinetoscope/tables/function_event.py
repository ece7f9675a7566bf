"""One event of a trace, with the attributes that programs written for `torch.profiler` read."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kinetoscope.tables import _visible
from kinetoscope.tables._device import DeviceType, device_type
from kinetoscope.tables._event_times import TimesAsText
from kinetoscope.trace._assemble import ENGINE_WRAPPER
from kinetoscope.trace._naming import frame_texts, stack_frames
from kinetoscope.trace._schema import FLAG_ASYNC, PHASE_NAMES, SCOPE_BACKWARD, SpanKind
from kinetoscope.trace._steps import MARK

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

STEP_KEY = "ProfilerStep*"
_ANNOTATIONS = (SpanKind.USER_ANNOTATION, SpanKind.STEP)


class Interval(NamedTuple):
    """From `start` to `end`, in microseconds."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """Return the length in microseconds."""
        return self.end - self.start


class Kernel(NamedTuple):
    """Something a host event started on a device; `duration` is in microseconds."""

    name: str
    device: int
    duration: float


class FunctionEvent(TimesAsText):
    """One event: a view of one row of the `spans` table. Times are in microseconds, as torch has them.

    Attributes:
        row: The row of `spans`.
    """

    __slots__ = ("_trace", "row")

    # What this package does not record, with the value torch gives it then.
    node_id = -1
    is_remote = False
    is_legacy = False
    count = 1
    flops = 0
    structured_input_strides: tuple[()] = ()
    event_metadata = None
    external_id = 0
    linked_correlation_id = 0
    flow_id = 0
    flow_type = 0
    flow_start = False
    python_id = -1
    python_parent_id = -1
    python_module_id = -1

    def __init__(self, trace: Trace, row: int) -> None:
        """Point at a row."""
        self._trace = trace
        self.row = row

    def __eq__(self, other: object) -> bool:
        """Two events are equal when they are the same row of the same trace."""
        return isinstance(other, FunctionEvent) and other._trace is self._trace and other.row == self.row

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash((id(self._trace), self.row))

    def _number(self, column: str) -> int:
        """The value of a stored column as a Python number."""
        return int(self._trace.column("spans", column)[self.row])

    def _time(self, name: str) -> int:
        """A number of this event as event lists show it."""
        return int(_visible.numbers(self._trace, name)[self.row])

    def _shape_part(self, part: str) -> Any:
        """One part of what is known about the inputs."""
        shapes = self._number("shapes")
        if shapes < 0:
            return []
        text = self._trace.columns("shapes")[part][shapes]
        return json.loads(text) if text else []

    @property
    def id(self) -> int:
        """The row of the span, as in the `id` column of the `spans` table."""
        return self.row

    @property
    def trace_name(self) -> str:
        """The name as recorded."""
        return self._trace.strings[self._number("name")]

    @property
    def name(self) -> str:
        """The name; all steps share one."""
        return event_name(self.trace_name)

    key = name

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
        """torch's logical id of the thread the forward ran on; 0 if this is no numbered backward function."""
        row = self._numbered_row
        thread = int(self._trace.column("spans", "forward_thread")[row])
        if thread < 0 or self._trace.column("spans", "sequence")[row] < 0:
            return 0
        return int(self._trace.column("threads", "torch_tid")[thread])

    @property
    def sequence_nr(self) -> int:
        """Autograd's sequence number, -1 without; the engine's span around a backward function has that one's."""
        return int(self._trace.column("spans", "sequence")[self._numbered_row])

    @property
    def _numbered_row(self) -> int:
        """The row that was given the sequence number: for the engine's span that of the function inside it."""
        if self.trace_name.startswith(ENGINE_WRAPPER) and self._number("sequence") < 0:
            scopes = self._trace.column("spans", "scope")
            for row in children(self._trace, self.row):
                if scopes[row] == SCOPE_BACKWARD:
                    return row
        return self.row

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
        """Whether it is a call of a Python function."""
        return self.kind == SpanKind.PYTHON

    @property
    def is_async(self) -> bool:
        """Whether it ended on another thread than it began."""
        return bool(self._number("flags") & FLAG_ASYNC)

    @property
    def activity_type(self) -> str:
        """Kineto's word for what it is."""
        kind = self.kind
        if kind in _ANNOTATIONS:
            return "user_annotation"
        words = {
            SpanKind.PYTHON: "python_function",
            SpanKind.KERNEL: "kernel",
            SpanKind.RUNTIME: "cuda_runtime",
        }
        return words.get(kind, "cpu_op")

    @property
    def device_type(self) -> Any:
        """Where it ran: torch's `DeviceType` if torch is loaded, else an enum with the same numbers."""
        stream = self._number("stream")
        return device_type(int(self._trace.column("streams", "device_type")[stream]) if stream >= 0 else 0)

    @property
    def device_index(self) -> int:
        """The index of the device, 0 for the host."""
        stream = self._number("stream")
        return int(self._trace.column("streams", "device_index")[stream]) if stream >= 0 else 0

    @property
    def device_resource_id(self) -> int:
        """The stream, or the thread for the host."""
        stream = self._number("stream")
        return int(self._trace.column("streams", "number")[stream]) if stream >= 0 else self.thread

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
    def concrete_inputs(self) -> list[Any]:
        """The scalar inputs."""
        concrete: list[Any] = self._shape_part("concrete")
        return concrete

    @property
    def kwinputs(self) -> dict[str, Any]:
        """Keyword inputs, which are not told apart from the others."""
        return {}

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
        parent = int(_visible.visible_spans(self._trace).parent[self.row])
        return FunctionEvent(self._trace, parent) if parent >= 0 else None

    @property
    def cpu_children(self) -> list[FunctionEvent]:
        """The events directly inside it, in order."""
        return [FunctionEvent(self._trace, row) for row in children(self._trace, self.row)]

    @property
    def kernels(self) -> list[Kernel]:
        """What it started on devices."""
        launches = self._trace.columns("launches")
        rows = launches["device"][launches["host"] == self.row].tolist()
        events = [FunctionEvent(self._trace, row) for row in rows]
        return [Kernel(event.name, event.device_index, event.time_range.elapsed_us()) for event in events]

    @property
    def cpu_time_total(self) -> float:
        """Host time, in microseconds."""
        return self._time("duration_ns") / 1000

    @property
    def self_cpu_time_total(self) -> float:
        """Host time without that of the events inside it, in microseconds; never negative."""
        return self._time("self_ns") / 1000

    @property
    def device_time_total(self) -> float:
        """Device time, in microseconds."""
        return self._time("device_ns") / 1000

    @property
    def self_device_time_total(self) -> float:
        """Device time without that of the events inside it, in microseconds."""
        return self._time("device_self_ns") / 1000

    @property
    def cpu_memory_usage(self) -> int:
        """Host bytes allocated minus freed."""
        return self._time("bytes")

    @property
    def self_cpu_memory_usage(self) -> int:
        """The same without the events inside it."""
        return self._time("self_bytes")

    @property
    def device_memory_usage(self) -> int:
        """Device bytes allocated minus freed."""
        return self._time("device_bytes")

    @property
    def self_device_memory_usage(self) -> int:
        """The same without the events inside it."""
        return self._time("device_self_bytes")

    @property
    def metadata_json(self) -> str:
        """Kineto's metadata, which this package does not keep."""
        warnings.warn("`metadata_json` is deprecated; use `event_metadata`.", FutureWarning, stacklevel=2)
        return ""

    def __repr__(self) -> str:
        """One line with what identifies the event."""
        span = self.time_range
        return (
            f"<FunctionEvent id={self.id} name={self.name} cpu_time={self.cpu_time_str} start_us={span.start} "
            f"end_us={span.end} thread={self.thread} input_shapes={self.input_shapes}>"
        )


def children(trace: Trace, row: int) -> list[int]:
    """The rows directly inside a row, in order of time."""

    def index() -> tuple[Any, Any]:
        visible = _visible.visible_spans(trace)
        parent = (
            visible.parent if visible.absorbed is None else np.where(visible.absorbed, -1, visible.parent)
        )
        order = np.argsort(parent, kind="stable")
        return order, parent[order]

    order, parents = trace.cached("event_children", index)
    first, last = np.searchsorted(parents, [row, row + 1])
    found: list[int] = order[first:last].tolist()
    return found


def used_device(trace: Trace) -> str | None:
    """torch's word for the device that was profiled beside the host."""
    types = trace.column("streams", "device_type")
    return DeviceType(int(types[0])).name.lower() if len(types) else None


def event_name(recorded: str) -> str:
    """The name of an event: as recorded, but all steps share one."""
    return STEP_KEY if recorded.startswith(MARK) else recorded


def flat_shapes(dims: list[Any]) -> list[Any]:
    """Replace the shapes of a list of tensors by an empty one."""
    return [[] if dim and isinstance(dim, list) and isinstance(dim[0], list) else dim for dim in dims]
