"""The optimizer updates one parameter at a time, where one call could update all.

Source: torch's documentation of `foreach` and `fused`, and its former pattern matcher, which reports any `_single_tensor_` call.
Threshold: 5 % of step time to gain, and at least 3 operators for each of 6 parameters.

The gain is a prediction. Calling a fused step costs about as much as two operators for each parameter. The time that grows with the size of parameters
shrinks as their traffic does: Adam's operators read and write 19 tensors of the size of each parameter (`lerp_` 3, `mul_` 2, `addcmul_` 4, `sqrt` 2, `div` 2,
`add_` 2, `addcdiv_` 4), a fused step 7 (parameter, gradient and both averages, of which it writes three). Both were measured from 64 to
1,048,576 elements: 0.15 to 0.3 of the calls and 0.35 to 0.41 of the rest for Adam and AdamW, 0.46 to 0.58 for SGD with momentum and weight decay. The
benchmark `healthy_networks` compares the promise with what the advice gains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.tables.costs.attainable import rates_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_PERCENT = 5.0
LEAST_PARAMETERS = 6
LEAST_OPERATORS = 3
"""Operators for each parameter."""
FUSED_OPERATORS = 2.0
"""What calling a fused step costs for each parameter, in operators."""
TRAFFIC = {"Adam": 7 / 19, "AdamW": 7 / 21, "SGD": 5 / 10, "Adagrad": 5 / 12}
"""What a fused step reads and writes, as a part of what the operators of single parameters do."""
OTHER_TRAFFIC = 0.4
RECORD_NS, SHAPES_NS = 200, 150
"""What recording an operator took in an optimizer of small parameters, and its shapes besides."""
LONGEST_CALL = 4.0
"""What an operator takes beyond so many times the fixed cost of a call grows with the size of its parameter."""
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
    name = names[int(loop.trace.column("spans", "name")[ranges[0]])]
    what = name.partition("#")[2].removesuffix(".step") or "optimizer"
    cost_ns = loop.optimizer_ns
    # Without the records of its operators, the optimizer takes less.
    own_ns = max(cost_ns - _records_ns(loop), cost_ns // 2)
    streaming_ns = min(_streaming_ns(loop, rows), own_ns)
    left_ns = (own_ns - streaming_ns) * FUSED_OPERATORS * parameters / len(rows)
    gain_ns = round(own_ns - left_ns - streaming_ns * TRAFFIC.get(what, OTHER_TRAFFIC))
    share = loop.share(cost_ns)
    if loop.share(gain_ns) < LEAST_PERCENT:
        return None
    return Finding(
        "single-tensor-optimizer",
        sentence(
            f"{what} updates one parameter at a time: {{}} operators and {{}} of {loop.unit.time}",
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
        is_predicted=True,
        time=loop.when(ranges),
    )


def _records_ns(loop: Loop) -> int:
    """What recording the operators of the optimizer took; nothing with a device, which works meanwhile."""
    if loop.device is not None:
        return 0
    spans = loop.trace.columns("spans")
    rows = np.flatnonzero(loop.inside & loop.in_optimizer)
    return len(rows) * RECORD_NS + int((spans["shapes"][rows] >= 0).sum()) * SHAPES_NS


def _streaming_ns(loop: Loop, rows: NDArray[np.int64]) -> int:
    """The time of the operators of an optimizer that grows with the size of parameters: what they take beyond their shortest call; 0 with a device."""
    if loop.device is not None:
        return 0
    spans = loop.trace.columns("spans")
    took = spans["duration_ns"][rows]
    _, of = np.unique(spans["name"][rows], return_inverse=True)
    shortest = np.array([np.percentile(took[of == one], 10) for one in range(int(of.max(initial=-1)) + 1)])
    call_ns = np.minimum(shortest, LONGEST_CALL * rates_of(loop.trace).call_ns)[of]
    return loop.typical_sum(rows, np.maximum(took - call_ns, 0))
