"""Builds small traces by hand, in the form in which the reader delivers a recording, so that no test has to run a profiler.

    builder = TraceBuilder()
    model = builder.module("GPT")
    layer = builder.module("Linear", name="fc", parent=model)
    stack = builder.stack(("train.py", 3, "<module>"), ("model.py", 7, "GPT.forward"))
    builder.span("aten::linear", 0, 100, module=layer, stack=stack, sequence=1)
    builder.span("aten::addmm", 10, 80, module=layer, stack=stack)
    trace = builder.build()

Every method that adds a row returns its row number, except those that add spans: these are sorted when the trace is built, and are
found by name.

What a device did is added to a stream; equal correlation numbers tie a call of the host to what it started:

    stream = builder.stream(7)
    builder.runtime("cudaLaunchKernel", 30, 8, correlation=1)
    builder.kernel("gemm", 60, 100, stream=stream, correlation=1, grid=(2, 1, 1), block=(128, 1, 1))
    builder.copy("Memcpy HtoD (Pageable -> Device)", 170, 10, stream=stream, size_bytes=4096)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinetoscope.combine.sources import with_rows
from kinetoscope.model.schema import STORED, SampleState, SampleWait, SpanKind, StorageRole
from kinetoscope.storage.recording import from_parts
from kinetoscope.trace import Trace

FUNCTION, BACKWARD, USER = 0, 1, 7
START_REALTIME_NS = 1_700_000_000_000_000_000


def trace_of(parts: dict[str, Any]) -> Trace:
    """The trace of what `_core.read_recording` returns."""
    data, rows = from_parts(parts)
    return with_rows(Trace.of(data), [rows])


@dataclass
class _Span:
    """One span as it was asked for."""

    thread: int
    start_ns: int
    duration_ns: int
    name: int
    overload: int
    scope: int
    sequence: int
    forward_thread: int
    stack: int
    module: int
    shapes: int
    parameter: int
    flags: int
    stream: int = -1
    kind: SpanKind | None = None
    correlation: int = -1
    external_id: int = -1
    arguments: int = -1
    launch: dict[str, Any] | None = None
    copied: dict[str, Any] | None = None
    facts: int = -1
    reads: tuple[tuple[int, int], ...] = ()
    makes: tuple[tuple[int, int], ...] = ()

    @property
    def beyond(self) -> bool:
        """Whether a recorder of the host's side would not write it."""
        numbers = (self.stream, self.correlation, self.external_id, self.arguments, self.facts)
        return self.kind is not None or max(numbers) >= 0 or bool(self.reads or self.makes)


class TraceBuilder:
    """Collects rows and builds a `Trace` or the recording it is made from."""

    def __init__(self) -> None:
        self.strings = [""]
        self._string_rows = {"": 0}
        self.threads: list[tuple[int, int, str]] = []
        self.frames: dict[tuple[int, int, int], int] = {}
        self.stacks: dict[tuple[int, int], int] = {}
        self.modules: list[tuple[int, int, int, int, int]] = []
        self.parameters: list[tuple[int, int, int]] = []
        self.shape_rows: dict[tuple[str, str, str], int] = {}
        self.spans: list[_Span] = []
        self.allocations: list[tuple[int, int, int, int, int, int, int]] = []
        self.losses: dict[str, int] = {}
        self.info: dict[str, str] = {}
        self.storages: list[dict[str, Any]] = []
        self.appended: dict[str, list[dict[str, Any]]] = {}
        self.notes: list[tuple[str, int, int, int, int, int, int, int]] = []
        self.streams: list[tuple[int, int, int, str]] = []
        self._thread_of_stream: list[int] = []
        self.argument_rows: dict[str, int] = {}
        self.counters: list[tuple[int, int, float]] = []
        self.samples: list[tuple[int, int, int, int, int, int, int]] = []
        self.state = "stopped"
        self.stop_ns: int | None = None

    def string(self, text: str) -> int:
        """Adds a string once."""
        row = self._string_rows.setdefault(text, len(self.strings))
        if row == len(self.strings):
            self.strings.append(text)
        return row

    def thread(self, name: str = "main", *, os_tid: int | None = None, torch_tid: int | None = None) -> int:
        """Adds a thread."""
        row = len(self.threads)
        self.threads.append(
            (1000 + row if os_tid is None else os_tid, 1 + row if torch_tid is None else torch_tid, name)
        )
        return row

    def module(self, cls: str, *, name: str = "", parent: int = -1, caller: int = -1) -> int:
        """Adds a module instance."""
        self.modules.append(
            (parent, self.string(name), self.string(cls), caller, 4096 + 64 * len(self.modules))
        )
        return len(self.modules) - 1

    def parameter(self, module: int = -1, name: str = "weight") -> int:
        """Adds a parameter of a module."""
        self.parameters.append((module, self.string(name), 1 << 20 | len(self.parameters)))
        return len(self.parameters) - 1

    def stack(self, *frames: tuple[str, int, str]) -> int:
        """Adds a Python stack, root first; each frame is (file, line, function)."""
        row = -1
        for file, line, function in frames:
            key = (self.string(function), self.string(file), line)
            frame = self.frames.setdefault(key, len(self.frames))
            row = self.stacks.setdefault((row, frame), len(self.stacks))
        return row

    def shapes(self, dims: Any, types: Any = None, concrete: Any = None) -> int:
        """Adds input shapes, each part a value that becomes JSON."""
        key = tuple(json.dumps(part if part is not None else []) for part in (dims, types, concrete))
        return self.shape_rows.setdefault(key, len(self.shape_rows))  # type: ignore[arg-type]

    def span(
        self,
        name: str,
        start_ns: int,
        duration_ns: int,
        *,
        thread: int = 0,
        overload: str = "",
        scope: int = FUNCTION,
        sequence: int = -1,
        forward_thread: int = -1,
        stack: int = -1,
        module: int = -1,
        shapes: int = -1,
        parameter: int = -1,
        is_async: bool = False,
        unfinished: bool = False,
        kind: SpanKind | None = None,
        correlation: int = -1,
        external_id: int = -1,
        arguments: dict[str, Any] | None = None,
        facts: dict[str, Any] | None = None,
        reads: tuple[tuple[int, int], ...] = (),
        makes: tuple[tuple[int, int], ...] = (),
    ) -> TraceBuilder:
        """Adds a span; returns the builder, so that calls chain.

        `kind` is that which the scope says unless it is given; `facts` is what the recorder notes of a call between ranks; `reads` and `makes` have
        the storage and version of each argument and result, which are whole tensors.
        """
        self.spans.append(
            _Span(
                thread, start_ns, duration_ns, self.string(name), self.string(overload), scope, sequence,
                forward_thread, stack, module, shapes, parameter, is_async | unfinished << 1, kind=kind,
                correlation=correlation, external_id=external_id, arguments=self._argument_row(arguments),
                facts=-1 if facts is None else self.string(json.dumps(facts)), reads=reads, makes=makes,
            )
        )  # fmt: skip
        return self

    def stream(
        self,
        number: int = 7,
        *,
        device: int = 0,
        device_type: int = 1,
        name: str = "",
        os_tid: int | None = None,
    ) -> int:
        """Adds a stream of a device, and the track that its spans are on."""
        self._thread_of_stream.append(
            self.thread(
                name or f"stream {number}", os_tid=number if os_tid is None else os_tid, torch_tid=number
            )
        )
        self.streams.append((device_type, device, number, name))
        return len(self.streams) - 1

    def on_device(
        self,
        name: str,
        start_ns: int,
        duration_ns: int,
        kind: SpanKind,
        *,
        stream: int = 0,
        launch: dict[str, Any] | None = None,
        copied: dict[str, Any] | None = None,
        **more: Any,
    ) -> TraceBuilder:
        """Adds a span of any kind to a stream, which is added too if there is none."""
        if not self.streams:
            if not self.threads:
                self.thread()
            self.stream()
        self.span(name, start_ns, duration_ns, thread=self._thread_of_stream[stream], kind=kind, **more)
        span = self.spans[-1]
        span.stream, span.launch, span.copied = stream, launch, copied
        return self

    def kernel(
        self,
        name: str,
        start_ns: int,
        duration_ns: int,
        *,
        grid: tuple[int, int, int] | None = None,
        block: tuple[int, int, int] | None = None,
        launch: dict[str, Any] | None = None,
        **more: Any,
    ) -> TraceBuilder:
        """Adds a kernel; `launch` are further columns of the table `kernels`, such as `registers`."""
        known = dict(launch or {})
        for prefix, sizes in (("grid", grid), ("block", block)):
            known |= {f"{prefix}_{axis}": size for axis, size in zip("xyz", sizes or (), strict=False)}
        return self.on_device(name, start_ns, duration_ns, SpanKind.KERNEL, launch=known or None, **more)

    def copy(
        self, name: str, start_ns: int, duration_ns: int, *, size_bytes: int = -1, **more: Any
    ) -> TraceBuilder:
        """Adds a copy between memories or, if its name says so, the filling of one."""
        kind = SpanKind.MEMSET if name.lower().startswith("memset") else SpanKind.MEMCPY
        return self.on_device(name, start_ns, duration_ns, kind, copied={"bytes": size_bytes}, **more)

    def device_annotation(self, name: str, start_ns: int, duration_ns: int, **more: Any) -> TraceBuilder:
        """Adds a range of the host as a device's track shows it."""
        kind = SpanKind.STEP if name.startswith("ProfilerStep#") else SpanKind.USER_ANNOTATION
        return self.on_device(name, start_ns, duration_ns, kind, scope=USER, **more)

    def runtime(self, name: str, start_ns: int, duration_ns: int, **more: Any) -> TraceBuilder:
        """Adds a call of a device's runtime."""
        return self.span(name, start_ns, duration_ns, kind=SpanKind.RUNTIME, **more)

    def counter(self, name: str, time_ns: int, value: float) -> TraceBuilder:
        """Adds a sample of a counter."""
        self.counters.append((time_ns, self.string(name), value))
        return self

    def sample(
        self,
        time_ns: int,
        stack: int,
        *,
        period_ns: int = 10,
        thread: int = 0,
        state: SampleState = SampleState.RUNNING,
        module: int = -1,
        waited_ns: int = -1,
        wait: SampleWait = SampleWait.UNKNOWN,
    ) -> TraceBuilder:
        """Adds a sample of a thread's Python stack."""
        self.samples.append((time_ns, period_ns, thread, int(state), stack, module, waited_ns, int(wait)))
        return self

    def _argument_row(self, arguments: dict[str, Any] | None) -> int:
        """Adds what a source said of a span once."""
        if arguments is None:
            return -1
        return self.argument_rows.setdefault(json.dumps(arguments), len(self.argument_rows))

    def annotation(self, name: str, start_ns: int, duration_ns: int, **more: Any) -> TraceBuilder:
        """Adds a range as `record_function` makes it."""
        return self.span(name, start_ns, duration_ns, scope=USER, **more)

    def step(self, number: int, start_ns: int, duration_ns: int, **more: Any) -> TraceBuilder:
        """Adds the mark of a training step."""
        return self.annotation(f"ProfilerStep#{number}", start_ns, duration_ns, **more)

    def backward(
        self,
        name: str,
        start_ns: int,
        duration_ns: int,
        *,
        sequence: int,
        forward_thread: int = 0,
        **more: Any,
    ) -> TraceBuilder:
        """Adds a backward function inside the wrapper that autograd's engine puts around it."""
        wrapper = f"autograd::engine::evaluate_function: {name}"
        shared = {"sequence": sequence, "forward_thread": forward_thread, **more}
        parameter = shared.pop("parameter", -1)
        self.span(wrapper, start_ns - 1, duration_ns + 2, **shared)
        return self.span(name, start_ns, duration_ns, scope=BACKWARD, parameter=parameter, **shared)

    def allocate(
        self,
        time_ns: int,
        address: int,
        size_bytes: int,
        *,
        thread: int = 0,
        device: tuple[int, int] = (0, -1),
        stack: int = -1,
    ) -> int:
        """Adds an allocation on a (device type, device index); returns its row if they are added in order of time."""
        self.allocations.append((time_ns, address, size_bytes, thread, *device, stack))
        return len(self.allocations) - 1

    def free(self, time_ns: int, address: int, *, thread: int = 0, device: tuple[int, int] = (0, -1)) -> int:
        """Adds a free."""
        return self.allocate(time_ns, address, 0, thread=thread, device=device)

    def give(
        self,
        span: str,
        address: int,
        size_bytes: int,
        *,
        argument: int = 0,
        parameter: int = -1,
        device: tuple[int, int] = (0, -1),
    ) -> TraceBuilder:
        """Adds a tensor that the first span of this name was given; with a parameter, the gradient to accumulate."""
        self.notes.append(
            (span, 1 if parameter < 0 else 2, argument, address, size_bytes, parameter, *device)
        )
        return self

    def hold(
        self,
        role: str,
        address: int,
        size_bytes: int,
        *,
        time_ns: int = -1,
        module: int = -1,
        parameter: int = -1,
        name: str = "",
        device: tuple[str, int] = ("cpu", -1),
    ) -> TraceBuilder:
        """Adds a tensor that was seen to hold a block: as a parameter, buffer, gradient, optimizer_state or tensor."""
        self.storages.append({
            "time_ns": START_REALTIME_NS + time_ns,
            "role": StorageRole[role.upper()],
            "address": address,
            "bytes": size_bytes,
            "device": device[0],
            "device_index": device[1],
            "module": 4096 + 64 * module if module >= 0 else 0,
            "parameter": 1 << 20 | parameter if parameter >= 0 else 0,
            "name": name,
        })  # fmt: skip
        return self

    def lose(self, what: str, count: int = 1) -> TraceBuilder:
        """Adds a loss by the reader's name, such as `dropped_spans`."""
        self.losses[what] = count
        return self

    def know(self, key: str, value: Any) -> TraceBuilder:
        """Adds metadata."""
        self.info[key] = json.dumps(value)
        return self

    def killed(self) -> TraceBuilder:
        """Makes it the recording of a process that never called stop()."""
        self.state = "recording"
        return self

    def _notes(self, names: list[str]) -> dict[str, Any]:
        """What `give` added, as the reader delivers it."""
        return _columns(
            [(names.index(span), *rest) for span, *rest in self.notes],
            {
                "span": "i4", "kind": "u1", "argument": "i4", "value": "u8", "bytes": "i8", "parameter": "i4",
                "device_type": "u1", "device_index": "i1",
            },
        )  # fmt: skip

    def append(self, table: str, columns: dict[str, list[Any]]) -> TraceBuilder:
        """Appends rows to a named table."""
        rows = len(next(iter(columns.values())))
        part = {
            "session": 0,
            "buffered": False,
            "time_ns": 0,
            "rows": rows,
            "json": json.dumps(columns).encode(),
        }
        self.appended.setdefault(table, []).append(part)
        return self

    def _rows(self) -> dict[str, Any]:
        """What was appended, and what `hold` added as the recorder writes it."""
        if not self.storages:
            return self.appended
        part = {name: [row[name] for row in self.storages] for name in self.storages[0]}
        held = {
            "session": 0,
            "buffered": False,
            "time_ns": 0,
            "rows": 1,
            "json": json.dumps({"part": [part]}).encode(),
        }
        return {**self.appended, "storages": [*self.appended.get("storages", ()), held]}

    def build(self) -> Trace:
        """Builds the trace."""
        trace = trace_of(self.recording())
        more = self._beyond_recordings(trace)
        if not more:
            return trace
        tables = {name: trace.columns(name) for name in STORED}
        columns = {name: {column: table[column] for column in table.given} for name, table in tables.items()}
        for name, added in more.items():
            columns[name] |= added
        return Trace.from_columns(columns, strings=trace.strings, info=trace.info)

    def _beyond_recordings(self, trace: Trace) -> dict[str, dict[str, Any]]:
        """The columns of what a recorder of the host's side does not write; empty without any."""
        spans = self._in_order()
        if not self.streams and not self.counters and not any(span.beyond for span in spans):
            return {}
        kinds = trace.column("spans", "kind").tolist()
        more: dict[str, dict[str, Any]] = {
            "spans": {
                name: [getattr(span, name) for span in spans] for name in ("stream", "correlation", "external_id", "arguments")
            },
            "streams": _columns(self.streams, {"device_type": "u1", "device_index": "i4", "number": "i8"}),
            "arguments": {"json": list(self.argument_rows)},
            "counters": _columns(sorted(self.counters), {"time_ns": "i8", "name": "i4", "value": "f8"}),
            "kernels": _scattered([(row, span.launch) for row, span in enumerate(spans) if span.launch]),
            "copies": _scattered([(row, span.copied) for row, span in enumerate(spans) if span.copied]),
            "collectives": _columns(
                [(row, span.facts) for row, span in enumerate(spans) if span.facts >= 0],
                {"span": "i4", "facts": "i4"},
            ),
            "tensor_versions": _columns(
                [
                    (row, result, argument, storage, version, 1)
                    for row, span in enumerate(spans)
                    for result, tensors in enumerate((span.reads, span.makes))
                    for argument, (storage, version) in enumerate(tensors)
                ],
                {"span": "i4", "result": "u1", "argument": "i4", "storage": "i8", "version": "i8", "whole": "u1"},
            ),
        }  # fmt: skip
        more["spans"]["kind"] = [
            kinds[row] if span.kind is None else int(span.kind) for row, span in enumerate(spans)
        ]
        more["streams"]["name"] = [row[3] for row in self.streams]
        hosts = {span.correlation: row for row, span in enumerate(spans) if span.stream < 0}
        links = [
            (hosts[span.correlation], row)
            for row, span in enumerate(spans)
            if span.stream >= 0 and span.correlation >= 0 and span.correlation in hosts
        ]
        more["launches"] = _columns(links, {"host": "i4", "device": "i4"})
        return more

    def _in_order(self) -> list[_Span]:
        """The spans in the order of their rows."""
        return sorted(self.spans, key=lambda span: (span.thread, span.start_ns, -span.duration_ns))

    def recording(self) -> dict[str, Any]:
        """Builds what `_core.read_recording` would return."""
        if not self.threads:
            self.thread()
        spans = self._in_order()
        allocations = sorted(self.allocations, key=lambda row: row[0])
        last = max((span.start_ns + span.duration_ns for span in spans), default=0)
        last = max(last, allocations[-1][0] if allocations else 0, *(row[0] for row in self.samples))
        return {
            "info": self.info,
            "rows": self._rows(),
            "state": self.state,
            "process": 4242,
            "start_realtime_ns": START_REALTIME_NS,
            "stop_ns": last if self.stop_ns is None else self.stop_ns,
            "clock_checks": {name: np.zeros(2, np.int64) for name in ("time_ns", "error_ns")},
            "losses": {"dropped_spans": 0, "unfinished_spans": sum(span.flags >> 1 & 1 for span in spans)} | self.losses,
            "strings": list(self.strings),
            "threads": {
                "index": np.arange(len(self.threads), dtype=np.int32),
                "os_tid": np.array([row[0] for row in self.threads], np.int64),
                "torch_tid": np.array([row[1] for row in self.threads], np.int64),
                "name": [row[2] for row in self.threads],
            },
            "frames": _columns(list(self.frames), {"function": "i4", "file": "i4", "line": "i4"}),
            "stacks": _columns(list(self.stacks), {"parent": "i4", "frame": "i4"}),
            "modules": _columns(
                self.modules, {"parent": "i4", "name": "i4", "class": "i4", "caller": "i4", "address": "u8"}
            ),
            "parameters": _columns(self.parameters, {"module": "i4", "name": "i4", "address": "u8"}),
            "shapes": {
                part: [row[place] for row in self.shape_rows] for place, part in enumerate(("dims", "types", "concrete"))
            },
            "notes": self._notes([self.strings[span.name] for span in spans]),
            "names": {"string": np.zeros(0, np.int32), "overload": np.zeros(0, np.int32)},
            "spans": _columns(
                [list(vars(span).values()) for span in spans],
                {
                    "thread": "i4", "start_ns": "i8", "duration_ns": "i8", "name": "i4", "overload": "i4", "scope": "u1",
                    "sequence": "i8", "forward_thread": "i4", "stack": "i4", "module": "i4", "shapes": "i4",
                    "parameter": "i4", "flags": "u1",
                },
            ),
            "allocations": _columns(
                allocations,
                {
                    "time_ns": "i8", "address": "u8", "bytes": "i8", "thread": "i4", "device_type": "u1",
                    "device_index": "i1", "stack": "i4",
                },
            ),
            "samples": _columns(
                sorted(self.samples),
                {
                    "time_ns": "i8", "period_ns": "i8", "thread": "i4", "state": "u1", "stack": "i4", "module": "i4",
                    "waited_ns": "i8", "wait": "u1",
                },
            ),
        }  # fmt: skip


def _columns(rows: list[Any], types: dict[str, str]) -> dict[str, np.ndarray]:
    """Turns rows into one array a column."""
    return {
        name: np.array([row[place] for row in rows], dtype)
        for place, (name, dtype) in enumerate(types.items())
    }


def _scattered(rows: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Turns rows of some columns each into columns, -1 where a row has none."""
    names = dict.fromkeys(name for _, row in rows for name in row)
    return {"span": [place for place, _ in rows]} | {
        name: [row.get(name, -1) for _, row in rows] for name in names
    }
