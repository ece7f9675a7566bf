"""The tables of requests: how long each took, and on what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.ledger.parts import PART_COLUMNS, REQUEST_PARTS, request_parts
from kinetoscope.model.arrow import Labels, labels, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.processes import of_processes, thread_processes
from kinetoscope.model.schema import Column, Table
from kinetoscope.tables.host.requests import STATUSES, names_by_time, requests_of, slowest_tenth

if TYPE_CHECKING:
    import pyarrow

    from kinetoscope.model.trace_data import TraceData

_PART_COLUMNS = (
    *PART_COLUMNS,
    Column("executor_ns", "int64", "ns", "Its work was queued in a thread pool, and no thread had started it."),
    Column("others_ns", "int64", "ns", "It did not run, and its thread ran another request."),
    Column("waiting_ns", "int64", "ns", "It did not run, and its thread ran no request: it awaited something, or the event loop had not resumed it yet."),
)  # fmt: skip

REQUESTS_SCHEMA = Table(
    "requests",
    "A request, in order of time: see `kinetoscope.request`. Its parts add up to its duration.",
    (
        Column("request", "int64", "", "Its number in this trace, from 0."),
        Column("name", "category", "", "Its name; empty if it began before the recording."),
        Column("arguments", "string", "", "Its arguments, as JSON."),
        Column("status", "category", "", "`finished`, `error`, `canceled`, or `unfinished` when the recording ended."),
        Column("process", "int64", "", "The process id; null if unknown."),
        Column("rank", "int32", "", "The rank of the process; null if unknown."),
        Column("thread", "int32", "row of threads", "The thread on which it began."),
        Column("start_ns", "int64", "ns", "When it began, or the recording did."),
        Column("duration_ns", "int64", "ns", "How long it took."),
        *_PART_COLUMNS,
        Column("stretches", "int64", "", "How many times it ran without interruption.", 0),
        Column("threads", "int64", "", "How many threads it ran on.", 0),
    ),
)  # fmt: skip

REQUEST_NAMES_SCHEMA = Table(
    "request_names",
    "All finished requests of one name, or the slowest tenth of them, to see what is different in these. Most time first.",
    (
        Column("name", "category", "", "The name."),
        Column("of", "category", "", "`all` of them, or the `slowest` tenth, at least one."),
        Column("count", "int64", "", "How many.", 0),
        Column("errors", "int64", "", "How many of them ended with an error or were canceled.", 0),
        Column("total_ns", "int64", "ns", "How long they took together."),
        Column("p50_ns", "float64", "ns", "The median duration."),
        Column("p90_ns", "float64", "ns", "The 90th percentile."),
        Column("p99_ns", "float64", "ns", "The 99th percentile."),
        Column("max_ns", "int64", "ns", "The longest."),
        *(Column(one.name, "float64", "ns", f"The mean of a request: {one.meaning[0].lower()}{one.meaning[1:]}") for one in _PART_COLUMNS),
    ),
)  # fmt: skip


def requests(trace: TraceData) -> pyarrow.Table:
    """Return the `requests` table.

    Args:
        trace: The trace.

    Returns:
        The table, empty if no request was marked; the meaning of its columns is in `REQUESTS_SCHEMA`.
    """
    known, count = requests_of(trace), len(requests_of(trace))
    parts = request_parts(trace)
    by_thread = Groups.by([known.of, known.stretch_thread])
    columns: dict[str, Any] = {
        "request": np.arange(count),
        "name": labels(known.name),
        "arguments": known.arguments,
        "status": Labels(known.status.astype(np.int32), STATUSES),
        **of_processes(trace, thread_processes(trace)[known.thread]),
        "thread": known.thread.astype(np.int32),
        "start_ns": known.start_ns,
        "duration_ns": known.end_ns - known.start_ns,
        **{name: parts[name] for name in REQUEST_PARTS},
        "stretches": Groups(known.of, count).sizes(),
        "threads": Groups(known.of[by_thread.first], count).sizes(),
    }
    return to_arrow(REQUESTS_SCHEMA, columns)


def request_names(trace: TraceData) -> pyarrow.Table:
    """Return the `request_names` table.

    Args:
        trace: The trace.

    Returns:
        The table, of requests that began and ended in the recording; the meaning of its columns is in `REQUEST_NAMES_SCHEMA`.
    """
    known, parts = requests_of(trace), request_parts(trace)
    duration = known.end_ns - known.start_ns
    rows: list[dict[str, Any]] = []
    for name in names_by_time(trace):
        mine = np.flatnonzero(known.complete & (np.array(known.name) == name))
        slowest = slowest_tenth(mine, duration)
        for of, some in (("all", mine), ("slowest", slowest)):
            p50, p90, p99 = np.percentile(duration[some], (50, 90, 99), method="inverted_cdf")
            rows.append({
                "name": name, "of": of, "count": len(some), "errors": int((known.status[some] > 1).sum()),
                "total_ns": int(duration[some].sum()), "p50_ns": p50, "p90_ns": p90, "p99_ns": p99,
                "max_ns": int(duration[some].max()), **{part: float(parts[part][some].mean()) for part in REQUEST_PARTS},
            })  # fmt: skip
    columns: dict[str, Any] = {
        column.name: labels([row[column.name] for row in rows])
        if column.type == "category"
        else np.array([row[column.name] for row in rows], column.type)
        for column in REQUEST_NAMES_SCHEMA.columns
    }
    return to_arrow(REQUEST_NAMES_SCHEMA, columns)
