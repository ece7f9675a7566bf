"""The page Kernels: kernels and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope.viewer.pages.operators import MOST_REPORTED_CALLS

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

_MOST_REPORTED = 80


def reported(trace: Trace) -> list[tuple[str, dict[str, str]]]:
    """List the requests for a report: all tables, and details of the kernels with the most time."""
    requests: list[tuple[str, dict[str, str]]] = [
        ("table/kernels", {}),
        ("table/kernels", {"by": "launch"}),
        ("table/copies", {"by": "direction"}),
        ("table/copies", {"by": "operator"}),
        ("table/copies", {}),
    ]
    names = dict.fromkeys(trace.table("kernels")["name"].to_pylist())
    for name in list(names)[:_MOST_REPORTED]:
        requests += [(path, {"name": name, "kind": "kernel"}) for path in ("chosen", "histogram")]
        requests.append(("instances", {"name": name, "kind": "kernel", "limit": str(MOST_REPORTED_CALLS)}))
    return requests
