"""Sequences: what is computed again for positions that were computed before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kinetoscope.analyses.finding import Signal
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.model.rows import Rows, ShapesRow, distinct
from kinetoscope.model.schema import Phase
from kinetoscope.tables.costs.call import Shape
from kinetoscope.tables.costs.evaluate import parsed_inputs
from kinetoscope.tables.deep_steps import shapes_of
from kinetoscope.tables.intervals import Intervals

LEAST_LENGTHS, LEAST_IN_SLICE = 8, 4
_LAYERS = ("aten::linear", "aten::addmm", "aten::conv1d")
_MODULES = "torch/nn/modules/module.py"


@Rule(
    "growing-prefix",
    "{place} runs the model on a sequence that grows from call to call, {lengths} times in a row{in_each}: {share} of {time}",
    "Keep what was computed for earlier positions (a key-value cache: use_cache=True, past_key_values), and run the model on the new position only, or on as many as it looks back.",
    finds="a line runs a model on a sequence that grows by the same number of positions from call to call, all of it again each time",
    source="Transformers' documentation of its key-value cache; no public threshold",
    also=f"{LEAST_LENGTHS} lengths in a row",
    least_gain=10.0,
    needs=Signal.SHAPES,
    explains=("evaluation-in-step", "batch-of-one"),
).selects
def growing_prefix(loop: Loop) -> Answer:
    """Layers of one module whose inputs have so many positions more from call to call; with a cache each position is computed once."""
    runs = _growing(loop)
    if not runs:
        return None
    longest = max(runs, key=len)
    line = model_call(loop, loop.common_stack(longest))
    rows, count, lengths = (_of_steps if loop.unit.repeats else _of_slices)(loop, runs, longest, line)
    again = 1.0 - lengths.max() / (count * (lengths.min() + lengths.max()) / 2)
    time_ns, words = loop.cost_ns(rows), {"lengths": count}
    return Match(rows, time_ns, words, gain_ns=again * time_ns, place=line, time=loop.when(rows))


def _of_steps(loop: Loop, runs: list[Rows], longest: Rows, _: SourceLine) -> tuple[Rows, int, Rows]:
    """The operators of modules from the first to the last call of each run, how many calls the longest has, and their lengths."""
    spans = loop.trace.columns("spans")
    end_ns = spans["start_ns"] + spans["duration_ns"]
    when = Intervals.of(spans["start_ns"][[run[0] for run in runs]], end_ns[[run[-1] for run in runs]])
    rows = _in_modules(loop)
    return rows[when.within(spans["start_ns"][rows], end_ns[rows]) > 0], len(longest), _lengths(loop, longest)


def _of_slices(loop: Loop, runs: list[Rows], longest: Rows, line: SourceLine) -> tuple[Rows, int, Rows]:
    """The operators of modules that the line calls, how often it calls the layer, and the lengths in the slices that were recorded in full."""
    spans = loop.trace.columns("spans")
    rows, module = _in_modules(loop), spans["module"]
    rows = rows_by_call(loop, rows).get(line, rows[:0])
    is_layer = (module[rows] == module[longest[0]]) & loop.are_named(rows, _LAYERS)
    of_layer = [run for run in runs if module[run[0]] == module[longest[0]]]
    return rows, int(is_layer.sum()), _lengths(loop, np.concatenate(of_layer))


def _in_modules(loop: Loop) -> Rows:
    rows = loop.outermost_rows
    return rows[loop.trace.column("spans", "module")[rows] >= 0]


def model_call(loop: Loop, stack: int) -> SourceLine:
    """The line of the program that called the outermost module on a stack; that of the stack where none is."""
    return loop.caller_of(stack, lambda file: file.replace("\\", "/").endswith(_MODULES), otherwise=stack)


def rows_by_call(loop: Loop, rows: Rows) -> dict[SourceLine, Rows]:
    """Some operators by the line of the program that called the outermost module that they are in."""
    stack = loop.trace.column("spans", "stack")[rows]
    stacks_of: dict[SourceLine, list[int]] = {}
    for number in np.unique(stack).tolist():
        stacks_of.setdefault(model_call(loop, number), []).append(number)
    return {line: rows[np.isin(stack, stacks)] for line, stacks in stacks_of.items()}


def _growing(loop: Loop) -> list[Rows]:
    """Calls of one layer in a step that follow each other and whose inputs each have as many positions more, where these are enough."""
    spans = loop.trace.columns("spans")
    layers = loop.rows_named(*_LAYERS)
    layers = layers[(spans["module"][layers] >= 0) & (spans["phase"][layers] == Phase.FORWARD)]
    # Of a program without steps slices of time are recorded in full, and sizes elsewhere are those of other calls.
    least = LEAST_LENGTHS if loop.unit.repeats else LEAST_IN_SLICE
    layers = layers if loop.unit.repeats else layers[spans["shapes"][layers] >= 0]
    keys = (spans["start_ns"][layers], spans["module"][layers], loop.step_of(layers))
    layers = layers[np.lexsort(keys)]
    length, module, step = _lengths(loop, layers), spans["module"][layers], loop.step_of(layers)
    more = np.diff(length)
    grows = (more > 0) & (np.diff(module) == 0) & (np.diff(step) == 0)
    grows[1:] &= ~grows[:-1] | (more[1:] == more[:-1])
    begins = np.append(0, np.flatnonzero(~grows) + 1)
    ends = np.append(begins[1:], len(layers))
    long = np.flatnonzero(ends - begins >= least)
    return [layers[begins[run] : ends[run]] for run in long.tolist()]


def _lengths(loop: Loop, layers: Rows) -> Rows:
    """How many positions the input of each of some layers has, or all inputs of a batch together; 0 of one without."""
    return of_sizes(loop, layers, _length)


def _length(tensors: list[Shape]) -> int:
    # `addmm` has its bias first.
    tensors = tensors[1:] if tensors and len(tensors[0]) == 1 else tensors
    if not tensors or len(tensors[0]) < 2:
        return 0
    # A convolution has its channels before its positions.
    is_convolution = len(tensors) > 1 and len(tensors[1]) == len(tensors[0]) == 3
    return tensors[0][-1 if is_convolution else -2]


def of_sizes(loop: Loop, rows: Rows, value_of: Callable[[list[Shape]], int]) -> Rows:
    """A number for each of some operators, by the sizes of the tensors that they are given, as far as these are known."""
    shapes, number = distinct(shapes_of(loop.trace)[rows])
    values = np.zeros(len(shapes), np.int64)
    for index, row in enumerate(shapes.tolist()):
        inputs = parsed_inputs(loop.trace, ShapesRow(row)) if row >= 0 else None
        if inputs is not None:
            values[index] = value_of([sizes for sizes in inputs.shapes if isinstance(sizes, tuple)])
    return values[number]
