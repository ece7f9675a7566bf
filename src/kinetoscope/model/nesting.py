"""The nesting of spans, also where Python and module calls enclose operators.

Operators, backward functions and ranges nest among themselves as if no call had been recorded, so all numbers derived from
them are the same with and without calls. A call nests in whatever runs around it.
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
    """The nesting of some spans; each array has one entry per span.

    Attributes:
        parent: The index of the innermost span around it, -1 for none.
        depth: The number of spans around it.
        lane: 0, or more for a span that partly overlaps others on its thread, which has no parent and no children.
        self_ns: Its duration minus that of its children; 0 in lanes above 0.
    """

    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    lane: NDArray[np.int32]
    self_ns: Rows


def nest(thread: NDArray[np.int32], start_ns: Rows, duration_ns: Rows) -> Nesting:
    """Nest spans by time within each group.

    Args:
        thread: The group of each span, such as its thread; ascending.
        start_ns: The start; ascending within a group, longer spans first on a tie.
        duration_ns: The duration.
    """
    nested = _core.nest(thread, start_ns, duration_ns)
    return Nesting(nested["parent"], nested["depth"], nested["lane"], nested["self_ns"])


# The thread, start and duration of each span.
_Times = tuple[NDArray[np.int32], Rows, Rows]

GARBAGE_COLLECTION = "Python GC"
"""torch's name for a garbage collection, which the native engine records as a range."""


def mark_collections(tables: dict[str, Mapping[str, Any]], strings: Sequence[str]) -> None:
    """Change garbage collections in a recording from ranges to calls, as in torch.

    Args:
        tables: The columns of a trace; changed in place.
        strings: The strings that names refer to.
    """
    spans = tables["spans"]
    if GARBAGE_COLLECTION not in strings:
        return
    marked = (spans["scope"] == SCOPE_USER) & (spans["name"] == strings.index(GARBAGE_COLLECTION))
    tables["spans"] = {**spans, "scope": np.where(marked, np.uint8(SCOPE_PYTHON), spans["scope"])}


def nest_beside_calls(spans: Columns, work: Rows, everything: Nesting) -> dict[str, NDArray[Any]]:
    """Nest the rows `work` among themselves, and calls (all other rows) within all spans.

    A call that partly overlaps work gets its own lane: the call that enters a range, for instance, returns after the
    range has begun.

    Args:
        spans: The spans.
        work: The rows that are not calls, ascending.
        everything: The nesting of all spans together.

    Returns:
        `parent`, `depth`, `lane`, `self_ns` and `caller` of every span. The parent of a call may be any span; the parent
        of any other span is never a call. A parent's depth is always one less. The caller is the innermost call around.
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
    # Only calls lie between a call and the work around it.
    below = levels[calls] - np.append(levels, np.int32(-1)).take(around)
    beside = is_call.copy()
    beside[rows[nested["lane"] == 0]] = False
    for name, column in alone.items():
        both[name][work] = column
    both["depth"][calls] = np.append(both["depth"], np.int32(-1)).take(around) + below
    _take_lanes(times, np.flatnonzero(beside), both["lane"])
    return both


def without_children(nesting: dict[str, NDArray[Any]], childless: Mask, duration_ns: Rows) -> None:
    """Detach the children of spans that cannot have any: device work overlaps other work but never contains it.

    Args:
        nesting: `parent`, `depth` and `self_ns` of every span; changed in place. Lanes stay: they are for drawing.
        childless: The spans without children; spans inside them lose their parent.
        duration_ns: The duration of each span, which becomes the self time of the childless.
    """
    parent, depth = nesting["parent"], nesting["depth"]
    nesting["self_ns"] = np.where(childless, np.maximum(duration_ns, 0), nesting["self_ns"])
    inside = np.append(childless, False).take(parent)
    if inside.any():
        root = _core.nearest_marked(parent, depth, inside)
        nesting["depth"] = depth - np.where(root >= 0, depth[root], 0)
        nesting["parent"] = np.where(inside, np.int32(-1), parent)


def _calls_in_the_way(times: _Times, rows: Rows, nested: Nesting, nests_alone: Mask) -> list[int]:
    """Indices in `rows` of calls that keep work from nesting in other work."""
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
    """Put rows that do not nest into additional lanes of their thread, without overlaps in a lane."""
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
    """The depth of each row; a parent that does not precede its row is ignored."""
    above = np.append(np.where(parent < np.arange(len(parent)), parent, np.int32(-1)), np.int32(-1))
    depth = (above >= 0).astype(np.int32)
    while (above >= 0).any():
        # Pointer jumping: each iteration doubles the distance to the ancestor.
        depth += depth[above]
        above = above[above]
    return depth[:-1]


def by_level(depth: NDArray[np.int32]) -> list[Rows]:
    """The rows of each depth, from depth 0 to the largest."""
    order, begin = Groups(depth, int(depth.max(initial=0)) + 1).rows()
    return np.split(order, begin[1:-1])


def spread_down(
    parent: NDArray[np.int32], depth: NDArray[np.int32], values: NDArray[Any], none: int
) -> NDArray[Any]:
    """Replace the value `none` of each row by that of its nearest ancestor with another value."""
    # NumPy's `take` is three times as fast as `[]` for 32-bit rows.
    nearest = _core.nearest_marked(parent, depth, values != none)
    return np.append(values, values.dtype.type(none)).take(nearest)
