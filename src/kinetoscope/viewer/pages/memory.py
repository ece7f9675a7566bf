"""Routes of the memory page: each parses its options and returns what `tables.memory.memories` has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow

from kinetoscope.tables.memory import memories
from kinetoscope.tables.memory.peak import GROUPINGS
from kinetoscope.tables.stored import memory_recorded
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import Answer, Limited, Query, number


def memory(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `memory`: the memories of the trace."""
    pools = memories.memory_pools(trace)
    return {
        "recorded": memory_recorded(trace),
        "start_ns": 0,
        "duration_ns": memories.lasting_ns(trace),
        "highest": memories.highest(pools).key if pools else None,
        "devices": [memories.described(trace, pool) for pool in pools],
    }


def blocks(trace: Trace, query: Query) -> Limited:
    """Respond to `memory/blocks?device=&order=`."""
    return Limited(*memories.blocks(trace, **_options(query, {}, "order")))


def _options(query: Query, numbers: dict[str, str], *texts: str) -> dict[str, Any]:
    """The options of a request, with `numbers` converted; ArgumentError if one is not a number."""
    options: dict[str, Any] = {name: query[name] for name in ("device", *texts) if name in query}
    return options | {name: number(query, option) for option, name in numbers.items() if option in query}


def _route(
    rows_of: Callable[..., pyarrow.Table], numbers: dict[str, str], *texts: str
) -> Callable[[Trace, Query], Answer]:
    return lambda trace, query: rows_of(trace, **_options(query, numbers, *texts))


def reported(trace: Trace) -> list[tuple[str, dict[str, str]]]:
    """List the requests for a report: all except windows, and moments other than the peak."""
    requests: list[tuple[str, dict[str, str]]] = [("memory", {})]
    for pool in memories.memory_pools(trace):
        device = {"device": pool.key}
        requests += [("memory/curve", device | {"by": by}) for by in memories.BY]
        requests += [("memory/at", device | {"by": by}) for by in memories.BY]
        requests += [("memory/live", device | {"by": by}) for by in GROUPINGS]
        requests += [("memory/blocks", device | {"order": order}) for order in memories.ORDERS]
        requests.append(("memory/stacks", device))
    return requests


ROUTES: dict[str, Callable[..., Answer]] = {
    "memory": memory,
    # ?device=&by=[&time=]: the one row of a curve
    "memory/at": _route(memories.at, {"time": "time_ns"}, "by"),
    "memory/blocks": blocks,
    # ?device=&by=category|module[&start=&end=]
    "memory/curve": _route(memories.curve, {"start": "start_ns", "end": "end_ns"}, "by"),
    # ?device=&by=[&time=]
    "memory/live": _route(memories.live, {"time": "time_ns"}, "by"),
    # ?device=
    "memory/stacks": _route(memories.stacks, {}),
}
