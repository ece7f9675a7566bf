"""Pages of a step or time range: responses are computed from a part of the trace, but refer to rows and times of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.combine.cut import BEGINLESS_NS, ENDLESS_NS, TracePart, cut, pieces_of
from kinetoscope.model import units
from kinetoscope.model.arrow import number_array
from kinetoscope.viewer.requests import Limited

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Answer, Query

    Answering = Callable[[Trace, str, Query], Answer]

PARTIAL = frozenset((
    "chosen", "copies", "flame", "flame_choices", "flame_operators", "histogram", "instances", "kernels", "memory",
    "memory/at", "memory/blocks", "memory/curve", "memory/live", "memory/stacks",
    "module_operators", "modules", "operators",
))  # fmt: skip
"""The paths that can be asked about a part of the trace."""

MOST_STEPS = 2000


def steps(trace: Trace, query: Query) -> list[list[int]]:
    """Respond to `steps`: the number of each step, its earliest start and its latest end on any process."""
    own = trace.columns("steps")
    numbers, place = np.unique(own["number"], return_inverse=True)
    start = np.full(len(numbers), np.iinfo(np.int64).max)
    end = np.full(len(numbers), np.iinfo(np.int64).min)
    np.minimum.at(start, place, own["start_ns"])
    np.maximum.at(end, place, own["start_ns"] + own["duration_ns"])
    found: list[list[int]] = np.stack([numbers, start, end], axis=1)[:MOST_STEPS].tolist()
    return found


def answer_part(trace: Trace, path: str, query: Query, answer: Answering) -> Answer:
    """Respond to a request about the part that its option `part` selects.

    Args:
        trace: The whole trace.
        path: The path of the request.
        query: The options; `part` is start and end of the part in nanoseconds, such as `1000-2000`.
        answer: Responds to requests without this option.

    Returns:
        The response of the part. Rows of `spans` and the times of calls are those of the whole trace; other times count from the start of the part.

    Raises:
        ArgumentError: The part is not a range within the trace, or the path does not support parts.
    """
    text = query["part"]
    if path not in PARTIAL:
        raise ArgumentError(f"{path} is of the whole trace: part={text[:50]!r} has no effect")
    window, rows, start_ns = _window(trace, text)
    found = answer(window, path, {name: value for name, value in query.items() if name != "part"})
    if isinstance(found, Limited):
        return Limited(_of_whole(found.table, rows, start_ns), found.total)
    return _of_whole(cast("pyarrow.Table", found), rows, start_ns) if hasattr(found, "schema") else found


def _window(trace: Trace, text: str) -> tuple[Trace, NDArray[np.int64], int]:
    """Cut out a part; return it as a trace, the row of each of its spans in the whole, and its start. The last one is cached."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last) < 2**62):
        raise ArgumentError(
            f"part={text[:50]!r} is not valid: use two times in nanoseconds, such as 1000-2000"
        )
    start, end = int(first), int(last)
    kept: dict[tuple[int, int], Any] = trace.cached("viewer: part", dict)
    found = kept.get((start, end))
    if found is None:
        if start >= trace.duration_ns:
            raise ArgumentError(
                f"part={text!r} is not valid: the trace ends after {units.duration(trace.duration_ns)}"
            )
        # The first part also contains what began before the trace, and the last one what happens exactly at its end.
        first_ns = np.array([start or BEGINLESS_NS], np.int64)
        last_ns = np.array([end if end < trace.duration_ns else ENDLESS_NS], np.int64)
        part = TracePart(start, first_ns, last_ns, by_launch=True)
        found = cut(trace, part), pieces_of(trace, part).row, start
        kept.clear()
        kept[start, end] = found
    return cast("tuple[Trace, NDArray[np.int64], int]", found)


def _of_whole(table: pyarrow.Table, rows: NDArray[np.int64], start_ns: int) -> pyarrow.Table:
    """Convert rows of spans and start times in a table of a part to those of the whole trace."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, field in enumerate(table.schema):
        if (field.metadata or {}).get(b"unit") == b"row of spans":
            whole = pc.take(number_array(rows), table[field.name].cast(pa.int64())).cast(field.type)
            table = table.set_column(place, field, whole)
        elif field.name == "start_ns":
            table = table.set_column(place, field, pc.add(table["start_ns"], start_ns).cast(field.type))
    return table
