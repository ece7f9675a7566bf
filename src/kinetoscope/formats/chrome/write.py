"""Chrome's trace event format, in the shape that Kineto writes and that Perfetto and chrome://tracing open.

One JSON object: keys that describe the run, and `traceEvents`. There a slice (`ph` X) has a category, a name, a
process, a track (`tid`), and its start and duration in microseconds with three decimals, counted from the start of
the trace: absolute times would not fit a double, and a viewer that reads them as doubles sees neighbours overlap.
A slice shows its Python stack unless the slice around it has the same one. A session with `with_stack=True` has slices
of Python calls too: those recorded, else those that the stacks of operators show.
`baseTimeNanoseconds` leads back to the clock on the wall. The slices of a track nest. Spans that nest with nothing (an
asynchronous range, or work that overlaps on a stream) go to a track of their own beside their thread.

What ran on a device lies under a process with the device's index, on a track with the stream's number, and says what
Kineto says of it; a span of a file that was read keeps its category and whatever else that file said of it. Our own
reader finds every column again but these: frames that only pass a call on and the folders of packages are left out of
stacks, and rebuilt calls come back as calls. What it needs for that stands in the head of the file under "kinetoscope",
and beside the names of tracks. What a file that was read did not have is not added: see `NOT_RECORDED` in `read_info`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.formats.chrome.read import LIST_HEAD, OWN, WINDOW
from kinetoscope.formats.chrome.slices import ShownSpans, shown_spans
from kinetoscope.model.hierarchy import recorded_calls
from kinetoscope.model.kinds import is_call
from kinetoscope.model.schema import SpanKind
from kinetoscope.storage.atomic_write import write_blocks
from kinetoscope.tables.host.rebuilt_calls import ShownStacks, shown_stacks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData


# What ties spans together in a Chrome trace: numbers that a launch and its work share, and arrows.

FLOWS = ("fwdbwd", "ac2g")
"""The arrows' categories: from an operator to its backward function, from a launch to the work on the device."""

# Numbers above are left alone, so that new ones can be counted on from the others.
_LARGEST = 1 << 62
# New numbers lie above: HolisticTraceAnalysis 0.5 keeps rows of events in a column as narrow as these numbers need.
_SMALLEST = 1 << 16


def link(trace: TraceData, shown: ShownSpans) -> dict[str, NDArray[Any]]:
    """The arrows of a trace, as the columns `_core.ChromeWriter` takes.

    A span that launched work on a device, and has no number to tell it by, gets one in the columns of `shown`; work
    without a number takes that of its launch. As in Kineto's traces, the number is also that of the arrow: of the first
    one, where a launch has several, because a viewer draws only one arrow of each number.
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
        columns["external_id"] = _external_ids(columns, host, device)
        arrows.append((host, device, _arrow_numbers(correlation[host], correlation[device], correlation), 1))
    return {
        "source": np.concatenate([source for source, _, _, _ in arrows]).astype(np.int32),
        "target": np.concatenate([target for _, target, _, _ in arrows]).astype(np.int32),
        "id": np.concatenate([number for _, _, number, _ in arrows]).astype(np.int64),
        "kind": np.concatenate([np.full(len(source), kind, np.uint8) for source, _, _, kind in arrows]),
    }


def _share_numbers(
    host: NDArray[np.int32], device: NDArray[np.int32], correlation: NDArray[np.int64]
) -> None:
    """Give launches and their work the same number where the work has none."""
    bare = correlation[device] < 0
    hosts = np.unique(host[bare])
    hosts = hosts[correlation[hosts] < 0]
    correlation[hosts] = _unused(correlation) + np.arange(len(hosts))
    correlation[device[bare]] = correlation[host[bare]]


def _external_ids(
    columns: dict[str, NDArray[Any]], host: NDArray[np.int32], device: NDArray[np.int32]
) -> NDArray[np.int64]:
    """The numbers of operators, those of the source or of the rows; work on a device takes that of its launch."""
    if "external_id" in columns:
        numbers: NDArray[np.int64] = columns["external_id"].copy()
    else:
        counted = ~is_call(columns["kind"])
        if "stream" in columns:
            counted &= columns["stream"] < 0
        numbers = np.where(counted, np.arange(1, len(counted) + 1), -1)
    bare = numbers[device] < 0
    numbers[device[bare]] = numbers[host[bare]]
    return numbers


def _arrow_numbers(
    host: NDArray[np.int64], device: NDArray[np.int64], correlation: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A number for each arrow: that which both ends have, the first time, and else a new one."""
    shared = np.flatnonzero((host == device) & (host >= 0))
    _, first = np.unique(host[shared], return_index=True)
    numbers = _unused(correlation) + np.arange(len(host), dtype=np.int64)
    numbers[shared[first]] = host[shared[first]]
    return numbers


def _unused(numbers: NDArray[np.int64]) -> int:
    """A number from which on none of them is."""
    return int(numbers[numbers < _LARGEST].max(initial=_SMALLEST)) + 1


# Which track of a Chrome trace each thread, stream and lane gets, and what the tracks are called.

# Above every process id, so that devices are shown below the process.
_DEVICE_SORT_INDEX = 5_000_000


# torch's device type -> what its devices are called.
_DEVICE_NAMES = {1: "GPU", 6: "GPU", 9: "XLA", 12: "XPU", 13: "MPS", 15: "HPU", 18: "IPU", 19: "MTIA"}
_HOST = -1
# The number wanted by a track that has none of its own.
_NEW = -1


@dataclass(frozen=True)
class Process:
    """A process of the file: a real one, or a device.

    Attributes:
        pid: Its number in the file; no two have the same.
        name: What it is called.
        label: What the viewer shows beside its name.
        sort_index: Where the viewer shows it.
    """

    pid: int
    name: str
    label: str
    sort_index: int


@dataclass(frozen=True)
class Tracks:
    """The layout: thread row `t` has the tracks from `first_of_thread[t]` on, one for each of its lanes.

    Attributes:
        first_of_thread: For each row of `threads` the track of its lane 0.
        pid: For each track the number of its process in the file; a device's is its index where that is free.
        tid: For each track its number in the file; no two tracks of a process share one.
        name: For each track what the viewer shows.
        more: For each track what only our own reader wants to know: the number of the thread or stream, where the track
            has another, and for a lane above 0 the track whose lane it is.
        processes: What there is to say of the processes, in the order of the tracks.
        pid_of_process: For each row of the table `processes` the number of its process in the file; at the end that of the
            process of the trace.
    """

    first_of_thread: NDArray[np.int32]
    pid: NDArray[np.int64]
    tid: NDArray[np.int64]
    name: list[str]
    more: list[dict[str, int]]
    processes: list[Process]
    pid_of_process: NDArray[np.int64]

    def metadata(self) -> Iterator[dict[str, Any]]:
        """The events that name processes and tracks and say in which order to show them."""
        for process in self.processes:
            yield from _process_events(process)
        for place, (pid, tid, name, more) in enumerate(
            zip(self.pid.tolist(), self.tid.tolist(), self.name, self.more, strict=True)
        ):
            yield _metadata("thread_name", pid, tid, {"name": name, **more})
            yield _metadata("thread_sort_index", pid, tid, {"sort_index": place})


def lay_out(trace: TraceData, shown: Mapping[str, NDArray[Any]]) -> Tracks:
    """Give every lane of every thread a track; `shown` has the columns of all that is shown on threads."""
    spans, threads, streams = trace.columns("spans"), trace.columns("threads"), trace.columns("streams")
    count = len(threads)
    lanes = np.ones(count, np.int64)
    np.maximum.at(lanes, spans["thread"], spans["lane"].astype(np.int64) + 1)
    np.maximum.at(lanes, shown["thread"], shown["lane"].astype(np.int64) + 1)
    first = np.zeros(count, np.int32)
    first[1:] = np.cumsum(lanes)[:-1]

    # A device stream is a row of threads all of whose spans are on that stream.
    stream_of = np.full(count, -1, np.int32)
    stream_of[spans["thread"]] = spans["stream"]

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
        pid = processes.of(row)
        for lane in range(int(lanes[row])):
            names.append(label if lane == 0 else f"{label}, overlapping {lane}")
            lane_of.append(int(first[row]) if lane else -1)
            # The system gives a number again once its thread has ended; only the first one keeps it here.
            wanted.append((pid, number if lane == 0 else _NEW))
    tids = _without_duplicates(wanted)
    more: list[dict[str, int]] = []
    for (_, number), tid, around in zip(wanted, tids, lane_of, strict=True):
        of_number = {"Track number": number} if tid != number and around < 0 else {}
        more.append({"Lane of": tids[around]} if around >= 0 else of_number)
    pids = np.array([pid for pid, _ in wanted], np.int64)
    return Tracks(
        first, pids, np.array(tids, np.int64), names, more, processes.in_order(), processes.pid_of_process()
    )


class _Processes:
    """The processes of the file by what they stand for."""

    def __init__(self, trace: TraceData, stream_of: NDArray[np.int32]) -> None:
        threads, self._streams = trace.columns("threads"), trace.columns("streams")
        self._stream = stream_of.tolist()
        self._rank: list[int] = threads["rank"].tolist()
        own = trace.run_info.process or 0
        wanted = [own if pid < 0 else pid for pid in threads["process"].tolist()]
        # Processes of two machines, or of two containers, may have one number.
        self._host = list(zip(threads["process_row"].tolist(), wanted, strict=True))
        of_trace = trace.columns("processes")
        hosts = {
            (row, int(pid) if pid >= 0 else own): int(rank)
            for row, (pid, rank) in enumerate(zip(of_trace["pid"], of_trace["rank"], strict=True))
        }
        of_threads = zip(self._host, self._rank, self._stream, strict=True)
        hosts.update((key, rank) for key, rank, stream in of_threads if stream < 0)
        if len(of_trace) == 0:
            hosts.setdefault((-1, own), -1)
        described = _track_description(trace)
        told = {entry.get("process"): entry for entry in described}
        self._name = str(told.get(own, {}).get("name") or trace.info.get("process_name") or "python")
        self._found: dict[tuple[int, int, int], Process] = {}
        self._number: dict[tuple[int, int], int] = {}
        self._taken: set[int] = {pid for _, pid in hosts}
        given: set[int] = set()
        for (row, wanted_pid), rank in hosts.items():
            pid = max(self._taken) + 1 if wanted_pid in given else wanted_pid
            given.add(pid)
            self._taken.add(pid)
            self._number[row, wanted_pid] = pid
            known = described[row] if 0 <= row < len(described) else told.get(wanted_pid, {})
            label = known.get("labels") or ("CPU" if rank < 0 else f"CPU of rank {rank}")
            self._found[_HOST, row, pid] = Process(pid, str(known.get("name") or self._name), str(label), pid)
        first = next(iter(self._number.values()))
        self._of_process = [
            next((pid for (row, _), pid in self._number.items() if row == one), first)
            for one in range(len(of_trace))
        ]
        self._of_process.append(self._number.get((-1, own), first))

    def pid_of_process(self) -> NDArray[np.int64]:
        """The number of each row of `processes`, and at the end that of the trace's own."""
        return np.array(self._of_process, np.int64)

    def of(self, thread: int) -> int:
        """The number of the process that the thread of a row belongs to."""
        stream = self._stream[thread]
        if stream < 0:
            return self._number[self._host[thread]]
        index, kind = int(self._streams["device_index"][stream]), int(self._streams["device_type"][stream])
        rank = self._rank[thread]
        if (known := self._found.get((kind, index, rank))) is not None:
            return known.pid
        pid = index if index >= 0 and index not in self._taken else max(self._taken) + 1
        self._taken.add(pid)
        label = f"{_DEVICE_NAMES.get(kind, 'Device')} {index}" + ("" if rank < 0 else f" of rank {rank}")
        self._found[kind, index, rank] = Process(pid, self._name, label, _DEVICE_SORT_INDEX + pid)
        return pid

    def in_order(self) -> list[Process]:
        """All processes: the hosts in the order of their threads, then the devices."""
        return sorted(self._found.values(), key=lambda process: process.sort_index >= _DEVICE_SORT_INDEX)


def _track_description(trace: TraceData) -> list[dict[str, Any]]:
    """What a file that was read said of its processes."""
    told = trace.info.get("processes")
    return [entry for entry in told if isinstance(entry, dict)] if isinstance(told, list) else []


def _without_duplicates(wanted: list[tuple[int, int]]) -> list[int]:
    """Each wanted number at most once in its process, and a new one above all others where it is taken or below 0.

    Perfetto takes number 0 for the main thread, which has the number of the process.
    """
    taken: set[tuple[int, int]] = set()
    unused = max((number for _, number in wanted), default=0) + 1
    given = [_NEW] * len(wanted)
    for place in sorted(range(len(wanted)), key=lambda place: wanted[place][1] == 0):
        process, number = wanted[place]
        key = (process, number or process)
        if number < 0 or key in taken:
            number, unused = unused, unused + 1
        else:
            taken.add(key)
        given[place] = number
    return given


def _process_events(process: Process) -> Iterator[dict[str, Any]]:
    """The three events that introduce a process."""
    yield _metadata("process_name", process.pid, 0, {"name": process.name})
    yield _metadata("process_labels", process.pid, 0, {"labels": process.label})
    yield _metadata("process_sort_index", process.pid, 0, {"sort_index": process.sort_index})


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    """One metadata event."""
    return {"ph": "M", "name": name, "ts": 0, "pid": pid, "tid": tid, "args": args}


CATEGORIES: dict[SpanKind, str] = {
    SpanKind.OPERATOR: "cpu_op",
    SpanKind.BACKWARD: "cpu_op",
    SpanKind.USER_ANNOTATION: "user_annotation",
    SpanKind.STEP: "user_annotation",
    SpanKind.PYTHON: "python_function",
    SpanKind.MODULE: "python_function",
    SpanKind.KERNEL: "kernel",
    SpanKind.MEMCPY: "gpu_memcpy",
    SpanKind.MEMSET: "gpu_memset",
    SpanKind.RUNTIME: "cuda_runtime",
    SpanKind.DRIVER: "cuda_driver",
    SpanKind.SYNC: "cuda_sync",
    SpanKind.OVERHEAD: "overhead",
    SpanKind.COLLECTIVE: "user_annotation",
}
DEVICE_CATEGORIES: dict[SpanKind, str] = {
    SpanKind.OPERATOR: "kernel",
    SpanKind.BACKWARD: "kernel",
    SpanKind.USER_ANNOTATION: "gpu_user_annotation",
    SpanKind.STEP: "gpu_user_annotation",
    SpanKind.COLLECTIVE: "collective_comm",
}
"""What spans on a device are called instead."""
# As native/core/chrome_writer_columns.h numbers them: 1 a call, 2 a module's, 4 a range that is no work of a device.
_TRAITS = {
    SpanKind.PYTHON: 1,
    SpanKind.MODULE: 3,
    SpanKind.USER_ANNOTATION: 4,
    SpanKind.STEP: 4,
}
# Below what Kineto puts processes and devices at.
_BEHIND_PROCESSES = 1 << 29
# As native/core/chrome_writer_columns.h has it.
_NO_NUMBER = np.iinfo(np.int64).min


def write_chrome_trace(trace: TraceData, path: str | os.PathLike[str]) -> None:
    """Write a trace for Perfetto, chrome://tracing and whatever reads Kineto's traces.

    Args:
        trace: The trace.
        path: The file; a name that ends in `.gz` or `.zst` is compressed. It appears under its name only when it is
            whole.

    Raises:
        OSError: The file cannot be written; nothing is left of it.
    """
    shown = shown_stacks(trace)
    spans = shown_spans(trace, shown)
    tracks = lay_out(trace, spans.columns)
    opening = _described(trace, Path(path))
    opening += b'"traceEvents":[\n' + (described := _joined(tracks.metadata()))
    closing = b"\n]}\n"
    if described and (window := _joined(_window(trace))):
        closing = b",\n" + window + closing
    write_blocks(_events(trace, shown, spans, tracks, opening, closing), path)


def write_chrome_events(
    trace: TraceData, path: str | os.PathLike[str], ranges: Iterable[dict[str, Any]] = ()
) -> None:
    """Write a trace as a bare JSON list of events, for tools that expect that form of the format.

    A list has no keys around it, so the description of the run is the `args` of the first event, a metadata event named
    `trace`.

    Args:
        trace: The trace.
        path: The file; see `write_chrome_trace`.
        ranges: Further ranges, each written as a begin event and an end event: `name`, `rank`, `tid`, `begin_ns` and `end_ns`,
            both from the start of the trace; an `end_ns` of None writes no end event.

    Raises:
        OSError: The file cannot be written; nothing is left of it.
    """
    shown = shown_stacks(trace)
    spans = shown_spans(trace, shown)
    tracks = lay_out(trace, spans.columns)
    about = {
        "ph": "M",
        "name": LIST_HEAD,
        "ts": 0,
        "pid": 0,
        "tid": 0,
        "args": _description(trace, Path(path)),
    }
    opening = b"[\n" + _joined([about, *tracks.metadata()])
    *of_rows, own = tracks.pid_of_process.tolist()
    pids = dict(zip(trace.columns("processes")["rank"].tolist(), of_rows, strict=True))
    closing = b"".join(
        b",\n" + _json(event).encode()
        for one in ranges
        for event in _begin_and_end(one, pids.get(one["rank"], own))
    )
    write_blocks(_events(trace, shown, spans, tracks, opening, closing + b"\n]\n"), path)


def _begin_and_end(one: dict[str, Any], pid: int) -> list[dict[str, Any]]:
    """The events of a range that lasts longer than a recording."""
    place = {"cat": "user_annotation", "name": one["name"], "pid": pid, "tid": one["tid"]}
    moments = (("B", one["begin_ns"]), ("E", one["end_ns"]))
    return [{"ph": phase, **place, "ts": round(ns / 1000, 3)} for phase, ns in moments if ns is not None]


def _described(trace: TraceData, path: Path) -> bytes:
    """The keys of the file that say what it is and how it was made."""
    return b"{" + b"".join(
        f"{_json(str(key))}:{_json(value)},\n".encode() for key, value in _description(trace, path).items()
    )


def _description(trace: TraceData, path: Path) -> dict[str, Any]:
    """What the file is and how it was made; the format's own keys win."""
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
    described[OWN] = _own_facts(trace)
    return described


def _window(trace: TraceData) -> list[dict[str, Any]]:
    """What Kineto ends a file with, to say when it recorded; none where the source is a file that did not have it.

    Readers take these by their place, counted from the end.
    """
    stop_ns = trace.run_info.stop_ns
    if not trace.run_info.engine or WINDOW in trace.run_info.not_recorded or stop_ns is None:
        return []
    end_us = round(stop_ns / 1000, 3)
    name = "PyTorch Profiler"
    return [
        {
            "ph": "X",
            "cat": "Trace",
            "name": f"{name} (0)",
            "pid": "Spans",
            "tid": name,
            "ts": 0,
            "dur": end_us,
            "args": {"Op count": 0},
        },
        {
            "name": "process_sort_index",
            "ph": "M",
            "ts": 0,
            "pid": "Spans",
            "tid": 0,
            "args": {"sort_index": _BEHIND_PROCESSES},
        },
        {
            "ph": "i",
            "s": "g",
            "name": f"Iteration Start: {name}",
            "pid": "Traces",
            "tid": f"Trace {name}",
            "ts": 0,
        },
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": end_us},
    ]


def _own_facts(trace: TraceData) -> dict[str, Any]:
    """What our own reader wants to know, and viewers pass over: cycles, and the modules by whose paths spans name them."""
    facts: dict[str, Any] = {} if len(recorded_calls(trace)) else {"call_texts": True}
    cycles = trace.columns("cycles")
    if len(cycles):
        facts["cycles"] = {name: cycles[name].tolist() for name in cycles}
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
    trace: TraceData, shown: ShownStacks, spans: ShownSpans, tracks: Tracks, opening: bytes, closing: bytes
) -> _core.ChromeWriter:
    """What writes everything that happened, between `opening` and `closing`."""
    stacks, frames, modules, shapes, streams = (
        trace.columns(name) for name in ("stacks", "frames", "modules", "shapes", "streams")
    )
    samples, counters, whose = _counters(trace)
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
            "shape_dims": shapes["dims"],
            "shape_types": shapes["types"],
            "shape_concrete": shapes["concrete"],
            "shape_strides": shapes["strides"],
            "arguments": spans.arguments,
            "categories": [CATEGORIES[kind] for kind in SpanKind],
            "device_categories": [DEVICE_CATEGORIES.get(kind, CATEGORIES[kind]) for kind in SpanKind],
            "traits": np.array([_TRAITS.get(kind, 0) for kind in SpanKind], np.uint8),
            "flow_categories": list(FLOWS),
            "counter_name": counters,
            "counter_pid": tracks.pid_of_process[whose],
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


def _stream_numbers(trace: TraceData, spans: ShownSpans) -> NDArray[np.int64]:
    """The number to write for the work on each stream; none where the source numbers streams in a way of its own.

    Where it does so for most of a device's work, the tracks of that device are no streams at all.
    """
    streams = trace.columns("streams")
    numbers: NDArray[np.int64] = streams["number"].astype(np.int64)
    own = np.array(['"stream":' in text for text in spans.arguments] + [False], np.bool_)
    if not own.any() or "stream" not in spans.columns:
        return numbers
    on_device = np.flatnonzero(spans.columns["stream"] >= 0)
    stream = spans.columns["stream"][on_device]
    apart = own[spans.columns["arguments"][on_device]]
    numbers[stream[apart]] = _NO_NUMBER
    device = streams["device_type"].astype(np.int64) << 32 | streams["device_index"]
    for one in np.unique(device[stream[apart]]).tolist():
        if apart[device[stream] == one].mean() > 0.5:
            numbers[device == one] = _NO_NUMBER
    return numbers


def _of_spans(trace: TraceData, spans: ShownSpans, table: str) -> dict[str, NDArray[Any]] | None:
    """The columns of a table that says more of some spans, in the order of these; None without any."""
    columns = trace.columns(table)
    if len(columns) == 0:
        return None
    rows = spans.rows(columns["span"])
    order = np.argsort(rows, kind="stable")
    return {"span": rows[order]} | {name: columns[name][order] for name in columns if name != "span"}


def _allocations(trace: TraceData) -> dict[str, NDArray[Any]] | None:
    """Memory as Kineto tells it: what was freed counts below zero, and the allocator's totals stand beside it."""
    blocks = trace.columns("allocations")
    if len(blocks) == 0:
        return None
    freed, total = blocks["freed_bytes"], blocks["allocated_bytes"]
    not_recorded = trace.run_info.not_recorded
    # A source that does not say these leaves them to be found from the blocks themselves.
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
    # What was live when a window of a longer trace began has no moment to be shown at.
    shown = slice(int(np.searchsorted(blocks["time_ns"], 0)), None)
    return {name: values[shown] for name, values in columns.items()}


def _counters(trace: TraceData) -> tuple[dict[str, NDArray[Any]] | None, list[str], NDArray[np.int32]]:
    """The samples, and of what they are: names, and rows of `processes`."""
    counters = trace.columns("counters")
    if len(counters) == 0:
        return None, [], np.zeros(0, np.int32)
    # A counter of each process is one of its own.
    kinds = np.stack([counters["process_row"], counters["name"]])
    used, counter = np.unique(kinds, axis=1, return_inverse=True)
    samples = {
        "time_ns": counters["time_ns"],
        "counter": counter.reshape(-1).astype(np.int32),
        "value": counters["value"],
    }
    return samples, [trace.strings[row] for row in used[1].tolist()], used[0].astype(np.int32)


def _joined(events: Iterable[dict[str, Any]]) -> bytes:
    """Events as they stand between the brackets."""
    return ",\n".join(_json(event) for event in events).encode()


def _json(value: Any) -> str:
    """Strict JSON of any value; what has no JSON becomes text."""
    try:
        return json.dumps(value, allow_nan=False, default=str, separators=(",", ":"))
    except (ValueError, RecursionError):
        return json.dumps(str(value))
