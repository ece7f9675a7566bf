"""API-compatible with the event objects of torch's collector, from our columns: what `prof.profiler.kineto_results` has where torch made none."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch._C import _profiler

from kinetoscope.model.names import device_name
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.call import torch_type
from kinetoscope.torch_events.event_tree import event_tree, trace_of_events, visible_spans
from kinetoscope.torch_events.function_event import (
    FunctionEvent,
    event_at,
    span_of_allocation,
    used_device,
)

# The tags of events that torch records by callbacks; all others have the tag `Kineto`, and Python calls one that depends on their name.
_TAGS = {"cpu_op": "TorchOp", "user_annotation": "TorchOp", "cpu_instant_event": "Allocation"}
_PARTS_OF_INPUTS = attrgetter(
    "structured_input_shapes", "structured_input_strides", "input_dtypes", "concrete_inputs"
)
_FRAME = re.compile(r"(.*)\((\d+)\): (.*)", re.DOTALL)
_SCOPES = {scope.value: scope for scope in _profiler.RecordScope.__members__.values()}
# torch repeats no number of an event in a process.
_recordings = itertools.count()
_NUMBERS_PER_RECORDING = 1 << 24


class PassesAs(SimpleNamespace):
    """Values that pass as an object of one of torch's classes, of which no program can make one."""

    def __init__(self, torchs_class: str, /, **values: Any) -> None:
        """Store the values as attributes of what passes as an object of `torch._C._profiler.<torchs_class>`."""
        super().__init__(**values)
        self._torchs_class = torchs_class

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of torch, so that `isinstance` is true of it."""
        return getattr(_profiler, self._torchs_class)


class RawEvent:
    """API-compatible with torch's `_KinetoEvent`, of which every attribute is a method."""

    def __init__(self, event: FunctionEvent) -> None:
        """Answer from this event of a trace of ours."""
        self._event = event

    def __getattr__(self, name: str) -> Callable[[], Any]:
        """A method without arguments that returns the value of this name in the event."""
        if name.startswith("_"):
            raise AttributeError(name)
        value = _VALUES.get(name, attrgetter(name))(self._event)
        return lambda: value


def _time_ns(event: FunctionEvent, *, end: bool = False) -> int:
    """When an event begins or ends, in nanoseconds since 1970."""
    time_us = event.time_range.end if end else event.time_range.start
    return (event.trace.run_info.start_realtime_ns or 0) + round(time_us * 1000)


@derived
def _first_number(trace: TraceData) -> int:
    return next(_recordings) * _NUMBERS_PER_RECORDING + 1


def _number(event: FunctionEvent) -> int:
    """What links a launch with device work; of other events a number of their own."""
    correlation = int(event.trace.column("spans", "correlation")[event.place]) if event.place >= 0 else -1
    return correlation if correlation >= 0 else _first_number(event.trace) + event.id


# Other values are attributes of ours with the same name.
_VALUES: dict[str, Callable[[FunctionEvent], Any]] = {
    "name": lambda event: event.trace_name or event.name,
    "start_ns": _time_ns,
    "end_ns": lambda event: _time_ns(event, end=True),
    "duration_ns": lambda event: _time_ns(event, end=True) - _time_ns(event),
    **dict.fromkeys(("start_thread_id", "end_thread_id"), attrgetter("thread")),
    "fwd_thread_id": attrgetter("fwd_thread"),
    **dict.fromkeys(("correlation_id", "external_id"), _number),
    "linked_correlation_id": lambda event: (
        event.linked_correlation_id and _first_number(event.trace) + event.linked_correlation_id
    ),
    "shapes": attrgetter("input_shapes"),
    "dtypes": attrgetter("input_dtypes"),
    "nbytes": lambda event: event.place < 0 and (event.cpu_memory_usage or event.device_memory_usage),
    "is_hidden_event": lambda event: event.place >= 0 and visible_spans(event.trace).absorbed[event.place],
    **dict.fromkeys(("extra_meta", "typed_metadata"), lambda _: {}),
    "metadata_json": lambda event: event._metadata_json or "",  # noqa: SLF001  (torch's name; ours without it warns)
    **dict.fromkeys(("cuda_elapsed_us", "privateuse1_elapsed_us"), lambda _: -1),
}


class EventNode:
    """API-compatible with torch's `_ProfilerEvent`: an event, and those inside it."""

    def __init__(self, event: FunctionEvent, number: int) -> None:
        """Make a node without parent and children, whose `id` is `number`."""
        self.event, self.id = event, number
        self.parent: EventNode | None = None
        self.children: list[EventNode] = []

    name = property(lambda self: _VALUES["name"](self.event))
    overload_name = property(lambda self: self.event.overload_name)
    correlation_id = property(lambda self: _number(self.event))
    start_time_ns = property(lambda self: _time_ns(self.event))
    end_time_ns = property(lambda self: _time_ns(self.event, end=True))
    duration_time_ns = property(lambda self: self.end_time_ns - self.start_time_ns)
    tag = property(lambda self: self.typed[0])
    extra_fields = property(lambda self: self.typed[1])

    @property
    def start_tid(self) -> int:
        """torch's number of the thread, for device work of the one that launched it."""
        return self.event.thread if self.parent is None else self.parent.start_tid

    @cached_property
    def typed(self) -> tuple[Any, PassesAs]:
        """The kind of event, and what only events of this kind have."""
        event, fields = self.event, dict[str, Any]()
        name = _TAGS.get(event.activity_type, "Kineto")
        if event.is_python_function:
            name, fields = self._of_call()
        elif name == "Allocation":
            fields = _of_allocation(event)
        elif name == "TorchOp":
            scope = _SCOPES.get(event.scope, _profiler.RecordScope.FUNCTION)
            fields = {
                "name": self.name,
                "inputs": _inputs(event),
                "scope": scope,
                "sequence_number": event.sequence_nr,
                "allow_tf32_cublas": False,
            }
        tag = getattr(_profiler._EventType, name)  # noqa: SLF001  (torch's own)
        return tag, PassesAs(f"_ExtraFields_{name}", **fields)

    def _of_call(self) -> tuple[str, dict[str, Any]]:
        """Calls with what torch has of them; a module has no parameters here: their shapes are not recorded."""
        event, around, module = self.event, self.parent, None
        while around is not None and not hasattr(around.extra_fields, "callsite"):
            around = around.parent
        caller = _frame("") if around is None else around.extra_fields.callsite
        row = int(event.trace.column("spans", "module")[event.place])
        if event.kind == SpanKind.PYTHON and not _FRAME.fullmatch(self.name):
            return "PyCCall", {"caller": caller}
        if event.kind == SpanKind.MODULE and row >= 0:
            modules = event.trace.columns("modules")
            cls_name, pointer = event.trace.strings[modules["class"][row]], int(modules["address"][row])
            module = PassesAs("_NNModuleInfo", self_ptr=pointer, cls_ptr=0, cls_name=cls_name, parameters=[])
        return "PyCall", {
            "callsite": _frame(self.name), "caller": caller, "module": module, "optimizer": None,
        }  # fmt: skip


def _frame(call: str) -> PassesAs:
    """What torch has of a Python function, from the name of its call."""
    file, line, function = match.groups() if (match := _FRAME.fullmatch(call)) else ("", "0", call)
    return PassesAs("_PyFrameState", file_name=file, line_number=int(line), function_name=function)


def _of_allocation(event: FunctionEvent) -> dict[str, Any]:
    columns, row = event.trace.columns("allocations"), -1 - event.place

    def value(name: str) -> int:
        return int(columns[name][row])

    # A free has the number of its block, which is that of the row of the allocation.
    block = row if value("bytes") else value("match") if value("match") >= 0 else None
    return {
        "ptr": value("address"), "id": block, "allocation_id": block,
        "alloc_size": event.cpu_memory_usage or event.device_memory_usage,
        "total_allocated": value("total_bytes" if value("allocated_bytes") < 0 else "allocated_bytes"),
        "total_reserved": max(value("reserved_bytes"), 0),
        "device": torch.device(device_name(value("device_type"), value("device_index"))),
    }  # fmt: skip


def _inputs(event: FunctionEvent) -> list[Any]:
    """The arguments of an operator: tensors, lists of these, numbers, and None for others."""
    return [
        value if kind == "Scalar" else _tensors(event, dims, strides or [], kind or "")
        for dims, strides, kind, value in itertools.zip_longest(*_PARTS_OF_INPUTS(event))
    ]


def _tensors(event: FunctionEvent, dims: list[Any] | None, strides: list[Any], kind: str) -> Any:
    """What torch has of a tensor, or of each in a list, whose types are not recorded; None for anything else."""
    if dims and isinstance(dims[0], list):
        pairs = zip(dims, strides or [[]] * len(dims), strict=True)
        return [_tensors(event, sizes, steps, "list") for sizes, steps in pairs]
    dtype = torch_type(kind)
    return None if dtype is None and kind != "list" else PassesAs(
        "_TensorMetadata", sizes=dims, strides=strides, dtype=dtype and getattr(torch, dtype),
        layout=torch.strided if len(dims or ()) == len(strides) else None, impl_ptr=None, storage_data_ptr=None, id=None,
        allocation_id=None, device=torch.device("cpu") if used_device(event.trace) is None else None,
    )  # fmt: skip


@derived
def _nodes(trace: TraceData) -> list[EventNode]:
    """All spans and allocations of a trace in order of time, each in the innermost one around it."""
    spans, launches = trace.columns("spans"), trace.columns("launches")
    times_ns, count = trace.column("allocations", "time_ns"), len(spans)
    parent = event_tree(trace).parent.copy()
    parent[launches["device"]] = launches["host"]
    starts = np.append(spans["start_ns"], times_ns)
    order = np.lexsort((-np.append(spans["duration_ns"], np.zeros_like(times_ns)), starts))
    rows = np.append(np.arange(count), -1 - np.arange(len(times_ns)))[order].tolist()
    nodes = [EventNode(event_at(trace, row), number) for number, row in enumerate(rows, 1)]
    position = np.append(np.argsort(order)[:count], -1)
    around = position[np.append(parent, span_of_allocation(trace))[order]].tolist()
    for node, parent_position in zip(nodes, around, strict=True):
        if parent_position >= 0:
            node.parent = nodes[parent_position]
            node.parent.children.append(node)
    return nodes


def raw_events(trace: TraceData) -> list[RawEvent]:
    """All events of a trace, as `kineto_results.events()` lists them."""
    return [RawEvent(node.event) for node in _nodes(trace_of_events(trace))]


def event_nodes(trace: TraceData) -> list[EventNode]:
    """The events of the host that are in no other one, as `kineto_results.experimental_event_tree()` lists them."""
    host = torch.autograd.DeviceType.CPU
    roots = (node for node in _nodes(trace_of_events(trace)) if node.parent is None)
    return [root for root in roots if root.event.device_type == host]
