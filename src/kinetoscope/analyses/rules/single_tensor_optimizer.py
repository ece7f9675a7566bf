"""The optimizer updates one parameter at a time, where one call could update all.

Source: torch's documentation of `foreach` and `fused`, and its former pattern matcher, which reports any `_single_tensor_` call.
Threshold: 5 % of step time to gain, and at least 3 operators for each of 8 parameters. A fused step reads and writes each parameter once,
and still costs about as much as two operators for each: Adam's nine gain three quarters, which is what was measured, and SGD's single one
nothing.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence

LEAST_PERCENT = 5.0
LEAST_PARAMETERS = 8
LEAST_OPERATORS = 3
"""Operators for each parameter."""
FUSED_OPERATORS = 2.0
"""What a fused step costs for each parameter, in operators."""
_TOGETHER = ("aten::_foreach", "aten::_fused")
_FUSED = frozenset(("Adagrad", "Adam", "AdamW", "SGD"))
_FOREACH = frozenset(("ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"))


def single_tensor_optimizer(loop: Loop) -> Finding | None:
    """Find an optimizer without fused or foreach operators that takes a noticeable part of the step."""
    ranges = loop.optimizer_ranges
    if len(ranges) == 0:
        return None
    rows = np.flatnonzero(loop.inside & loop.in_optimizer)
    rows = rows[loop.outermost[rows]]
    names = loop.trace.strings
    used, count = np.unique(loop.trace.column("spans", "name")[rows], return_counts=True)
    if len(rows) == 0 or any(names[name].startswith(_TOGETHER) for name in used.tolist()):
        return None
    # Each parameter has most of its operators once.
    parameters = float(np.median(count))
    each = loop.per_step(len(rows))
    if loop.per_step(parameters) < LEAST_PARAMETERS or len(rows) < LEAST_OPERATORS * parameters:
        return None
    cost_ns = loop.optimizer_ns
    gain_ns = round(cost_ns * (1 - FUSED_OPERATORS * parameters / len(rows)))
    share = loop.share(cost_ns)
    if loop.share(gain_ns) < LEAST_PERCENT:
        return None
    name = names[int(loop.trace.column("spans", "name")[ranges[0]])]
    what = name.partition("#")[2].removesuffix(".step") or "optimizer"
    return Finding(
        "single-tensor-optimizer",
        sentence(
            f"{what} updates one parameter at a time: {{}} operators and {{}} of step time",
            round(each),
            (share, "%"),
        ),
        f"Pass fused=True to {what}."
        if what in _FUSED
        else f"Pass foreach=True to {what}."
        if what in _FOREACH and loop.device is not None
        else f"Use a fused version of {what} if there is one, or compile its step with torch.compile.",
        share,
        gain_ns,
        loop.place_of(int(ranges[0])),
        spans=tuple(ranges[:MOST_ROWS].tolist()),
    )
