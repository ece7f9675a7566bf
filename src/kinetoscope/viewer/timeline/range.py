"""Sums of the spans in a time range, by name; spans are clipped to the range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow

from kinetoscope.combine.cut import TracePart, cut
from kinetoscope.model.arrow import Labels, few_texts, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.schema import KIND_NAMES
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import Query, choice, span_of_time
from kinetoscope.viewer.timeline import rows
from kinetoscope.viewer.timeline.tracks import whole_of

# The kinds of tracks for each value of the option `of`.
SORTS = {
    "all": (rows.THREAD, rows.PYTHON, rows.MODULES, rows.STREAM, rows.STEPS),
    "work": (rows.THREAD, rows.STREAM),
    "host": (rows.THREAD,),
    "device": (rows.STREAM,),
    "python": (rows.PYTHON,),
    "modules": (rows.MODULES,),
}


def within(trace: Trace, query: Query) -> pyarrow.Table:
    """Respond to `range`: sums of the spans between `start` and `end`, by name and kind; by default in the whole trace.

    Raises:
        ArgumentError: An option has an invalid value.
    """
    sort = choice(query, "of", tuple(SORTS))
    whole_start, whole_end = start, end = whole_of(trace)
    if {"start", "end"} & query.keys():
        start, end = (round(moment) for moment in span_of_time(query))
    if start > whole_start or end < whole_end:
        trace = cut(trace, TracePart.of_window(trace, start, end))
    columns = trace.columns("spans")
    spans = np.flatnonzero(np.isin(rows.track_numbers(trace) % rows.TRACK_SORTS, SORTS[sort]))
    groups = Groups.by([columns["name"][spans], columns["kind"][spans]])
    first, self_ns = groups.first, groups.sums(columns["self_ns"][spans])
    name_ids, texts = few_texts(columns["name"][spans[first]], trace.strings)
    table: dict[str, Any] = {
        "name": Labels(name_ids, texts),
        "kind": Labels(columns["kind"][spans[first]], KIND_NAMES),
        "count": groups.sizes(),
        "total_ns": groups.sums(np.maximum(columns["duration_ns"][spans], 0)),
        "self_ns": self_ns,
        "share": 100.0 * self_ns / (self_ns.sum() or np.nan),
    }
    order = np.lexsort((table["kind"].ids, name_ids, -table["total_ns"], -self_ns))
    return to_arrow("viewer: range", table, order)
