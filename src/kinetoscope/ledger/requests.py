"""The tables of requests: how long each took, and where the time went."""

from __future__ import annotations

from typing import Any

import numpy as np

from kinetoscope.ledger.parts import REQUEST_PARTS, request_parts
from kinetoscope.model.arrow import ArrowTable, Labels, labels, rows_to_arrow, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.processes import of_processes, thread_processes
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.host.requests import STATUSES, names_by_time, requests_of, slowest_tenth


def requests(trace: TraceData) -> ArrowTable:
    """Return the `requests` table.

    Args:
        trace: The trace.

    Returns:
        The table, empty if no request was marked; `docs/tables.md` describes its columns.
    """
    marked, count = requests_of(trace), len(requests_of(trace))
    parts = request_parts(trace)
    by_thread = Groups.by([marked.of, marked.stretch_thread])
    columns: dict[str, Any] = {
        "request": np.arange(count),
        "name": labels(marked.name),
        "arguments": marked.arguments,
        "status": Labels(marked.status.astype(np.int32), STATUSES),
        **of_processes(trace, thread_processes(trace)[marked.thread]),
        "thread": marked.thread.astype(np.int32),
        "start_ns": marked.start_ns,
        "duration_ns": marked.end_ns - marked.start_ns,
        **{name: parts[name] for name in REQUEST_PARTS},
        "stretches": Groups(marked.of, count).sizes(),
        "threads": Groups(marked.of[by_thread.first], count).sizes(),
    }
    return to_arrow("requests", columns)


def request_names(trace: TraceData) -> ArrowTable:
    """Return the `request_names` table.

    Args:
        trace: The trace.

    Returns:
        The table of requests that began and ended in the recording; `docs/tables.md` describes its columns.
    """
    marked, parts = requests_of(trace), request_parts(trace)
    duration = marked.end_ns - marked.start_ns
    rows: list[dict[str, Any]] = []
    for name in names_by_time(trace):
        of_name = np.flatnonzero(marked.complete & (np.array(marked.name) == name))
        slowest = slowest_tenth(of_name, duration)
        for sort, some in (("all", of_name), ("slowest", slowest)):
            p50, p90, p99 = np.percentile(duration[some], (50, 90, 99), method="inverted_cdf")
            rows.append({
                "name": name, "of": sort, "count": len(some), "errors": int((marked.status[some] > 1).sum()),
                "total_ns": int(duration[some].sum()), "p50_ns": p50, "p90_ns": p90, "p99_ns": p99,
                "max_ns": int(duration[some].max()), **{part: float(parts[part][some].mean()) for part in REQUEST_PARTS},
            })  # fmt: skip
    return rows_to_arrow("request_names", rows)
