"""Sequences: what is computed again for positions that were computed before."""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Signal
from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.model.rows import Rows, ShapesRow, distinct
from kinetoscope.model.schema import Phase
from kinetoscope.tables.costs.evaluate import parsed_inputs
from kinetoscope.tables.deep_steps import shapes_of
from kinetoscope.tables.intervals import Intervals

LEAST_LENGTHS = 8
_MODULES = "torch/nn/modules/module.py"


@Rule(
    "growing-prefix",
    "{place} runs the model on a sequence that grows by one position from call to call, {lengths} times in a row{in_each}: {share} of {time}",
    "Keep what was computed for earlier positions (a key-value cache: use_cache=True, past_key_values), and run the model on the new position only.",
    finds="a line runs a model on a sequence that grows by one position from call to call, all of it again each time",
    source="Transformers' documentation of its key-value cache; no public threshold",
    also=f"{LEAST_LENGTHS} lengths in a row",
    least_gain=10.0,
    needs=Signal.SHAPES,
).selects
def growing_prefix(loop: Loop) -> Answer:
    """Layers of one module whose inputs have one row more from call to call; with a cache each position is computed once."""
    spans = loop.trace.columns("spans")
    layers = loop.rows_named("aten::linear")
    layers = layers[(spans["module"][layers] >= 0) & (spans["phase"][layers] == Phase.FORWARD)]
    runs = _growing(loop, layers)
    if not runs:
        return None
    longest = max(runs, key=len)
    stack = loop.common_stack(longest)
    line = loop.caller_of(stack, lambda file: file.replace("\\", "/").endswith(_MODULES), otherwise=stack)
    end_ns = spans["start_ns"] + spans["duration_ns"]
    when = Intervals.of(spans["start_ns"][[run[0] for run in runs]], end_ns[[run[-1] for run in runs]])
    rows = loop.outermost_rows[spans["module"][loop.outermost_rows] >= 0]
    rows = rows[when.within(spans["start_ns"][rows], end_ns[rows]) > 0]
    lengths = _lengths(loop, longest)
    again = 1.0 - lengths.max() / lengths.sum()
    time_ns, words = loop.cost_ns(rows), {"lengths": len(longest)}
    return Match(rows, time_ns, words, gain_ns=again * time_ns, place=line, time=loop.when(rows))


def _growing(loop: Loop, layers: Rows) -> list[Rows]:
    """Calls of one layer in a step that follow each other and whose inputs each have one position more, where these are enough."""
    spans = loop.trace.columns("spans")
    keys = (spans["start_ns"][layers], spans["module"][layers], loop.step_of(layers))
    layers = layers[np.lexsort(keys)]
    length, module, step = _lengths(loop, layers), spans["module"][layers], loop.step_of(layers)
    grows = (np.diff(length) == 1) & (np.diff(module) == 0) & (np.diff(step) == 0)
    begins = np.append(0, np.flatnonzero(~grows) + 1)
    ends = np.append(begins[1:], len(layers))
    long = np.flatnonzero(ends - begins >= LEAST_LENGTHS)
    return [layers[begins[run] : ends[run]] for run in long.tolist()]


def _lengths(loop: Loop, layers: Rows) -> Rows:
    """How many positions the input of each of some layers has; 0 of one without."""
    distinct_shapes, number = distinct(shapes_of(loop.trace)[layers])
    lengths = np.zeros(len(distinct_shapes), np.int64)
    for index, row in enumerate(distinct_shapes.tolist()):
        inputs = parsed_inputs(loop.trace, ShapesRow(row)) if row >= 0 else None
        first = inputs.shapes[0] if inputs and inputs.shapes else ()
        if isinstance(first, tuple) and len(first) > 2:
            lengths[index] = first[-2]
    return lengths[number]
