"""Backward walks the same graph again and again in one step: for each loss, sample or output by itself.

Source: torch's documentation of `torch.func` (gradients of single samples) and of `is_grads_batched`. No public threshold: four times,
since programs with two losses may need two, and 10 % of step time.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding, NotNeeded
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.hierarchy import is_outermost
from kinetoscope.model.schema import SpanKind

LEAST_TIMES = 4
LEAST_PERCENT = 10.0


def repeated_backward(loop: Loop) -> Finding | None:
    """Find backward functions that run several times in a step for the same operator of forward."""
    spans = loop.trace.columns("spans")
    rows = np.flatnonzero(loop.inside & (spans["kind"] == SpanKind.BACKWARD) & (spans["forward"] >= 0))
    rows = rows[is_outermost(loop.trace, rows)]
    keys = np.stack((spans["forward"][rows], spans["name"][rows], loop.step_of(rows)), axis=1)
    _, which, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    times = count[which.ravel()]
    again = times >= LEAST_TIMES
    rows, times = rows[again], times[again]
    if len(rows) == 0:
        return None
    usual = int(np.median(times))
    # One walk is needed.
    time_ns = round(loop.cost_ns(rows) * (1 - 1 / usual))
    share = loop.share(time_ns)
    if share < LEAST_PERCENT:
        return None
    # The stack of a backward function is that of its forward operator; its own is where backward was called.
    called = np.unique(spans["own_stack"][rows], return_counts=True)
    place = loop.place_of_stack(int(called[0][np.argmax(called[1])]))
    return Finding(
        "repeated-backward",
        sentence(
            f"{place or 'The program'} runs backward {{}} times through the same graph{loop.unit.in_each}: {{}} of {loop.unit.time} more than once would take",
            usual,
            (share, "%"),
        ),
        "Add the losses up and run backward once. For gradients of single samples use torch.func.vmap(torch.func.grad(...)), for several "
        "outputs torch.autograd.grad(..., is_grads_batched=True).",
        share,
        time_ns,
        place,
        spans=tuple(rows[:MOST_ROWS].tolist()),
        not_needed=NotNeeded(rows, 1.0 - 1.0 / usual),
    )
