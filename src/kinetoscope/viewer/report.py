"""A report: the viewer and what it shows of one trace as a single file, which opens without a server.

The page is the one that is served. Beside it the file carries the answers to the questions that pages ask, as the server
would give them, and the rows of the timeline, from which the page answers what depends on where the reader looks.
"""

from __future__ import annotations

import base64
import html
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from kinetoscope._errors import KinetoscopeError
from kinetoscope.formats.chrome.slices import described_arguments
from kinetoscope.model.arrow import Labels, compact
from kinetoscope.model.hierarchy import calls_of
from kinetoscope.model.names import frame_texts
from kinetoscope.model.schema import KIND_NAMES, SpanKind
from kinetoscope.model.strings import to_utf8
from kinetoscope.storage.atomic_write import open_atomically
from kinetoscope.tables.device.copies import direction_of
from kinetoscope.tables.device.launches import starters
from kinetoscope.viewer.pages import health, kernels, memory, modules, operators, overview, stacks
from kinetoscope.viewer.pages.operators import INSTANCES_SCHEMA
from kinetoscope.viewer.server.requests import Limited
from kinetoscope.viewer.server.routes import ARROW, answer, content_policy, encoded, page_text
from kinetoscope.viewer.timeline import span as span_module
from kinetoscope.viewer.timeline import tracks
from kinetoscope.viewer.timeline.range import RANGE_SCHEMA, outer_spans
from kinetoscope.viewer.timeline.rows import Rows, span_tracks
from kinetoscope.viewer.timeline.search import SEARCH_SCHEMA
from kinetoscope.viewer.timeline.span import all_arrows, beyond, carried_out, launched
from kinetoscope.viewer.timeline.tracks import counters_of, timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from kinetoscope.model.schema import Table
    from kinetoscope.trace import Trace

    Entry = list[int]
    Fact = tuple[str, Any, str]
    Question = tuple[str, Mapping[str, str]]


# Integers and texts packed for a report: small, and unpacked by the browser and a few lines of TypeScript.
#
# An integer becomes an even number where it is not negative and an odd one where it is, so that small ones stay small.
# All lowest bytes come first, then all second ones, and so on: neighbours are alike, and less becomes of them than of
# whole numbers. Columns whose values rise are kept as differences.

_INT32 = np.iinfo(np.int32)
PAGES = (overview, operators, kernels, modules, stacks, memory, health)

LARGEST = 2**52
"""Beyond it a page's numbers, and what is made of them here, are not exact. In ns that is 52 days."""


class Pack:
    """Parts that are compressed together.

    Attributes:
        directory: Where each part is: `[at, length]` of a text, `[at, rows, bytes, rising, wide]` of integers.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self.directory: dict[str, Entry] = {}
        self._parts: list[bytes] = []
        self._size = 0

    def add_integers(self, name: str, values: NDArray[Any], *, rising: bool = False) -> bool:
        """Add a column; returns False, and adds nothing, where a value is too large for a page's numbers."""
        numbers = values.astype(np.int64)
        least, most = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
        if least < -LARGEST or most > LARGEST:
            return False
        wide = least < _INT32.min or most > _INT32.max
        if rising:
            numbers = np.diff(numbers, prepend=0)
        folded = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
        size = max(1, (int(folded.max(initial=0)).bit_length() + 7) // 8)
        planes = folded.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :size].T
        self._add(name, np.ascontiguousarray(planes).tobytes(), [len(numbers), size, int(rising), int(wide)])
        return True

    def add_json(self, name: str, value: Any) -> None:
        """Add what can be written as JSON."""
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        # Half of a pair of surrogates has no bytes; JSON has a spelling for it.
        self.add_bytes(name, text.encode("utf-8", "backslashreplace"))

    def add_bytes(self, name: str, body: bytes) -> None:
        """Add bytes as they are."""
        self._add(name, body, [len(body)])

    @property
    def size(self) -> int:
        """How many bytes it has before they are compressed."""
        return self._size

    def compressed(self) -> str:
        """All parts, compressed, as letters that may stand in a page."""
        return base64.b64encode(zlib.compress(b"".join(self._parts))).decode("ascii")

    def _add(self, name: str, body: bytes, entry: Entry) -> None:
        """Keep a part and where it is."""
        self.directory[name] = [self._size, *entry]
        self._parts.append(body)
        self._size += len(body)


# The rows of the timeline as a report carries them: what the page needs to answer the timeline's questions itself.

# A million spans, and the calls of Python and of modules around them.
MOST_ITEMS = 1_500_000


@dataclass(frozen=True, eq=False)
class Kept:
    """The spans and runs that a report carries: those that begin before a moment.

    Attributes:
        spans: Their rows in the table, ascending.
        place: For each span of the trace its place among them, -1 for the others and at the end.
        before_ns: The moment; None where all are carried.
        items: How many spans and runs there are in all.
    """

    spans: NDArray[np.int64]
    place: NDArray[np.int32]
    before_ns: int | None
    items: int

    def moved(self, rows: NDArray[Any]) -> NDArray[np.int32]:
        """Rows of the table as places among those that are carried; -1 for none."""
        found: NDArray[np.int32] = self.place[rows]
        return found

    def back(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """For each span how far before it another one is; 0 for none."""
        other = self.moved(rows[self.spans])
        return np.where(other >= 0, np.arange(len(self.spans)) - other, 0)


def kept_spans(trace: Trace, most: int = MOST_ITEMS) -> Kept:
    """Choose what a report carries: the spans and runs of the timeline that begin first, at most so many."""
    start = trace.column("spans", "start_ns")
    starts = [start, *(rows.start_ns for rows in run_stores(trace))]
    items, before = sum(map(len, starts)), None
    spans = np.arange(len(start))
    if items > most:
        before = int(np.partition(np.concatenate(starts), most)[most])
        spans = np.flatnonzero(start < before)
    place = np.full(len(start) + 1, -1, np.int32)
    place[spans] = np.arange(len(spans), dtype=np.int32)
    return Kept(spans, place, before, items)


def run_stores(trace: Trace) -> list[Rows]:
    """The rows of the timeline that hold no spans."""
    found = {id(track.rows): track.rows for track in timeline(trace).tracks if track.rows.spans is None}
    return list(found.values())


def pack_rows(trace: Trace, kept: Kept, pack: Pack) -> dict[str, Any]:
    """Put spans and runs into a pack; returns what the page must know to read them."""
    pages_names: list[str] = []
    spans, laid, rows = trace.columns("spans"), span_tracks(trace), kept.spans
    # As the rows have them: no duration is below zero or reaches beyond the largest time.
    duration = np.empty(len(spans), np.int64)
    if laid.rows.spans is not None:
        duration[laid.rows.spans] = np.diff(laid.rows.sum_ns)
    duration = duration[rows]
    pack.add_integers("thread", spans["thread"][rows])
    pack.add_integers("start", _within(spans["start_ns"][rows]), rising=True)
    pack.add_integers("duration", _within(duration))
    pack.add_integers("name", _named(spans["name"][rows], trace.strings, pages_names))
    pack.add_integers("kind", spans["kind"][rows])
    pack.add_integers("row", laid.row_of_span[rows])
    pack.add_integers("beside", spans["lane"][rows] != 0)
    pack.add_integers("parent", kept.back(spans["parent"]))
    marked = calls_of(trace)
    if marked is not None:
        pack.add_integers("caller", kept.back(spans["caller"]))
        pack.add_integers("call", marked[rows])
    own = _within(spans["self_ns"][rows])
    pack.add_integers("own", _within(own - own_as_nested(trace, kept, _within(duration))))
    if kept.before_ns is not None:
        pack.add_integers("id", rows, rising=True)
    stores = [{"prefix": "", "kind": ""}]
    for number, runs in enumerate(run_stores(trace)):
        prefix = f"{number}."
        row = np.repeat(np.arange(len(runs.edges) - 1), np.diff(runs.edges))
        wanted = slice(None) if kept.before_ns is None else np.flatnonzero(runs.start_ns < kept.before_ns)
        names = runs.names if runs.names is not None else np.zeros(len(row), np.int32)
        pack.add_integers(f"{prefix}row", row[wanted])
        pack.add_integers(f"{prefix}start", _within(runs.start_ns[wanted]), rising=True)
        pack.add_integers(f"{prefix}duration", _within(np.diff(runs.sum_ns)[wanted]))
        pack.add_integers(f"{prefix}name", _named(names[wanted], runs.texts, pages_names))
        stores.append({"prefix": prefix, "kind": KIND_NAMES[runs.kind]})
    pack.add_json("names", pages_names)
    places = {id(rows): number for number, rows in enumerate(run_stores(trace), 1)}
    return {
        "kinds": list(KIND_NAMES),
        "stores": stores,
        "tracks": [
            [track.id, places.get(id(track.rows), 0), track.first, track.count]
            for track in timeline(trace).tracks
        ],
        "tables": {table.name: _facts(table) for table in (SEARCH_SCHEMA, RANGE_SCHEMA, INSTANCES_SCHEMA)},
    }


def own_as_nested(trace: Trace, kept: Kept, duration: NDArray[np.int64]) -> NDArray[np.int64]:
    """The time of each span without that of those right inside it, as the page works it out from what it carries."""
    spans = trace.columns("spans")
    own = np.where(spans["lane"][kept.spans] == 0, duration, 0)
    for rows in outer_spans(trace, kept.spans.astype(np.int32)):
        outer = kept.moved(rows)
        inside = outer >= 0
        taken = np.zeros(len(own) + 1, np.int64)
        np.add.at(taken, outer[inside], duration[inside])
        own = own - taken[:-1]
    return own


def _within(times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Times that the numbers of a page can hold; in a file that is not damaged all are."""
    found: NDArray[np.int64] = np.clip(times, -LARGEST, LARGEST)
    return found


def _named(ids: NDArray[Any], texts: Any, names: list[str]) -> NDArray[np.int64]:
    """For each id the place of its text among the names of the page, which those that are new are added to."""
    places, used = compact(Labels(ids, texts))
    first = len(names)
    names += used
    return places.astype(np.int64) + first


def _facts(table: Table) -> list[dict[str, Any]]:
    """The columns of a table as a page tells them."""
    return [
        {
            "name": column.name,
            "unit": column.unit,
            "meaning": column.meaning,
            "numeric": column.type != "category",
        }
        for column in table.columns
    ]


# What a report knows of each span beyond its time: the facts, the stack, the arguments and the links of `span/<id>`.
#
# Facts are kept as parts, in the order in which the page shows them. A part is either a column of numbers with one label,
# or a column of places in a list of groups of facts, which many spans share.

# Texts of arguments beyond so many letters are left out: a report is sent by mail.
_MOST_LETTERS = 8_000_000
_NUMBERS = (
    ("FLOPs", "flops", "FLOP", 1),
    ("Bytes moved", "bytes_moved", "bytes", 1),
)
_MEMORY = (
    ("Host memory", "bytes"),
    ("Host memory of itself", "self_bytes"),
    ("Device memory", "device_bytes"),
    ("Device memory of itself", "device_self_bytes"),
)
_IDENTITIES = (
    ("Sequence number", "sequence"),
    ("Correlation", "correlation"),
    ("External id", "external_id"),
    ("Record function id", "record_function"),
)


def pack_facts(trace: Trace, kept: Kept, pack: Pack) -> dict[str, Any]:
    """Put what is known of the spans into a pack; returns what the page must know to read it."""
    parts = _Parts(trace, kept, pack)
    _place_parts(trace, kept, parts)
    _work_parts(trace, kept, parts)
    _device_parts(trace, kept, parts)
    for label, name in _IDENTITIES:
        parts.number(label, "", trace.column("spans", name), absent=-1)
    parts.grouped(
        trace.column("spans", "flags"),
        lambda flags: [("Note", text, "") for flag, text in span_module.FLAGS if flags & flag],
    )
    _pack_stacks(trace, kept, pack)
    _pack_arguments(trace, kept, pack)
    return {"parts": parts.made, "links": _pack_links(trace, kept, pack)}


class _Parts:
    """Collects parts."""

    def __init__(self, trace: Trace, kept: Kept, pack: Pack) -> None:
        """Begin with none."""
        self.made: list[dict[str, Any]] = []
        self._kept = kept
        self._pack = pack
        self._empty = len(trace.columns("spans")) == 0

    def number(self, label: str, unit: str, values: NDArray[Any], *, absent: int) -> None:
        """Add a number of each span; where it is at most `absent`, or for -1 and 0 that very number, there is none."""
        column = values[self._kept.spans]
        if self._empty or (column == absent).all():
            return
        name = f"fact {len(self.made)}"
        if self._pack.add_integers(name, column):
            self.made.append({"column": name, "label": label, "unit": unit, "absent": absent})

    def grouped(self, ids: NDArray[Any], facts_of: Callable[[int], list[Fact]]) -> None:
        """Add facts that spans of one id share; those below 0 have none."""
        used, place = np.unique(ids[self._kept.spans], return_inverse=True)
        groups = [
            [
                {"label": label, "value": _clean(span_module.plain(value)), "unit": unit}
                for label, value, unit in (facts_of(one) if one >= 0 else [])
                if value is not None and value != ""
            ]
            for one in used.tolist()
        ]
        if not any(groups):
            return
        name = f"fact {len(self.made)}"
        self._pack.add_integers(name, place)
        self._pack.add_json(f"{name} groups", groups)
        self.made.append({"column": name, "groups": f"{name} groups"})

    def rate(self, label: str, unit: str) -> None:
        """Add the number before this one divided by the duration."""
        if self.made and "label" in self.made[-1]:
            self.made.append({"column": self.made[-1]["column"], "label": label, "unit": unit, "rate": True})


def _place_parts(trace: Trace, kept: Kept, parts: _Parts) -> None:
    """Where a span ran, and when in the run."""
    spans, strings = trace.columns("spans"), trace.strings
    for label, name in (("Overload", "overload"), ("Category", "category")):
        ids = np.where(spans[name] > 0, spans[name], -1)
        parts.grouped(ids, lambda text, label=label: [(label, strings[text], "")])  # type: ignore[misc]
    many = len(trace.columns("streams")) + 1
    thread, stream = spans["thread"].astype(np.int64), spans["stream"].astype(np.int64)
    parts.grouped(
        thread * many + stream + 1,
        lambda code: span_module.place_facts(trace, code // many, code % many - 1),
    )
    numbers = trace.column("steps", "number").astype(np.int64)
    step = spans["step"]
    parts.grouped(
        np.where(step >= 0, step, -1), lambda row: [("Step", int(numbers[row]), "")] if row >= 0 else []
    )
    on_host = np.where(stream < 0, spans["phase"].astype(np.int64) * 2 + spans["recompute"], -1)
    parts.grouped(on_host, lambda code: span_module.phase_facts(code // 2, recompute=bool(code % 2)))


def _work_parts(trace: Trace, kept: Kept, parts: _Parts) -> None:
    """What an operator worked on, and what it started."""
    spans = trace.columns("spans")
    on_host = np.isin(spans["kind"], span_module.ON_HOST)
    pairs = launched(trace)
    if len(pairs.source):
        edges = np.searchsorted(pairs.source, np.stack((np.arange(len(spans)), beyond(trace))))
        started = np.where(on_host, edges[1] - edges[0], 0)
        # No number is as large as none: the time is told where anything was started, be it 0.
        for label, name in (
            ("Device time", "device_ns"),
            ("Device time of its own launches", "device_self_ns"),
        ):
            parts.number(label, "ns", np.where(started > 0, spans[name], -1), absent=-1)
        parts.number("Launches", "", started, absent=0)
    parts.grouped(spans["module"], lambda row: span_module.module_facts(trace, row))
    parts.grouped(spans["shapes"], lambda row: span_module.shape_facts(trace, row))
    for label, name, unit, least in _NUMBERS:
        value = spans[name]
        parts.number(label, unit, np.where(on_host & (value >= least), value, 0), absent=0)
    if len(trace.columns("allocations")):
        for label, name in _MEMORY:
            parts.number(label, "bytes", np.where(on_host, spans[name], 0), absent=0)


def _device_parts(trace: Trace, kept: Kept, parts: _Parts) -> None:
    """How kernels were launched, and what copies moved."""
    spans, kernels, copies = (trace.columns(name) for name in ("spans", "kernels", "copies"))
    if len(kernels):
        columns = [kernels[name].astype(np.float64) for name in span_module.LAUNCH_COLUMNS]
        _, first, alike = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
        which = np.full(len(spans), -1, np.int64)
        which[kernels["span"]] = alike.ravel()
        parts.grouped(which, lambda code: span_module.launch_facts(trace, int(first[code])))
    if len(copies):
        size = np.full(len(spans), -1, np.int64)
        size[copies["span"]] = copies["bytes"]
        parts.number("Size", "bytes", size, absent=-1)
        parts.rate("Bandwidth", "GB/s")
        rows, texts = copies["span"], trace.columns("arguments")["json"]
        keys = np.stack((spans["name"][rows], spans["arguments"][rows], spans["kind"][rows]))
        distinct, alike = np.unique(keys, axis=1, return_inverse=True)
        which = np.full(len(spans), -1, np.int64)
        which[rows] = alike.ravel()

        def direction(code: int) -> list[Fact]:
            name, arguments, kind = (int(value) for value in distinct[:, code])
            text = texts[arguments] if arguments >= 0 else ""
            found = direction_of(trace.strings[name], text, fills=kind == SpanKind.MEMSET)
            return [("Direction", span_module.direction_text(found), "")]

        parts.grouped(which, direction)


def _pack_stacks(trace: Trace, kept: Kept, pack: Pack) -> None:
    """The Python stacks as a tree."""
    stacks, rows = trace.columns("stacks"), np.arange(len(trace.columns("stacks")))
    pack.add_integers("stack", trace.column("spans", "stack")[kept.spans])
    above = stacks["parent"]
    pack.add_integers("stack parent", np.where((above >= 0) & (above < rows), rows - above, 0))
    pack.add_integers("stack frame", stacks["frame"])
    pack.add_json("frames", [to_utf8(text) for text in frame_texts(trace)])


def _pack_arguments(trace: Trace, kept: Kept, pack: Pack) -> None:
    """What else the source said, each text once."""
    column, texts = trace.cached("viewer: described_arguments", lambda: described_arguments(trace))
    ids = np.full(len(kept.spans), -1, np.int64) if column is None else column[kept.spans].astype(np.int64)
    used, place = np.unique(ids, return_inverse=True)
    left, wanted = _MOST_LETTERS, []
    for row in used.tolist():
        text = texts[row] if row >= 0 else ""
        left -= len(text)
        wanted.append(_clean(span_module.told_arguments(text)) if text and left >= 0 else {})
    pack.add_integers("argument", place)
    pack.add_json("arguments", wanted)


def _pack_links(trace: Trace, kept: Kept, pack: Pack) -> list[list[Any]]:
    """Which spans are tied to which; returns the few that no column holds."""
    if len(trace.columns("launches")):
        by = starters(trace)
        pack.add_integers("launched by", kept.back(by.call[:-1]))
        operator = by.operator[:-1]
        pack.add_integers("launched for", kept.back(np.where(operator != by.call[:-1], operator, -1)))
    found = all_arrows(trace)
    source, target = kept.moved(found.source), kept.moved(found.target)
    both = (source >= 0) & (target >= 0)
    source, target = source[both], target[both]
    pack.add_integers("arrow from", source, rising=True)
    pack.add_integers("arrow to", target - source)
    pack.add_integers("arrow sort", found.sort[both])
    return [
        [int(kept.place[row]), label, int(kept.place[other])]
        for row, links in carried_out(trace).items()
        for label, other in links
        if kept.place[row] >= 0 and kept.place[other] >= 0
    ]


def _clean(value: Any) -> Any:
    """A value whose texts have only what a page can hold."""
    if isinstance(value, str):
        return to_utf8(value)
    if isinstance(value, dict):
        return {to_utf8(key): _clean(part) for key, part in value.items()}
    return [_clean(part) for part in value] if isinstance(value, list) else value


# An answer that is larger is unpacked by itself, when it is asked for.
_LARGE_BYTES = 65_536
# Of a counter so many values are kept one by one; of a longer one the lowest and highest of each stretch.
_COUNTER_PIXELS = 16_384
_KEPT = "!~*'()"


def report(trace: Trace | str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Write the viewer with one trace as a single file: it opens by double click, without a server or the internet.

    Tables are those of the whole trace. Of a trace of more than a million spans the timeline holds those that begin
    first, and the page says so; to report on another part, convert that part first (`kinetoscope convert --window`).

    Args:
        trace: The trace, or the path or address of one.
        path: The file to write, such as `report.html`. A file of that name is open_atomically.

    Returns:
        The path of the file.

    Raises:
        FormatError: The trace cannot be read.
        OSError: The file cannot be written.
    """
    target = Path(path)
    if isinstance(trace, str | os.PathLike):
        from kinetoscope.trace import open as open_any

        with open_any(trace) as opened:
            return write_report(opened, Path(trace).name, target)
    return write_report(trace, _name_of(trace), target)


def report_page(trace: Trace, name: str, most: int = MOST_ITEMS) -> str:
    """Make the page of a report.

    Args:
        trace: The trace.
        name: What the page calls it.
        most: Of so many spans and runs the timeline can hold.
    """
    from kinetoscope._version import __version__

    blocks: list[str] = []
    kept = kept_spans(trace, most)
    directory: dict[str, Any] = {
        "version": __version__,
        "name": name,
        "answers": _answers(trace, kept, blocks),
        "timeline": _timeline(trace, kept, blocks),
        "cut": None if kept.before_ns is None else _cut(kept),
    }
    page = page_text()
    policy = html.escape(content_policy(page, ""), quote=True)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />'
    # Nothing in a script of data may look like the end of it.
    told = json.dumps(directory, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    data = [f'<script type="application/json" id="kinetoscope-report">{told}</script>']
    data += [
        f'<script type="application/octet-stream" id="kinetoscope-{number}">{block}</script>'
        for number, block in enumerate(blocks)
    ]
    title = f"<title>{html.escape(name)} · Kinetoscope</title>"
    page = page.replace("<title>Kinetoscope</title>", title, 1)
    page = page.replace('<meta charset="utf-8" />', f'<meta charset="utf-8" />\n    {head}', 1)
    before, found, after = page.partition('<script type="module">')
    return "".join((before, *(f"{line}\n    " for line in data), found, after))


def questions(trace: Trace) -> Iterator[Question]:
    """What the pages ask whatever the reader does: as their modules list it in `REPORTED` and `reported`."""
    for room in (*PAGES, tracks):
        yield from getattr(room, "REPORTED", ())
        if hasattr(room, "reported"):
            yield from room.reported(trace)


def spelled(path: str, query: Mapping[str, str]) -> str:
    """The one spelling of a question, as the page has it too: keys in order, those without a value left out."""
    pairs = sorted((key, value) for key, value in query.items() if value != "")
    text = "&".join(f"{quote(key, safe=_KEPT)}={quote(value, safe=_KEPT)}" for key, value in pairs)
    return f"{path}?{text}" if text else path


def write_report(trace: Trace, name: str, path: Path) -> Path:
    """Write a report to a file, which appears when it is whole."""
    text = report_page(trace, name)
    with open_atomically(path) as file:
        file.write(text.encode("utf-8", "replace"))
    return path


def _name_of(trace: Trace) -> str:
    """What a trace is called: its file, else its program."""
    if trace.path is not None:
        return Path(trace.path).name
    return Path("".join(trace.run_info.program[:1])).name or "trace"


def _answers(trace: Trace, kept: Kept, blocks: list[str]) -> dict[str, Any]:
    """Answer all questions; returns where each answer is."""
    told: dict[str, Any] = {}
    small = Pack()
    where: list[tuple[str, dict[str, Any]]] = []
    for path, query in questions(trace):
        key = spelled(path, query)
        if key in told:
            continue
        try:
            found = answer(trace, path, query)
        except KinetoscopeError as error:
            told[key] = {"error": str(error)}
            continue
        if key == "tracks" and isinstance(found, dict) and kept.before_ns is not None:
            found = {**found, "duration_ns": kept.before_ns}
        made = encoded(found)
        entry: dict[str, Any] = {"arrow": made.type == ARROW}
        if isinstance(found, Limited) and found.total != found.table.num_rows:
            entry["total"] = found.total
        told[key] = entry
        if len(made.body) > _LARGE_BYTES:
            alone = Pack()
            alone.add_bytes("", made.body)
            entry |= {"block": len(blocks), "at": alone.directory[""]}
            blocks.append(alone.compressed())
        else:
            small.add_bytes(key, made.body)
            where.append((key, entry))
    for key, entry in where:
        entry |= {"block": len(blocks), "at": small.directory[key]}
    blocks.append(small.compressed())
    return told


def _timeline(trace: Trace, kept: Kept, blocks: list[str]) -> dict[str, Any]:
    """The rows of the timeline, and what is known of its spans, which is unpacked when somebody asks."""
    rows, facts, counters = Pack(), Pack(), Pack()
    told = pack_rows(trace, kept, rows)
    known = pack_facts(trace, kept, facts)
    start, end = _stretch(trace, kept)
    for counter in counters_of(trace):
        query = {
            "track": str(counter.id), "start": repr(start), "end": repr(end), "width": str(_COUNTER_PIXELS),
        }  # fmt: skip
        counters.add_bytes(str(counter.id), encoded(answer(trace, "counter", query)).body)
    first = len(blocks)
    blocks += [pack.compressed() for pack in (rows, facts, counters)]
    return {
        **told,
        **known,
        "rows": {"block": first, "at": rows.directory},
        "facts": {"block": first + 1, "at": facts.directory},
        "counters": {"block": first + 2, "at": counters.directory},
    }


def _stretch(trace: Trace, kept: Kept) -> tuple[float, float]:
    """From when to when a report has counters."""
    start = min([0, *(int(one.time_ns[0]) for one in counters_of(trace))])
    last = kept.before_ns
    if last is None:
        last = max([trace.duration_ns, *(int(one.time_ns[-1]) for one in counters_of(trace))]) + 1
    return float(start), float(max(last, start + 1))


def _cut(kept: Kept) -> dict[str, Any]:
    """What the page says of what it does not hold."""
    return {"before_ns": kept.before_ns, "spans": len(kept.spans), "items": kept.items}
