"""Autograd: backward that runs again, work that it does in vain or for nobody, and checkpointing."""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import NotNeeded
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.analyses.rules.small_operators import between_ns
from kinetoscope.model.hierarchy import is_outermost, lies_in
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import Phase, SpanKind
from kinetoscope.model.time_spent import Cause
from kinetoscope.tables.host.compiling import compile_ranges
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.stacks import stacks_with

LEAST_TIMES = 4
LEAST_OPERATORS = 20
MOST_BETWEEN_NS = 1_000_000
"""What runs for longer between two passes of backward is no part of the loop that runs them."""
MOST_MISSING = 0.5
_ADDS_GRADIENT = "torch::autograd::AccumulateGrad"
_CHECKS = ("aten::isnan", "aten::_is_any_true", "aten::item")
_ENGINE = "autograd::engine::evaluate_function"
_CALLS_MODULES = "torch/nn/modules/module.py"


@Rule(
    "zero-grad-fill",
    "{what} fills {fills:each} gradients{a_step} with zeros: {share} of {time}",
    "Call optimizer.zero_grad(), whose default is set_to_none=True: the next backward then writes gradients instead of adding to them.",
    finds="`zero_grad` or the program itself fills gradients with zeros",
    source="torch's tuning guide (`set_to_none=True`) and its former pattern matcher",
    least=1.0,
    cause=Cause.ZERO_FILL,
).selects
def zero_grad_fill(loop: Loop) -> Answer:
    """Fills inside `zero_grad`, and those that the program makes for each gradient itself."""
    fills = loop.rows_named("aten::zero_", "aten::_foreach_zero_")
    by_optimizer = lies_in(loop.trace, loop.ranges_named("Optimizer.zero_grad#"))[fills]
    # The program's own fills are of gradients where there is one for nearly each gradient that backward adds to.
    by_hand = loop.outermost[fills] & ~loop.in_optimizer[fills] & ~loop.in_loading[fills]
    gradients = len(loop.rows_named(_ADDS_GRADIENT))
    is_each = MOST_MISSING * gradients <= int(by_hand.sum()) <= gradients
    # A single one is rather of a buffer of the program.
    is_each &= loop.per_step(int(by_hand.sum())) > 1
    fills = fills[by_optimizer | (by_hand & is_each)]
    source = "zero_grad" if by_optimizer.any() else str(loop.place_of(int(fills[0]))) if len(fills) else ""
    # Adding to a gradient that is there costs as much again as taking it over: the ceiling is twice the fill, and adding to what was filled goes, too.
    fill_ns, steps = loop.cost_ns(fills), Intervals.of(loop.start_ns, loop.end_ns)
    words = {"fills": len(fills), "what": source or "The program"}
    return Match(fills, fill_ns, words, gain_ns=min(2 * fill_ns, loop.whole_ns), time=steps)


@Rule(
    "repeated-backward",
    "{place} runs backward {times} times through the same graph{in_each}: {share} of {time} beyond a single pass",
    (
        "Add the losses up and run backward once. For gradients of single samples use torch.func.vmap(torch.func.grad(...)), for several outputs "
        "torch.autograd.grad(..., is_grads_batched=True)."
    ),
    finds="backward walks the same graph again and again in a step, for each loss or sample by itself",
    source="torch's documentation of `torch.func` and `is_grads_batched`; programs with two losses may need two passes",
    also=f"{LEAST_TIMES} times",
    least=10.0,
    cause=Cause.SAME_GRAPH,
).selects
def repeated_backward(loop: Loop) -> Answer:
    """Backward functions that run several times in a step for the same operator of forward."""
    spans = loop.trace.columns("spans")
    rows = np.flatnonzero(loop.inside & (spans["kind"] == SpanKind.BACKWARD) & (spans["forward"] >= 0))
    rows = rows[is_outermost(loop.trace, rows)]
    keys = np.stack((spans["forward"][rows], spans["name"][rows], loop.step_of(rows)), axis=1)
    _, group, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    times = count[group.ravel()]
    rows, times = rows[times >= LEAST_TIMES], times[times >= LEAST_TIMES]
    if len(rows) == 0:
        return None
    usual = int(np.median(times))
    # One pass is needed.
    again = 1.0 - 1.0 / usual
    time_ns = again * (loop.cost_ns(rows) + between_ns(loop, rows, MOST_BETWEEN_NS))
    line, left_out = where_backward_is_called(loop, rows), NotNeeded(rows, again)
    when = loop.when(rows) | loop.python
    return Match(rows, time_ns, {"times": usual}, place=line, left_out=left_out, time=when)


@Rule(
    "anomaly-detection",
    "Autograd's anomaly detection checks {looks:gradient} for NaN: with the stacks that it keeps, {share} of {time}",
    "Turn it off once the bug is found: torch.autograd.set_detect_anomaly(False).",
    finds="autograd's anomaly detection is on",
    source="torch's tuning guide, which says to leave it to debugging",
    least=1.0,
    cause=Cause.NAN_CHECKS,
).selects
def anomaly_detection(loop: Loop) -> Answer:
    """Checks for NaN that autograd's engine itself makes, and the Python that formats stacks."""
    spans, strings = loop.trace.columns("spans"), loop.trace.strings
    checks = loop.rows_named(*_CHECKS)
    checks = checks[spans["parent"][checks] >= 0]
    above = spans["name"][spans["parent"][checks]]
    of_engine = [name for name in np.unique(above).tolist() if strings[name].startswith(_ENGINE)]
    checks = checks[np.isin(above, of_engine)]
    looks = checks[np.isin(checks, loop.rows_named(_CHECKS[0]))]
    if len(looks) == 0:
        return None
    formatting_ns = loop.sampled(stacks_with(loop.trace, "/traceback.py", "/linecache.py"))[0]
    where = where_backward_is_called(loop, looks)
    time_ns = loop.cost_ns(checks) + formatting_ns
    # Stacks are formatted inside the operators of forward, in any part of a step.
    steps = Intervals.of(loop.start_ns, loop.end_ns)
    return Match(looks, time_ns, {"looks": len(looks)}, place=where, left_out=NotNeeded(checks), time=steps)


def where_backward_is_called(loop: Loop, rows: Rows) -> SourceLine:
    """The program's line below which the engine runs most of some rows: their own stack, not that of their forward operators."""
    stacks, count = np.unique(loop.trace.column("spans", "own_stack")[rows], return_counts=True)
    return loop.place_of_stack(int(stacks[np.argmax(count)]))


@Rule(
    "autograd-in-inference",
    "Autograd records {recorded:each} operators{a_step}, and no backward ever runs",
    "Run the model under torch.inference_mode() (or torch.no_grad()): activations are then released at once.",
    finds="autograd records a graph that no backward uses",
    source="torch's documentation of `inference_mode`; the gain is memory and some bookkeeping, which a trace cannot tell apart",
    also=f"{LEAST_OPERATORS} operators",
).selects
def autograd_in_inference(loop: Loop) -> Answer:
    """Runs whose operators in modules are all recorded by autograd (they have a sequence number), without any backward."""
    spans = loop.trace.columns("spans")
    kind = spans["kind"]
    if (kind == SpanKind.BACKWARD).any() or len(loop.optimizer_ranges):
        return None
    rows = np.flatnonzero(loop.inside & (kind == SpanKind.OPERATOR) & (spans["module"] >= 0))
    # torch.compile runs a function with gradients to trace it, whoever calls it.
    rows = rows[~lies_in(loop.trace, compile_ranges(loop.trace).rows)[rows]]
    recorded = rows[spans["sequence"][rows] >= 0]
    if len(recorded) < LEAST_OPERATORS or 2 * len(recorded) < int(loop.outermost[rows].sum()):
        return None
    return Match(recorded, loop.total_ns(recorded), {"recorded": len(recorded)}, gain_ns=None)


@Rule(
    "recomputation-cost",
    "Activation checkpointing runs {again:operator} again{most_at}: {share} of {time}",
    "Checkpoint fewer layers if memory allows, or only operators that are cheap to run again (context_fn=create_selective_checkpoint_contexts).",
    finds="activation checkpointing runs operators again",
    source="no public threshold: checkpointing every layer costs a forward pass, a third of the arithmetic of a step",
    least=5.0,
    cause=Cause.RUN_AGAIN,
).selects
def recomputation_cost(loop: Loop) -> Answer:
    """Operators that run again in backward, with the Python around them."""
    rows = np.flatnonzero(loop.inside & (loop.trace.column("spans", "recompute") > 0))
    rows = rows[is_outermost(loop.trace, rows)]
    with_python_ns, ran = _with_python(loop, rows)
    time = None if ran is None else ran | loop.when(rows)
    return Match(rows, max(loop.cost_ns(rows), with_python_ns), {"again": len(rows)}, time=time)


def _with_python(loop: Loop, rows: Rows) -> tuple[int, Intervals | None]:
    """What some operators take in the steps with the Python around them, that of their modules and of checkpointing, where the loop's thread runs nothing else meanwhile, and when; 0 and None with a device.

    They run inside a function of backward: from its start on, until what it is itself for begins.
    """
    spans = loop.trace.columns("spans")
    of_loop = rows[spans["thread"][rows] == loop.thread]
    if loop.device is not None or len(of_loop) == 0:
        return 0, None
    engine, group = np.unique(spans["parent"][of_loop], return_inverse=True)
    until = np.zeros(len(engine), np.int64)
    np.maximum.at(until, group, spans["start_ns"][of_loop] + spans["duration_ns"][of_loop])
    nexts = np.flatnonzero((spans["recompute"] == 0) & np.isin(spans["parent"], engine[engine >= 0]))
    engine_of = np.searchsorted(engine, spans["parent"][nexts])
    nexts, engine_of = (values[spans["start_ns"][nexts] >= until[engine_of]] for values in (nexts, engine_of))
    follows = np.full(len(engine), np.iinfo(np.int64).max)
    np.minimum.at(follows, engine_of, spans["start_ns"][nexts])
    until = np.where(follows < np.iinfo(np.int64).max, follows, until)
    inside = engine >= 0
    rows = engine[inside]
    ran = Intervals.of(spans["start_ns"][rows], until[inside])
    return loop.typical_sum(rows, until[inside] - spans["start_ns"][rows]), ran


@Rule(
    "evaluation-in-step",
    "The model also runs without autograd{in_each}, in {named}: {share} of {time}",
    "If this is validation, run it every N steps or once an epoch, or on fewer batches.",
    finds="the model that is trained also runs without autograd in every step, in a function of its own; needs stacks",
    source="XProf reports it like checkpoints and summaries, from 5 % of step time",
    least=10.0,
    cause=Cause.EVALUATION,
).selects
def evaluation_in_step(loop: Loop) -> Answer:
    """Operators of modules that autograd does not record, where it records the same ones elsewhere in the steps.

    Only in a function that runs nothing with autograd: a generator whose examples a critic learns from, or a teacher, is not validation. Checkpointing,
    which runs forward without autograd and later again, is `recomputation-cost`.
    """
    spans = loop.trace.columns("spans")
    back = loop.inside & (spans["kind"] == SpanKind.BACKWARD)
    # What runs once training has ended is what the program trains for.
    called = loop.outermost & (spans["start_ns"] < spans["start_ns"][back].max(initial=0))
    called &= (spans["kind"] == SpanKind.OPERATOR) & (spans["phase"] == Phase.FORWARD)
    called = np.flatnonzero(called & (spans["module"] >= 0) & ~loop.in_optimizer & ~loop.in_loading)
    # Operators that autograd records have a sequence number, or call one that has.
    has_graph = np.isin(called, loop.called_by(np.flatnonzero(loop.inside & (spans["sequence"] >= 0))))
    again = np.unique(spans["module"][(spans["recompute"] > 0) & loop.inside])
    key = spans["module"][called].astype(np.int64) * len(loop.trace.strings) + spans["name"][called]
    rows = called[~has_graph & np.isin(key, key[has_graph]) & ~np.isin(spans["module"][called], again)]
    stack = loop.common_stack(rows)
    line = loop.caller_of(
        stack, lambda file: file.replace("\\", "/").endswith(_CALLS_MODULES), otherwise=stack
    )
    of_function = stacks_with(loop.trace, line.file, functions=[line.function])
    if not line or np.append(of_function, False)[spans["stack"][called[has_graph]]].any():
        return None
    return Match(rows, loop.cost_ns(rows), place=line)
