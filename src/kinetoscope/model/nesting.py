"""How spans nest: which is inside which, also where calls of Python functions and of modules enclose operators.

Operators, backward functions and ranges nest among themselves exactly as if no call had been recorded, so that every
number derived from them is the same with and without calls. A call nests in whatever runs around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.schema import SCOPE_PYTHON, SCOPE_USER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kinetoscope.model.columns import Columns


@dataclass(frozen=True, eq=False)
class Nesting:
    """How some spans nest, one entry a span, in their order.

    Attributes:
        parent: The place of the innermost span around each, -1 without.
        depth: How many spans enclose each.
        lane: 0, or more for a span that partly overlaps others of its thread: it has no parent and no children.
        self_ns: The duration of each without that of the spans directly inside; 0 in lanes above 0.
    """

    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    lane: NDArray[np.int32]
    self_ns: NDArray[np.int64]


def nest(thread: NDArray[np.int32], start_ns: NDArray[np.int64], duration_ns: NDArray[np.int64]) -> Nesting:
    """Nest spans by time, each group of them by itself.

    Args:
        thread: The group of each span, such as its thread; ascending.
        start_ns: When each began; ascending within a group, of equal ones the longer first.
        duration_ns: How long each ran.
    """
    made = _core.nest(thread, start_ns, duration_ns)
    return Nesting(made["parent"], made["depth"], made["lane"], made["self_ns"])


GARBAGE_COLLECTION = "Python GC"
"""The name, as torch gives it, of the range in which the native engine records a collection of Python's garbage."""


def mark_collections(tables: dict[str, Mapping[str, Any]], strings: Sequence[str]) -> None:
    """Make collections of garbage in a recording what they are for torch: calls, not ranges of the program.

    Args:
        tables: The delivered columns of a trace; changed.
        strings: What names point into.
    """
    spans = tables["spans"]
    if GARBAGE_COLLECTION not in strings:
        return
    marked = (spans["scope"] == SCOPE_USER) & (spans["name"] == strings.index(GARBAGE_COLLECTION))
    tables["spans"] = {**spans, "scope": np.where(marked, np.uint8(SCOPE_PYTHON), spans["scope"])}


def nest_beside_calls(
    spans: Columns, work: NDArray[np.int64], everything: Nesting
) -> dict[str, NDArray[Any]]:
    """Nest the rows `work` among themselves, and all other rows, which are calls, within everything.

    A call that partly overlaps work stands in a lane of its own: that which entered a range, for instance, returns
    when the range has begun.

    Args:
        spans: The spans.
        work: The rows that are no calls, ascending.
        everything: How all spans nest, calls and others alike.

    Returns:
        `parent`, `depth`, `lane`, `self_ns` and `caller` of every span. The parent of a call may be a call or not, that
        of another span never is one; a parent's depth is always one less. The caller is the innermost call around.
    """
    times = (spans["thread"], spans["start_ns"], spans["duration_ns"])
    alone: dict[str, Any] = dict(vars(nest(*(column[work] for column in times))))
    alone["parent"] = np.append(work, -1)[alone["parent"]]
    nests_alone = np.zeros(len(spans), dtype=bool)
    nests_alone[work[alone["lane"] == 0]] = True
    rows, nesting = np.arange(len(spans)), everything
    while in_the_way := _calls_in_the_way(*times, rows, nesting, nests_alone):
        rows = np.delete(rows, in_the_way)
        nesting = nest(*(column[rows] for column in times))
    nested: dict[str, Any] = dict(vars(nesting))
    made: dict[str, Any] = {name: np.zeros(len(spans), dtype=column.dtype) for name, column in nested.items()}
    made["parent"][:] = -1
    nested["parent"] = np.append(rows, -1)[nested["parent"]]
    for name, column in made.items():
        column[rows] = nested[name]
    levels = made["depth"].copy()
    made["caller"] = _innermost_calls(made["parent"], levels, work)
    beside = np.ones(len(spans), dtype=bool)
    beside[rows[nested["lane"] == 0]] = False
    beside[work] = False
    is_call = np.ones(len(spans), dtype=bool)
    is_call[work] = False
    for name, column in alone.items():
        made[name][work] = column
    calls = np.flatnonzero(is_call & ~beside)
    for places in by_level(levels[calls]):
        level = calls[places]
        around = made["parent"][level]
        made["depth"][level] = np.where(around >= 0, made["depth"][around] + 1, 0)
    _take_lanes(*times, np.flatnonzero(beside), made["lane"])
    return made


def _innermost_calls(
    parent: NDArray[np.int32], depth: NDArray[np.int32], work: NDArray[np.int64]
) -> NDArray[np.int32]:
    """For each span the innermost call around it, by how everything nests in everything."""
    caller = parent.copy()
    is_work = np.zeros(len(parent), dtype=bool)
    is_work[work] = True
    for rows in by_level(depth)[1:]:
        in_work = rows[(parent[rows] >= 0) & is_work[parent[rows]]]
        caller[in_work] = caller[parent[in_work]]
    return caller


def _calls_in_the_way(
    thread: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    rows: NDArray[np.int64],
    nested: Nesting,
    nests_alone: NDArray[np.bool_],
) -> list[int]:
    """Places in `rows` of calls because of which work does not nest that would nest among work."""
    parent, lane, is_work = nested.parent, nested.lane, nests_alone[rows]
    beside = np.flatnonzero(is_work & (lane > 0))
    if len(beside) == 0:
        return []
    thread, start, end = thread[rows], start_ns[rows], (start_ns + duration_ns)[rows]
    found: set[int] = set()
    for place in beside.tolist():
        at = place - 1
        while at >= 0 and lane[at] > 0 and thread[at] == thread[place]:
            at -= 1
        if at < 0 or thread[at] != thread[place]:
            continue
        while at >= 0 and end[at] < end[place]:
            if end[at] > start[place] and not is_work[at]:
                found.add(at)
            at = int(parent[at])
    return sorted(found)


def _take_lanes(
    thread: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    rows: NDArray[np.int64],
    lane: NDArray[np.int32],
) -> None:
    """Give rows that nest with nothing lanes above those of their thread, in each of which they are disjoint."""
    free_from_ns: list[int] = []
    base, current = 0, -1
    lane[rows] = 0
    for row in rows.tolist():
        if thread[row] != current:
            current = int(thread[row])
            first, last = np.searchsorted(thread, (current, current + 1))
            base, free_from_ns = int(lane[first:last].max()) + 1, []
        start = int(start_ns[row])
        place = next((at for at, free_ns in enumerate(free_from_ns) if free_ns <= start), len(free_from_ns))
        free_from_ns[place : place + 1] = [start + int(duration_ns[row])]
        lane[row] = base + place


def attribute_beside_calls(
    of_spans: tuple[NDArray[Any], ...],
    of_blocks: tuple[NDArray[Any], ...],
    work: NDArray[np.int64],
    everything: Nesting,
) -> dict[str, NDArray[Any]]:
    """Attribute allocations to the rows `work`, and to each call what was allocated during it.

    Args:
        of_spans: `thread`, `start_ns`, `duration_ns`, `parent` and `lane` of the spans.
        of_blocks: `time_ns`, `thread`, `address`, `bytes` and `freed_bytes` of the allocations.
        work: The rows that are no calls, ascending.
        everything: How all spans nest, calls and others alike.

    Returns:
        What `_core.attribute_allocations` returns; `span` names no calls.
    """
    thread, start_ns, duration_ns, parent, lane = of_spans
    moved = np.full(len(thread) + 1, -1, dtype=np.int32)
    moved[work] = np.arange(len(work))
    made: dict[str, Any] = dict(
        _core.attribute_allocations(
            thread[work], start_ns[work], duration_ns[work], moved[parent[work]], lane[work], *of_blocks
        )
    )
    made["span"] = np.append(work, -1)[made["span"]].astype(np.int32)
    everywhere: dict[str, Any] = dict(
        _core.attribute_allocations(
            thread, start_ns, duration_ns, everything.parent, everything.lane, *of_blocks
        )
    )
    for name in ("span_bytes", "span_self_bytes"):
        everywhere[name][work] = made[name]
        made[name] = everywhere[name]
    return made


def by_level(depth: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    """The places of each depth in ascending order, from depth 0 to the largest."""
    deepest = int(depth.max(initial=0))
    # Numbers of 16 bits are sorted by radix, in a fraction of the time.
    narrow = depth.astype(np.int16) if deepest <= np.iinfo(np.int16).max else depth
    return np.split(
        np.argsort(narrow, kind="stable"), np.cumsum(np.bincount(depth, minlength=deepest + 1))[:-1]
    )


def sums_below(
    parent: NDArray[np.int32], depth: NDArray[np.int32], own: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Add to each row the values of all rows below it, level by level from the deepest."""
    total = own.astype(np.int64)
    for rows in by_level(depth)[:0:-1]:
        held = rows[parent[rows] >= 0]
        np.add.at(total, parent[held], total[held])
    return total


def spread_down(
    parent: NDArray[np.int32], depth: NDArray[np.int32], own: NDArray[Any], none: int
) -> NDArray[Any]:
    """Give each row that has the value `none` the value of its nearest ancestor that has another."""
    spread = own.copy()
    for rows in by_level(depth)[1:]:
        bare = rows[(spread[rows] == none) & (parent[rows] >= 0)]
        spread[bare] = spread[parent[bare]]
    return spread
