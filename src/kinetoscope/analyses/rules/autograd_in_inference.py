"""The program records a graph for backward, and never runs backward.

An operator that autograd records has a sequence number. Source: torch's documentation of `inference_mode`. The gain is memory and
some bookkeeping of each operator, which a trace cannot tell apart.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.hierarchy import lies_in
from kinetoscope.model.schema import SpanKind
from kinetoscope.tables.host.compiling import compile_ranges

LEAST_OPERATORS = 20


def autograd_in_inference(loop: Loop) -> Finding | None:
    """Find runs whose operators in modules are all recorded by autograd, without any backward."""
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
    first = int(recorded[0])
    share = loop.share(loop.total_ns(recorded))
    return Finding(
        "autograd-in-inference",
        sentence(
            f"Autograd records {{}} operators{loop.unit.each}, and no backward ever runs",
            round(loop.per_step(len(recorded))),
        ),
        "Run the model under torch.inference_mode() (or torch.no_grad()): activations are then released at once.",
        share,
        None,
        loop.place_of(first),
        loop.module_of(first),
        tuple(recorded[:MOST_ROWS].tolist()),
    )
