"""The spans in which batches were waited for and made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.model.loading_names import COLLATE, FETCH, NEXT_BATCH, PIN
from kinetoscope.model.schema import SpanKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData

    Rows = NDArray[np.int64]


@dataclass(frozen=True)
class LoadingSpans:
    """Rows of spans, those left out that lie inside another one of their sort on their thread.

    Attributes:
        waits: The loop asked for its next batch.
        fetches: A batch was made.
        collates: Samples were put together, inside of that.
        pins: A batch was copied to pinned memory.
    """

    waits: Rows
    fetches: Rows
    collates: Rows
    pins: Rows


def loading_spans(trace: TraceData) -> LoadingSpans:
    """Find them, once for a trace."""

    def make() -> LoadingSpans:
        spans, texts = trace.columns("spans"), trace.strings
        on_host = (spans["stream"] < 0) & (
            (spans["kind"] == SpanKind.USER_ANNOTATION) | (spans["kind"] == SpanKind.OPERATOR)
        )

        def rows(*names: int) -> Rows:
            if not names:
                return np.zeros(0, dtype=np.int64)
            return _outermost(trace, np.flatnonzero(on_host & np.isin(spans["name"], names)))

        places: dict[str, list[int]] = {NEXT_BATCH: [], FETCH: [], COLLATE: [], PIN: []}
        for place, text in enumerate(texts):
            if text in places:
                places[text].append(place)
            elif text.startswith(NEXT_BATCH):
                places[NEXT_BATCH].append(place)
        return LoadingSpans(*(rows(*places[name]) for name in (NEXT_BATCH, FETCH, COLLATE, PIN)))

    return trace.cached("loading_spans", make)


def in_waits(trace: TraceData) -> NDArray[np.bool_]:
    """Which spans are a wait for the next batch, or ran in one on its thread: what makes the batch where no worker does."""

    def make() -> NDArray[np.bool_]:
        spans, waits = trace.columns("spans"), loading_spans(trace).waits
        found = np.zeros(len(spans), dtype=bool)
        if len(waits) == 0:
            return found
        thread, start = spans["thread"], spans["start_ns"]
        edges = np.searchsorted(thread, np.arange(int(thread[-1]) + 2))
        end = start + spans["duration_ns"]
        for row in waits.tolist():
            # Spans are in order of thread and start.
            last = row + int(np.searchsorted(start[row : edges[thread[row] + 1]], end[row], side="left"))
            found[row:last] = end[row:last] <= end[row]
            found[row] = True
        return found

    return trace.cached("in_waits", make)


def sum_by(groups: NDArray[np.int64] | NDArray[np.int32], values: Rows, length: int) -> Rows:
    """Add values up by group; what belongs to none (-1) is left out."""
    sums = np.zeros(length, dtype=np.int64)
    inside = groups >= 0
    np.add.at(sums, groups[inside], values[inside])
    return sums


def _outermost(trace: TraceData, rows: Rows) -> Rows:
    """Those of some spans that lie in no other of them; a dataset may use a loader of its own."""
    if len(rows) < 2:
        return rows
    spans = trace.columns("spans")
    thread, start = spans["thread"][rows], spans["start_ns"][rows]
    # Spans are ordered by thread and start: each thread's times are put behind those of the one before.
    begin = np.concatenate(([True], thread[1:] != thread[:-1]))
    length = int((start + spans["duration_ns"][rows]).max()) + 1
    shift = (np.cumsum(begin) - 1) * np.int64(length)
    latest_end = np.maximum.accumulate(start + spans["duration_ns"][rows] + shift)
    return rows[np.concatenate(([True], (start + shift)[1:] >= latest_end[:-1]))]
