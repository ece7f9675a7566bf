"""Questions of the memory page: which memories there are, who held them at a moment, and which blocks they had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope import _core
from kinetoscope._errors import ArgumentError
from kinetoscope.tables._source import user_stacks
from kinetoscope.tables.memory_blocks import NEVER_NS
from kinetoscope.tables.memory_categories import CATEGORY_NAMES, MemoryCategory
from kinetoscope.tables.memory_facts import judged_blocks
from kinetoscope.tables.memory_peak import asking, grouped, through
from kinetoscope.tables.ops import percent
from kinetoscope.trace import Column, Table
from kinetoscope.trace._arrow import Labels, to_arrow
from kinetoscope.trace._naming import frame_texts
from kinetoscope.trace._shown import memory_recorded
from kinetoscope.viewer._answers import Limited, number
from kinetoscope.viewer._memory_curve import BY
from kinetoscope.viewer._memory_places import chosen, highest, lasting_ns, places

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer._answers import Query
    from kinetoscope.viewer._memory_places import Place

MOST_BLOCKS = 2000
"""Of the blocks that are listed one by one."""

MOST_STACK_ROWS = 100_000

_HOLDERS = ("category", "module", "operator", "line")
GROUPINGS: dict[str, tuple[str, ...]] = {"all": _HOLDERS} | {name: (name,) for name in _HOLDERS}
"""What a table of holders can be put together by."""

ORDERS = ("biggest", "longest", "never freed")

_SIZE = (
    Column("bytes", "int64", "bytes", "Their size together.", 0),
    Column("percent", "float64", "%", "Their share of all that was live then."),
    Column("blocks", "int64", "", "How many blocks.", 0),
)
_WHO = (
    Column("category", "category", "", f"What they are for: {', '.join(CATEGORY_NAMES)}."),
    Column("module", "category", "", "The path of the module they belong to."),
    Column("operator", "category", "", "The operator that wanted them; none for what was there before."),
    Column("line", "category", "", "The innermost line of the user's code that allocated them."),
)
_STACK = Column("stack", "int32", "row of stacks", "The Python stack that allocated the first of them.")
_BLOCK = Table(
    "blocks",
    "A block of memory.",
    (
        Column("time_ns", "int64", "ns", "When it was allocated; nothing where that was not seen."),
        Column("bytes", "int64", "bytes", "Its size.", 0),
        Column("lifetime_ns", "int64", "ns", "From its allocation to its free, if both were seen."),
        Column("freed_ns", "int64", "ns", "When it was freed, or its address handed out again."),
        *_WHO,
        Column("step", "int64", "", "The number of the step in which it was allocated."),
        Column("span", "int32", "row of spans", "The span that allocated it."),
        _STACK,
    ),
)  # fmt: skip
_STACKS = Table(
    "stacks",
    "A Python call stack: its parent's with one more frame.",
    (
        Column("id", "int32", "row of stacks", "The row."),
        Column("parent", "int32", "row of stacks", "The stack of the caller."),
        Column("frame", "category", "", "The innermost frame."),
    ),
)


def reported(trace: Trace) -> list[tuple[str, dict[str, str]]]:
    """What a report must answer of this page: everything but windows and moments other than the peak."""
    asked: list[tuple[str, dict[str, str]]] = [("memory", {})]
    for place in places(trace):
        of = {"device": place.key}
        asked += [("memory/curve", of | {"by": by}) for by in BY]
        asked += [("memory/at", of | {"by": by}) for by in BY]
        asked += [("memory/live", of | {"by": by}) for by in GROUPINGS]
        asked += [("memory/blocks", of | {"order": order}) for order in ORDERS]
        asked.append(("memory/stacks", of))
    return asked


def memory(trace: Trace, query: Query) -> dict[str, Any]:
    """Answer `memory`: the memories of the trace, and what is known of each."""
    known = places(trace)
    return {
        "recorded": memory_recorded(trace),
        "start_ns": 0,
        "duration_ns": lasting_ns(trace),
        "highest": highest(known).key if known else None,
        "devices": [_described(trace, place) for place in known],
    }


def live(trace: Trace, query: Query) -> pyarrow.Table:
    """Answer `memory/live?device=&by=[&time=]`: who held the memory at a moment, at its peak without one.

    Raises:
        ArgumentError: No such device, grouping or time.
    """
    place = chosen(trace, query)
    by = query.get("by", "all")
    if by not in GROUPINGS:
        raise ArgumentError(f"by={by[:50]!r}: memory is put together by one of {', '.join(GROUPINGS)}")
    time = number(query, "time") if "time" in query else None
    rows = place.live(place.rank_at(time))
    who = _holders(trace, rows)
    of_group, first = grouped([who[name].ids for name in GROUPINGS[by]])
    size = _core.group_sums(of_group, len(first), place.blocks.bytes[rows])
    columns: dict[str, Any] = {
        "bytes": size,
        "percent": percent(size, int(size.sum())),
        "blocks": _core.group_counts(of_group, len(first)),
        "stack": judged_blocks(trace).stack[rows][first],
    } | {name: Labels(who[name].ids[first], who[name].texts) for name in GROUPINGS[by]}
    shown = tuple(column for column in _WHO if column.name in GROUPINGS[by])
    table = Table("live", "Blocks that were live.", (*_SIZE, *shown, _STACK))
    return to_arrow(table, columns).take(np.argsort(-size, kind="stable"))


def blocks(trace: Trace, query: Query) -> Limited:
    """Answer `memory/blocks?device=&order=`: the biggest blocks, the longest-lived, or those never freed.

    Raises:
        ArgumentError: No such device or order.
    """
    place = chosen(trace, query)
    order = query.get("order", ORDERS[0])
    if order not in ORDERS:
        raise ArgumentError(f"order={order[:50]!r}: blocks are listed by one of {', '.join(ORDERS)}")
    rows, total = _listed(place, order)
    known, who = place.blocks, _holders(trace, rows)
    start, end = known.start_ns[rows], known.end_ns[rows]
    freed, recorded = end < NEVER_NS, known.allocation[rows] >= 0
    step = through(known.span[rows], trace.column("spans", "step"))
    columns: dict[str, Any] = {
        "time_ns": np.where(recorded, start, -1),
        "bytes": known.bytes[rows],
        "lifetime_ns": np.where(freed & recorded, end - start, -1),
        "freed_ns": np.where(freed, end, -1),
        "step": np.append(trace.column("steps", "number"), -1)[step],
        "span": known.span[rows],
        "stack": judged_blocks(trace).stack[rows],
    }
    return Limited(to_arrow(_BLOCK, columns | who), total)


def stacks(trace: Trace, query: Query) -> pyarrow.Table:
    """Answer `memory/stacks?device=`: the Python stacks to which the rows of the other answers refer.

    Raises:
        ArgumentError: No such device.
    """
    place = chosen(trace, query)
    own = judged_blocks(trace).stack
    rows = [place.live(place.rank_at(None)), *(_listed(place, order)[0] for order in ORDERS)]
    parent, frame = (trace.column("stacks", name) for name in ("parent", "frame"))
    wanted = np.zeros(len(parent) + 1, bool)
    wanted[own[np.concatenate(rows)]] = True
    # A report holds the blocks of these tables alone; a server is asked about any moment.
    wanted[own[place.block]] |= len(np.unique(own[place.block])) <= MOST_STACK_ROWS
    for row in np.flatnonzero(wanted[:-1])[::-1].tolist():
        above = int(parent[row])
        while 0 <= above < row and not wanted[above]:
            wanted[above] = True
            row, above = above, int(parent[above])
    found = np.flatnonzero(wanted[:-1])
    return to_arrow(
        _STACKS,
        {
            "id": found.astype(np.int32),
            "parent": parent[found],
            "frame": Labels(frame[found], frame_texts(trace)),
        },
    )


def _described(trace: Trace, place: Place) -> dict[str, Any]:
    """What the page says of a memory in words and numbers."""
    judged = judged_blocks(trace)
    peak = int(place.total_bytes[place.peak_row])
    held = place.live(place.rank_at(None))
    unknown = judged.category[held] == MemoryCategory.UNKNOWN
    end = place.live(int(np.iinfo(np.int64).max) - 1)
    return {
        "key": place.key,
        "device": place.device,
        "process": place.process,
        "rank": place.rank,
        "blocks": len(place.block),
        "peak_bytes": peak,
        "peak_ns": int(place.time_ns[place.peak_row]),
        "unknown_percent": float(percent(place.blocks.bytes[held][unknown].sum(), peak)),
        "end_bytes": int(place.blocks.bytes[end].sum()),
        "never_freed": int((place.blocks.allocation[end] >= 0).sum()),
        "allocated_bytes": _most(place.counts.allocated_bytes),
        "reserved_bytes": _most(place.counts.reserved_bytes),
        "modules": bool((judged.module[place.block] >= 0).any()),
        "stacks": bool((judged.stack[place.block] >= 0).any()),
    }


def _most(values: NDArray[np.int64]) -> int | None:
    """The highest of what an allocator counted, None where it said nothing."""
    most = int(values.max(initial=-1))
    return most if most >= 0 else None


def _holders(trace: Trace, rows: NDArray[np.int64]) -> dict[str, Labels]:
    """What each of some blocks is for, and who allocated it."""
    judged, spans = judged_blocks(trace), trace.columns("spans")
    operator = through(asking(trace, judged.blocks.span[rows]), spans["name"])
    line = through(through(judged.stack[rows], user_stacks(trace)), trace.column("stacks", "frame"))
    return {
        "category": Labels(judged.category[rows], CATEGORY_NAMES),
        "module": Labels(judged.module[rows], trace.columns("modules")["path"]),
        "operator": Labels(operator, trace.strings),
        "line": Labels(line, frame_texts(trace)),
    }


def _listed(place: Place, order: str) -> tuple[NDArray[np.int64], int]:
    """The first blocks in an order, and how many there are."""
    known, rows = place.blocks, place.block
    freed, recorded = known.end_ns[rows] < NEVER_NS, known.allocation[rows] >= 0
    if order == "longest":
        rows = rows[freed & recorded]
        value = known.end_ns[rows] - known.start_ns[rows]
    else:
        rows = rows[recorded & ~freed] if order == "never freed" else rows
        value = known.bytes[rows]
    if len(rows) > MOST_BLOCKS:
        kept = np.argpartition(-value, MOST_BLOCKS)[:MOST_BLOCKS]
        found = kept[np.lexsort((kept, -value[kept]))]
    else:
        found = np.argsort(-value, kind="stable")
    return rows[found], len(rows)
