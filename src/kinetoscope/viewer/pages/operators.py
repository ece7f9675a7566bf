"""The page Operators: operators, ranges and calls, grouped by name and optionally by shape, line, stack or module."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kinetoscope._errors import ArgumentError
from kinetoscope.analyses.parts import parts_of
from kinetoscope.model.arrow import number_array, to_numpy
from kinetoscope.model.rows import Rows
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.host.ops import PLACE, SORTS, WAYS
from kinetoscope.tables.host.places import durations, instances_of, lasting, spans_of
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import MOST_ROWS, Limited, Query, number, whole_number
from kinetoscope.viewer.timeline.rows import span_tracks


def operators(trace: Trace, query: Query) -> Limited:
    """Respond to `operators`: the table `ops`, grouped `by` name or place, `of` operators or recorded calls.

    Raises:
        ArgumentError: One of them has an invalid value.
    """
    rows = _operators(trace, **{name: query[name] for name in ("by", "of") if name in query})
    if PLACE.name not in rows.column_names:
        texts = pa.dictionary(pa.int32(), pa.string())
        field = pa.field(PLACE.name, texts, metadata={"meaning": PLACE.meaning})
        rows = rows.add_column(rows.column_names.index("count"), field, pa.nulls(len(rows), texts))
    return Limited(rows.slice(0, MOST_ROWS), rows.num_rows)


@derived
def _operators(trace: Trace, by: str = WAYS[0], of: str = SORTS[0]) -> pa.Table:
    return trace.table("ops", by=by, of=of)


_MOST_REPORTED = 80
# Of one name, the longest first; the page requests as many from a report.
_MOST_REPORTED_CALLS = 50


def reported(trace: Trace) -> list[tuple[str, dict[str, str]]]:
    """List the requests for a report: all tables, and details of the rows that are most likely to be selected."""
    requests: list[tuple[str, dict[str, str]]] = [("operators", {})]
    requests += [("operators", {"by": way}) for way in WAYS[1:]]
    names: dict[tuple[str, str], None] = {}
    for sort in SORTS:
        if sort != SORTS[0]:
            requests.append(("operators", {"of": sort}))
        table = operators(trace, {"of": sort}).table
        for column in ("self_ns", "total_ns", "device_ns"):
            first = table.sort_by([(column, "descending")]).slice(0, _MOST_REPORTED)
            names |= dict.fromkeys(zip(first["name"].to_pylist(), first["kind"].to_pylist(), strict=True))
    return requests + [request for name, kind in names for request in _details(name, kind)]


def reported_kernels(trace: Trace) -> list[tuple[str, dict[str, str]]]:
    """List the requests for a report: details of the kernels with the most time."""
    names = list(dict.fromkeys(trace.table("kernels")["name"].to_pylist()))
    return [request for name in names[:_MOST_REPORTED] for request in _details(name, "kernel")]


def _details(name: str, kind: str) -> list[tuple[str, dict[str, str]]]:
    row = {"name": name, "kind": kind}
    calls = ("instances", row | {"limit": str(_MOST_REPORTED_CALLS)})
    return [("chosen", row), ("histogram", row), calls]


_MOST = 1_000


def instances(trace: Trace, query: Query) -> Limited:
    """Respond to `instances`: the longest `limit` rows of that table, with their place on the timeline.

    Raises:
        ArgumentError: An option that cannot be used.
    """
    limit, rows = whole_number(query, "limit", _MOST), named(trace, query)
    shortest, longer = (number(query, name) if name in query else None for name in ("from_ns", "below_ns"))
    rows = lasting(trace, rows, shortest, longer)
    calls = instances_of(trace, rows, limit)
    track, row = span_tracks(trace).places(to_numpy(calls["span"]))
    added = (("row", row, "The row there."), ("track", track, "The track of the timeline it is on."))
    for name, values, meaning in added:
        field = pa.field(name, pa.int32(), metadata={"meaning": meaning})
        calls = calls.add_column(1, field, number_array(values, absent=values < 0))
    return Limited(calls, len(rows))


def histogram(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `histogram`: the histogram of the durations of the spans of a `name` and `kind`.

    Raises:
        ArgumentError: An option that cannot be used.
    """
    return durations(trace, named(trace, query))


def named(trace: Trace, query: Query) -> Rows:
    """Return the spans of the name, kind and place of a request; without `kind`, of all kinds.

    Raises:
        ArgumentError: The name is missing, or there is no such kind or place.
    """
    if "name" not in query:
        raise ArgumentError("the request needs the option 'name'")
    return spans_of(trace, query["name"], query.get("kind"), query.get("by"), query.get("place"))


def chosen(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `chosen`: breakdowns of the spans of a `name` and `kind`, and with `by` of a `place`.

    Raises:
        ArgumentError: An option that cannot be used.
    """
    return parts_of(trace, named(trace, query))


ROUTES = {
    "chosen": chosen,
    "histogram": histogram,
    "instances": instances,
    "operators": operators,
}
