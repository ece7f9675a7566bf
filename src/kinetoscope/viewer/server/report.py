"""Reports: the viewer with the data of one trace as a single HTML file, which opens without a server.

The page is the same as the server's. The file also contains the server's responses to all requests that pages make when they
open, and the items of the timeline, from which the page draws any window and looks up the details of spans. Other requests,
which depend on user input (search, sums of a range), need the server.
"""

from __future__ import annotations

import base64
import html
import io
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError, KinetoscopeError
from kinetoscope._import_aside import import_aside
from kinetoscope.comparison.result import Comparison
from kinetoscope.model.arrow import labels, number_array, text_array
from kinetoscope.model.groups import Groups
from kinetoscope.model.names import frame_texts
from kinetoscope.model.rows import Mask, Rows, places_of
from kinetoscope.model.schema import KIND_NAMES
from kinetoscope.model.strings import to_utf8
from kinetoscope.storage.atomic_write import write_atomically
from kinetoscope.summaries.job import Job
from kinetoscope.tables.memory import memories
from kinetoscope.tables.memory.timeline import find_device, need_memory
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_any
from kinetoscope.viewer.pages import compare, export, memory, operators, ranks, stacks
from kinetoscope.viewer.requests import Answer, Limited, MadeFile, Query
from kinetoscope.viewer.server.routes import ARROW, answer, content_policy, encoded, page_text
from kinetoscope.viewer.timeline import range as range_sums
from kinetoscope.viewer.timeline import span
from kinetoscope.viewer.timeline.counters import counters_of
from kinetoscope.viewer.timeline.rows import NamedItems, span_tracks
from kinetoscope.viewer.timeline.tracks import timeline, whole_of

Request = tuple[str, Mapping[str, str]]
Column = tuple[str, pa.Array, Mapping[str, str]]

PAGES: dict[str, tuple[str | Callable[[Trace], Iterable[Request]], ...]] = {
    "overview": (
        *("load", "overview", "overview/work", "overview/memory", "table/breakdown", "table/devices"),
        *("table/step_difference", "health", "findings", "top/kernels"),
        *(f"top/{name}?time={time}" for name in ("ops", "modules", "lines") for time in ("host", "device")),
    ),
    "timeline": ("tracks", *(f"range?of={of}" for of in range_sums.SORTS if of != "all")),
    "operators": (operators.reported,),
    "kernels": (
        *("table/kernels", "table/kernels?by=launch", "table/copies"),
        *("table/copies?by=direction", "table/copies?by=operator", operators.reported_kernels),
    ),
    "modules": ("table/modules", "table/module_operators"),
    "stacks": (stacks.reported,),
    "memory": (memory.reported,),
    "health": ("health", "table/losses", "table/processes", "table/info"),
}
"""The pages that a report can have, and what each requests without user input: requests, or functions that list those for a trace."""
_EVERY_PAGE = ("empty", "advice", "source")

# Largest number of timeline items: a million spans, and the runs of Python functions and modules around them.
MOST_ITEMS = 1_500_000
# JavaScript numbers computed from larger ones are not exact. In ns this is 26 days.
_LARGEST = 2**51
# Argument texts beyond this total length are left out, because reports are sent by mail.
_MOST_LETTERS = 8_000_000
# Of longer counters, the lowest and highest value of each of this many intervals are included.
_COUNTER_PIXELS = 4_096
# Larger responses are compressed separately, and decompressed when the page needs them.
_LARGE_BYTES = 65_536
# Characters that `encodeURIComponent` does not escape.
_UNQUOTED = "!~*'()"


class Parts:
    """The data of a report: bodies of responses, compressed in blocks."""

    def __init__(self) -> None:
        """Start without responses."""
        self.directory: dict[str, dict[str, Any]] = {}
        self._blocks: list[str] = []
        self._small: list[bytes] = []
        self._size = 0

    def add(self, key: str, answered: Any) -> None:
        """Add a response under its key, with the total number of rows for a `Limited` table."""
        response = encoded(answered)
        entry: dict[str, Any] = {"arrow": response.type == ARROW}
        if isinstance(answered, Limited) and answered.total != answered.table.num_rows:
            entry["total"] = answered.total
        if len(response.body) > _LARGE_BYTES:
            entry |= {"block": len(self._blocks) + 1, "at": [0, len(response.body)]}
            self._blocks.append(_compressed(response.body))
        else:
            entry |= {"block": 0, "at": [self._size, len(response.body)]}
            self._small.append(response.body)
            self._size += len(response.body)
        self.directory[key] = entry

    def blocks(self) -> list[str]:
        """Return all blocks as text that can be embedded in HTML."""
        return [_compressed(b"".join(self._small)), *self._blocks]


def _compressed(body: bytes) -> str:
    return base64.b64encode(zlib.compress(body)).decode("ascii")


@dataclass(frozen=True, eq=False)
class Items:
    """The timeline items of a report: those that begin first.

    Attributes:
        table: The items: spans in the order of their table, then runs. Starts and spans are differences.
        spans: The included rows of `spans`, ascending.
        place: For each span of the trace its index among the items, or -1; the last element is -1, too.
        rows: Number of rows of the timeline.
        tracks: For each track its number, its first row and its number of rows.
        before_ns: Start of the first item that is left out; None if all are included.
    """

    table: pa.Table
    spans: NDArray[np.int32]
    place: NDArray[np.int32]
    rows: int
    tracks: list[list[int]]
    before_ns: int | None


def items_of(trace: Trace, most: int) -> Items:
    """Select the items that begin first, at most `most`, each with its row in the timeline."""
    laid = span_tracks(trace)
    stores = {id(laid.rows): laid.rows} | {id(track.rows): track.rows for track in timeline(trace)}
    before = None
    if sum(len(store.start_ns) for store in stores.values()) > most:
        starts = np.concatenate([store.start_ns for store in stores.values()])
        before = int(np.partition(starts, most)[most])
    items = NamedItems(trace, start=np.int64, duration=np.int64, row=np.int64)
    first_row: dict[int, int] = {}
    rows = 0
    for key, store in stores.items():
        taken = np.arange(len(store.start_ns))
        if store.spans is not None:
            taken[store.spans] = taken.copy()
        if before is not None:
            taken = taken[store.start_ns[taken] < before]
        first_row[key] = rows
        row = rows + np.searchsorted(store.edges, taken, side="right") - 1
        items.add(store, taken, start=store.start_ns[taken], duration=store.duration_ns(taken), row=row)
        rows += len(store.edges) - 1
    joined = items.columns()
    spans = joined["span"][joined["span"] >= 0].astype(np.int32)
    index_of = places_of(spans, len(trace.columns("spans")))
    table = _table([
        *_planes("start", _differences(joined["start"].clip(-_LARGEST, _LARGEST))),
        *_planes("duration", joined["duration"].clip(0, _LARGEST)),
        *_planes("row", joined["row"]),
        *_planes("span", _differences(joined["span"])),
        _shared_texts("name", joined["name"], list(map(to_utf8, items.texts))),
        _shared_texts("kind", joined["kind"], KIND_NAMES),
    ])  # fmt: skip
    placed = [[track.id, first_row[id(track.rows)] + track.first, track.count] for track in timeline(trace)]
    return Items(table, spans, index_of, rows, placed, before)


def facts_table(trace: Trace, items: Items) -> pa.Table:
    """Build a table of the details of all spans, as in `span/<id>`, without links.

    The description of a column of numbers is its label; other details are JSON texts, which many spans share.
    """
    stored, spans = trace.columns("spans"), items.spans
    duration = stored["duration_ns"][spans].clip(0, _LARGEST)
    # The time of children is nearly always the sum of a span's direct children, which the page can compute: store the difference.
    of_children = Groups(items.place[stored["parent"][spans]], len(spans)).sums(duration)
    inside = duration - stored["self_ns"][spans].clip(-_LARGEST, _LARGEST)
    columns = [
        *_planes("inside", inside - of_children),
        *_planes("stack", stored["stack"][spans]),
        _argument_texts(trace, spans),
    ]
    for number, part in enumerate(span.parts(trace, spans)):
        name = f"fact {number}"
        if isinstance(part, span.SharedFacts):
            used, index = np.unique(part.ids, return_inverse=True)
            texts = [
                json.dumps(facts) if (facts := span.facts_of(part, row)) else "" for row in used.tolist()
            ]
            if any(texts):
                columns.append(_shared_texts(name, index, texts))
        elif part.known.any():
            values = part.values[part.known]
            if values.dtype.kind != "f" and values.min() >= -_LARGEST and values.max() <= _LARGEST:
                columns += _planes(name, part.values, part.known, {"meaning": part.label, "unit": part.unit})
            else:
                columns.append(_texts_of(name, part))
    return _table(columns)


def _texts_of(name: str, part: span.Numbers) -> Column:
    used, index = np.unique(part.values, return_inverse=True)
    texts = [
        json.dumps([{"label": part.label, "value": span.plain(value), "unit": part.unit}])
        for value in used.tolist()
    ]
    return _shared_texts(name, np.where(part.known, index, len(texts)), [*texts, ""])


def _argument_texts(trace: Trace, spans: NDArray[np.int32]) -> Column:
    column, texts = span.arguments(trace)
    used, index = np.unique(column[spans], return_inverse=True)
    left, wanted = _MOST_LETTERS, []
    for row in used.tolist():
        text = texts[row] if row >= 0 else ""
        left -= len(text)
        wanted.append(json.dumps(span.parsed_arguments(text)) if text and left >= 0 else "")
    return _shared_texts("arguments", index, wanted)


def _links_table(trace: Trace, items: Items) -> tuple[list[list[Any]], pa.Table]:
    """Build the table of links between spans, as pairs of items; also return the number of links of each label."""
    counts: list[list[Any]] = []
    pairs: list[tuple[NDArray[Any], NDArray[Any]]] = [(np.zeros(0, np.int32), np.zeros(0, np.int32))]
    for label, source, spans in span.links(trace, items.spans):
        target = items.place[spans]
        included = np.flatnonzero(target >= 0)
        counts.append([label, len(included)])
        pairs.append((source[included], target[included]))
    source, target = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    return counts, _table([*_planes("source", _differences(source)), *_planes("far", target - source)])


def _stack_tables(trace: Trace) -> tuple[pa.Table, pa.Table]:
    tree = trace.columns("stacks")
    above, rows = tree["parent"], np.arange(len(tree))
    # A parent that does not come first would be a cycle, which only damaged files have.
    far = np.where((above >= 0) & (above < rows), rows - above, 0)
    frames = text_array(map(to_utf8, frame_texts(trace)))
    return _table([*_planes("far", far), *_planes("frame", tree["frame"])]), pa.table({"text": frames})


def _planes(
    name: str,
    values: NDArray[Any],
    known: Mask | None = None,
    about: Mapping[str, str] | None = None,
) -> list[Column]:
    """Split integers into byte columns, lowest bytes first, which compress better than whole integers.

    Null is encoded as 0, a number n >= 0 as 2 n + 1, and a negative one as -2 n.
    """
    numbers = values.astype(np.int64)
    folded = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64) + np.uint64(1)
    if known is not None:
        folded[~known] = 0
    size = max(1, (int(folded.max(initial=0)).bit_length() + 7) // 8)
    planes = folded.astype("<u8").view(np.uint8).reshape(-1, 8)
    return [
        (
            name if byte == 0 else f"{name} {byte}",
            number_array(planes[:, byte]),
            about or {},
        )
        for byte in range(size)
    ]


def _differences(values: NDArray[Any]) -> Rows:
    return np.asarray(np.diff(values.astype(np.int64), prepend=0), np.int64)


def _shared_texts(name: str, place: NDArray[Any], texts: Sequence[str]) -> Column:
    """Build a dictionary column from each row's index into `texts`; null for an empty text."""
    distinct = labels(text or None for text in texts)
    rows = distinct.ids[place] if len(texts) else distinct.ids
    narrow = np.int8 if len(distinct.texts) < 2**7 else np.int16 if len(distinct.texts) < 2**15 else np.int32
    numbers = number_array(rows.astype(narrow), absent=rows < 0)
    return name, pa.DictionaryArray.from_arrays(numbers, text_array(distinct.texts)), {}


def _table(columns: Sequence[Column]) -> pa.Table:
    fields = [pa.field(name, values.type, metadata=dict(about)) for name, values, about in columns]
    return pa.Table.from_arrays([values for _, values, _ in columns], schema=pa.schema(fields))


def report(
    trace: Trace | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    pages: Sequence[str] = tuple(PAGES),
) -> Path:
    """Write the viewer with one trace as a single file: it opens with a double click, without a server or the internet.

    Tables are of the whole trace. If it has more than a million spans, the timeline contains those that begin first, and the
    page says so; for another part, convert that first (`kinetoscope convert --window`). Search, sums of a selected range
    and exports need the trace itself: use `kinetoscope view`.

    Args:
        trace: The trace, or its path or URL.
        path: The file to write, such as `report.html`. A file of that name is replaced.
        pages: The pages of the viewer to include, such as `["memory"]`: overview, timeline, operators, kernels, modules,
            stacks, memory, health. All by default.

    Returns:
        The path of the file.

    Raises:
        ArgumentError: There is no such page.
        FormatError: The trace cannot be read.
        OSError: The file cannot be written.
    """
    import_aside()
    if isinstance(trace, str | os.PathLike):
        with open_any(trace) as opened:
            text = report_page(opened, Path(trace).name, pages=pages)
    else:
        text = report_page(trace, _name_of(trace), pages=pages)
    return write_page(text, Path(path))


def write_memory_page(
    trace: Trace, path: str | os.PathLike[str], device: str | None = None, *, notice: str = ""
) -> None:
    """Write a report with the memory page only, which shows one device at first.

    Args:
        trace: A trace recorded with `profile_memory`.
        path: The file to write. A file of that name is replaced.
        device: The device, such as `cpu` or `cuda:0`; None: the one with the largest peak.
        notice: A text above the page.

    Raises:
        StateError: Memory was not recorded.
        ArgumentError: No memory of the device was recorded.
        OSError: The file cannot be written.
    """
    need_memory(trace)
    number = find_device(trace, device)
    pools = [pool for pool in memories.memory_pools(trace) if pool.number == number]
    start = f"#/memory?device={quote(memories.highest(pools).key, safe='')}" if pools else ""
    text = report_page(trace, _name_of(trace), pages=("memory",), start=start, notice=notice)
    write_page(text, Path(path))


def report_page(
    trace: Trace,
    name: str,
    most: int = MOST_ITEMS,
    pages: Sequence[str] = tuple(PAGES),
    *,
    start: str = "",
    notice: str = "",
) -> str:
    """Make the page of a report.

    Args:
        trace: The trace.
        name: The name that the page shows.
        most: Largest number of items of the timeline.
        pages: The pages to include.
        start: The fragment of the address that is shown first, from `#` on; by default the first page.
        notice: A text above all pages.

    Raises:
        ArgumentError: There is no such page.
    """
    import_aside()
    unknown = [page for page in pages if page not in PAGES]
    if unknown or not pages:
        raise ArgumentError(f"pages={list(pages)!r} is not valid: choose one or more of {', '.join(PAGES)}")
    carried = Parts()
    directory: dict[str, Any] = {"start": start, "notice": to_utf8(notice)}
    before = None
    if "timeline" in pages:
        items = items_of(trace, most)
        before = items.before_ns
        directory["timeline"] = _add_timeline(trace, items, carried)
        directory["cut"] = None if before is None else {"before_ns": before, "spans": len(items.spans)}
    _add_responses(trace, pages, before, carried)
    return _page_with(carried, name, **directory)


def comparison_page(comparison: Comparison, base: Trace, new: Trace) -> str:
    """Make a report with only the page Compare.

    Args:
        comparison: The comparison, of any number of recordings.
        base: A recording of the base, of which one step is drawn.
        new: A recording of the other run.
    """
    import_aside()
    carried = Parts()
    carried.add("compare", compare.about(comparison))
    for table in compare.TABLES:
        carried.add(f"compare/{table}", comparison.table(table))
    sides = dict(zip(compare.SIDES, (base, new), strict=True))
    drawn = {side: compare.step(trace, side) for side, trace in sides.items()}
    carried.add("compare/steps", drawn)
    for side, trace in sides.items():
        carried.add(f"compare/steps/{side}", compare.boxes(trace, drawn[side]))
    return _page_with(carried, "Comparison", start="#/compare")


def job_page(job: Job, name: str) -> str:
    """Make a report with only the page Ranks: the whole map, and details of its latest cells.

    Args:
        job: The summaries.
        name: The name that the page shows.
    """
    import_aside()
    carried = Parts()
    for path, query in ranks.reported(job):
        carried.add(spelled(path, query), ranks.answer(job, path, query))
    return _page_with(carried, name, start="#/ranks")


def _page_with(carried: Parts, name: str, **more: Any) -> str:
    from kinetoscope._version import __version__

    directory: dict[str, Any] = {
        "version": __version__,
        "name": name,
        "timeline": None,
        "cut": None,
        "start": "",
        "notice": "",
    }
    directory |= {**more, "parts": carried.directory}
    page = page_text()
    policy = html.escape(content_policy(page, ""), quote=True)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />'
    # The data must not contain the end tag of its script element.
    text = json.dumps(directory, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    data = [f'<script type="application/json" id="kinetoscope-report">{text}</script>']
    data += [
        f'<script type="application/octet-stream" id="kinetoscope-{number}">{block}</script>'
        for number, block in enumerate(carried.blocks())
    ]
    title = f"<title>{html.escape(name)} · Kinetoscope</title>"
    page = page.replace("<title>Kinetoscope</title>", title, 1)
    page = page.replace('<meta charset="utf-8" />', f'<meta charset="utf-8" />\n    {head}', 1)
    before_script, tag, after = page.partition('<script type="module">')
    return "".join((before_script, *(f"{line}\n    " for line in data), tag, after))


def answer_with_report(trace: Trace, path: str, query: Query) -> Answer:
    """Respond to a request as `answer` does, and to `export/report` with a report of the trace or of a part of it.

    Raises:
        LookupError: There is no such path.
        ArgumentError: An option has a value that cannot be used.
    """
    if path != "export/report":
        return answer(trace, path, query)
    chosen, where = export.part(trace, query)
    name = export.stem(trace) + where
    page = report_page(chosen, name).encode("utf-8", "replace")
    return MadeFile(io.BytesIO(page), f"{name}.html", "text/html; charset=utf-8")


def requests_of(trace: Trace, pages: Sequence[str] = tuple(PAGES)) -> Iterator[Request]:
    """Iterate over the requests that pages make without user input."""
    for source in (*_EVERY_PAGE, *(source for page in pages for source in PAGES[page])):
        if callable(source):
            yield from source(trace)
        else:
            path, _, options = source.partition("?")
            yield path, dict(parse_qsl(options))


def spelled(path: str, query: Mapping[str, str]) -> str:
    """Return the canonical form of a request, as in the page: options sorted by name, without empty ones."""
    pairs = sorted((key, value) for key, value in query.items() if value != "")
    text = "&".join(f"{quote(key, safe=_UNQUOTED)}={quote(value, safe=_UNQUOTED)}" for key, value in pairs)
    return f"{path}?{text}" if text else path


def write_page(page: str, path: Path) -> Path:
    """Write a page to a file, atomically, and return its path."""
    write_atomically(path, page.encode("utf-8", "replace"))
    return path


def _name_of(trace: Trace) -> str:
    if trace.path is not None:
        return Path(trace.path).name
    return Path("".join(trace.run_info.program[:1])).name or "trace"


def _add_responses(trace: Trace, pages: Sequence[str], before_ns: int | None, carried: Parts) -> None:
    for path, query in requests_of(trace, pages):
        key = spelled(path, query)
        if key in carried.directory:
            continue
        try:
            response = answer(trace, path, query)
        except KinetoscopeError as error:
            carried.directory[key] = {"error": str(error)}
            continue
        if key == "tracks" and isinstance(response, dict) and before_ns is not None:
            response = {**response, "duration_ns": before_ns}
        carried.add(key, response)


def _add_timeline(trace: Trace, items: Items, carried: Parts) -> dict[str, Any]:
    counts, links_table = _links_table(trace, items)
    stacks_table, frames = _stack_tables(trace)
    tables = {
        "items": items.table, "facts": facts_table(trace, items), "links": links_table,
        "stacks": stacks_table, "frames": frames,
    }  # fmt: skip
    for name, table in tables.items():
        carried.add(f"timeline/{name}", table)
    start, end = whole_of(trace) if items.before_ns is None else (whole_of(trace)[0], items.before_ns)
    for counter in counters_of(trace):
        first, last = int(counter.time_ns[0]), int(counter.time_ns[-1])
        query = {
            "track": str(counter.id), "width": str(_COUNTER_PIXELS),
            "start": repr(float(min(start, first))),
            "end": repr(float(max(end, last + 1) if items.before_ns is None else max(end, first + 1))),
        }  # fmt: skip
        carried.add(spelled("counter", {"track": str(counter.id)}), answer(trace, "counter", query))
    return {"rows": items.rows, "tracks": items.tracks, "links": counts}
