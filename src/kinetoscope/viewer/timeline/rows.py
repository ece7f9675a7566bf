"""Rows of the timeline: spans are assigned to rows so that those of one row never overlap.

A row contains the sorted starts of its items, and the cumulative sum of their durations. Since items do not overlap, this is
enough to find what lies in any time range by two binary searches, at any level of detail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.arrow import few_texts
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import requested_calls
from kinetoscope.model.nesting import nest
from kinetoscope.model.processes import thread_processes
from kinetoscope.model.rows import distinct, places_of
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.trace_data import derived
from kinetoscope.trace import Trace

THREAD, PYTHON, MODULES, STREAM, STEPS, COUNTER, MEMORY, COMPILING = range(8)
"""Kinds of tracks; a track's number is made of its kind and the row of its thread, stream, process or counter."""
TRACK_SORTS = 8
_LARGEST_NS = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Rows:
    """Items of several rows, sorted by row and then by start.

    Attributes:
        edges: The index of the first item of each row, and the total number of items.
        start_ns: Start of each item.
        sum_ns: Cumulative durations: of all items before each one, and of all items.
        spans: The row of each item in the table `spans`; None if items are not spans.
        names: If items are not spans, the index of each one's name in `texts`; else empty.
        texts: The names.
        kind: The kind of items that are not spans.
    """

    edges: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    sum_ns: NDArray[np.int64]
    spans: NDArray[np.int32] | None = None
    names: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    texts: Sequence[str] = ()
    kind: SpanKind = SpanKind.PYTHON

    def duration_ns(self, items: NDArray[Any]) -> NDArray[np.int64]:
        """Return the durations of some items."""
        durations: NDArray[np.int64] = self.sum_ns[items + 1] - self.sum_ns[items]
        return durations


@dataclass(frozen=True)
class Track:
    """A track of the timeline, which consists of one or more rows.

    Attributes:
        sort: Its kind, such as `STREAM`.
        number: The row of the stream, thread or the like in its table.
        process: The row of its process; 0 if there is only one.
        thread: The row of the thread of its first span; -1 for none.
        rows: The rows of this and other tracks.
        first: The index of its first row in `rows`.
        count: The number of its rows.
    """

    sort: int
    number: int
    process: int
    thread: int
    rows: Rows
    first: int
    count: int

    @property
    def id(self) -> int:
        """The number that identifies the track in requests; it does not change while a trace grows."""
        return track_id(self.sort, self.number)

    @property
    def items(self) -> int:
        """Number of its items."""
        return int(self.rows.edges[self.first + self.count] - self.rows.edges[self.first])

    @property
    def busy_ns(self) -> int:
        """Total duration of the items in its first row."""
        first, last = self.rows.edges[self.first], self.rows.edges[self.first + 1]
        return int(self.rows.sum_ns[last] - self.rows.sum_ns[first])


@dataclass(frozen=True, eq=False)
class SpanTracks:
    """The layout of all spans.

    Attributes:
        tracks: The tracks, sorted by number.
        rows: The rows of all tracks.
        row_of_span: For each span its row in `rows`.
        track_of_row: For each row the index of its track in `tracks`.
    """

    tracks: list[Track]
    rows: Rows
    row_of_span: NDArray[np.int32]
    track_of_row: NDArray[np.int32]

    def places(self, spans: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """For some spans, return the numbers of their tracks, and their rows in these; -1 for a span of -1."""
        ids = np.array([*(track.id for track in self.tracks), -1], np.int32)
        firsts = np.array([*(track.first for track in self.tracks), 0], np.int32)
        row = np.append(self.row_of_span, np.int32(-1))[spans]
        track = np.append(self.track_of_row, np.int32(-1))[row]
        return ids[track], np.where(row >= 0, row - firsts[track], -1).astype(np.int32)


def track_id(sort: int, number: int) -> int:
    """Return the number that identifies a track in requests."""
    return number * TRACK_SORTS + sort


@derived
def span_tracks(trace: Trace) -> SpanTracks:
    """Return the layout of all spans of a trace, which is cached; each span is in exactly one row."""
    spans = trace.columns("spans")
    number, process = track_numbers(trace), thread_processes(trace)
    used = distinct(number)[0]
    group = places_of(used, int(number.max(initial=0)) + 1)[number]
    start = spans["start_ns"]
    duration = np.clip(spans["duration_ns"], 0, _LARGEST_NS - np.maximum(start, 0))
    order = _in_order(group, len(used), start, duration)
    group, start, duration = group[order], start[order], duration[order]
    nested = nest(group, start, duration)
    depth, lane = nested.depth, nested.lane
    del nested
    # Spans that partly overlap others are in rows below them.
    levels = Groups(group, len(used)).maxima(depth + 1)
    beside = np.flatnonzero(lane)
    depth[beside] = levels[group[beside]] + lane[beside] - 1
    firsts, sorting, rows = _rows(group, len(used), depth, start, duration)
    count = int(firsts[-1])
    spans_in_order = order[sorting].astype(np.int32)
    rows = replace(rows, spans=spans_in_order)
    row_of_span = np.empty(len(spans_in_order), np.int32)
    row_of_span[spans_in_order] = np.repeat(np.arange(count, dtype=np.int32), np.diff(rows.edges))
    thread = spans["thread"][spans_in_order[rows.edges[firsts[:-1]]]]
    tracks = _tracks(rows, firsts, used % TRACK_SORTS, used // TRACK_SORTS, process[thread], thread)
    return SpanTracks(
        tracks, rows, row_of_span, np.repeat(np.arange(len(used), dtype=np.int32), np.diff(firsts))
    )


def _tracks(
    rows: Rows,
    firsts: NDArray[np.int64],
    sorts: NDArray[Any],
    numbers: NDArray[Any],
    processes: NDArray[Any],
    threads: NDArray[Any],
) -> list[Track]:
    columns = sorts, numbers, np.maximum(processes, 0), threads, firsts[:-1], np.diff(firsts)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return [
        Track(sort, number, process, thread, rows, first, count)
        for sort, number, process, thread, first, count in values
    ]


def labels_of(
    trace: Trace, rows: Rows, items: NDArray[Any]
) -> tuple[NDArray[Any], Sequence[str], NDArray[Any], NDArray[np.int32]]:
    """The names of some items, as indices of texts, the texts, the kinds, and the spans, -1 for other items."""
    if rows.spans is None:
        none = np.full(len(items), -1, np.int32)
        return rows.names[items], rows.texts, np.full(len(items), rows.kind, np.uint8), none
    spans, columns = rows.spans[items], trace.columns("spans")
    return columns["name"][spans], trace.strings, columns["kind"][spans], spans


class NamedItems:
    """Items of several stores of rows, one after the other, as columns.

    Attributes:
        texts: The names, of which each item has the index.
    """

    def __init__(self, trace: Trace, **dtypes: Any) -> None:
        """Begin without items; `dtypes` are those of the columns that are passed to `add`."""
        self.texts: list[str] = []
        self._trace = trace
        self._parts: list[dict[str, NDArray[Any]]] = [
            {name: np.zeros(0, dtype) for name, dtype in (dtypes | _OF_ITEMS).items()}
        ]

    def add(self, rows: Rows, items: NDArray[Any], **columns: NDArray[Any]) -> None:
        """Add items of a store, with `columns` and their `name`, `kind` and `span`, -1 for other items."""
        ids, words, kind, spans = labels_of(self._trace, rows, items)
        names, used = few_texts(ids, words)
        self._parts.append(columns | {"name": names + np.int32(len(self.texts)), "kind": kind, "span": spans})
        self.texts += used

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return each column for all items that were added, in the order in which they were."""
        return {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}


_OF_ITEMS = {"name": np.int32, "kind": np.uint8, "span": np.int32}


def _rows(
    track: NDArray[Any],
    tracks: int,
    level: NDArray[Any],
    start_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], Rows]:
    """Lay out items by track and level: the first row of each track and the number of rows, the order of the items, and the rows without spans and names.

    Items of one level of a track must come in order of time and not overlap.
    """
    firsts = np.append(0, np.cumsum(Groups(track, tracks).maxima(level + 1)))
    order, edges = Groups(firsts[track] + level, int(firsts[-1])).rows()
    sums = np.append(0, np.cumsum(duration_ns[order]))
    return firsts, order, Rows(edges, start_ns[order], sums)


def tracks_of_items(
    sort: int,
    numbers: NDArray[Any],
    level: NDArray[Any],
    start_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    labels: tuple[NDArray[np.int32], Sequence[str], SpanKind],
    process: NDArray[np.int32] | None = None,
) -> list[Track]:
    """Return tracks of items that are not spans, one for each number.

    Args:
        sort: The kind of the tracks.
        numbers: The thread of each item or, with `process` None, its process.
        level: The row of each item in its track. Items of one row must come in order of time and not overlap.
        start_ns: Start of each item.
        duration_ns: Duration of each item.
        labels: The names of the items as rows of texts, the texts, and the kind of all items.
        process: For each thread the row of its process.
    """
    used, track = np.unique(numbers, return_inverse=True)
    firsts, order, rows = _rows(track, len(used), level, start_ns, duration_ns)
    names, texts, kind = labels
    rows = replace(rows, names=names[order], texts=texts, kind=kind)
    sorts, none = np.full(len(used), sort), np.full(len(used), -1)
    if process is None:
        return _tracks(rows, firsts, sorts, used, used, none)
    return _tracks(rows, firsts, sorts, used, process[used], used)


def track_numbers(trace: Trace) -> NDArray[np.int32]:
    """Return for each span the number of its track."""
    spans, process = trace.columns("spans"), thread_processes(trace)
    kind, stream = spans["kind"], spans["stream"]
    number: NDArray[np.int32] = spans["thread"] * np.int32(TRACK_SORTS)
    for span_kind, sort in ((SpanKind.PYTHON, PYTHON), (SpanKind.MODULE, MODULES)):
        number[(kind == span_kind) & requested_calls(trace)] += np.int32(sort)
    steps = np.flatnonzero(kind == SpanKind.STEP)
    number[steps] = np.maximum(process[spans["thread"][steps]], 0) * np.int32(TRACK_SORTS) + np.int32(STEPS)
    if len(trace.columns("streams")):
        on_device = np.flatnonzero(stream >= 0)
        number[on_device] = stream[on_device] * np.int32(TRACK_SORTS) + np.int32(STREAM)
    return number


def _in_order(
    group: NDArray[np.int32], count: int, start_ns: NDArray[np.int64], duration_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the order by group, start and descending duration of spans, which are in that order on each thread."""
    order, _ = Groups(group, count).rows()
    group_sorted, start, duration = group[order], start_ns[order], duration_ns[order]
    later = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (duration[1:] <= duration[:-1]))
    # Several threads may share a track, such as that of the steps.
    if not (later | (group_sorted[1:] > group_sorted[:-1])).all():
        order = np.lexsort((-duration_ns, start_ns, group))
    return order
