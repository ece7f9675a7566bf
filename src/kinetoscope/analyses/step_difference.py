"""What takes longer in one step than in a usual one: why the step is slow. Of servers without steps, the same for requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.analyses.loop import Loop, medians
from kinetoscope.analyses.ran import Ran, RanInSteps
from kinetoscope.model.arrow import ArrowTable, rows_to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.names import source_line
from kinetoscope.model.rows import Rows, distinct
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.host.lines import line_groups
from kinetoscope.tables.host.python_time import gaps
from kinetoscope.tables.stacks import user_stacks

LEAST_OTHERS = 2
"""Fewer other steps of a kind do not say what is usual."""
KINDS = ("part", "operator", "line", "python", "module", "kernel")


def step_difference(trace: TraceData, step: int | None = None, other: int | None = None) -> ArrowTable:
    """Return the `step_difference` table: what a step has more of than others.

    Args:
        trace: The trace.
        step: The number of the step, or of the request where requests are compared; None for the one that takes most longer than a usual one of its
            kind. Of a trace of several processes, a step of the one whose steps took longest.
        other: The number of the one to compare it with; None for the median of the others of its kind (see the table `step_kinds`), or of all others
            where there are fewer than `LEAST_OTHERS`.

    Returns:
        The table; `docs/tables.md` describes its columns. It has no rows if the trace has neither steps nor requests.

    Raises:
        ArgumentError: There is no such step.
        StateError: The step is the only one, so there is nothing to compare it with.
    """
    loop = Loop(trace)
    noun, numbers = loop.unit.noun, loop.work.numbers
    if not loop.unit.repeats:
        if step is not None or other is not None:
            raise ArgumentError(
                "the trace has no steps: loop over kinetoscope.steps(...), or pass a schedule and call prof.step()"
            )
        return rows_to_arrow("step_difference", [])
    chosen = _most_late(loop) if step is None else _place(numbers, noun, "step", step)
    compared = _others(loop, chosen)
    if other is not None:
        compared = np.array([_place(numbers, noun, "other", other)])
    if len(compared) == 0:
        if step is None:
            return rows_to_arrow("step_difference", [])
        raise StateError(
            f"{noun} {step} is the only one, so there is nothing to compare it with: record more {noun}s"
        )
    return _table(loop, chosen, compared)


def more_than_all_others(loop: Loop, step: int) -> list[dict[str, Any]]:
    """What a step, by its place in the loop, has more of than the median of all others, whatever their kind: the rows of `step_difference`."""
    other_steps = np.setdiff1d(np.arange(len(loop.work)), [step])
    rows: list[dict[str, Any]] = _table(loop, step, other_steps).to_pylist()
    return rows


def _table(loop: Loop, chosen: int, others: Rows) -> ArrowTable:
    number = int(loop.work.numbers[chosen])
    rows = [
        _row(loop, number, kind, key, values)
        for kind, ran in _kinds(loop).items()
        for key, values in _differences(ran, chosen, others)
    ]
    return rows_to_arrow("step_difference", rows)


def _others(loop: Loop, step: int) -> Rows:
    """The steps that a step is compared with: the others of its kind or, where these are too few to say what is usual, all others."""
    kind = _kind_of_step(loop)
    others = np.setdiff1d(np.flatnonzero(kind == kind[step]), [step])
    return others if len(others) >= LEAST_OTHERS else np.setdiff1d(np.arange(len(kind)), [step])


def _most_late(loop: Loop) -> int:
    late_ns, kind = loop.end_ns - loop.start_ns, _kind_of_step(loop)
    for kind_number in np.unique(kind).tolist():
        late_ns[kind == kind_number] -= int(np.median(late_ns[kind == kind_number]))
    return int(np.argmax(late_ns))


def _kind_of_step(loop: Loop) -> Rows:
    """The kind of each step; of requests that of their name, also where few have it."""
    return loop.work.kind if loop.unit.overlaps else loop.kind_of_step


def _place(numbers: Rows, noun: str, name: str, number: Any) -> int:
    """Find the step or request with a number.

    Raises:
        ArgumentError: None has it.
    """
    if not isinstance(number, int | np.integer) or not (numbers == number).any():
        raise ArgumentError(
            f"{name}={number!r} is not a {noun} that can be compared: there are {noun}s {int(numbers.min())} to {int(numbers.max())}"
        )
    return int(np.argmax(numbers == number))


def _kinds(loop: Loop) -> dict[str, Ran]:
    trace, ran = loop.trace, RanInSteps(loop)
    spans, python, kernels = trace.columns("spans"), ran.python, ran.kernels
    operators = ran.operators
    return {
        "part": _parts(loop),
        "operator": operators.of(spans["name"][operators.span]),
        "line": operators.of(_lines_of(trace, spans["stack"][operators.span])),
        "python": replace(python, key=_lines_of(trace, gaps(trace).shares.stack[python.key])),
        "module": operators.of(spans["module"][operators.span]),
        "kernel": kernels.of(spans["name"][kernels.span]),
    }


def _parts(loop: Loop) -> Ran:
    times, count = [*loop.parts.values()], len(loop.work)
    return Ran(
        np.repeat(np.arange(len(times)), count),
        np.tile(np.arange(count), len(times)),
        np.concatenate(times),
        np.full(count * len(times), -1, dtype=np.int64),
    )


def _lines_of(trace: TraceData, stack: NDArray[Any]) -> Rows:
    """For the user's line of each stack the first frame of that line, -1 without."""
    user_stack = np.append(user_stacks(trace), -1)[stack]
    frame = np.append(trace.column("stacks", "frame"), -1)[user_stack]
    line, first = line_groups(trace)
    return np.asarray(np.append(first[line], -1)[frame], dtype=np.int64)


def more_on_average(ran: Ran, some: Rows, others: Rows) -> dict[int, float]:
    """For each key how much more time of it a step of some has than one of others, on average."""
    more_ns: dict[int, float] = {}
    for steps, sign in ((some, 1.0), (others, -1.0)):
        rows = np.flatnonzero(np.isin(ran.step, steps))
        keys, key_index = distinct(ran.key[rows])
        sums = Groups(key_index, len(keys)).sums(ran.time_ns[rows]) / len(steps)
        for key, time_ns in zip(keys.tolist(), sums.tolist(), strict=True):
            more_ns[key] = more_ns.get(key, 0.0) + sign * time_ns
    return more_ns


def _differences(ran: Ran, chosen: int, others: Rows) -> list[tuple[int, list[Any]]]:
    """For each key: its time in the step, the median of the others, the difference, both counts, and the longest span in the step."""
    rows = np.flatnonzero(np.isin(ran.step, np.append(others, chosen)))
    keys, key = distinct(ran.key[rows])
    step, time_ns = ran.step[rows], ran.time_ns[rows]
    in_step = Groups(np.where(step == chosen, key, -1), len(keys))
    in_others = Groups.by([key, step], step != chosen)
    usual_ns, usual_count = (
        medians(key[in_others.first], values, len(keys), len(others)).astype(np.int64)
        for values in (in_others.sums(time_ns), in_others.sizes())
    )
    took_ns = in_step.sums(time_ns)
    span = np.append(ran.span[rows], -1)[in_step.row_of_minimum(-time_ns)]
    columns = (took_ns, usual_ns, took_ns - usual_ns, in_step.sizes(), usual_count, span)
    order = np.argsort(usual_ns - took_ns, kind="stable")
    order = order[(took_ns[order] != 0) | (usual_ns[order] != 0)]
    return list(zip(keys[order].tolist(), np.stack(columns, axis=1)[order].tolist(), strict=True))


def _row(loop: Loop, number: int, kind: str, key: int, values: list[Any]) -> dict[str, Any]:
    """A row of the table: what is of a key, such as a line by its frame, with what `_differences` returns of it."""
    names = ("time_ns", "usual_ns", "more_ns", "count", "usual_count", "span")
    row: dict[str, Any] = dict(zip(names, values, strict=True))
    row |= {"kind": kind, "name": None, "file": None, "line": -1, "step": -1, "request": -1}
    row[loop.unit.noun] = number
    if kind == "part":
        row |= {"name": [*loop.parts][key], "count": -1, "usual_count": -1}
    elif key >= 0 and kind in ("line", "python"):
        row["file"], row["line"], row["name"] = source_line(loop.trace, key)
    elif key >= 0:
        row["name"] = (
            str(loop.trace.column("modules", "path")[key]) if kind == "module" else loop.trace.strings[key]
        )
    return row
