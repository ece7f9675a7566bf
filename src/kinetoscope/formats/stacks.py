"""Write stacks for flame graph tools, as collapsed stacks and in speedscope's format."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope._version import __version__
from kinetoscope.model.arrow import number_array
from kinetoscope.model.groups import Groups
from kinetoscope.model.names import stack_frames
from kinetoscope.model.nesting import Nesting, nest
from kinetoscope.model.rows import Mask, Rows, StackRow, mask_of, places_of
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.atomic_write import file_path, open_atomically, open_packed
from kinetoscope.tables.host.lines import stack_sums

if TYPE_CHECKING:
    import pyarrow


# Collapsed stacks, the format of FlameGraph and similar tools.
#
# Each line has one stack: the names of its frames from the root, joined by `;`, one space, and an integer number of
# microseconds, the time of the operators that ran with exactly this stack; in backward, the stack of the forward operator.
#
# White space, control characters and `;` inside a frame are replaced by `_`. So a line has exactly one space, and readers
# cannot mistake the end of a frame, as in `model.py(3): layer 12`, for the number.
#
# Equal stacks are summed in nanoseconds, then rounded so that the microseconds of all lines add up to the rounded total.
# Stacks of 0 microseconds are left out, because no reader shows them.

NS_PER_US = 1000


def write_stacks(weights: Mapping[tuple[str, ...], int], path: str | os.PathLike[str]) -> None:
    """Write collapsed stacks.

    Args:
        weights: Nanoseconds by stack, a tuple of frames from the root.
        path: The file, which appears under its name only when it is complete.

    Raises:
        ArgumentError: `path` is not a path.
        OSError: The file cannot be written.
    """
    with open_atomically(file_path(path)) as file:
        for line in collapsed_lines(weights):
            file.write(line.encode(errors="backslashreplace") + b"\n")


def collapsed_lines(weights: Mapping[tuple[str, ...], int]) -> list[str]:
    """Return one line for each stack of at least one microsecond after rounding, in the order given."""
    sums: dict[str, int] = {}
    for frames, nanoseconds in weights.items():
        text = ";".join(_safe(frame) for frame in frames)
        sums[text] = sums.get(text, 0) + nanoseconds
    # The running sum is rounded, so that the lines add up.
    microseconds = (np.cumsum([0, *sums.values()]) + NS_PER_US // 2) // NS_PER_US
    lines = zip(sums, np.diff(microseconds).tolist(), strict=True)
    return [f"{text} {number}" for text, number in lines if number > 0]


def _safe(frame: str) -> str:
    if not frame:
        return "_"
    return "".join(
        "_" if character == ";" or character.isspace() or not (character.isprintable() or "\ud800" <= character <= "\udfff")
        else character
        for character in frame
    )  # fmt: skip


SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_EVENTS_AT_ONCE = 1 << 20


def write_speedscope(trace: TraceData, path: Path) -> None:
    """Write a trace in speedscope's format.

    Args:
        trace: The trace.
        path: The file, compressed if its name ends in `.gz`; it appears under its name only when it is complete.

    Raises:
        OSError: The file cannot be written.
    """
    spans, strings = trace.columns("spans"), trace.strings
    names = np.flatnonzero(mask_of(spans["name"], len(strings)))
    frame_of_name = places_of(names, len(strings))
    frames: list[dict[str, Any]] = [{"name": strings[row] or "(no name)"} for row in names.tolist()]
    # All profiles share one list of frames: the names of spans first, then Python frames.
    of_python = (trace.column("frames", name).tolist() for name in ("function", "file", "line"))
    frames += [
        {"name": strings[function] or "(no name)", "file": strings[file], "line": line}
        for function, file, line in zip(*of_python, strict=True)
    ]
    groups = _groups(trace)
    longest = max(range(len(groups)), key=lambda index: len(groups[index][1]), default=0)
    opening = {
        "$schema": SCHEMA,
        "exporter": f"kinetoscope {__version__}",
        "name": path.name,
        "activeProfileIndex": longest,
        "shared": {"frames": frames},
    }
    with open_packed(path) as file:
        file.write(json.dumps(opening)[:-1].encode() + b',"profiles":[')
        for index, (title, rows, nesting) in enumerate(groups):
            file.write(b",\n" if index else b"\n")
            _write_evented(trace, file, title, rows, nesting, frame_of_name)
        sampled = _sampled(trace, len(names))
        if not groups and not sampled:
            # speedscope rejects a file without a profile.
            sampled = [_sampled_profile("nothing was recorded", "nanoseconds", [], [])]
        for index, profile in enumerate(sampled):
            file.write((b",\n" if groups or index else b"\n") + json.dumps(profile).encode())
        file.write(b"\n]}\n")


def _groups(trace: TraceData) -> list[tuple[str, Rows, Nesting]]:
    """A profile for each thread, stream and lane: title, rows of spans, and their nesting."""
    spans = trace.columns("spans")
    thread, stream, lane = (spans[name].astype(np.int64) for name in ("thread", "stream", "lane"))
    order = np.lexsort((np.arange(len(thread)), lane, stream, thread))
    _, edges = Groups.runs(thread[order], stream[order], lane[order]).rows()
    groups = []
    for first, last in pairwise(edges.tolist()):
        rows = order[first:last]
        title = _title(trace, int(thread[rows[0]]), int(stream[rows[0]]))
        title += ", overlapping spans" if lane[rows[0]] > 0 else ""
        # Spans of one lane nest.
        groups.append(
            (title, rows, nest(*(spans[name][rows] for name in ("thread", "start_ns", "duration_ns"))))
        )
    return groups


def _title(trace: TraceData, thread: int, stream: int) -> str:
    threads = trace.columns("threads")
    name = threads["name"][thread] if thread < len(threads) else ""
    if stream >= 0:
        streams = trace.columns("streams")
        text = f"device {streams['device_index'][stream]}, stream {streams['number'][stream]}"
        return f"{text} ({name})" if name else text
    number = int(threads["os_tid"][thread]) if thread < len(threads) else thread
    return f"{name} (thread {number})" if name else f"thread {number}"


def _write_evented(
    trace: TraceData,
    file: IO[bytes],
    title: str,
    rows: Rows,
    nesting: Nesting,
    frame_of_name: NDArray[np.int32],
) -> None:
    spans = trace.columns("spans")
    start, frame = spans["start_ns"][rows], frame_of_name[spans["name"][rows]]
    end = start + spans["duration_ns"][rows]
    depth, parent = nesting.depth, nesting.parent
    # When a span opens, all spans before it have opened, and all of those but its ancestors have closed. It closes after
    # all its descendants.
    opening = 2 * np.arange(len(rows)) - depth
    closing = opening + 2 * _core.sums_below(parent, depth, np.ones(len(rows), dtype=np.int64)) - 1
    opens = mask_of(opening, 2 * len(rows))
    moments_ns, frames = np.zeros(2 * len(rows), dtype=np.int64), np.zeros(2 * len(rows), dtype=np.int64)
    moments_ns[opening], moments_ns[closing] = start, end
    frames[opening], frames[closing] = frame, frame
    about = {
        "type": "evented",
        "name": title,
        "unit": "nanoseconds",
        "startValue": min(0, int(start.min())),
        "endValue": max(trace.duration_ns, int(end.max())),
    }
    file.write(json.dumps(about)[:-1].encode() + b',"events":[')
    for begin in range(0, len(moments_ns), _EVENTS_AT_ONCE):
        part = slice(begin, begin + _EVENTS_AT_ONCE)
        text = _events_text(opens[part], frames[part], moments_ns[part])
        file.write(text if begin else text[1:])
    file.write(b"]}")


def _events_text(opens: Mask, frame: Rows, at_ns: Rows) -> memoryview:
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = pc.if_else(number_array(opens), ',{"type":"O","frame":', ',{"type":"C","frame":')
    frames, times = (pc.cast(number_array(values), pa.string()) for values in (frame, at_ns))
    lines: pyarrow.StringArray = pc.binary_join_element_wise(kinds, frames, ',"at":', times, "}", "")
    # Arrow stores the strings of a column contiguously, so its buffer is the text.
    _, offsets, content = lines.buffers()
    length = int(np.frombuffer(offsets, np.int32, len(lines) + 1)[-1])
    return memoryview(content)[:length]


def _sampled(trace: TraceData, first_frame: int) -> list[dict[str, Any]]:
    if len(trace.columns("stacks")) == 0:
        return []
    sums = stack_sums(trace)
    weights: list[tuple[str, str, Rows]] = [
        (
            "Python stacks: time on the host",
            "nanoseconds",
            sums["self_ns"] + sums["python_self_ns"] + sums["blocked_self_ns"],
        ),
        ("Python stacks: time on devices", "nanoseconds", sums["device_self_ns"]),
        ("Python stacks: memory allocated", "bytes", _allocated_bytes(trace)),
    ]
    profiles = []
    for title, unit, weight in weights:
        rows = np.flatnonzero(weight > 0).tolist()
        samples = [
            [first_frame + frame for frame in reversed(stack_frames(trace, StackRow(row)))] for row in rows
        ]
        if samples:
            profiles.append(_sampled_profile(title, unit, samples, weight[rows].tolist()))
    return profiles


def _allocated_bytes(trace: TraceData) -> Rows:
    blocks = trace.columns("allocations")
    of_span = np.append(trace.column("spans", "stack"), -1)[blocks["span"]]
    stack = np.where(blocks["stack"] >= 0, blocks["stack"], of_span)
    return Groups(stack, len(trace.columns("stacks"))).sums(blocks["bytes"], blocks["time_ns"] >= 0)


def _sampled_profile(title: str, unit: str, samples: list[list[int]], weights: list[int]) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": title,
        "unit": unit,
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
