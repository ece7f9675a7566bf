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
and beside the names of tracks. What a file that was read did not have is not added: see `NOT_RECORDED` in `_chrome_read_info`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope import _core
from kinetoscope.formats._block_file import write_blocks
from kinetoscope.formats._chrome_links import FLOWS, link
from kinetoscope.formats._chrome_read_info import WINDOW, lacks
from kinetoscope.formats._chrome_read_own import LIST_HEAD, OWN
from kinetoscope.formats._chrome_spans import ShownSpans, shown_spans
from kinetoscope.formats._chrome_tracks import Tracks, lay_out
from kinetoscope.tables.shown_stacks import ShownStacks, shown_stacks
from kinetoscope.trace import SpanKind
from kinetoscope.trace._calls import calls_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

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


def write_chrome_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
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
    trace: Trace, path: str | os.PathLike[str], ranges: Iterable[dict[str, Any]] = ()
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


def _described(trace: Trace, path: Path) -> bytes:
    """The keys of the file that say what it is and how it was made."""
    return b"{" + b"".join(
        f"{_json(str(key))}:{_json(value)},\n".encode() for key, value in _description(trace, path).items()
    )


def _description(trace: Trace, path: Path) -> dict[str, Any]:
    """What the file is and how it was made; the format's own keys win."""
    described: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [],
        **({"host_name": trace.info["host"]} if "host" in trace.info else {}),
        **trace.info,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": int(trace.info.get("start_realtime_ns") or 0),
        "traceName": str(path),
    }
    described.pop("traceEvents", None)
    if not trace.complete:
        described["losses"] = trace.losses
    described[OWN] = _own_facts(trace)
    return described


def _window(trace: Trace) -> list[dict[str, Any]]:
    """What Kineto ends a file with, to say when it recorded; none where the source is a file that did not have it.

    Readers take these by their place, counted from the end.
    """
    stop_ns = trace.info.get("stop_ns")
    if "engine" not in trace.info or lacks(trace.info, WINDOW) or not isinstance(stop_ns, int):
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


def _own_facts(trace: Trace) -> dict[str, Any]:
    """What our own reader wants to know, and viewers pass over: cycles, and the modules by whose paths spans name them."""
    facts: dict[str, Any] = {} if calls_of(trace) is not None else {"call_texts": True}
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
    trace: Trace, shown: ShownStacks, spans: ShownSpans, tracks: Tracks, opening: bytes, closing: bytes
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


def _stream_numbers(trace: Trace, spans: ShownSpans) -> NDArray[np.int64]:
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


def _of_spans(trace: Trace, spans: ShownSpans, table: str) -> dict[str, NDArray[Any]] | None:
    """The columns of a table that says more of some spans, in the order of these; None without any."""
    columns = trace.columns(table)
    if len(columns) == 0:
        return None
    rows = spans.rows(columns["span"])
    order = np.argsort(rows, kind="stable")
    return {"span": rows[order]} | {name: columns[name][order] for name in columns if name != "span"}


def _allocations(trace: Trace) -> dict[str, NDArray[Any]] | None:
    """Memory as Kineto tells it: what was freed counts below zero, and the allocator's totals stand beside it."""
    blocks = trace.columns("allocations")
    if len(blocks) == 0:
        return None
    freed, total = blocks["freed_bytes"], blocks["allocated_bytes"]
    # A source that does not say these leaves them to be found from the blocks themselves.
    if ((blocks["bytes"] == 0) & (freed == 0)).any():
        match = blocks["match"]
        freed = np.where((freed == 0) & (match >= 0), blocks["bytes"][match], freed)
    if (total < 0).any() and not lacks(trace.info, "Total Allocated"):
        total = np.where(total < 0, blocks["total_bytes"], total)
    address, reserved = blocks["address"], blocks["reserved_bytes"]
    columns = {
        "time_ns": blocks["time_ns"],
        "thread": blocks["thread"],
        "address": np.zeros_like(address) if lacks(trace.info, "Addr") else address,
        "bytes": np.where(blocks["bytes"] > 0, blocks["bytes"], -freed),
        "total_bytes": total,
        "reserved_bytes": reserved if lacks(trace.info, "Total Reserved") else np.maximum(reserved, 0),
        "device_type": blocks["device_type"],
        "device_index": blocks["device_index"],
    }
    # What was live when a window of a longer trace began has no moment to be shown at.
    shown = slice(int(np.searchsorted(blocks["time_ns"], 0)), None)
    return {name: values[shown] for name, values in columns.items()}


def _counters(trace: Trace) -> tuple[dict[str, NDArray[Any]] | None, list[str], NDArray[np.int32]]:
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
