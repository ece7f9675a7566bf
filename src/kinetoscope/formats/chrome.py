"""Chrome's trace event format, in the shape that Kineto writes and that Perfetto and chrome://tracing open.

One JSON object: keys that describe the run, and `traceEvents`. There a slice (`ph` X) has a category, a name, a
process, a track (`tid`), and its start and duration in microseconds with three decimals, counted from the start of
the trace: absolute times would not fit a double, and a viewer that reads them as doubles sees neighbours overlap.
A slice shows its Python stack unless the slice around it has the same one. A session with `with_stack=True` has slices
of Python calls too: those recorded, else those that the stacks of operators show.
`baseTimeNanoseconds` leads back to the clock on the wall. The slices of a track nest. Spans that nest with nothing (an
asynchronous range, for example) go to a track of their own beside their thread.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from kinetoscope import _core
from kinetoscope.formats._chrome_device import device_events
from kinetoscope.formats._chrome_spans import host_spans
from kinetoscope.formats._chrome_stacks import ShownStacks, shown_stacks
from kinetoscope.formats._chrome_tracks import Tracks, lay_out
from kinetoscope.trace import SpanKind
from kinetoscope.trace._replace import replaced

if TYPE_CHECKING:
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
_GZIP_LEVEL = 5


def write_chrome_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace for Perfetto, chrome://tracing and whatever reads Kineto's traces.

    Args:
        trace: The trace.
        path: The file; a name that ends in `.gz` is compressed. It appears under its name only when it is whole.

    Raises:
        OSError: The file cannot be written; nothing is left of it.
    """
    with _destination(Path(path)) as file:
        if os.fspath(path).endswith(".gz"):
            with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
                _write(trace, path, packed, packed.writelines)
        else:
            _write(trace, path, file, lambda writer: writer.write_to(file.fileno()))


@contextmanager
def _destination(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to: a new one that replaces an old file at the end, or a device or pipe as it is."""
    # A link stays a link: what it points to is replaced.
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
    else:
        with replaced(path) as file:
            yield file


def _write(
    trace: Trace,
    path: str | os.PathLike[str],
    file: IO[bytes] | gzip.GzipFile,
    write_host_events: Callable[[_core.ChromeWriter], Any],
) -> None:
    """Write the file's content; nothing may be waiting in the buffers of `file` yet."""
    shown = shown_stacks(trace)
    spans = host_spans(trace, shown)
    tracks = lay_out(trace, spans)
    process = int(trace.info.get("process") or 0)
    opening = _described(trace, path)
    opening += b'"traceEvents":[\n' + _joined(tracks.metadata(process))
    write_host_events(_host_events(trace, spans, shown, tracks, process, opening))
    for event in device_events(trace, tracks, CATEGORIES):
        file.write(b",\n" + _json(event).encode())
    file.write(b"\n]}\n")


def _described(trace: Trace, path: str | os.PathLike[str]) -> bytes:
    """The keys of the file that say what it is and how it was made, each once; the format's own keys win."""
    described: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [],
        **({"host_name": trace.info["host"]} if "host" in trace.info else {}),
        **trace.info,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": int(trace.info.get("start_realtime_ns") or 0),
        "traceName": os.fspath(path),
    }
    described.pop("traceEvents", None)
    if not trace.complete:
        described["losses"] = trace.losses
    return b"{" + b"".join(
        f"{_json(str(key))}:{_json(value)},\n".encode() for key, value in described.items()
    )


def _host_events(
    trace: Trace,
    spans: dict[str, Any],
    shown: ShownStacks,
    tracks: Tracks,
    process: int,
    opening: bytes,
) -> _core.ChromeWriter:
    """What writes everything that ran on a thread, behind `opening`."""
    allocations = trace.columns("allocations")
    stacks, frames, modules, shapes = (
        trace.columns(name) for name in ("stacks", "frames", "modules", "shapes")
    )
    blocks: dict[str, Any] = {}
    if len(allocations):
        match = allocations["match"]
        freed = np.where(match >= 0, allocations["bytes"][match], 0)
        blocks = {
            "allocation_time_ns": allocations["time_ns"],
            "allocation_thread": allocations["thread"],
            "allocation_address": allocations["address"],
            "allocation_bytes": np.where(allocations["bytes"] > 0, allocations["bytes"], -freed),
            "allocation_total_bytes": allocations["total_bytes"],
            "allocation_device_type": allocations["device_type"],
            "allocation_device_index": allocations["device_index"],
        }
    strings = trace.strings
    return _core.ChromeWriter(
        **spans,
        strings=shown.strings,
        stack_parent=shown.parent,
        stack_frame=stacks["frame"],
        frame_function=frames["function"],
        frame_file=shown.file,
        frame_line=frames["line"],
        module_path=modules["path"],
        module_class=[strings[name] for name in modules["class"].tolist()],
        shape_dims=shapes["dims"],
        shape_types=shapes["types"],
        shape_concrete=shapes["concrete"],
        categories=[CATEGORIES[kind] for kind in SpanKind],
        thread_torch_tid=trace.column("threads", "torch_tid"),
        thread_first_track=tracks.first_of_thread,
        track_tid=tracks.tid,
        pid=process,
        header=opening,
        footer=b"",
        **blocks,
    )


def _joined(events: Iterable[dict[str, Any]]) -> bytes:
    """Events as they stand between the brackets."""
    return ",\n".join(_json(event) for event in events).encode()


def _json(value: Any) -> str:
    """Strict JSON of any value; what has no JSON becomes text."""
    try:
        return json.dumps(value, allow_nan=False, default=str, separators=(",", ":"))
    except (ValueError, RecursionError):
        return json.dumps(str(value))
