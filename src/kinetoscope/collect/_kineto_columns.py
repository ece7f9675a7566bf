"""From the events of torch's own collector to the columns of a trace."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kinetoscope.trace import SpanKind
from kinetoscope.trace._assemble import ENGINE_WRAPPER
from kinetoscope.trace._schema import FLAG_ASYNC, SCOPE_BACKWARD, SCOPE_USER, TRANSFER_MARKS

_KINDS = {
    "cpu_op": SpanKind.OPERATOR,
    "user_annotation": SpanKind.USER_ANNOTATION,
    "gpu_user_annotation": SpanKind.USER_ANNOTATION,
    "python_function": SpanKind.PYTHON,
    "kernel": SpanKind.KERNEL,
    "concurrent_kernel": SpanKind.KERNEL,
    "gpu_memcpy": SpanKind.MEMCPY,
    "gpu_memset": SpanKind.MEMSET,
    "cuda_sync": SpanKind.SYNC,
    "overhead": SpanKind.OVERHEAD,
}
_ON_DEVICE = {"gpu_user_annotation", "kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"}
_OF_THE_CPU = ("cpu_op", "user_annotation", "python_function")
_STEP_MARK = "ProfilerStep#"
_MODULE_MARK = "nn.Module: "
_PYTHON_NAME = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)", re.DOTALL)

Tables = dict[str, dict[str, Any]]


def columns_from_kineto(
    results: Any,
    timeout_s: float | None = None,
    function_ids: Mapping[int, int] | None = None,
    off_ns: Sequence[tuple[int, float]] = (),
    host_kinds: frozenset[str] | None = None,
) -> tuple[Tables, list[str]]:
    """Turn what torch's collector returned into columns.

    Args:
        results: torch's `_ProfilerResult`.
        timeout_s: For how many seconds events are looked at; what is left by then becomes a row of `losses`.
        function_ids: torch's number of each call by Kineto's number of it, where that is wanted.
        off_ns: Windows in nanoseconds of the clock on the wall; what began on the host in them is left out.
        host_kinds: Names of the kinds of host events that are wanted; torch's events hold all, whatever was asked for.

    Returns:
        The columns of each table and the string table, as `Trace.from_columns` takes them.
    """
    end_ns = None if timeout_s is None else time.perf_counter_ns() + timeout_s * 1e9
    return _Conversion(int(results.trace_start_ns()), end_ns, off_ns, host_kinds).run(results, function_ids)


class _Ids(dict[Any, int]):
    """Numbers things in the order in which they are first seen."""

    def of(self, thing: Any) -> int:
        """The number of a thing, a new one if it is new."""
        return self.setdefault(thing, len(self))


class _Conversion:
    """One pass over the events; every table is filled as things are first seen."""

    def __init__(
        self,
        base_ns: int,
        end_ns: float | None,
        off_ns: Sequence[tuple[int, float]],
        host_kinds: frozenset[str] | None,
    ) -> None:
        self.base_ns = base_ns
        self.off_ns = off_ns
        self.host_kinds = host_kinds
        self.end_ns = end_ns
        self.strings = _Ids({"": 0})
        self.threads = _Ids()
        self.thread_of_torch_id: dict[int, int] = {}
        self.streams = _Ids()
        self.shapes = _Ids()
        self.frames = _Ids()
        self.stacks = _Ids()
        self.modules = _Ids()

    def run(self, results: Any, function_ids: Mapping[int, int] | None) -> tuple[Tables, list[str]]:
        """Fill all tables."""
        events = [
            event for event in results.events() if (kind := _activity(event)) in _KINDS or _is_host_call(kind)
        ]
        if self.host_kinds is not None:
            unwanted = {kind for kind in _OF_THE_CPU if kind.upper() not in self.host_kinds}
            events = [event for event in events if _activity(event) not in unwanted]
        if self.off_ns:
            events = [event for event in events if _activity(event) in _ON_DEVICE or not self.was_off(event)]
        rows = [self.span(event) for event in self.in_time(events)]
        left_out = len(events) - len(rows)
        del events[len(rows) :]
        spans: dict[str, Any] = {
            name: np.array([row[name] for row in rows], dtype) for name, dtype in _SPAN_TYPES.items()
        }
        order = np.lexsort((-spans["duration_ns"], spans["start_ns"], spans["thread"]))
        spans = {name: values[order] for name, values in spans.items()}
        events = [events[row] for row in order.tolist()]
        spans["own_stack"], spans["own_module"] = self.enclosing_python(events, spans)
        forward = np.array([event.fwd_thread_id() for event in events], np.int64)
        if function_ids is not None:
            numbers = [function_ids.get(event.correlation_id(), -1) for event in events]
            spans["record_function"] = np.where(spans["stream"] < 0, np.array(numbers, np.int64), -1)
        # The engine's wrapper has its function's number, and must not be taken for the forward operator.
        wrapper = np.array([text.startswith(ENGINE_WRAPPER) for text in self.strings], dtype=bool)
        backward = (spans["scope"] == SCOPE_BACKWARD) | (wrapper[spans["name"]] & (spans["sequence"] >= 0))
        spans["forward_thread"] = np.array(
            [self.thread_of_torch_id.get(int(thread), -1) for thread in np.where(backward, forward, -1)],
            np.int32,
        )
        tables: Tables = {
            "spans": spans,
            "launches": self.launches(events, spans),
            "allocations": self.allocations([] if left_out else results.experimental_event_tree()),
        }
        if left_out:
            tables["losses"] = {
                "what": ["events not looked at"], "count": [left_out], "where": ["spans, allocations"],
                "why": ["post_processing_timeout_s was over before all events were turned into spans."],
            }  # fmt: skip
        tables |= self.dictionaries()
        return tables, list(self.strings)

    def was_off(self, event: Any) -> bool:
        """Whether collection was switched off when an event began."""
        start_ns = event.start_ns()
        return any(begin_ns <= start_ns < end_ns for begin_ns, end_ns in self.off_ns)

    def in_time(self, events: list[Any]) -> Iterator[Any]:
        """The events, as many of them as there is time for."""
        for event in events:
            if self.end_ns is not None and time.perf_counter_ns() >= self.end_ns:
                return
            yield event

    def span(self, event: Any) -> dict[str, int]:
        """The columns of one event that do not depend on others."""
        activity = _activity(event)
        name = _name(event)
        kind = _KINDS.get(activity) or (SpanKind.DRIVER if activity.endswith("_driver") else SpanKind.RUNTIME)
        if activity == "cpu_op":
            kind = SpanKind.BACKWARD if event.scope() == SCOPE_BACKWARD else SpanKind.OPERATOR
        elif activity == "user_annotation" and name.startswith(TRANSFER_MARKS):
            kind = SpanKind.COLLECTIVE
        elif kind is SpanKind.USER_ANNOTATION and name.startswith(_STEP_MARK):
            kind = SpanKind.STEP
        elif kind is SpanKind.PYTHON and name.startswith(_MODULE_MARK):
            kind = SpanKind.MODULE
        stream = -1
        if activity in _ON_DEVICE:
            stream = self.streams.of((_device_type(event), event.device_index(), event.device_resource_id()))
            thread = self.threads.of(("stream", stream))
        else:
            thread = self.threads.of(("thread", event.device_resource_id(), event.start_thread_id()))
            self.thread_of_torch_id.setdefault(event.start_thread_id(), thread)
        return {
            "thread": thread,
            "start_ns": event.start_ns() - self.base_ns,
            "duration_ns": max(0, event.duration_ns()),
            "name": self.strings.of(name),
            "overload": self.strings.of(event.overload_name()),
            "scope": SCOPE_USER if activity == "user_annotation" else event.scope(),
            "sequence": event.sequence_nr(),
            "shapes": self.shape(event) if activity == "cpu_op" or kind is SpanKind.COLLECTIVE else -1,
            "flags": FLAG_ASYNC if event.is_async() else 0,
            "stream": stream,
            "kind": kind,
        }

    def shape(self, event: Any) -> int:
        """The row of an operator's inputs, -1 where none were recorded."""
        # Older releases of torch do not say the shapes of the tensors in a list.
        shapes = getattr(event, "structured_input_shapes", event.shapes)
        dims, types = shapes(), event.dtypes()
        if not dims and not types:
            return -1
        concrete = ["" if value is None else str(value) for value in event.concrete_inputs()]
        return self.shapes.of((json.dumps(dims), json.dumps(types), json.dumps(concrete)))

    def enclosing_python(self, events: list[Any], spans: dict[str, Any]) -> tuple[Any, Any]:
        """For each span the Python calls and the module call around it, from the calls torch put on the timeline."""
        stack_of = np.full(len(events), -1, np.int32)
        module_of = np.full(len(events), -1, np.int32)
        open_calls: list[tuple[int, int, int]] = []
        thread = -1
        starts, durations = spans["start_ns"].tolist(), spans["duration_ns"].tolist()
        for row, event in enumerate(events):
            if spans["thread"][row] != thread:
                thread = int(spans["thread"][row])
                open_calls.clear()
            while open_calls and open_calls[-1][0] <= starts[row]:
                open_calls.pop()
            _, stack, module = open_calls[-1] if open_calls else (0, -1, -1)
            kind = spans["kind"][row]
            if kind == SpanKind.PYTHON:
                stack = self.stacks.of((stack, self.frame(_name(event))))
            elif kind == SpanKind.MODULE:
                module = self.modules.of((_name(event), event.python_module_id(), module))
            stack_of[row], module_of[row] = stack, module
            if kind in (SpanKind.PYTHON, SpanKind.MODULE):
                open_calls.append((starts[row] + durations[row], stack, module))
        return stack_of, module_of

    def frame(self, name: str) -> int:
        """The row of the frame that torch calls `file(line): function`."""
        parts = _PYTHON_NAME.fullmatch(name)
        if parts is None:
            return self.frames.of((self.strings.of(name), 0, 0))
        line = int(parts["line"])
        if line > _LAST_LINE:
            line = 0
        return self.frames.of((self.strings.of(parts["function"]), self.strings.of(parts["file"]), line))

    def launches(self, events: list[Any], spans: dict[str, Any]) -> dict[str, Any]:
        """The runtime call, or else the operator, that started each device span."""
        calls: dict[int, int] = {}
        operators: dict[int, int] = {}
        for row, event in enumerate(events):
            if spans["stream"][row] < 0:
                made_by = calls if spans["kind"][row] in (SpanKind.RUNTIME, SpanKind.DRIVER) else operators
                made_by[event.correlation_id()] = row
        host, device = [], []
        for row in np.flatnonzero(spans["stream"] >= 0).tolist():
            event = events[row]
            source = calls.get(event.correlation_id(), operators.get(event.linked_correlation_id()))
            if source is not None:
                host.append(source)
                device.append(row)
        return {"host": np.array(host, np.int32), "device": np.array(device, np.int32)}

    def allocations(self, roots: list[Any]) -> dict[str, Any]:
        """Every block allocated or freed, in order of time; torch tells the size of a freed block, we keep 0."""
        found: list[tuple[int, ...]] = []
        pending = list(roots)
        while pending:
            event = pending.pop()
            pending.extend(event.children)
            if event.name != "[memory]":
                continue
            block = event.extra_fields
            thread = self.thread_of_torch_id.get(event.start_tid, 0)
            index = block.device.index
            found.append((
                event.start_time_ns - self.base_ns, len(found), thread, block.ptr or 0, max(0, block.alloc_size),
                _DEVICE_TYPES.get(block.device.type, 0), -1 if index is None else index,
            ))  # fmt: skip
        found.sort()
        return {
            name: np.array([row[place] for row in found], dtype)
            for name, (place, dtype) in {
                "time_ns": (0, np.int64), "thread": (2, np.int32), "address": (3, np.uint64), "bytes": (4, np.int64),
                "device_type": (5, np.uint8), "device_index": (6, np.int8),
            }.items()
        }  # fmt: skip

    def dictionaries(self) -> Tables:
        """The tables that spans point into."""
        stack_rows, frame_rows = list(self.stacks), list(self.frames)
        module_rows = [
            (self.strings.of(name.removeprefix(_MODULE_MARK).rpartition("_")[0] or name), caller)
            for name, _, caller in self.modules
        ]
        streams = list(self.streams)
        threads = [
            (streams[key[1]][2], -1, f"stream {streams[key[1]][2]} of device {streams[key[1]][1]}")
            if key[0] == "stream"
            else (key[1], key[2], "")
            for key in self.threads
        ]
        return {
            "threads": {
                "index": np.arange(len(threads)),
                "os_tid": _column(threads, 0), "torch_tid": _column(threads, 1), "name": [row[2] for row in threads],
            },
            "streams": {
                "device_type": _column(streams, 0), "device_index": _column(streams, 1), "number": _column(streams, 2),
            },
            "stacks": {"parent": _column(stack_rows, 0), "frame": _column(stack_rows, 1)},
            "frames": {
                "function": _column(frame_rows, 0), "file": _column(frame_rows, 1), "line": _column(frame_rows, 2),
            },
            "modules": {"class": _column(module_rows, 0), "caller": _column(module_rows, 1)},
            "shapes": {
                name: [row[place] for row in self.shapes] for place, name in enumerate(("dims", "types", "concrete"))
            },
        }  # fmt: skip


_SPAN_TYPES: dict[str, type] = {
    "thread": np.int32, "start_ns": np.int64, "duration_ns": np.int64, "name": np.int32, "overload": np.int32,
    "scope": np.uint8, "sequence": np.int64, "shapes": np.int32, "flags": np.uint8, "stream": np.int32, "kind": np.uint8,
}  # fmt: skip
_DEVICE_TYPES = {"cpu": 0, "cuda": 1, "xpu": 12, "mtia": 19, "hpu": 18, "privateuseone": 20}


# torch reads some frames after they are gone: their line, and sometimes their name, is whatever lay there.
_LAST_LINE = 2**31 - 1


def _name(event: Any) -> str:
    """An event's name; bytes that are no UTF-8 are shown as replacement characters."""
    try:
        return str(event.name())
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")


def _column(rows: list[tuple[Any, ...]], place: int) -> Any:
    """One column of integers out of rows; torch's "no thread" is the largest unsigned number, which is -1 here."""
    return np.array([row[place] if row[place] < 2**63 else row[place] - 2**64 for row in rows], np.int64)


def _activity(event: Any) -> str:
    """What torch says an event is; torch before 2.9 does not say it, and then it follows from the rest."""
    if hasattr(event, "activity_type"):
        return str(event.activity_type())
    name = _name(event)
    if name == "[memory]":
        return "cpu_instant_event"
    if _device_type(event) != 0:
        for prefix, activity in (("Memcpy", "gpu_memcpy"), ("Memset", "gpu_memset")):
            if name.startswith(prefix):
                return activity
        return "gpu_user_annotation" if event.is_user_annotation() else "kernel"
    if event.is_user_annotation():
        return "user_annotation"
    if event.is_python_function():
        return "python_function"
    return "cuda_runtime" if re.match(r"cuda[A-Z]|cu[A-Z]", name) else "cpu_op"


def _is_host_call(activity: str) -> bool:
    """Whether an event is a call into a device's runtime or driver."""
    return activity.endswith(("_runtime", "_driver"))


def _device_type(event: Any) -> int:
    """The device type of torch as a number: 0 is the host."""
    return int(getattr(event.device_type(), "value", event.device_type()))
