"""The optimizer updates one parameter at a time, where one call could update all.

Source: torch's documentation of `foreach` and `fused`, and its former pattern matcher, which reports any `_single_tensor_` call.
Threshold: 5 % of step time, and at least 3 operators for each of 8 parameters.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence

LEAST_PERCENT = 5.0
LEAST_OPERATORS = 24
_TOGETHER = ("aten::_foreach", "aten::_fused")
_OF_TORCH = frozenset(
    ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
)


def single_tensor_optimizer(loop: Loop) -> Finding | None:
    """Find an optimizer without fused or foreach operators that takes a noticeable part of the step."""
    ranges = loop.optimizer_ranges
    if len(ranges) == 0:
        return None
    rows = np.flatnonzero(loop.inside & loop.in_optimizer)
    rows = rows[loop.outermost[rows]]
    names = loop.trace.strings
    used = {names[name] for name in np.unique(loop.trace.column("spans", "name")[rows]).tolist()}
    cost_ns = loop.optimizer_ns
    share = loop.share(cost_ns)
    each = loop.per_step(len(rows))
    if any(name.startswith(_TOGETHER) for name in used) or share < LEAST_PERCENT or each < LEAST_OPERATORS:
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
        f"Pass fused=True (or foreach=True) to {what}."
        if what in _OF_TORCH
        else f"Use a fused version of {what} if there is one, or compile its step with torch.compile.",
        share,
        cost_ns,
        loop.place_of(int(ranges[0])),
        spans=tuple(ranges[:MOST_ROWS].tolist()),
    )
