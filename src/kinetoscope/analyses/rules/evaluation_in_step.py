"""The model that is trained also runs without autograd, in every step.

Validation in each step, mostly; XProf reports it like checkpoints and summaries, from 5 % of step time. Here 10 %, and only in a function
that runs nothing with autograd: a generator whose examples a critic learns from, or a teacher, is not validation. Checkpointing, which
runs forward without autograd and later again, is `recomputation_cost`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding, NotNeeded
from kinetoscope.analyses.loop import MOST_ROWS, Loop, Place
from kinetoscope.display.sentence import sentence
from kinetoscope.model.schema import Phase, SpanKind
from kinetoscope.tables.stacks import stacks_with

if TYPE_CHECKING:
    from kinetoscope.analyses.loop import Rows

LEAST_PERCENT = 10.0
_CALLS_MODULES = "torch/nn/modules/module.py"


def evaluation_in_step(loop: Loop) -> Finding | None:
    """Find operators of modules that autograd does not record, where it records the same ones elsewhere in the steps."""
    spans = loop.trace.columns("spans")
    if not (loop.inside & (spans["kind"] == SpanKind.BACKWARD)).any():
        return None
    called = np.flatnonzero(
        loop.outermost
        & (spans["kind"] == SpanKind.OPERATOR)
        & (spans["phase"] == Phase.FORWARD)
        & (spans["module"] >= 0)
        & ~loop.in_optimizer
        & ~loop.in_loading
    )
    # Operators that autograd records have a sequence number, or call one that has.
    with_graph = np.flatnonzero(loop.inside & (spans["sequence"] >= 0))
    has_graph = np.isin(called, loop.called_by(with_graph))
    again = np.unique(spans["module"][(spans["recompute"] > 0) & loop.inside])
    key = spans["module"][called].astype(np.int64) * len(loop.trace.strings) + spans["name"][called]
    rows = called[~has_graph & np.isin(key, key[has_graph]) & ~np.isin(spans["module"][called], again)]
    time_ns = loop.cost_ns(rows)
    share = loop.share(time_ns)
    if len(rows) == 0 or share < LEAST_PERCENT:
        return None
    place = _caller_of_model(loop, rows)
    of_function = stacks_with(loop.trace, place.file, functions=[place.function])
    if not place or np.append(of_function, False)[spans["stack"][called[has_graph]]].any():
        return None
    return Finding(
        "evaluation-in-step",
        sentence(
            f"The model also runs without autograd{loop.unit.in_each}, in {place.named}: {{}} of {loop.unit.time}",
            (share, "%"),
        ),
        "If this is validation, run it every N steps or once an epoch, or on fewer batches.",
        share,
        time_ns,
        place,
        loop.module_of(int(rows[0])),
        tuple(rows[:MOST_ROWS].tolist()),
        not_needed=NotNeeded(rows),
    )


def _caller_of_model(loop: Loop, rows: Rows) -> Place:
    """The line of the program that called the outermost module that some operators ran in."""
    stack = loop.common_stack(rows)
    return loop.caller_of(
        stack, lambda file: file.replace("\\", "/").endswith(_CALLS_MODULES), otherwise=stack
    )
