"""The first rows of tables by time, for lists of what took most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kinetoscope._errors import ArgumentError
from kinetoscope.model.strings import to_utf8
from kinetoscope.tables.host.breakdown import host_shares
from kinetoscope.tables.host.lines import lines_in
from kinetoscope.tables.host.modules import modules_in
from kinetoscope.tables.host.ops import operators_in
from kinetoscope.viewer.server.answers import Limited

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.answers import Query

MOST = 10
TIMES = ("host", "device")

# Of each table: its column for the time on devices, and those for `name`, `detail`, `kind`, `key`, `depth` and `count`.
_COLUMNS: dict[str, tuple[str, dict[str, str]]] = {
    "ops": ("device_self_ns", {"name": "name", "kind": "kind", "count": "count"}),
    "modules": (
        "device_ns",
        {"name": "path", "detail": "class", "key": "id", "depth": "depth", "count": "total_operators"},
    ),
    "lines": (
        "device_self_ns",
        {"name": "file", "detail": "function", "key": "line", "count": "count"},
    ),
    "kernels": ("total_ns", {"name": "name", "detail": "operator", "kind": "sort", "count": "calls"}),
}  # fmt: skip
_TEXTS, _NUMBERS = ("name", "detail", "kind"), ("key", "depth", "count")


def top(trace: Trace, query: Query, name: str) -> Limited:
    """Answer `top/ops`, `top/modules`, `top/lines` or `top/kernels`: the rows with the most time.

    The option `time` says whose: `host` or `device`. On the host these are times in the steps, start-up left out, and shares of step
    time; ranges are no operators. On devices they are shares of all such time. Modules stay in the order of their tree; those of several processes that
    have one path and class are one.

    Returns:
        `name`, `detail`, `kind`, `key`, `depth`, `count`, `time_ns`, and `share` in percent.

    Raises:
        LookupError: Another table.
        ArgumentError: Another time.
    """
    if name not in _COLUMNS:
        raise LookupError(name)
    time = query.get("time", "host")
    if time not in TIMES:
        raise ArgumentError(f"time={time[:50]!r} is not valid: use 'host' or 'device'")
    return trace.cached(f"viewer: top {name} {time}", lambda: _top(trace, name, time))


def _top(trace: Trace, name: str, time: str) -> Limited:
    """Put the rows together."""
    if time == "host" and name != "kernels":
        return _of_host(trace, name)
    times, columns = _COLUMNS[name]
    found = trace.table(name)
    total = len(found)
    made: dict[str, Any] = {
        column: found[columns[column]].cast(pa.string())
        if column in columns
        else pa.nulls(len(found), pa.string())
        for column in _TEXTS
    }
    made |= {
        column: found[columns[column]].cast(pa.int64()) if column in columns else pa.nulls(len(found), pa.int64())
        for column in _NUMBERS
    }  # fmt: skip
    made["time_ns"] = found[times].cast(pa.int64())
    table = pa.table(made)
    if name == "modules" and len(trace.columns("processes")):
        table = _alike_together(table)
    if name == "kernels":
        whole = int(pc.sum(table["time_ns"]).as_py() or 0)
    else:
        whole = int(trace.column("spans", "device_self_ns").clip(0).sum())
    return _largest(table, name, whole, total)


def _of_host(trace: Trace, name: str) -> Limited:
    """The rows by their time on the host in the steps, as shares of step time."""
    shares = host_shares(trace)
    makers = {"ops": operators_in, "modules": modules_in, "lines": lines_in}
    rows: list[dict[str, Any]] = makers[name](trace, shares)
    time = "total_ns" if name == "modules" else "self_ns"
    _, columns = _COLUMNS[name]
    made: dict[str, Any] = {
        column: pa.array([to_utf8(row[columns[column]]) for row in rows], pa.string())
        if column in columns
        else pa.nulls(len(rows), pa.string())
        for column in _TEXTS
    }
    made |= {
        column: pa.array([row[columns[column]] for row in rows], pa.int64())
        if column in columns
        else pa.nulls(len(rows), pa.int64())
        for column in _NUMBERS
    }
    made["time_ns"] = pa.array([row[time] for row in rows], pa.int64())
    return _largest(pa.table(made), name, shares.whole_ns, len(rows))


def _largest(table: pa.Table, name: str, whole: int, total: int) -> Limited:
    """The rows with the most time, with their shares of a whole."""
    share = pc.divide(pc.multiply(table["time_ns"].cast(pa.float64()), 100.0), float(whole or 1))
    table = table.append_column("share", share).filter(pc.greater(table["time_ns"], 0))
    order = pc.sort_indices(table["time_ns"], sort_keys=[("", "descending")])[:MOST]
    if name == "modules":
        order = pc.take(order, pc.sort_indices(order))
    return Limited(table.take(order), total)


def _alike_together(table: pa.Table) -> pa.Table:
    """Add up the modules of one path and class, each where the first of them stands."""
    keys = ["name", "detail", "depth"]
    sums = table.append_column("place", pa.array(range(len(table)), pa.int64())).group_by(keys)
    added = sums.aggregate([("key", "min"), ("count", "sum"), ("time_ns", "sum"), ("place", "min")])
    added = added.sort_by("place_min")
    made = {name: added[name] for name in keys}
    made |= {"key": added["key_min"], "count": added["count_sum"], "time_ns": added["time_ns_sum"]}
    made["kind"] = pa.nulls(len(added), pa.string())
    return pa.table({name: made[name] for name in table.column_names})
