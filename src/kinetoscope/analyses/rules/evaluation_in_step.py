"""The model that is trained also runs without autograd, in every step.

Validation in each step, mostly; XProf reports it like checkpoints and summaries, from 5 % of step time. Here 10 %, since some programs
need it: those that generate what they train on. Checkpointing, which runs forward without autograd and later again, is
`recomputation_cost`.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.schema import Phase, SpanKind

LEAST_PERCENT = 10.0


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
    place = loop.common_place(rows)
    return Finding(
        "evaluation-in-step",
        sentence(
            f"The model also runs without autograd{f', at {place}' if place else ''} in each step: {{}} of step time",
            (share, "%"),
        ),
        "If this is validation, run it every N steps or once an epoch, or on fewer batches.",
        share,
        time_ns,
        place,
        loop.module_of(int(rows[0])),
        tuple(rows[:MOST_ROWS].tolist()),
    )
