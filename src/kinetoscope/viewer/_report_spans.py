"""The rows of the timeline as a report carries them: what the page needs to answer the timeline's questions itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.trace._arrow import Labels, compact
from kinetoscope.trace._calls import calls_of
from kinetoscope.trace._schema import KIND_NAMES
from kinetoscope.viewer._instances import INSTANCES_SCHEMA
from kinetoscope.viewer._packed import LARGEST, Pack
from kinetoscope.viewer._range import RANGE_SCHEMA, outer_spans
from kinetoscope.viewer._rows import Rows, span_tracks
from kinetoscope.viewer._search import SEARCH_SCHEMA
from kinetoscope.viewer._timeline import timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Table, Trace

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
