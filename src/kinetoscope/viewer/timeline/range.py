"""Sums of the spans in a time range, by name; spans are clipped to the range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.arrow import Labels, few_texts, to_arrow
from kinetoscope.model.dictionary import table_definition
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import recorded_calls
from kinetoscope.model.schema import KIND_NAMES
from kinetoscope.viewer.requests import choice, span_of_time
from kinetoscope.viewer.timeline.rows import MODULES, PYTHON, STEPS, STREAM, THREAD, span_tracks
from kinetoscope.viewer.timeline.tracks import timeline, whole_of

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.columns import Columns
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query
    from kinetoscope.viewer.timeline.rows import Rows


# The kinds of tracks for each value of the option `of`.
SORTS = {
    "all": (THREAD, PYTHON, MODULES, STREAM, STEPS),
    "work": (THREAD, STREAM),
    "host": (THREAD,),
    "device": (STREAM,),
    "python": (PYTHON,),
    "modules": (MODULES,),
}

REPORTED = tuple(("range", {"of": of}) for of in SORTS if of != "all")
"""What a report includes: the whole trace. Sums of any other range need all its spans and their nesting."""


def within(trace: Trace, query: Query) -> pyarrow.Table:
    """Respond to `range`: sums of the spans between `start` and `end`, by name and kind; by default in the whole trace.

    Raises:
        ArgumentError: An option has an invalid value.
    """
    sort = choice(query, "of", tuple(SORTS))
    start, end = (
        (round(moment) for moment in span_of_time(query))
        if {"start", "end"} & query.keys()
        else whole_of(trace)
    )
    columns = trace.columns("spans")
    running_spans = [
        running(track.rows, track.first, track.count, start, end)
        for track in timeline(trace).tracks
        if track.rows.spans is not None and track.sort in SORTS[sort]
    ]
    spans = (
        np.concatenate([part for part in running_spans if len(part)])
        if any(map(len, running_spans))
        else np.zeros(0, np.int32)
    )
    total, self_of_spans_ns = times_within(trace, spans, start, end)
    groups = Groups.by([columns["name"][spans], columns["kind"][spans]])
    first, self_ns = groups.first, groups.sums(self_of_spans_ns)
    name_ids, texts = few_texts(columns["name"][spans[first]], trace.strings)
    table: dict[str, Any] = {
        "name": Labels(name_ids, texts),
        "kind": Labels(columns["kind"][spans[first]], KIND_NAMES),
        "count": groups.sizes(),
        "total_ns": groups.sums(total),
        "self_ns": self_ns,
        "share": 100.0 * self_ns / (self_ns.sum() or np.nan),
    }
    order = np.lexsort((table["kind"].ids, name_ids, -table["total_ns"], -self_ns))
    return to_arrow(table_definition("viewer: range"), table, order)


def running(rows: Rows, first: int, count: int, start_ns: int, end_ns: int) -> NDArray[np.int32]:
    """Return the spans of some rows that overlap a time range; a span without duration counts unless it is at the end."""
    overlapping = [np.zeros(0, np.int32)]
    if rows.spans is None:
        return overlapping[0]
    for row in range(first, first + count):
        low, high = int(rows.edges[row]), int(rows.edges[row + 1])
        begin, beyond = (rows.start_ns[low:high].searchsorted((start_ns, end_ns)) + low).tolist()
        # Of the items that began before, only the last can reach into the range, because items of a row do not overlap.
        if begin > low:
            reach = int(rows.start_ns[begin - 1] + rows.sum_ns[begin] - rows.sum_ns[begin - 1])
            begin -= reach > start_ns
        overlapping.append(rows.spans[begin:beyond])
    return np.concatenate(overlapping)


def times_within(
    trace: Trace, spans: NDArray[np.int32], start_ns: int, end_ns: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the inclusive and self time of spans, clipped to a time range.

    The times of two adjacent ranges add up to those of both together.
    """
    columns = trace.columns("spans")
    total = _inside(columns, spans, start_ns, end_ns)
    self_ns: NDArray[np.int64] = columns["self_ns"][spans]
    cut = np.flatnonzero(total != columns["duration_ns"][spans])
    if len(cut) == 0:
        return total, self_ns
    # Of a clipped span, subtract only the clipped time of its children.
    self_ns = self_ns.copy()
    self_ns[cut] = np.where((columns["lane"][spans[cut]] == 0) | (self_ns[cut] > 0), total[cut], 0)
    # Few spans are clipped: at most two in each row.
    cut = cut[np.argsort(spans[cut])]
    clipped = spans[cut]
    laid = span_tracks(trace)
    ran = running(laid.rows, 0, len(laid.rows.edges) - 1, start_ns, end_ns)
    for outer in outer_spans(trace, ran):
        position = np.minimum(np.searchsorted(clipped, outer), len(clipped) - 1)
        held = np.flatnonzero(clipped[position] == outer)
        np.subtract.at(self_ns, cut[position[held]], _inside(columns, ran[held], start_ns, end_ns))
    return total, self_ns


def _inside(columns: Columns, spans: NDArray[np.int32], start_ns: int, end_ns: int) -> NDArray[np.int64]:
    """Return the durations of spans, clipped to a time range."""
    begins, lasts = columns["start_ns"][spans], np.maximum(columns["duration_ns"][spans], 0)
    inside: NDArray[np.int64] = np.minimum(begins + lasts, end_ns) - np.maximum(begins, start_ns)
    return inside


def outer_spans(trace: Trace, spans: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    """For some spans, return the spans from whose self time they are subtracted, as in `self_ns`; -1 for none."""
    columns = trace.columns("spans")
    parent: NDArray[np.int32] = columns["parent"][spans]
    calls = recorded_calls(trace)
    if len(calls) == 0:
        return [parent]
    # Calls inside an operator do not reduce its self time, but operators directly inside a call reduce that of the call.
    is_call = np.append(calls.mask, np.False_)
    of_parent = np.where(~is_call[spans] | is_call[parent], parent, np.int32(-1))
    caller = np.append(columns["caller"], np.int32(-1))
    of_caller = np.where(~is_call[spans] & (caller[parent] != caller[spans]), caller[spans], np.int32(-1))
    return [of_parent, of_caller]
