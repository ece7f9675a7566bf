"""Details of spans: facts, Python stacks, arguments, and links to other spans.

The same functions compute them for a single span, when a page requests it, and for all spans, for a report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope._errors import ArgumentError
from kinetoscope.formats.chrome.slices import described_arguments
from kinetoscope.model import schema
from kinetoscope.model.arrow import integers, number_array, text_array
from kinetoscope.model.hierarchy import recorded_calls
from kinetoscope.model.kinds import is_operator, is_range
from kinetoscope.model.names import device_name, frame_texts, module_classes, stack_frames
from kinetoscope.model.rows import StackRow, begins_run, rows_of_runs
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.device.copies import direction_of
from kinetoscope.tables.device.kernels import least_reported
from kinetoscope.tables.device.launches import copy_bytes, starters
from kinetoscope.tables.stored import processes, ranks
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import Limited, Query, span_of_time, whole_number
from kinetoscope.viewer.timeline.rows import span_tracks
from kinetoscope.viewer.timeline.tracks import chosen

MOST_LINKS = 20
"""Of one label; a step launches thousands of kernels, and its facts say how many."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Links between spans, sorted by source."""

    source: NDArray[np.int32]
    target: NDArray[np.int32]

    def between(self, first: NDArray[Any], last: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For pairs of rows, return the range of links whose sources are from `first` up to, but excluding, `last`."""
        return np.searchsorted(self.source, first), np.searchsorted(self.source, last)


@derived
def launched(trace: Trace) -> Pairs:
    """Links from each host span that launched device work to that work."""
    launches = trace.columns("launches")
    return _pairs(launches["host"], launches["device"])


@derived
def backward(trace: Trace) -> Pairs:
    """Links from each forward operator to its backward functions."""
    forward = trace.column("spans", "forward")
    rows = np.flatnonzero(forward >= 0).astype(np.int32)
    return _pairs(forward[rows], rows)


@derived
def _collectives(trace: Trace) -> tuple[Pairs, Pairs]:
    if "collectives" not in trace.table_names:
        calls, work = np.zeros((2, 0), np.int32)
    else:
        table = trace.table("collectives")
        calls, work = (integers(table[name]).astype(np.int32) for name in ("span", "transfer_span"))
        apart = calls != work
        calls, work = calls[apart], work[apart]
    return _pairs(calls, work), _pairs(work, calls)


def links(trace: Trace, rows: NDArray[Any]) -> list[tuple[str, NDArray[np.int64], NDArray[np.int32]]]:
    """Return the links of some spans: for each label, the indices in `rows` of their sources, ascending, and the target spans.

    A span has at most `MOST_LINKS` links of one label.
    """
    spans = trace.columns("spans")
    links: list[tuple[str, NDArray[np.int64], NDArray[np.int32]]] = []

    def one(label: str, other: NDArray[np.int32]) -> None:
        sources = np.flatnonzero(other >= 0)
        links.append((label, sources, other[sources]))

    def many(label: str, pairs: Pairs, end: NDArray[Any]) -> None:
        low, high = pairs.between(rows, end)
        count = np.minimum(high - low, MOST_LINKS)
        sources, pair = rows_of_runs(low, count)
        links.append((label, sources, pairs.target[pair]))

    one("in", spans["parent"][rows])
    if len(recorded_calls(trace)):
        one("called in", spans["caller"][rows])
    if len(trace.columns("launches")):
        by = starters(trace)
        call, operator = by.call[rows], by.operator[rows]
        one("launched by", call)
        one("launched for", np.where(operator != call, operator, np.int32(-1)))
        many("launched", launched(trace), _end_of(trace, rows))
    one("forward", spans["forward"][rows])
    many("backward", backward(trace), rows + 1)
    for label, pairs in zip(("carried out by", "carries out"), _collectives(trace), strict=True):
        many(label, pairs, rows + 1)
    return [link for link in links if len(link[1])]


def _end_of(trace: Trace, rows: NDArray[Any]) -> NDArray[np.int64]:
    """For some spans, return the next row whose span begins after the end of this one, or on another thread."""
    spans = trace.columns("spans")
    thread, start = spans["thread"], spans["start_ns"]
    begin = start[rows]
    end = begin + np.minimum(spans["duration_ns"][rows], np.iinfo(np.int64).max - np.maximum(begin, 0))
    next_row = np.zeros(len(rows), np.int64)
    thread_of = thread[rows]
    for thread_row in np.unique(thread_of).tolist():
        first, last = np.searchsorted(thread, (thread_row, thread_row + 1))
        on_thread = np.flatnonzero(thread_of == thread_row)
        next_row[on_thread] = first + np.searchsorted(start[first:last], end[on_thread])
    later: NDArray[np.int64] = np.maximum(next_row, rows + 1)
    return later


def _pairs(source: NDArray[np.int32], target: NDArray[np.int32]) -> Pairs:
    is_link = np.flatnonzero((source >= 0) & (target >= 0))
    source, target = source[is_link], target[is_link]
    order = np.lexsort((target, source))
    source, target = source[order], target[order]
    new = begins_run(source, target)
    return Pairs(source[new], target[new])


_RERUN = "forward run again for backward (activation checkpointing)"
# The largest integer that JavaScript represents exactly.
_LARGEST = 2**53
_FLAGS = (
    (schema.FLAG_ASYNC, "may end on another thread than it began on"),
    (schema.FLAG_UNFINISHED, "unfinished when the recording ended: clipped there"),
    (schema.FLAG_BEGUN_BEFORE, "began before the recording or the window: clipped there"),
    (schema.FLAG_INSTANT, "an instant: it has no duration"),
)
_SHAPES = (
    ("Input shapes", "dims"),
    ("Input types", "types"),
    ("Inputs", "concrete"),
    ("Strides", "strides"),
)
_MEMORY = (
    ("Host memory", "bytes"),
    ("Host memory, self", "self_bytes"),
    ("Device memory", "device_bytes"),
    ("Device memory, self", "device_self_bytes"),
)
_IDENTIFIERS = (
    ("Sequence number", "sequence"),
    ("Correlation ID", "correlation"),
    ("External ID", "external_id"),
    ("Record function ID", "record_function"),
)
_SIZES = (("Grid", "grid"), ("Block", "block"))
_LAUNCH = (
    ("Registers per thread", "registers", ""),
    ("Shared memory per block", "shared_bytes", "bytes"),
    ("Blocks per SM", "blocks_per_sm", ""),
    ("Warps per SM", "warps_per_sm", ""),
    ("Estimated occupancy", "occupancy_percent", "%"),
    ("Graph", "graph", ""),
    ("Graph node", "graph_node", ""),
)
_LAUNCH_COLUMNS = (
    *(f"{part}_{axis}" for _, part in _SIZES for axis in "xyz"),
    *(name for _, name, _ in _LAUNCH),
)


@dataclass(frozen=True, eq=False)
class Numbers:
    """A numeric fact of each span.

    Attributes:
        label: Its label on the page.
        unit: Its unit, as the page formats it.
        values: The numbers.
        known: Which spans have a value.
    """

    label: str
    unit: str
    values: NDArray[Any]
    known: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SharedFacts:
    """Facts of the spans that share a row: of a thread, of a module, or of a group of equal kernels.

    Attributes:
        ids: The row of each span; negative for none.
        columns: For each fact its label, its unit and its values by row; empty, `[]` or negative where there is none.
    """

    ids: NDArray[Any]
    columns: Sequence[tuple[str, str, Sequence[str] | NDArray[Any]]]


def parts(trace: Trace, rows: NDArray[Any]) -> list[Numbers | SharedFacts]:
    """Return the facts of some spans, in the order of the page."""
    spans, strings = trace.columns("spans"), trace.strings
    streams, modules, shapes = (trace.columns(name) for name in ("streams", "modules", "shapes"))
    thread, stream, flags = (spans[name][rows] for name in ("thread", "stream", "flags"))
    kind = spans["kind"][rows]
    on_host = is_operator(kind) | is_range(kind) | (kind == schema.SpanKind.COLLECTIVE)
    shared = [
        *(
            (np.where(spans[name][rows] > 0, spans[name][rows], -1), ((label, "", strings),))
            for label, name in (("Overload", "overload"), ("Category", "category"))
        ),
        (stream, (("Device", "", list(map(device_name, streams["device_type"], streams["device_index"]))),
                  ("Stream", "", streams["number"]))),
        (np.where(stream < 0, thread, -1), (("Thread", "", _thread_names(trace)),)),
        (thread, (("Process", "", [str(pid) if pid >= 0 else "" for pid in processes(trace).tolist()]),
                  ("Rank", "", ranks(trace)))),
        (spans["step"][rows], (("Step", "", trace.column("steps", "number")),)),
        (np.where(stream < 0, spans["phase"][rows].astype(np.int8), -1), (("Phase", "", schema.PHASE_NAMES),)),
        (np.where((stream < 0) & (spans["recompute"][rows] > 0), 0, -1), (("Recomputation", "", [_RERUN]),)),
    ]  # fmt: skip
    facts: list[Numbers | SharedFacts] = [SharedFacts(ids, columns) for ids, columns in shared]
    started = np.zeros(len(rows), np.int64)
    if len(launched(trace).source):
        low, high = launched(trace).between(rows, _end_of(trace, rows))
        started = np.where(on_host, high - low, 0)
    for label, name in (("Device time", "device_ns"), ("Device time, self", "device_self_ns")):
        facts.append(Numbers(label, "ns", spans[name][rows], started > 0))
    facts.append(Numbers("Launches", "", started, started > 0))
    of_module = (
        ("Module", "module", modules["path"]),
        ("Module class", "", module_classes(trace)),
        ("Module ID", "row of modules", np.arange(len(modules))),
    )
    facts.append(SharedFacts(spans["module"][rows], of_module))
    facts.append(SharedFacts(spans["shapes"][rows], [(label, "", shapes[name]) for label, name in _SHAPES]))
    for label, name, unit in (("FLOPs", "flops", "FLOP"), ("Bytes moved", "bytes_moved", "bytes")):
        values = spans[name][rows]
        facts.append(Numbers(label, unit, values, on_host & (values > 0)))
    if len(trace.columns("allocations")):
        for label, name in _MEMORY:
            values = spans[name][rows]
            facts.append(Numbers(label, "bytes", values, on_host & (values != 0)))
    facts += _device_parts(trace, rows)
    for label, name in _IDENTIFIERS:
        values = spans[name][rows]
        facts.append(Numbers(label, "", values, values >= 0))
    facts += [
        SharedFacts(np.where(flags & flag, 0, -1), (("Note", "", [text]),))
        for flag, text in _FLAGS
        if (flags & flag).any()
    ]
    return facts


def facts_of(part: SharedFacts, row: int) -> list[dict[str, Any]]:
    """Return the facts of one row for the page."""
    if row < 0:
        return []
    facts = []
    for label, unit, values in part.columns:
        value: Any = values[row]
        if not isinstance(value, str):
            value = value.item() if value >= 0 else ""
        if value not in ("", "[]"):
            facts.append({"label": label, "value": plain(value), "unit": unit})
    return facts


def _thread_names(trace: Trace) -> list[str]:
    threads = trace.columns("threads")
    return [
        f"{name} ({number})" if name else str(number)
        for name, number in zip(threads["name"], threads["os_tid"].tolist(), strict=True)
    ]


def _device_parts(trace: Trace, rows: NDArray[Any]) -> list[Numbers | SharedFacts]:
    facts: list[Numbers | SharedFacts] = []
    spans, kernels, copies = (trace.columns(name) for name in ("spans", "kernels", "copies"))
    if len(kernels):
        of_span, launches = _launches(trace)
        facts.append(SharedFacts(of_span[rows], launches))
    if len(copies):
        of_span, directions = _directions(trace)
        size, duration = copy_bytes(trace)[rows], spans["duration_ns"][rows]
        facts += [
            Numbers("Size", "bytes", size, size >= 0),
            SharedFacts(of_span[rows], (("Direction", "", directions),)),
            Numbers("Bandwidth", "GB/s", size / np.maximum(duration, 1), (size > 0) & (duration > 0)),
        ]
    return facts


@derived
def _launches(trace: Trace) -> tuple[NDArray[np.int32], list[tuple[str, str, Any]]]:
    """For each span its group of kernels that were launched alike, or -1; and the facts of these groups."""
    kernels = trace.columns("kernels")
    columns = [kernels[name].astype(np.float64).view(np.int64) for name in _LAUNCH_COLUMNS]
    of_span, first = _grouped(trace, kernels["span"], columns)
    facts: list[tuple[str, str, Any]] = []
    for label, part in _SIZES:
        sizes = zip(*(kernels[f"{part}_{axis}"][first].tolist() for axis in "xyz"), strict=True)
        facts.append((label, "", [" × ".join(map(str, size)) if min(size) >= 0 else "" for size in sizes]))
    for label, name, unit in _LAUNCH:
        values = kernels[name][first]
        facts.append((label, unit, np.where(values >= least_reported(name), values, -1)))
    return of_span, facts


@derived
def _directions(trace: Trace) -> tuple[NDArray[np.int32], list[str]]:
    """For each span its group of copies with one name, kind and arguments, or -1; and the direction of each group."""
    spans, copied, strings = trace.columns("spans"), trace.column("copies", "span"), trace.strings
    texts = [*trace.columns("arguments")["json"], ""]
    keys = [spans[name][copied].astype(np.int64) for name in ("name", "arguments", "kind")]
    of_span, first = _grouped(trace, copied, keys)
    directions = []
    for name, arguments, kind in zip(*(key[first].tolist() for key in keys), strict=True):
        moved = direction_of(strings[name], texts[arguments], fills=kind == schema.SpanKind.MEMSET)
        between = " to ".join(filter(None, (moved.source, moved.target)))
        directions.append(" ".join(filter(None, (moved.name, between and f"({between})"))))
    return of_span, directions


def _grouped(
    trace: Trace, span: NDArray[np.int32], keys: list[NDArray[np.int64]]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Group equal rows about some spans; return for each span its group, or -1, and for each group its first row."""
    group, first = _core.group(keys)
    of_span = np.full(len(trace.columns("spans")), -1, np.int32)
    of_span[span] = group
    return of_span, first


def span(trace: Trace, query: Query, number: str) -> dict[str, Any]:
    """Respond to `span/<id>`: the position of a span on the timeline, its facts, Python stack, arguments and links.

    Raises:
        ArgumentError: There is no such span.
    """
    spans = trace.columns("spans")
    if not (number.isascii() and number.isdecimal()) or len(number) > 12 or int(number) >= len(spans):
        raise ArgumentError(
            f"there is no span {number[:20]!r}: the trace has {len(spans):,}, numbered from 0"
        )
    row = int(number)
    rows = np.array([row])
    facts: list[dict[str, Any]] = []
    for part in parts(trace, rows):
        if isinstance(part, SharedFacts):
            facts += facts_of(part, int(part.ids[0]))
        elif part.known[0]:
            facts.append({"label": part.label, "value": plain(part.values[0].item()), "unit": part.unit})
    ties = [(label, int(other)) for label, _, targets in links(trace, rows) for other in targets]
    # The last one is the span itself.
    drawn = np.array([*(other for _, other in ties), row])
    columns = (*span_tracks(trace).places(drawn), spans["start_ns"][drawn], spans["duration_ns"][drawn])
    *linked, itself = (
        {"name": trace.strings[name]}
        | dict(zip(("track", "row", "start_ns", "duration_ns"), values, strict=True))
        for name, *values in zip(
            spans["name"][drawn].tolist(), *(values.tolist() for values in columns), strict=True
        )
    )
    frames = frame_texts(trace)
    column, texts = arguments(trace)
    return itself | {
        "id": row,
        "kind": schema.KIND_NAMES[int(spans["kind"][row])],
        "self_ns": int(spans["self_ns"][row]),
        "facts": facts,
        "stack": [frames[frame] for frame in stack_frames(trace, StackRow(int(spans["stack"][row])))],
        "arguments": parsed_arguments(texts[int(column[row])]) if column[row] >= 0 else {},
        "links": [
            {"label": label, "span": span} | position
            for (label, span), position in zip(ties, linked, strict=True)
        ],
    }


@derived
def arguments(trace: Trace) -> tuple[NDArray[np.int32], list[str]]:
    """Return for each span the index of its arguments among the JSON texts, or -1; and these texts."""
    column, texts = described_arguments(trace)
    return (np.full(len(trace.columns("spans")), -1, np.int32) if column is None else column), texts


def parsed_arguments(text: str) -> dict[str, Any]:
    """Parse the JSON text of arguments."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {"text": text}
    arguments: dict[str, Any] = plain(parsed) if isinstance(parsed, dict) else {"value": plain(parsed)}
    return arguments


def plain(value: Any) -> Any:
    """Convert a value for JSON and JavaScript: numbers that are not finite, or not exact there, become texts."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return str(value)
    return value


SORTS = ("launch", "backward")
_MOST = 2_000


def arrows(trace: Trace, query: Query) -> Limited:
    """Respond to `arrows`: those that overlap a window and have both ends on the selected tracks, evenly thinned to `limit`.

    Raises:
        ArgumentError: There are no such tracks, or the window is not valid.
    """
    start, end = span_of_time(query)
    limit = whole_number(query, "limit", _MOST)
    pairs = (launched(trace), backward(trace))
    laid, begins = span_tracks(trace), trace.column("spans", "start_ns")
    all_ends = [np.concatenate([getattr(pair, side) for pair in pairs]) for side in ("source", "target")]
    sort = np.repeat(np.arange(len(pairs), dtype=np.int32), [len(pair.source) for pair in pairs])
    times = [begins[ends] for ends in all_ends]
    ids = {track.id for track in chosen(trace, query)}
    wanted = np.array([track.id in ids for track in laid.tracks], dtype=bool)
    rows = np.flatnonzero((np.minimum(*times) < end) & (np.maximum(*times) >= start))
    for ends in all_ends:
        rows = rows[wanted[laid.track_of_row[laid.row_of_span[ends[rows]]]]]
    total = len(rows)
    if total > limit:
        rows = rows[np.linspace(0, total - 1, limit).astype(np.int64)]
    source, target = (ends[rows] for ends in all_ends)
    columns = {"from": source, "to": target}
    for name, spans in (("from", source), ("to", target)):
        columns[f"{name}_track"], columns[f"{name}_row"] = laid.places(spans)
        columns[f"{name}_time"] = begins[spans].astype(np.float64)
    arrays = {name: number_array(values) for name, values in columns.items()}
    arrays["sort"] = pa.DictionaryArray.from_arrays(number_array(sort[rows]), text_array(SORTS))
    return Limited(pa.table(arrays), total)
