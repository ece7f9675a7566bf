"""Which steps a trace has: those the program marked or, failing that, those its optimizer ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.columns import Columns
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.schema import ASKING, TRANSFER_MARKS, SpanKind

MARK = "ProfilerStep#"
STEP_KEY = "ProfilerStep*"
"""The name that the marks of all steps share where spans are grouped by name."""
MARKED, OPTIMIZER = 0, 1
# So much work outside of the steps is no part of training, and so many times as much before them: first calls take long.
_LEAST_OUTSIDE_NS, _TIMES_BEFORE = 500_000_000, 3


def find_steps(
    spans: Columns,
    optimizer: Mask,
    strings: list[str],
    cycle_start_ns: Rows | None = None,
    *,
    worked_ns: Callable[[int, int], int],
) -> dict[str, NDArray[Any]]:
    """Return the columns of the `steps` table in order of time.

    Spans of the host of kind `step` are the steps; devices only show these again. Without any, a step runs from the end of the most frequent optimizer range to
    the next one's end, the first from the start of the trace, and the first of a further cycle from the start of that. Where optimizers
    take turns, as in adversarial training, one turn of all is a step. A program that runs longer after the last of them than in them,
    as one that mostly evaluates, or far longer before the first, as one that mostly prepares data, has no steps.

    Args:
        spans: The spans.
        optimizer: Which of them are optimizer ranges.
        strings: The string table.
        cycle_start_ns: When the cycle of each span began, where there are several cycles.
        worked_ns: How long a thread did something else than import modules, up to a moment.

    Returns:
        `number`, `start_ns`, `duration_ns`, `span`, `source` and `process_row`, which is -1.
    """
    marked = np.flatnonzero((spans["kind"] == SpanKind.STEP) & (spans["stream"] < 0))
    if len(marked):
        marked = marked[np.argsort(spans["start_ns"][marked], kind="stable")]
        numbers = [_number(strings[name], index) for index, name in enumerate(spans["name"][marked].tolist())]
        return _columns(numbers, spans["start_ns"][marked], spans["duration_ns"][marked], marked, MARKED)
    empty = np.zeros(0, dtype=np.int64)
    rows = np.flatnonzero(optimizer)
    if len(rows) == 0:
        return _columns([], empty, empty, empty, OPTIMIZER)
    names, first, counts = np.unique(spans["name"][rows], return_index=True, return_counts=True)
    most = np.lexsort((first, -counts))[0]
    rows = rows[spans["name"][rows] == names[most]]
    ends = spans["start_ns"][rows] + spans["duration_ns"][rows]
    order = np.argsort(ends, kind="stable")
    order = order[_ends_of_turns(spans["own_stack"][rows[order]])]
    rows, ends = rows[order], ends[order]
    starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))
    starts[0] = min(0, int(spans["start_ns"].min()))
    if cycle_start_ns is not None:
        # Between two cycles nothing was recorded, and that time belongs to no step.
        starts[1:] = np.maximum(starts[1:], cycle_start_ns[rows][1:])
    least_ns = max(_LEAST_OUTSIDE_NS, int((ends - starts)[1:].sum()))
    is_outside = _is_mostly_outside(spans, int(spans["thread"][rows[0]]), ends, least_ns, worked_ns)
    # A rank waits for others outside of its steps.
    if is_outside and not any(text.startswith((*ASKING, *TRANSFER_MARKS)) for text in strings):
        return _columns([], empty, empty, empty, OPTIMIZER)
    return _columns(list(range(len(rows))), starts, ends - starts, rows, OPTIMIZER)


def _is_mostly_outside(
    spans: Columns, thread: int, ends: Rows, least_ns: int, worked_ns: Callable[[int, int], int]
) -> bool:
    """Whether the thread of some steps runs for longer than a time after the last of them, or for several times as long before the first."""
    late = np.flatnonzero((spans["start_ns"] >= ends[-1]) & (spans["thread"] == thread))
    late = late[is_operator(spans["kind"][late]) & (spans["stream"][late] < 0)]
    after_ns = (spans["start_ns"][late] + spans["duration_ns"][late]).max(initial=0) - ends[-1]
    before_ns, first_ns = _TIMES_BEFORE * least_ns, int(ends[0])
    is_before = len(ends) > 1 and first_ns > before_ns and worked_ns(thread, first_ns) > before_ns
    return bool(after_ns > least_ns or is_before)


def steps_of_ring(
    steps: Columns, ranges: NDArray[np.int32], numbers: Rows, first: int = 0
) -> dict[str, NDArray[Any]] | None:
    """Return the steps of a recording that has overwritten its oldest spans; None where they are right as they were found.

    Marks carry their numbers, and a step whose mark was overwritten is not there. Steps found from the optimizer get the numbers that
    they had; the first of them is left out, because it began before the first span that is left.

    Args:
        steps: The columns of the table `steps`, as `find_steps` returns them.
        ranges: The rows of `spans` that are steps of optimizers, ascending...
        numbers: ...and how many of its name the recording had before each.
        first: How many steps the program had made before the recording.
    """
    if len(steps) == 0 or (steps["source"] == MARKED).any():
        return None
    columns = {name: steps[name] for name in steps}
    position = np.minimum(np.searchsorted(ranges, columns["span"]), max(len(ranges) - 1, 0))
    if len(ranges) and (ranges[position] == columns["span"]).all():
        ran = numbers[position]
        later = np.diff(ran)
        # Where optimizers take turns, a step has several of their ranges.
        columns["number"] = ran // (later[later > 0].min() if (later > 0).any() else 1)
    columns["number"] = columns["number"] + first
    return {name: values[1:] for name, values in columns.items()}


def steps_counted_from(steps: Columns, first: int) -> dict[str, NDArray[Any]] | None:
    """Return the steps of a recording that began after `first` steps; None where they are marked, or counted so already."""
    if len(steps) == 0 or (steps["source"] == MARKED).any() or steps["number"][0] >= first:
        return None
    columns = {name: steps[name] for name in steps}
    return {**columns, "number": columns["number"] + first}


_LEAST_TURNS = 3


def _ends_of_turns(stack: NDArray[np.int32]) -> slice:
    """Which of some optimizer ranges end a step: each or, where they are entered from several lines in turn, the last of each turn."""
    sites = len(np.unique(stack))
    if sites < 2 or len(stack) < _LEAST_TURNS * sites or (stack[sites:] != stack[:-sites]).any():
        return slice(None)
    return slice(sites - 1, None, sites)


def step_at(time_ns: Rows, start_ns: Rows, duration_ns: Rows) -> NDArray[np.int32]:
    """Return for each time the row of the step it falls in, the latest where steps overlap; -1 outside all."""
    if len(start_ns) == 0:
        return np.full(len(time_ns), -1, dtype=np.int32)
    row = np.searchsorted(start_ns, time_ns, side="right") - 1
    inside = (row >= 0) & (time_ns < (start_ns + duration_ns)[row])
    return np.where(inside, row, -1).astype(np.int32)


def stretch_at(
    key: NDArray[Any], time_ns: NDArray[Any], of: NDArray[Any], start_ns: NDArray[Any], end_ns: NDArray[Any]
) -> Rows:
    """Return for each time of a key, such as a thread, the row of the stretch of that key it falls in, the latest where they overlap; -1 outside all.

    Args:
        key: The key of each time.
        time_ns: The times.
        of: The key of each stretch.
        start_ns: When each stretch starts.
        end_ns: When it ends.
    """
    row = np.full(len(time_ns), -1, dtype=np.int64)
    for number in np.unique(of).tolist():
        stretches, times = np.flatnonzero(of == number), np.flatnonzero(key == number)
        stretches = stretches[np.argsort(start_ns[stretches], kind="stable")]
        start, duration = start_ns[stretches], (end_ns - start_ns)[stretches]
        row[times] = np.append(stretches, -1)[step_at(time_ns[times], start, duration)]
    return row


def of_process_at(process: NDArray[np.int32], time_ns: Rows, table: Columns) -> Rows:
    """The row of the step or cycle of a process that each time falls in, as `stretch_at` has it."""
    start_ns = table["start_ns"]
    return stretch_at(process, time_ns, table["process_row"], start_ns, start_ns + table["duration_ns"])


def _number(name: str, index: int) -> int:
    """Read the number of a step mark; a mark without one is numbered by its place."""
    digits = name[len(MARK) :]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else index


def _columns(
    numbers: list[int], start_ns: NDArray[Any], duration_ns: NDArray[Any], span: NDArray[Any], source: int
) -> dict[str, NDArray[Any]]:
    return {
        "number": np.array(numbers, dtype=np.int64),
        "start_ns": start_ns,
        "duration_ns": duration_ns,
        "span": span,
        "source": np.full(len(numbers), source, dtype=np.uint8),
        "process_row": np.full(len(numbers), -1, dtype=np.int32),
    }


def one_cycle(number: int, duration_ns: int) -> dict[str, list[int]]:
    """The table `cycles` of a recording of one cycle, by the number that the session gave it."""
    return {"number": [number], "start_ns": [0], "duration_ns": [max(0, duration_ns)]}


def cycle_of_spans(start_ns: Rows, table: Columns) -> NDArray[np.int32]:
    """The row of the cycle each span began in: the only one there is or, among several, by its time."""
    if len(table) == 1:
        return np.zeros(len(start_ns), dtype=np.int32)
    return step_at(start_ns, table["start_ns"], table["duration_ns"])
