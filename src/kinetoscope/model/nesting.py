"""How spans nest: which is inside which, also where calls of Python functions and of modules enclose operators.

Operators, backward functions and ranges nest among themselves exactly as if no call had been recorded, so that every
number derived from them is the same with and without calls. A call nests in whatever runs around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.columns import Columns
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Mask, Rows, mask_of
from kinetoscope.model.schema import SCOPE_PYTHON, SCOPE_USER


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
    self_ns: Rows


def nest(thread: NDArray[np.int32], start_ns: Rows, duration_ns: Rows) -> Nesting:
    """Nest spans by time, each group of them by itself.

    Args:
        thread: The group of each span, such as its thread; ascending.
        start_ns: When each began; ascending within a group, of equal ones the longer first.
        duration_ns: How long each ran.
    """
    nested = _core.nest(thread, start_ns, duration_ns)
    return Nesting(nested["parent"], nested["depth"], nested["lane"], nested["self_ns"])


# The thread, start and duration of each span.
_Times = tuple[NDArray[np.int32], Rows, Rows]

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


def nest_beside_calls(spans: Columns, work: Rows, everything: Nesting) -> dict[str, NDArray[Any]]:
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
    alone["parent"] = np.append(work, -1).take(alone["parent"])
    nests_alone = mask_of(work[alone["lane"] == 0], len(spans))
    rows, nesting = np.arange(len(spans)), everything
    while in_the_way := _calls_in_the_way(times, rows, nesting, nests_alone):
        rows = np.delete(rows, in_the_way)
        nesting = nest(*(column[rows] for column in times))
    nested: dict[str, Any] = dict(vars(nesting))
    both: dict[str, Any] = {name: np.zeros(len(spans), dtype=column.dtype) for name, column in nested.items()}
    both["parent"][:] = -1
    nested["parent"] = np.append(rows, -1).take(nested["parent"])
    for name, column in both.items():
        column[rows] = nested[name]
    parent, levels, is_call = both["parent"], both["depth"], np.ones(len(spans), dtype=bool)
    is_call[work] = False
    both["caller"] = np.append(_core.nearest_marked(parent, levels, is_call), np.int32(-1)).take(parent)
    calls = np.flatnonzero(is_call)
    around = _core.nearest_marked(parent, levels, ~is_call)[calls]
    # Between a call and the work around it are only calls.
    below = levels[calls] - np.append(levels, np.int32(-1)).take(around)
    beside = is_call.copy()
    beside[rows[nested["lane"] == 0]] = False
    for name, column in alone.items():
        both[name][work] = column
    both["depth"][calls] = np.append(both["depth"], np.int32(-1)).take(around) + below
    _take_lanes(times, np.flatnonzero(beside), both["lane"])
    return both


def without_children(nesting: dict[str, NDArray[Any]], childless: Mask, duration_ns: Rows) -> None:
    """Correct how spans nest where some have no children: device work runs beside what overlaps it, never around it.

    Args:
        nesting: `parent`, `depth` and `self_ns` of every span; changed. Lanes stay as they are: they are for drawing.
        childless: Which spans have no children; what lies inside them gets no parent.
        duration_ns: How long each span ran: the self time of the childless.
    """
    parent, depth = nesting["parent"], nesting["depth"]
    nesting["self_ns"] = np.where(childless, np.maximum(duration_ns, 0), nesting["self_ns"])
    inside = np.append(childless, False).take(parent)
    if inside.any():
        root = _core.nearest_marked(parent, depth, inside)
        nesting["depth"] = depth - np.where(root >= 0, depth[root], 0)
        nesting["parent"] = np.where(inside, np.int32(-1), parent)


def _calls_in_the_way(times: _Times, rows: Rows, nested: Nesting, nests_alone: Mask) -> list[int]:
    """Places in `rows` of calls because of which work does not nest that would nest among work."""
    parent, lane, is_work = nested.parent, nested.lane, nests_alone[rows]
    beside = np.flatnonzero(is_work & (lane > 0))
    if len(beside) == 0:
        return []
    thread, start, duration_ns = (column[rows] for column in times)
    end = start + duration_ns
    calls: set[int] = set()
    for index in beside.tolist():
        enclosing = index - 1
        while enclosing >= 0 and lane[enclosing] > 0 and thread[enclosing] == thread[index]:
            enclosing -= 1
        if enclosing < 0 or thread[enclosing] != thread[index]:
            continue
        while enclosing >= 0 and end[enclosing] < end[index]:
            if end[enclosing] > start[index] and not is_work[enclosing]:
                calls.add(enclosing)
            enclosing = int(parent[enclosing])
    return sorted(calls)


def _take_lanes(times: _Times, rows: Rows, lane: NDArray[np.int32]) -> None:
    """Give rows that nest with nothing lanes above those of their thread, in each of which they are disjoint."""
    thread, start_ns, duration_ns = times
    free_from_ns: list[int] = []
    base, current = 0, -1
    lane[rows] = 0
    for row in rows.tolist():
        if thread[row] != current:
            current = int(thread[row])
            first, last = np.searchsorted(thread, (current, current + 1))
            base, free_from_ns = int(lane[first:last].max()) + 1, []
        start = int(start_ns[row])
        lane_number = next(
            (index for index, free_ns in enumerate(free_from_ns) if free_ns <= start), len(free_from_ns)
        )
        free_from_ns[lane_number : lane_number + 1] = [start + int(duration_ns[row])]
        lane[row] = base + lane_number


def depths_of(parent: NDArray[np.int32]) -> NDArray[np.int32]:
    """How many rows are around each; a parent that does not come before its row is none."""
    above = np.append(np.where(parent < np.arange(len(parent)), parent, np.int32(-1)), np.int32(-1))
    depth = (above >= 0).astype(np.int32)
    while (above >= 0).any():
        # Each turn adds the depth of the row that is twice as far up.
        depth += depth[above]
        above = above[above]
    return depth[:-1]


def by_level(depth: NDArray[np.int32]) -> list[Rows]:
    """The places of each depth in ascending order, from depth 0 to the largest."""
    order, begin = Groups(depth, int(depth.max(initial=0)) + 1).rows()
    return np.split(order, begin[1:-1])


def spread_down(
    parent: NDArray[np.int32], depth: NDArray[np.int32], values: NDArray[Any], none: int
) -> NDArray[Any]:
    """Give each row that has the value `none` the value of its nearest ancestor that has another."""
    # NumPy's `take` is three times as fast as `[]` where rows are 32 bits wide.
    nearest = _core.nearest_marked(parent, depth, values != none)
    return np.append(values, values.dtype.type(none)).take(nearest)
