"""Routes of the memory page: each parses its options and returns what `tables.memory.memories` has."""

from __future__ import annotations

from typing import Any

import pyarrow

from kinetoscope.tables.memory import memories
from kinetoscope.tables.memory.peak import GROUPINGS
from kinetoscope.tables.stored import memory_recorded
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import Limited, Query, number


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


def curve(trace: Trace, query: Query) -> pyarrow.Table:
    """Respond to `memory/curve?device=&by=category|module[&start=&end=]`."""
    return memories.curve(trace, **_options(query, {"start": "start_ns", "end": "end_ns"}, "by"))


def at(trace: Trace, query: Query) -> pyarrow.Table:
    """Respond to `memory/at?device=&by=[&time=]`: the one row of a curve."""
    return memories.at(trace, **_options(query, {"time": "time_ns"}, "by"))


def live(trace: Trace, query: Query) -> pyarrow.Table:
    """Respond to `memory/live?device=&by=[&time=]`."""
    return memories.live(trace, **_options(query, {"time": "time_ns"}, "by"))


def blocks(trace: Trace, query: Query) -> Limited:
    """Respond to `memory/blocks?device=&order=`."""
    return Limited(*memories.blocks(trace, **_options(query, {}, "order")))


def stacks(trace: Trace, query: Query) -> pyarrow.Table:
    """Respond to `memory/stacks?device=`."""
    return memories.stacks(trace, **_options(query, {}))


def _options(query: Query, numbers: dict[str, str], *texts: str) -> dict[str, Any]:
    """The options that a request has: texts, and numbers by the names that the function gives them.

    Raises:
        ArgumentError: One of the numbers is none.
    """
    options: dict[str, Any] = {name: query[name] for name in ("device", *texts) if name in query}
    return options | {name: number(query, option) for option, name in numbers.items() if option in query}


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


ROUTES = {
    "memory": memory,
    "memory/at": at,
    "memory/blocks": blocks,
    "memory/curve": curve,
    "memory/live": live,
    "memory/stacks": stacks,
}
