"""All that is known of one span."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.formats.chrome.slices import described_arguments
from kinetoscope.model.hierarchy import calls_of
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
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.device.work import Device, thread_ranks
from kinetoscope.tables.stored import processes, ranks, thread_ids
from kinetoscope.viewer.server.requests import Limited, span_of_time, whole_number
from kinetoscope.viewer.timeline.rows import span_tracks
from kinetoscope.viewer.timeline.tracks import chosen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.requests import Query


# Arrows between spans: from a launch to the work on a device, and from a forward operator to its backward function.

# Which spans are tied to which: around each other, launched by one another, forward and backward, carried out by.

MOST_LINKS = 20
"""Of one sort; a step launches thousands of kernels, and its facts say how many."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """From which span to which, by the first."""

    source: NDArray[np.int32]
    target: NDArray[np.int32]

    def of(self, first: int, last: int) -> NDArray[np.int32]:
        """The targets of the spans from `first` up to, not with, `last`."""
        low, high = np.searchsorted(self.source, (first, last))
        return self.target[low:high]


def launched(trace: Trace) -> Pairs:
    """From each span of the host that started work on a device to that work."""

    def make() -> Pairs:
        own = trace.columns("launches")
        return _pairs(own["host"], own["device"])

    return trace.cached("viewer: launched", make)


def backward(trace: Trace) -> Pairs:
    """From each forward operator to the backward functions that it made."""

    def make() -> Pairs:
        forward = trace.column("spans", "forward")
        rows = np.flatnonzero(forward >= 0).astype(np.int32)
        return _pairs(forward[rows], rows)

    return trace.cached("viewer: backward", make)


def links_of(trace: Trace, row: int) -> list[dict[str, Any]]:
    """The links of one span, each with its label and what a page shows of the other span."""
    found: list[tuple[str, list[int]]] = []
    spans = trace.columns("spans")
    found.append(("in", [int(spans["parent"][row])]))
    if calls_of(trace) is not None:
        found.append(("called in", [int(spans["caller"][row])]))
    if len(trace.columns("launches")):
        by = starters(trace)
        call, operator = int(by.call[row]), int(by.operator[row])
        found.append(("launched by", [call]))
        found.append(("launched for", [operator if operator != call else -1]))
        found.append(("launched", launched(trace).of(row, _beyond(trace, row)).tolist()))
    found.append(("forward", [int(spans["forward"][row])]))
    found.append(("backward", backward(trace).of(row, row + 1).tolist()))
    for label, other in carried_out(trace).get(row, ()):
        found.append((label, [other]))
    pairs = [(label, other) for label, others in found for other in others[:MOST_LINKS] if other >= 0]
    pairs = list(dict.fromkeys(pairs))
    tracks, rows = span_tracks(trace).places(np.array([other for _, other in pairs], np.int32))
    return [
        {
            "label": label,
            "span": other,
            "name": trace.strings[int(spans["name"][other])],
            "track": track,
            "row": place,
            "start_ns": int(spans["start_ns"][other]),
            "duration_ns": int(spans["duration_ns"][other]),
        }
        for (label, other), track, place in zip(pairs, tracks.tolist(), rows.tolist(), strict=True)
    ]


def launches_within(trace: Trace, row: int) -> int:
    """How many pieces of device work a span and those inside it started."""
    return len(launched(trace).of(row, _beyond(trace, row)))


def _beyond(trace: Trace, row: int) -> int:
    """The first row behind a span whose span begins when it has ended, or on another thread."""
    spans = trace.columns("spans")
    thread, start = spans["thread"], spans["start_ns"]
    last = int(np.searchsorted(thread, thread[row] + 1))
    end = min(int(start[row]) + int(spans["duration_ns"][row]), np.iinfo(np.int64).max)
    return max(row + 1, row + int(np.searchsorted(start[row:last], end)))


def beyond(trace: Trace) -> NDArray[np.int64]:
    """For every span what `_beyond` says of one."""
    spans = trace.columns("spans")
    thread, start, rows = spans["thread"], spans["start_ns"], np.arange(len(spans))
    found = rows + 1
    edges = np.flatnonzero(np.diff(thread, prepend=-1, append=-1))
    for first, last in pairwise(edges.tolist()):
        begin = start[first:last]
        lasts = np.minimum(spans["duration_ns"][first:last], np.iinfo(np.int64).max - np.maximum(begin, 0))
        found[first:last] = first + np.searchsorted(begin, begin + lasts)
    return np.maximum(found, rows + 1)


def _pairs(source: NDArray[np.int32], target: NDArray[np.int32]) -> Pairs:
    """Pairs in the order of their sources, of equal ones in that of time."""
    known = np.flatnonzero((source >= 0) & (target >= 0))
    source, target = source[known], target[known]
    order = np.lexsort((target, source))
    return Pairs(source[order], target[order])


def carried_out(trace: Trace) -> dict[int, list[tuple[str, int]]]:
    """For each call between ranks what carried it out, and the other way round."""

    def make() -> dict[int, list[tuple[str, int]]]:
        if "collectives" not in trace.table_names:
            return {}
        table = trace.table("collectives")
        found: dict[int, list[tuple[str, int]]] = {}
        for call, transfer in zip(
            *(table[name].to_pylist() for name in ("span", "transfer_span")), strict=True
        ):
            if call is not None and transfer is not None and call != transfer:
                found.setdefault(call, []).append(("carried out by", transfer))
                found.setdefault(transfer, []).append(("carries out", call))
        return found

    return trace.cached("viewer: collectives", make)


SORTS = ("launch", "backward")
_MOST = 2_000


@dataclass(frozen=True, eq=False)
class Arrows:
    """All arrows of a trace.

    Attributes:
        source: The span each comes from.
        target: The span it goes to.
        early_ns: When it begins, or ends where that is before.
        late_ns: The other end.
        sort: Its place in `SORTS`.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    early_ns: NDArray[np.int64]
    late_ns: NDArray[np.int64]
    sort: NDArray[np.int32]


def all_arrows(trace: Trace) -> Arrows:
    """Find the arrows of a trace, once."""

    def make() -> Arrows:
        pairs, start = (launched(trace), backward(trace)), trace.column("spans", "start_ns")
        source = np.concatenate([pair.source for pair in pairs])
        target = np.concatenate([pair.target for pair in pairs])
        sort = np.repeat(np.arange(len(pairs), dtype=np.int32), [len(pair.source) for pair in pairs])
        early, late = np.minimum(start[source], start[target]), np.maximum(start[source], start[target])
        return Arrows(source, target, early, late, sort)

    return trace.cached("viewer: arrows", make)


def arrows(trace: Trace, query: Query) -> Limited:
    """Answer `arrows`: those that touch a window and have both ends on the chosen tracks, evenly thinned to `limit`.

    Raises:
        ArgumentError: No such tracks, or a window that is none.
    """
    import pyarrow as pa

    start, end = span_of_time(query)
    limit = whole_number(query, "limit", _MOST)
    found, laid = all_arrows(trace), span_tracks(trace)
    wanted = np.zeros(len(laid.tracks), dtype=bool)
    ids = {track.id for track in chosen(trace, query)}
    wanted[[place for place, track in enumerate(laid.tracks) if track.id in ids]] = True
    rows = np.flatnonzero((found.early_ns < end) & (found.late_ns >= start))
    for ends in (found.source, found.target):
        rows = rows[wanted[laid.track_of_row[laid.row_of_span[ends[rows]]]]]
    total = len(rows)
    if total > limit:
        rows = rows[np.linspace(0, total - 1, limit).astype(np.int64)]
    source, target = found.source[rows], found.target[rows]
    begins = trace.column("spans", "start_ns")
    columns = {"from": source, "to": target}
    for name, spans in (("from", source), ("to", target)):
        columns[f"{name}_track"], columns[f"{name}_row"] = laid.places(spans)
        columns[f"{name}_time"] = begins[spans].astype(np.float64)
    arrays = {name: pa.array(values) for name, values in columns.items()}
    arrays["sort"] = pa.DictionaryArray.from_arrays(pa.array(found.sort[rows]), pa.array(SORTS))
    return Limited(pa.table(arrays), total)


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
