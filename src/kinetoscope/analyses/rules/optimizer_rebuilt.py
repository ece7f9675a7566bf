"""The optimizer creates its state in every step, because the program creates a new optimizer in every step.

An optimizer creates its state lazily, in the first step of each parameter; one that does so in each step also forgets its moments. No
public threshold: 8 new tensors in a usual step, and 5 % of step time.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence

LEAST_TENSORS = 8
LEAST_PERCENT = 5.0


def optimizer_rebuilt(loop: Loop) -> Finding | None:
    """Find tensors of zeros that steps of the optimizer create."""
    ranges = loop.optimizer_ranges
    called = np.flatnonzero(loop.inside & loop.outermost & loop.in_optimizer)
    created = called[np.isin(called, loop.rows_named("aten::zeros_like", "aten::zeros"))]
    tensors = loop.typical_sum(created, np.ones(len(created), dtype=np.int64))
    if loop.per_step(tensors) < LEAST_TENSORS:
        return None
    # What remains of the optimizer's time is the update, which is needed.
    time_ns = loop.optimizer_ns - loop.cost_ns(np.setdiff1d(called, created))
    share = loop.share(time_ns)
    if share < LEAST_PERCENT:
        return None
    return Finding(
        "optimizer-rebuilt",
        sentence(
            f"The optimizer creates {{}} tensors of state{loop.unit.in_each}, as a new optimizer does in its first: {{}} of {loop.unit.time}",
            round(loop.per_step(len(created))),
            (share, "%"),
        ),
        "Create the optimizer once, before the loop; change its learning rate with a scheduler or in optimizer.param_groups.",
        share,
        time_ns,
        loop.place_of(int(ranges[0])),
        spans=tuple(created[:MOST_ROWS].tolist()),
    )
