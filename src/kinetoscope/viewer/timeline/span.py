"""All that is known of one span."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.formats.chrome.slices import described_arguments
from kinetoscope.model.names import frame_texts, module_classes, stack_frames
from kinetoscope.model.schema import (
    FLAG_ASYNC,
    FLAG_BEGUN_BEFORE,
    FLAG_INSTANT,
    FLAG_UNFINISHED,
    KIND_NAMES,
    PHASE_NAMES,
    SpanKind,
)
from kinetoscope.tables.device.copies import Direction, direction_of
from kinetoscope.tables.device.work import Device, thread_ranks
from kinetoscope.tables.stored import processes, ranks, thread_ids
from kinetoscope.viewer.timeline.links import launches_within, links_of
from kinetoscope.viewer.timeline.rows import span_tracks

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.answers import Query

# The largest whole number that a page's numbers can tell from its neighbours.
_LARGEST = 2**53
ON_HOST = (
    SpanKind.OPERATOR,
    SpanKind.BACKWARD,
    SpanKind.USER_ANNOTATION,
    SpanKind.STEP,
    SpanKind.COLLECTIVE,
)
FLAGS = (
    (FLAG_ASYNC, "may end on another thread than it began on"),
    (FLAG_UNFINISHED, "still ran when the recording ended: it is cut there"),
    (FLAG_BEGUN_BEFORE, "began before the recording or the part that was taken: it is cut there"),
    (FLAG_INSTANT, "a moment, not a time"),
)


def span(trace: Trace, query: Query, number: str) -> dict[str, Any]:
    """Answer `span/<id>`: where a span is, what is known of it, its Python stack, and the spans it is tied to.

    Raises:
        ArgumentError: There is no such span.
    """
    spans = trace.columns("spans")
    if not (number.isascii() and number.isdecimal()) or len(number) > 12 or int(number) >= len(spans):
        raise ArgumentError(
            f"there is no span {number[:20]!r}: the trace has {len(spans):,}, numbered from 0"
        )
    row = int(number)
    track, place = (int(values[0]) for values in span_tracks(trace).places(np.array([row])))
    kind = int(spans["kind"][row])
    frames = frame_texts(trace)
    return {
        "id": row,
        "name": trace.strings[int(spans["name"][row])],
        "kind": KIND_NAMES[kind],
        "track": track,
        "row": place,
        "start_ns": int(spans["start_ns"][row]),
        "duration_ns": int(spans["duration_ns"][row]),
        "self_ns": int(spans["self_ns"][row]),
        "facts": [
            {"label": label, "value": plain(value), "unit": unit}
            for label, value, unit in _facts(trace, row)
            if value is not None and value != ""
        ],
        "stack": [frames[frame] for frame in stack_frames(trace, int(spans["stack"][row]))],
        "arguments": _arguments(trace, row),
        "links": links_of(trace, row),
    }


def plain(value: Any) -> Any:
    """A value as JSON and a page can hold it: what is no finite or exact number there becomes a text."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return str(value)
    return value


Fact = tuple[str, Any, str]


def _facts(trace: Trace, row: int) -> list[Fact]:
    """Everything with a label and a unit, in the order in which people ask for it."""
    spans = trace.columns("spans")
    on_host = int(spans["kind"][row]) in ON_HOST
    found: list[Fact] = []
    overload = int(spans["overload"][row])
    found.append(("Overload", trace.strings[overload] if overload > 0 else None, ""))
    category = int(spans["category"][row])
    found.append(("Category", trace.strings[category] if category > 0 else None, ""))
    thread, stream, step = (int(spans[name][row]) for name in ("thread", "stream", "step"))
    found += place_facts(trace, thread, stream)
    if step >= 0:
        found.append(("Step", int(trace.column("steps", "number")[step]), ""))
    if stream < 0:
        found += phase_facts(int(spans["phase"][row]), recompute=bool(spans["recompute"][row]))
    if on_host and (started := launches_within(trace, row)):
        found.append(("Device time", int(spans["device_ns"][row]), "ns"))
        found.append(("Device time of its own launches", int(spans["device_self_ns"][row]), "ns"))
        found.append(("Launches", started, ""))
    found += module_facts(trace, int(spans["module"][row]))
    found += shape_facts(trace, int(spans["shapes"][row]))
    if on_host:
        for label, name, unit in (("FLOPs", "flops", "FLOP"), ("Bytes moved", "bytes_moved", "bytes")):
            value = int(spans[name][row])
            found.append((label, value if value > 0 else None, unit))
        found += _memory(trace, row)
    if (kernel := _row_of(trace, "kernels", row)) >= 0:
        found += launch_facts(trace, kernel)
    found += _copy(trace, row)
    for label, name in (
        ("Sequence number", "sequence"),
        ("Correlation", "correlation"),
        ("External id", "external_id"),
        ("Record function id", "record_function"),
    ):
        value = int(spans[name][row])
        found.append((label, value if value >= 0 else None, ""))
    flags = int(spans["flags"][row])
    return found + [("Note", text, "") for flag, text in FLAGS if flags & flag]


def place_facts(trace: Trace, thread: int, stream: int) -> list[Fact]:
    """The thread or stream, and the process."""
    found: list[Fact] = []
    if stream >= 0:
        streams = trace.columns("streams")
        kind, index = int(streams["device_type"][stream]), int(streams["device_index"][stream])
        found.append(("Device", Device(int(thread_ranks(trace)[thread]), kind, index).name, ""))
        found.append(("Stream", int(streams["number"][stream]), ""))
    else:
        name = trace.columns("threads")["name"][thread]
        number = int(thread_ids(trace)[thread])
        found.append(("Thread", f"{name} ({number})" if name else str(number), ""))
    process, rank = int(processes(trace)[thread]), int(ranks(trace)[thread])
    found.append(("Process", str(process) if process >= 0 else None, ""))
    found.append(("Rank", rank if rank >= 0 else None, ""))
    return found


def phase_facts(phase: int, *, recompute: bool) -> list[Fact]:
    """The part of the training step."""
    again = "runs the forward pass again, for backward" if recompute else None
    return [("Phase", PHASE_NAMES[phase], ""), ("Recomputation", again, "")]


def module_facts(trace: Trace, module: int) -> list[Fact]:
    """A module; nothing for -1."""
    if module < 0:
        return []
    return [
        ("Module", trace.columns("modules")["path"][module], "module"),
        ("Module class", module_classes(trace)[module], ""),
        ("Module id", module, "row of modules"),
    ]


def shape_facts(trace: Trace, shape: int) -> list[Fact]:
    """Inputs as they were recorded; nothing for -1."""
    if shape < 0:
        return []
    shapes = trace.columns("shapes")
    labels = (
        ("Input shapes", "dims"),
        ("Input types", "types"),
        ("Inputs", "concrete"),
        ("Strides", "strides"),
    )
    return [(label, text, "") for label, name in labels if (text := shapes[name][shape]) not in ("", "[]")]


def _memory(trace: Trace, row: int) -> list[Fact]:
    """Memory allocated minus freed, where it was recorded."""
    if len(trace.columns("allocations")) == 0:
        return []
    spans = trace.columns("spans")
    labels = (
        ("Host memory", "bytes"),
        ("Host memory of itself", "self_bytes"),
        ("Device memory", "device_bytes"),
        ("Device memory of itself", "device_self_bytes"),
    )
    return [(label, int(value), "bytes") for label, name in labels if (value := spans[name][row])]


_SIZES = (("Grid", "grid"), ("Block", "block"))
_LAUNCH = (
    ("Registers of a thread", "registers", ""),
    ("Shared memory of a block", "shared_bytes", "bytes"),
    ("Blocks for each multiprocessor", "blocks_per_sm", ""),
    ("Warps for each multiprocessor", "warps_per_sm", ""),
    ("Occupancy, estimated", "occupancy_percent", "%"),
    ("Graph", "graph", ""),
    ("Node of the graph", "graph_node", ""),
)
LAUNCH_COLUMNS = (
    *(f"{part}_{axis}" for _, part in _SIZES for axis in "xyz"),
    *(name for _, name, _ in _LAUNCH),
)


def launch_facts(trace: Trace, row: int) -> list[Fact]:
    """How a row of `kernels` was launched."""
    kernels = trace.columns("kernels")
    found: list[Fact] = []
    for label, part in _SIZES:
        sizes = [int(kernels[f"{part}_{axis}"][row]) for axis in "xyz"]
        found.append((label, " × ".join(map(str, sizes)) if min(sizes) >= 0 else None, ""))
    for label, name, unit in _LAUNCH:
        value = kernels[name][row].item()
        found.append((label, value if value >= 0 else None, unit))
    return found


def _copy(trace: Trace, row: int) -> list[Fact]:
    """What a copy moved, and how fast."""
    at = _row_of(trace, "copies", row)
    if at < 0:
        return []
    spans = trace.columns("spans")
    size, duration_ns = int(trace.columns("copies")["bytes"][at]), int(spans["duration_ns"][row])
    arguments = int(spans["arguments"][row])
    text = trace.columns("arguments")["json"][arguments] if arguments >= 0 else ""
    fills = int(spans["kind"][row]) == SpanKind.MEMSET
    direction = direction_of(trace.strings[int(spans["name"][row])], text, fills=fills)
    return [
        ("Size", size if size >= 0 else None, "bytes"),
        ("Direction", direction_text(direction), ""),
        ("Bandwidth", size / duration_ns if size > 0 and duration_ns > 0 else None, "GB/s"),
    ]


def direction_text(direction: Direction) -> str:
    """From where to where a copy goes, in words."""
    between = " to ".join(filter(None, (direction.source, direction.target)))
    return " ".join(filter(None, (direction.name, between and f"({between})")))


def _row_of(trace: Trace, table: str, span: int) -> int:
    """The row of a table with a column `span` that is of a span, -1 without."""

    def make() -> dict[int, int]:
        return {number: row for row, number in enumerate(trace.column(table, "span").tolist())}

    return trace.cached(f"viewer: {table} of spans", make).get(span, -1)


def _arguments(trace: Trace, row: int) -> dict[str, Any]:
    """What else the source said of it, and what is known of calls between ranks."""
    column, texts = trace.cached("viewer: described_arguments", lambda: described_arguments(trace))
    if column is None or column[row] < 0:
        return {}
    return told_arguments(texts[int(column[row])])


def told_arguments(text: str) -> dict[str, Any]:
    """Arguments by name, from their JSON."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return {"text": text}
    found: dict[str, Any] = plain(told) if isinstance(told, dict) else {"value": plain(told)}
    return found
