"""Small batches: a model that runs on one item after the other, each a batch of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kinetoscope.analyses.finding import Signal
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.analyses.rules.sequences import of_sizes, rows_by_call
from kinetoscope.analyses.rules.small_operators import (
    MOST_MEAN_NS,
    SAME_LOOP,
    called_by_lines,
    mean_ns,
    python_of_lines,
    times_of,
    work_ns,
)
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import Phase
from kinetoscope.tables.costs.call import Shape

LEAST_CALLS = 20
_LAYERS = ("aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d")


@Rule(
    "batch-of-one",
    "{place} runs the model on one item at a time, {items}{in_each}: {share} of {time} for operators of {mean:ns} each on average and the Python between them",
    "Stack the items and run the model once on all of them, or on a few hundred at a time.",
    finds="a line runs a model on batches of one item, many times in a step, in operators so short that calling them is most of it",
    source="twins of the programs in `benchmarks`",
    also=f"{LEAST_CALLS} calls a step, operators of {MOST_MEAN_NS / 1000:g} µs on average",
    least_gain=10.0,
    needs=Signal.SHAPES,
    explains=("tiny-operators", "evaluation-in-step"),
).selects
def batch_of_one(loop: Loop) -> Answer:
    """Calls of a model at one line in a loop, of which all layers have a batch of one."""
    spans = loop.trace.columns("spans")
    rows = loop.outermost_rows
    rows = rows[
        (spans["module"][rows] >= 0) & (spans["phase"][rows] == Phase.FORWARD) & ~loop.in_loading[rows]
    ]
    calls = rows_by_call(loop, rows)
    return [match for line, of_call in calls.items() if line and (match := _match(loop, line, of_call))]


def _match(loop: Loop, place: SourceLine, rows: Rows) -> Match | None:
    spans = loop.trace.columns("spans")
    layers = rows[loop.are_named(rows, _LAYERS)]
    if len(layers) == 0 or not of_sizes(loop, layers, _is_single).all():
        return None
    calls = int(Groups.by([spans[name][layers] for name in ("module", "name", "stack")]).sizes().max())
    if loop.per_step(calls) < LEAST_CALLS or mean_ns(loop, rows) > MOST_MEAN_NS:
        return None
    inner = {loop.place_of_stack(stack) for stack in np.unique(spans["stack"][rows]).tolist()}
    python_ns = sum(gap.time_ns for gap in loop.gaps if gap.place in inner - {place})
    # What else the loop does for each item, once and not in a loop of its own.
    of_function = [
        (line, more, times_of(loop, more))
        for line, _, more in loop.by_place(called_by_lines(loop))
        if (line.file, line.function) == (place.file, place.function) and line.line != place.line
    ]
    inner_loops = {line.line for line, _, times in of_function if SAME_LOOP * times > calls}
    loop_lines = [
        (line, more)
        for line, more, times in of_function
        if times >= SAME_LOOP * calls and line.line not in inner_loops
    ]
    numbers = [place.line, *(line.line for line, _ in loop_lines)]
    of_lines = python_of_lines(loop, replace(place, line=min(numbers), until=max(numbers)))
    python_ns += sum(time_ns for line, time_ns in of_lines.items() if line.line not in inner_loops)
    rows = np.concatenate([rows, *(more for _, more in loop_lines)])
    time_ns = loop.cost_ns(rows, with_device=False) + python_ns
    words = {"items": f"{round(loop.per_step(calls)):,} times", "mean": mean_ns(loop, rows)}
    when = loop.when(rows) | loop.python
    return Match(rows, time_ns, words, gain_ns=time_ns - work_ns(loop, rows), place=place, time=when)


def _is_single(tensors: list[Shape]) -> bool:
    """Whether the first size of an input, that of a batch, is 1."""
    return bool(tensors) and len(tensors[0]) > 1 and tensors[0][0] == 1
