"""Gradients are filled with zeros instead of being released.

Source: torch's tuning guide (`set_to_none=True`, the default since torch 2.0) and its former pattern matcher. Threshold: 1 % of
step time.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding, NotNeeded
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.hierarchy import lies_in
from kinetoscope.tables.intervals import Intervals

LEAST_PERCENT = 1.0
MOST_MISSING = 0.5
_FILLS = ("aten::zero_", "aten::_foreach_zero_")
_ADDS_GRADIENT = "torch::autograd::AccumulateGrad"


def zero_grad_fill(loop: Loop) -> Finding | None:
    """Find fills inside `zero_grad`, and those that the program makes for each gradient itself."""
    fills = loop.rows_named(*_FILLS)
    by_optimizer = lies_in(loop.trace, loop.ranges_named("Optimizer.zero_grad#"))[fills]
    # The program's own fills are of gradients where there is one for nearly each gradient that backward adds to.
    by_hand = loop.outermost[fills] & ~loop.in_optimizer[fills] & ~loop.in_loading[fills]
    gradients = len(loop.rows_named(_ADDS_GRADIENT))
    counts = MOST_MISSING * gradients <= int(by_hand.sum()) <= gradients
    # A single one is rather of a buffer of the program.
    counts &= loop.per_step(int(by_hand.sum())) > 1
    fills = fills[by_optimizer | (by_hand & counts)]
    if len(fills) == 0:
        return None
    # Adding to a gradient that is there costs as much again as taking it over: the ceiling is twice the fill.
    fill_ns = loop.cost_ns(fills)
    share = loop.share(fill_ns)
    if share < LEAST_PERCENT:
        return None
    place = loop.place_of(int(fills[0]))
    return Finding(
        "zero-grad-fill",
        sentence(
            f"{'zero_grad' if by_optimizer.any() else place or 'The program'} fills {{}} gradients{loop.unit.each} with zeros: {{}} of {loop.unit.time}",
            round(loop.per_step(len(fills))),
            (share, "%"),
        ),
        "Call optimizer.zero_grad(), whose default is set_to_none=True: the next backward then writes gradients instead of adding to them.",
        share,
        min(2 * fill_ns, loop.whole_ns),
        place,
        spans=tuple(np.sort(fills)[:MOST_ROWS].tolist()),
        not_needed=NotNeeded(fills),
        # Adding to what was filled goes, too.
        time=Intervals.of(loop.start_ns, loop.end_ns),
    )
