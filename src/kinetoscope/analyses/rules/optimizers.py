"""Optimizers: updates that could be made together, and optimizers that are made anew."""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.ledger.avoidable_work.waste import waste_of
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import lies_in, nearest_of
from kinetoscope.model.rows import Rows
from kinetoscope.tables.costs.attainable import rates_of
from kinetoscope.tables.costs.operator_names import names

LEAST_PARAMETERS = 6
LEAST_OPERATORS = 3
LEAST_TENSORS = 8
LEAST_GROUPS = 8
OF_GROUPS = 0.75
"""What one group saves of the time of many groups of small parameters."""
FUSED_OPERATORS = 2.0
"""What calling a fused step costs for each parameter, in operators."""
TRAFFIC = {"Adam": 7 / 15, "AdamW": 7 / 17, "SGD": 5 / 8, "Adagrad": 5 / 10}
"""What a fused step reads and writes, as a part of what the operators do that write in place: those that return a new tensor also wait for its memory.

Adam's operators of this kind read and write 15 tensors of the size of each parameter (`lerp_` 3, `mul_` 2, `addcmul_` 4, `add_` 2, `addcdiv_` 4), a
fused step 7 (parameter, gradient and both averages, of which it writes three). Measured step by step in turns with 6 to 34 parameters, up to 1,638,400 elements.
"""
OTHER_TRAFFIC = 0.4
RECORD_NS, SHAPES_NS = 200, 150
"""What recording an operator took in an optimizer of small parameters, and its shapes besides."""
LONGEST_CALL = 4.0
"""What an operator takes beyond so many times the fixed cost of a call grows with the size of its parameter."""
_OF_MATRICES = names(
    "aten::mm aten::bmm aten::matmul aten::addmm aten::linear aten::linalg_svd aten::linalg_qr aten::linalg_eigh aten::linalg_cholesky aten::linalg_inv"
)
_TOGETHER = ("aten::_foreach", "aten::_fused")
_FUSED = frozenset(("Adagrad", "Adam", "AdamW", "SGD"))
_FOREACH = frozenset(("ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"))


@Rule(
    "single-tensor-optimizer",
    "{optimizer} updates one parameter at a time: {operators:each} operators and {share} of {time}",
    "Use a fused version of the optimizer if there is one, or compile its step with torch.compile.",
    finds="the optimizer updates one parameter at a time; its gain is a prediction: what a fused step of parameters of these sizes takes less",
    source="torch's documentation of `foreach` and `fused`, and its former pattern matcher, which reports any `_single_tensor_` call",
    also=f"{LEAST_PARAMETERS} parameters with {LEAST_OPERATORS} operators each",
    least_gain=5.0,
    explains=("device-idle", "launch-bound", "small-kernels"),
    is_predicted=True,
).selects
def single_tensor_optimizer(loop: Loop) -> Answer:
    """Optimizers without fused or foreach operators, each by itself."""
    name = loop.trace.column("spans", "name")[loop.optimizer_ranges]
    matches = (_of_optimizer(loop, loop.optimizer_ranges[name == number]) for number in np.unique(name))
    return [match for match in matches if match is not None]


def _of_optimizer(loop: Loop, ranges: Rows) -> Match | None:
    rows, count_of = _operators(loop, ranges)
    if len(rows) == 0 or any(name.startswith(_TOGETHER) for name in count_of):
        return None
    # Each parameter has most of its operators once.
    parameters = float(np.median([*count_of.values()]))
    if loop.per_step(parameters) < LEAST_PARAMETERS or len(rows) < LEAST_OPERATORS * parameters:
        return None
    optimizer = _name_of_optimizer(loop, ranges)
    cost_ns = _updating_ns(loop, ranges, rows) - _products_ns(loop, rows)
    # What updates rows of tables that have no gradient is another finding.
    part = waste_of(loop.trace).part[rows]
    updated_ns = cost_ns - loop.typical_sum(rows, part * loop.trace.column("spans", "duration_ns")[rows])
    # Without the records of its operators, the optimizer takes less.
    alone_ns = max(updated_ns - _records_ns(loop, ranges), updated_ns // 2)
    rows_of_gradients = rows[part <= 0]
    streaming_ns = min(_streaming_ns(loop, rows_of_gradients), alone_ns)
    in_place_ns = min(_streaming_ns(loop, rows_of_gradients, writes="_"), streaming_ns)
    left_ns = (alone_ns - streaming_ns) * FUSED_OPERATORS * parameters / len(rows)
    gain_ns = round(alone_ns - left_ns - in_place_ns * TRAFFIC.get(optimizer, OTHER_TRAFFIC))
    together = "fused" if optimizer in _FUSED else "foreach" if optimizer in _FOREACH and loop.device else ""
    advice = f"Pass {together}=True to {optimizer}." if together else single_tensor_optimizer.advice
    advice = advice.replace("the optimizer", optimizer)
    words = {"optimizer": optimizer, "operators": len(rows)}
    return Match(ranges, cost_ns, words, gain_ns=gain_ns, advice=advice, time=loop.when(ranges))


def _updating_ns(loop: Loop, ranges: Rows, rows: Rows) -> int:
    """How long the steps of an optimizer take from their first operator to the end of the last: what Python does before and after, it does with a fused operator, too."""
    if loop.device is not None:
        return loop.optimizer_ns
    spans, steps = loop.trace.columns("spans"), Groups.by([nearest_of(loop.trace, ranges)[rows]])
    start_ns = spans["start_ns"][rows]
    took_ns = steps.maxima(start_ns + spans["duration_ns"][rows]) - steps.minima(start_ns)
    return loop.typical_sum(rows[steps.first], took_ns)


def _products_ns(loop: Loop, rows: Rows) -> int:
    """What products and decompositions of matrices take of some operators: they are no update of one parameter."""
    products = rows[loop.are_named(rows, _OF_MATRICES)]
    return loop.typical_sum(products, loop.trace.column("spans", "duration_ns")[products])


def _operators(loop: Loop, ranges: Rows) -> tuple[Rows, dict[str, int]]:
    """The operators that steps of an optimizer call, and how many there are of each name."""
    rows = np.flatnonzero(loop.outermost & loop.in_optimizer & lies_in(loop.trace, ranges))
    distinct_names, counts = np.unique(loop.trace.column("spans", "name")[rows], return_counts=True)
    return rows, {
        loop.trace.strings[name]: count
        for name, count in zip(distinct_names.tolist(), counts.tolist(), strict=True)
    }


def _name_of_optimizer(loop: Loop, ranges: Rows) -> str:
    name = loop.trace.strings[int(loop.trace.column("spans", "name")[ranges[0]])]
    return name.partition("#")[2].removesuffix(".step") or "optimizer"


@Rule(
    "many-parameter-groups",
    "{optimizer} updates {groups} groups of parameters one after the other: {share} of {time}",
    "Put all parameters with the same options into one group: an optimizer updates those of one group together.",
    finds="the optimizer has so many groups of parameters that hardly any are updated together; its gain is a prediction",
    source="measured: one group of 128 parameters of 64 to 1,024 elements takes 0.22 to 0.27 of the time of 128 groups, with `foreach` and with `fused`",
    also=f"{LEAST_GROUPS} groups",
    least_gain=5.0,
    explains=("device-idle", "launch-bound", "small-kernels"),
    is_predicted=True,
).selects
def many_parameter_groups(loop: Loop) -> Answer:
    """An optimizer with an operator for each of many groups, of those that update several parameters at once."""
    ranges = loop.optimizer_ranges
    rows, count_of = _operators(loop, ranges)
    together = [count for name, count in count_of.items() if name.startswith(_TOGETHER)]
    # Each group has an operator that it calls once.
    groups = min(together, default=0) / max(len(ranges), 1)
    if groups < LEAST_GROUPS:
        return None
    cost_ns = loop.optimizer_ns
    gain_ns = (cost_ns - min(_streaming_ns(loop, rows), cost_ns)) * OF_GROUPS * (1 - 1 / groups)
    words = {"optimizer": _name_of_optimizer(loop, ranges), "groups": round(groups)}
    return Match(ranges, cost_ns, words, gain_ns=gain_ns, time=loop.when(ranges))


def _records_ns(loop: Loop, ranges: Rows) -> int:
    """What recording the operators of an optimizer took; nothing with a device, which works meanwhile."""
    if loop.device is not None:
        return 0
    spans = loop.trace.columns("spans")
    rows = np.flatnonzero(loop.inside & loop.in_optimizer & lies_in(loop.trace, ranges))
    return len(rows) * RECORD_NS + int((spans["shapes"][rows] >= 0).sum()) * SHAPES_NS


def _streaming_ns(loop: Loop, rows: Rows, writes: str = "") -> int:
    """The time of the operators of an optimizer, or of those whose names end so, that grows with the size of parameters: what they take beyond their shortest call; 0 with a device."""
    if loop.device is not None:
        return 0
    spans = loop.trace.columns("spans")
    strings = loop.trace.strings
    rows = rows[[strings[name].endswith(writes) for name in spans["name"][rows].tolist()]]
    took = spans["duration_ns"][rows]
    _, kind = np.unique(spans["name"][rows], return_inverse=True)
    shortest = np.array(
        [np.percentile(took[kind == name], 10) for name in range(int(kind.max(initial=-1)) + 1)]
    )
    call_ns = np.minimum(shortest, LONGEST_CALL * rates_of(loop.trace).call_ns)[kind]
    return loop.typical_sum(rows, np.maximum(took - call_ns, 0))


@Rule(
    "optimizer-rebuilt",
    "The optimizer creates {created:each} tensors of state{in_each}, as a new optimizer does in its first: {share} of {time}",
    "Create the optimizer once, before the loop; change its learning rate with a scheduler or in optimizer.param_groups.",
    finds="the optimizer creates its state in every step, because it is a new one, which also forgets its moments",
    source="no public threshold: an optimizer creates state in the first step of each parameter only",
    also=f"{LEAST_TENSORS} tensors a step",
    least=5.0,
    explains=("python-bound",),
).selects
def optimizer_rebuilt(loop: Loop) -> Answer:
    """Tensors of zeros that steps of the optimizer create."""
    called = np.flatnonzero(loop.outermost & loop.in_optimizer)
    created = called[np.isin(called, loop.rows_named("aten::zeros_like", "aten::zeros"))]
    if loop.per_step(loop.typical_sum(created, np.ones(len(created), dtype=np.int64))) < LEAST_TENSORS:
        return None
    # What remains of the optimizer's time is the update, which is needed.
    time_ns = loop.optimizer_ns - loop.cost_ns(np.setdiff1d(called, created))
    where = loop.place_of(int(loop.optimizer_ranges[0]))
    return Match(created, time_ns, {"created": len(created)}, place=where)
