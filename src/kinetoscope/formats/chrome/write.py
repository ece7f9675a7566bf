"""Write Chrome's trace event format, with Kineto's conventions, for Perfetto, chrome://tracing and other tools.

The file is one JSON object: metadata keys and `traceEvents`. A slice (`ph` X) has a category, a name, a process, a track
(`tid`), and its start and duration in microseconds with three decimals, relative to the start of the trace: absolute times
would not fit a double, and viewers that use doubles would show adjacent slices as overlapping. `baseTimeNanoseconds` is
the Unix time of the start. A slice shows its Python stack unless its parent has the same one. A session with
`with_stack=True` also has slices of Python calls: recorded ones, else those rebuilt from the stacks of operators. The
slices of a track nest. Spans that nest with nothing (asynchronous ranges, or overlapping work on a stream) get tracks of
their own next to their thread.

Device work is in a process with the device's index, on a track with the stream's number, with Kineto's arguments. Spans
that were read from a file keep its category and arguments. Of a trace of one process, Kinetoscope's reader restores every column,
with two exceptions: stacks lack forwarding frames and the folders of packages, and rebuilt calls become recorded calls. Of several
processes, modules are not restored. What the
reader needs for this is in the header under "kinetoscope", and in the events that name tracks. Facts that the source file
of the trace lacks are not added, see `NOT_RECORDED` in `kinetoscope.formats.chrome.read`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.formats.chrome.graph_annotations import GraphAnnotations, annotate
from kinetoscope.formats.chrome.read import WINDOW
from kinetoscope.formats.chrome.read_tracks import OWN
from kinetoscope.formats.chrome.slices import ShownSpans, shown_spans
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import requested_calls
from kinetoscope.model.kinds import KINETO_CATEGORIES, is_call
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.atomic_write import write_blocks
from kinetoscope.tables.host.rebuilt_calls import (
    ShownFrames,
    module_number,
    numbers_of_calls,
    shown_frames,
)

FLOWS = ("fwdbwd", "ac2g")
"""The categories of arrows: from an operator to its backward function, and from a launch to its device work."""

# Larger correlation numbers are ignored when choosing new ones, which are counted up from the others.
_LARGEST = 1 << 62
# New numbers are larger than this: HolisticTraceAnalysis 0.5 stores row numbers in the integer type of this column, so it
# must not be narrow.
_SMALLEST = 1 << 16


def link(trace: TraceData, shown: ShownSpans) -> dict[str, NDArray[Any]]:
    """Return the arrows of a trace, as columns for `_core.ChromeWriter`.

    Launches and device work without a correlation number get one in the columns of `shown`, the same for both. As in
    Kineto's traces, it is also the id of the arrow. If a launch has several arrows, only the first has this id, because
    viewers draw one arrow per id.
    """
    columns = shown.columns
    forward = trace.column("spans", "forward")
    targets = np.flatnonzero(forward >= 0).astype(np.int32)
    arrows = [(shown.rows(forward[targets]), shown.rows(targets), np.arange(1, len(targets) + 1), 0)]
    launches = trace.columns("launches")
    if len(launches):
        count = len(columns["start_ns"])
        host, device = shown.rows(launches["host"]), shown.rows(launches["device"])
        real = (host >= 0) & (device >= 0)
        host, device = host[real], device[real]
        none = np.full(count, -1, np.int64)
        correlation = columns.get("correlation", none).copy()
        _share_numbers(host, device, correlation)
        columns["correlation"] = correlation
        numbers = columns["external_id"].copy() if "external_id" in columns else _row_numbers(shown)
        bare = numbers[device] < 0
        numbers[device[bare]] = numbers[host[bare]]
        columns["external_id"] = numbers
        arrows.append((host, device, _arrow_numbers(correlation[host], correlation[device], correlation), 1))
    return {
        "source": np.concatenate([source for source, _, _, _ in arrows]).astype(np.int32),
        "target": np.concatenate([target for _, target, _, _ in arrows]).astype(np.int32),
        "id": np.concatenate([number for _, _, number, _ in arrows]).astype(np.int64),
        "kind": np.concatenate([np.full(len(source), kind, np.uint8) for source, _, _, kind in arrows]),
    }


def _numbered_spans(trace: TraceData, shown: ShownFrames) -> ShownSpans:
    """The spans as shown. Beside rebuilt calls, which have no operator numbers, events keep those that they have without calls."""
    spans = shown_spans(trace, shown)
    columns = spans.columns
    if is_call(columns["kind"]).any():
        columns["call_number"] = numbers_of_calls(columns["kind"], columns["start_ns"])
    if spans.moved is not None and "external_id" not in columns:
        columns["external_id"] = _row_numbers(spans)
    return spans


def _row_numbers(shown: ShownSpans) -> Rows:
    """Return the number of each operator among the spans of the trace, from 1; -1 for calls and device work."""
    columns = shown.columns
    numbers = np.full(len(columns["start_ns"]), -1, np.int64)
    rows = np.arange(len(numbers)) if shown.moved is None else shown.moved[:-1]
    numbers[rows] = np.arange(1, len(rows) + 1)
    numbers[is_call(columns["kind"])] = -1
    if "stream" in columns:
        numbers[columns["stream"] >= 0] = -1
    return numbers


def _share_numbers(host: NDArray[np.int32], device: NDArray[np.int32], correlation: Rows) -> None:
    bare = correlation[device] < 0
    hosts = np.unique(host[bare])
    hosts = hosts[correlation[hosts] < 0]
    correlation[hosts] = _unused(correlation) + np.arange(len(hosts))
    correlation[device[bare]] = correlation[host[bare]]


def _arrow_numbers(host: Rows, device: Rows, correlation: Rows) -> Rows:
    """Return arrow ids: the number that both ends share, for its first arrow, else a new number."""
    shared = np.flatnonzero((host == device) & (host >= 0))
    _, first = np.unique(host[shared], return_index=True)
    numbers = _unused(correlation) + np.arange(len(host), dtype=np.int64)
    numbers[shared[first]] = host[shared[first]]
    return numbers


def _unused(numbers: Rows) -> int:
    return int(numbers[numbers < _LARGEST].max(initial=_SMALLEST)) + 1


# Larger than every process id, so that devices are shown below processes.
_DEVICE_SORT_INDEX = 5_000_000

# Labels by torch's device type.
_DEVICE_NAMES = {1: "GPU", 6: "GPU", 9: "XLA", 12: "XPU", 13: "MPS", 15: "HPU", 18: "IPU", 19: "MTIA"}
# Requests any unused track number.
_NEW = -1


@dataclass(frozen=True)
class LaneTracks:
    """The tracks of a file: one per lane, those of thread row `t` starting at `first_of_thread[t]`.

    Attributes:
        first_of_thread: The track of lane 0 of each row of `threads`.
        pid: The process id in the file of each track; for devices the device index if it is unused.
        tid: The number in the file of each track, unique in its process.
        pid_of_process: The process id in the file of each row of `processes`, followed by that of the trace's process.
        metadata: The events with the names and the order of processes and tracks.
    """

    first_of_thread: NDArray[np.int32]
    pid: Rows
    tid: Rows
    pid_of_process: Rows
    metadata: list[dict[str, Any]]


def lay_out(trace: TraceData, shown: Mapping[str, NDArray[Any]]) -> LaneTracks:
    """Assign a track to each lane of each thread; `shown` has the columns of the slices."""
    spans, threads, streams = trace.columns("spans"), trace.columns("threads"), trace.columns("streams")
    count = len(threads)
    last_lanes = [Groups(columns["thread"], count).maxima(columns["lane"]) for columns in (spans, shown)]
    lanes = 1 + np.maximum(*last_lanes)
    first = (np.cumsum(lanes) - lanes).astype(np.int32)

    # A device stream is a row of threads; all its spans are on that stream.
    stream_of = np.full(count, -1, np.int32)
    for columns in (spans, shown):
        if "stream" in columns:
            stream_of[columns["thread"]] = columns["stream"]

    names: list[str] = []
    lane_of: list[int] = []
    wanted: list[tuple[int, int]] = []
    processes = _Processes(trace, stream_of)
    for row in range(count):
        stream = int(stream_of[row])
        if stream >= 0:
            number = int(streams["number"][stream])
            label = streams["name"][stream] or f"stream {number}"
        else:
            number, label = int(threads["os_tid"][row]), threads["name"][row]
            label = f"thread {number}" + (f" ({label})" if label else "")
        pid = processes.pid_of(row)
        for lane in range(int(lanes[row])):
            names.append(label if lane == 0 else f"{label}, overlapping {lane}")
            lane_of.append(int(first[row]) if lane else -1)
            # The system reuses the ids of ended threads; only the first thread keeps its id here.
            wanted.append((pid, number if lane == 0 else _NEW))
    tids = _without_duplicates(wanted)
    metadata = processes.metadata
    for index, (name, (pid, number), tid, around) in enumerate(
        zip(names, wanted, tids, lane_of, strict=True)
    ):
        args: dict[str, Any] = {"name": name}
        # For Kinetoscope's reader.
        if around >= 0:
            args["Lane of"] = tids[around]
        elif tid != number:
            args["Track number"] = number
        metadata.append(_metadata("thread_name", pid, tid, args))
        metadata.append(_metadata("thread_sort_index", pid, tid, {"sort_index": index}))
    pids = np.array([pid for pid, _ in wanted], np.int64)
    return LaneTracks(first, pids, np.array(tids, np.int64), processes.pid_of_process, metadata)


class _Processes:
    """The processes in the file: the real ones, then devices.

    Attributes:
        metadata: The events with their names and order.
        pid_of_process: The process id in the file of each row of `processes`, followed by that of the trace's process.
    """

    def __init__(self, trace: TraceData, stream_of: NDArray[np.int32]) -> None:
        threads, self._streams = trace.columns("threads"), trace.columns("streams")
        self._stream = stream_of.tolist()
        self._rank: list[int] = threads["rank"].tolist()
        trace_pid = trace.run_info.process or 0
        wanted = [trace_pid if pid < 0 else pid for pid in threads["process"].tolist()]
        # Processes of different machines or containers may have the same id.
        self._host = list(zip(threads["process_row"].tolist(), wanted, strict=True))
        of_trace = trace.columns("processes")
        hosts = {
            (row, int(pid) if pid >= 0 else trace_pid): int(rank)
            for row, (pid, rank) in enumerate(zip(of_trace["pid"], of_trace["rank"], strict=True))
        }
        of_threads = zip(self._host, self._rank, self._stream, strict=True)
        hosts.update((key, rank) for key, rank, stream in of_threads if stream < 0)
        if len(of_trace) == 0:
            hosts.setdefault((-1, trace_pid), -1)
        listed = trace.info.get("processes")
        described = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        by_pid = {entry.get("process"): entry for entry in described}
        self._name = by_pid.get(trace_pid, {}).get("name") or trace.info.get("process_name") or "python"
        self.metadata: list[dict[str, Any]] = []
        self._pid_of_host: dict[tuple[int, int], int] = {}
        self._pid_of_device: dict[tuple[int, ...], int] = {}
        self._taken: set[int] = {pid for _, pid in hosts}
        for (row, wanted_pid), rank in hosts.items():
            is_assigned = wanted_pid in self._pid_of_host.values()
            pid = max(self._taken) + 1 if is_assigned else wanted_pid
            self._taken.add(pid)
            self._pid_of_host[row, wanted_pid] = pid
            entry = described[row] if 0 <= row < len(described) else by_pid.get(wanted_pid, {})
            label = entry.get("labels") or ("CPU" if rank < 0 else f"CPU of rank {rank}")
            self._describe(pid, entry.get("name") or self._name, label, pid)
        first = next(iter(self._pid_of_host.values()))
        first_of_row = {row: pid for (row, _), pid in reversed(self._pid_of_host.items())}
        pids = [first_of_row.get(row, first) for row in range(len(of_trace))]
        self.pid_of_process = np.array([*pids, self._pid_of_host.get((-1, trace_pid), first)], np.int64)

    def pid_of(self, thread: int) -> int:
        """Return the process id in the file of a row of `threads`."""
        stream = self._stream[thread]
        if stream < 0:
            return self._pid_of_host[self._host[thread]]
        index, kind = int(self._streams["device_index"][stream]), int(self._streams["device_type"][stream])
        rank, row = self._rank[thread], self._host[thread][0]
        if (kind, index, rank, row) not in self._pid_of_device:
            pid = index if index >= 0 and index not in self._taken else max(self._taken) + 1
            self._taken.add(pid)
            self._pid_of_device[kind, index, rank, row] = pid
            label = f"{_DEVICE_NAMES.get(kind, 'Device')} {index}" + ("" if rank < 0 else f" of rank {rank}")
            self._describe(pid, self._name, label, _DEVICE_SORT_INDEX + pid)
        return self._pid_of_device[kind, index, rank, row]

    def _describe(self, pid: int, name: object, label: object, sort_index: int) -> None:
        for key, value in (("name", str(name)), ("labels", str(label)), ("sort_index", sort_index)):
            self.metadata.append(_metadata(f"process_{key}", pid, 0, {key: value}))


def _without_duplicates(wanted: list[tuple[int, int]]) -> list[int]:
    """Unique numbers per process: the wanted one, or a new one if that is taken or negative. Perfetto interprets 0 as the main thread."""
    taken: set[tuple[int, int]] = set()
    unused = max((number for _, number in wanted), default=0) + 1
    numbers = [_NEW] * len(wanted)
    for index in sorted(range(len(wanted)), key=lambda index: wanted[index][1] == 0):
        process, number = wanted[index]
        key = (process, number or process)
        if number < 0 or key in taken:
            number, unused = unused, unused + 1
        else:
            taken.add(key)
        numbers[index] = number
    return numbers


def _metadata(name: str, pid: int | str, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "ts": 0, "pid": pid, "tid": tid, "args": args}


DEVICE_CATEGORIES: dict[SpanKind, str] = {
    SpanKind.OPERATOR: "kernel",
    SpanKind.BACKWARD: "kernel",
    SpanKind.USER_ANNOTATION: "gpu_user_annotation",
    SpanKind.STEP: "gpu_user_annotation",
    SpanKind.COLLECTIVE: "collective_comm",
}
"""The categories of device spans, where they differ."""
# Bits, as in native/core/chrome/writer_columns.h: 1 a call, 2 a module call, 4 a range, which is not device work.
_TRAITS = {
    SpanKind.PYTHON: 1,
    SpanKind.MODULE: 3,
    SpanKind.USER_ANNOTATION: 4,
    SpanKind.STEP: 4,
}
# After Kineto's sort indices of processes and devices.
_BEHIND_PROCESSES = 1 << 29
# As in native/core/chrome/writer_columns.h.
_NO_NUMBER = np.iinfo(np.int64).min


# Metadata that identifies the machine, the folders and the command of a program.
_IDENTITY = frozenset(
    {"ancestors", "boot_id", "command_line", "host", "host_name", "import_folders", "process_name", "program"}
)


def write_chrome_trace(
    trace: TraceData,
    path: str | os.PathLike[str],
    *,
    identity: bool = True,
    annotations: GraphAnnotations | None = None,
) -> None:
    """Write a trace for Perfetto, chrome://tracing and tools that read Kineto's traces.

    Args:
        trace: The trace.
        path: The file, compressed if its name ends in `.gz` or `.zst`; it appears under its name only when it is complete.
        identity: Whether the command line, the folders of the program, and the name and boot id of the machine are written.
        annotations: A program's annotations of the nodes of its CUDA graphs.

    Raises:
        ValueError: The stream of an annotation is not a number.
        OSError: The file cannot be written; no partial file remains.
    """
    stacks = shown_frames(trace)
    spans = _numbered_spans(trace, stacks)
    if annotations is not None:
        spans.columns.setdefault("external_id", _row_numbers(spans))
        trace, spans = annotate(trace, spans, annotations)
    tracks = lay_out(trace, spans.columns)
    opening = _described(trace, Path(path), tracks, identity=identity)
    opening += b'"traceEvents":[\n' + (described := _joined(tracks.metadata))
    closing = b"\n]}\n"
    if described and (window := _joined(_window(trace))):
        closing = b",\n" + window + closing
    write_blocks(_events(trace, stacks, spans, tracks, opening, closing), path)


def _described(trace: TraceData, path: Path, tracks: LaneTracks, *, identity: bool = True) -> bytes:
    """Return the header of the file, up to `traceEvents`; the keys of the format override metadata."""
    described: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [],
        **({"host_name": trace.run_info.host} if trace.run_info.host else {}),
        **trace.info,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": trace.run_info.start_realtime_ns or 0,
        "traceName": str(path),
    }
    described.pop("traceEvents", None)
    if not trace.complete:
        described["losses"] = trace.losses
    described[OWN] = _own_facts(trace, tracks)
    if not identity:
        described = _anonymous(described) | {"traceName": path.name}
    return b"{" + b"".join(
        f"{_json(str(key))}:{_json(value)},\n".encode() for key, value in described.items()
    )


def _anonymous(described: Mapping[str, Any]) -> dict[str, Any]:
    public = {key: value for key, value in described.items() if key not in _IDENTITY}
    if isinstance(listed := public.get("processes"), list):
        public["processes"] = [_anonymous(entry) if isinstance(entry, dict) else entry for entry in listed]
    return public


def _window(trace: TraceData) -> list[dict[str, Any]]:
    """The window events with which Kineto ends a file, found by their position from the end; empty if the source file lacks them."""
    stop_ns = trace.run_info.stop_ns
    if not trace.run_info.engine or WINDOW in trace.run_info.not_recorded or stop_ns is None:
        return []
    end_us = round(stop_ns / 1000, 3)
    name = "PyTorch Profiler"
    instants = (
        (f"Iteration Start: {name}", "Traces", f"Trace {name}", 0.0),
        # Readers add up a time and a duration that are rounded: what ends with the recording must not seem to end after it.
        (WINDOW, "", "", end_us + 4 * math.ulp(end_us)),
    )
    window = {"ph": "X", "cat": "Trace", "name": f"{name} (0)", "pid": "Spans", "tid": name, "ts": 0}
    return [
        window | {"dur": end_us, "args": {"Op count": 0}},
        _metadata("process_sort_index", "Spans", 0, {"sort_index": _BEHIND_PROCESSES}),
        *(
            {"ph": "i", "s": "g", "name": text, "pid": pid, "tid": tid, "ts": ts}
            for text, pid, tid, ts in instants
        ),
    ]


def _own_facts(trace: TraceData, tracks: LaneTracks) -> dict[str, Any]:
    facts: dict[str, Any] = {} if requested_calls(trace).any() else {"call_texts": True}
    cycles = trace.columns("cycles")
    if len(cycles):
        facts["cycles"] = {name: cycles[name].tolist() for name in cycles}
        facts["cycles"]["pid"] = tracks.pid_of_process[cycles["process_row"]].tolist()
    modules, strings = trace.columns("modules"), trace.strings
    if len(modules):
        facts["modules"] = {
            "path": modules["path"],
            "name": [strings[row] for row in modules["name"].tolist()],
            "class": [strings[row] for row in modules["class"].tolist()],
            "parent": modules["parent"].tolist(),
            "caller": modules["caller"].tolist(),
        }
    return facts


def _events(
    trace: TraceData,
    shown: ShownFrames,
    spans: ShownSpans,
    tracks: LaneTracks,
    opening: bytes,
    closing: bytes,
) -> _core.ChromeWriter:
    stacks, frames, modules, shapes, streams = (
        trace.columns(name) for name in ("stacks", "frames", "modules", "shapes", "streams")
    )
    samples, counters, process_rows = _counters(trace)
    strings = trace.strings
    return _core.ChromeWriter(
        spans=spans.columns,
        tables={
            "strings": spans.strings,
            "stack_parent": shown.parent,
            "stack_frame": stacks["frame"],
            "frame_function": frames["function"],
            "frame_file": shown.file,
            "frame_line": frames["line"],
            "module_path": modules["path"],
            "module_class": [strings[name] for name in modules["class"].tolist()],
            "module_number": _module_numbers(trace, spans),
            "shape_dims": shapes["dims"],
            "shape_types": shapes["types"],
            "shape_concrete": shapes["concrete"],
            "shape_strides": shapes["strides"],
            "arguments": spans.arguments,
            "categories": [KINETO_CATEGORIES[kind] for kind in SpanKind],
            "device_categories": [DEVICE_CATEGORIES.get(kind, KINETO_CATEGORIES[kind]) for kind in SpanKind],
            "traits": np.array([_TRAITS.get(kind, 0) for kind in SpanKind], np.uint8),
            "flow_categories": list(FLOWS),
            "counter_name": counters,
            "counter_pid": tracks.pid_of_process[process_rows],
            "thread_torch_tid": trace.column("threads", "torch_tid"),
            "thread_first_track": tracks.first_of_thread,
            "track_pid": tracks.pid,
            "track_tid": tracks.tid,
            "stream_device": streams["device_index"].astype(np.int64),
            "stream_number": _stream_numbers(trace, spans),
        },
        kernels=_of_spans(trace, spans, "kernels"),
        copies=_of_spans(trace, spans, "copies"),
        flows=link(trace, spans),
        allocations=_allocations(trace),
        counters=samples,
        header=opening,
        footer=closing,
    )


def _module_numbers(trace: TraceData, spans: ShownSpans) -> Rows:
    """The number of each module among those of its class, as in the names of its calls; -1 for modules without calls."""
    numbers = np.full(len(trace.columns("modules")), -1, np.int64)
    columns = spans.columns
    calls = np.flatnonzero((columns["kind"] == SpanKind.MODULE) & (columns["module"] >= 0))
    called, first = np.unique(columns["module"][calls], return_index=True)
    names = columns["name"][calls[first]].tolist()
    numbers[called] = [module_number(spans.strings[name]) for name in names]
    return numbers


def _stream_numbers(trace: TraceData, spans: ShownSpans) -> Rows:
    """The number to write for work on each stream, `_NO_NUMBER` where the source file's arguments have one.

    If they have one for most of a device's work, its tracks are not streams.
    """
    streams = trace.columns("streams")
    numbers: Rows = streams["number"].astype(np.int64)
    has_stream = np.array(['"stream":' in text for text in spans.arguments] + [False], np.bool_)
    if not has_stream.any() or "stream" not in spans.columns:
        return numbers
    on_device = np.flatnonzero(spans.columns["stream"] >= 0)
    stream = spans.columns["stream"][on_device]
    apart = has_stream[spans.columns["arguments"][on_device]]
    numbers[stream[apart]] = _NO_NUMBER
    device = streams["device_type"].astype(np.int64) << 32 | streams["device_index"]
    for number in np.unique(device[stream[apart]]).tolist():
        if apart[device[stream] == number].mean() > 0.5:
            numbers[device == number] = _NO_NUMBER
    return numbers


def _of_spans(trace: TraceData, spans: ShownSpans, table: str) -> dict[str, NDArray[Any]] | None:
    columns = trace.columns(table)
    if len(columns) == 0:
        return None
    rows = spans.rows(columns["span"])
    order = np.argsort(rows, kind="stable")
    return {"span": rows[order]} | {name: columns[name][order] for name in columns if name != "span"}


def _allocations(trace: TraceData) -> dict[str, NDArray[Any]] | None:
    """Memory events in Kineto's form: freed bytes are negative, and each has the allocator's totals; None without any."""
    blocks = trace.columns("allocations")
    if len(blocks) == 0:
        return None
    freed, total = blocks["freed_bytes"], blocks["allocated_bytes"]
    not_recorded = trace.run_info.not_recorded
    # Freed bytes and totals that the source lacks are derived from the blocks.
    if ((blocks["bytes"] == 0) & (freed == 0)).any():
        match = blocks["match"]
        freed = np.where((freed == 0) & (match >= 0), blocks["bytes"][match], freed)
    if (total < 0).any() and "Total Allocated" not in not_recorded:
        total = np.where(total < 0, blocks["total_bytes"], total)
    address, reserved = blocks["address"], blocks["reserved_bytes"]
    columns = {
        "time_ns": blocks["time_ns"],
        "thread": blocks["thread"],
        "address": np.zeros_like(address) if "Addr" in not_recorded else address,
        "bytes": np.where(blocks["bytes"] > 0, blocks["bytes"], -freed),
        "total_bytes": total,
        "reserved_bytes": reserved if "Total Reserved" in not_recorded else np.maximum(reserved, 0),
        "device_type": blocks["device_type"],
        "device_index": blocks["device_index"],
    }
    # Blocks that were live before the start of a window have no event in it.
    recorded = slice(int(np.searchsorted(blocks["time_ns"], 0)), None)
    return {name: values[recorded] for name, values in columns.items()}


def _counters(trace: TraceData) -> tuple[dict[str, NDArray[Any]] | None, list[str], NDArray[np.int32]]:
    counters = trace.columns("counters")
    if len(counters) == 0:
        return None, [], np.zeros(0, np.int32)
    process_row, name = counters["process_row"], counters["name"]
    # The same name in two processes is two counters.
    kinds = Groups.by([process_row, name])
    samples = {"time_ns": counters["time_ns"], "counter": kinds.of_row, "value": counters["value"]}
    return samples, [trace.strings[row] for row in name[kinds.first].tolist()], process_row[kinds.first]


def _joined(events: Iterable[dict[str, Any]]) -> bytes:
    return ",\n".join(_json(event) for event in events).encode()


def _json(value: Any) -> str:
    """Return a value as valid JSON; values that JSON cannot represent become strings."""
    try:
        return json.dumps(value, allow_nan=False, default=str, separators=(",", ":"))
    except (ValueError, RecursionError):
        return json.dumps(str(value))
