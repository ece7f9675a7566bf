"""A line runs many small operators, so that calling them costs more than their work.

A Python loop over the rows of a tensor, mostly. Threshold of the loop: 10 operators from one line, as torch's former pattern
matcher; here 50 of a step, since layers are loops, too.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.schema import Phase, SpanKind

LEAST_PER_STEP = 50
MOST_MEAN_NS = 20_000
LEAST_PERCENT = 10.0
_LOOPING = ("aten::select", "aten::slice", "aten::unbind", "aten::index", "aten::stack", "aten::cat")


def tiny_operators(loop: Loop) -> Finding | None:
    """Find the line that runs the most small operators, and what they take with the Python between them."""
    spans = loop.trace.columns("spans")
    rows = np.flatnonzero(
        loop.inside
        & (spans["kind"] == SpanKind.OPERATOR)
        & (spans["phase"] == Phase.FORWARD)
        & ~loop.in_loading
    )
    outermost = rows[loop.outermost[rows]]
    gaps = {(gap.place.file, gap.place.line): gap.time_ns for gap in loop.gaps}
    best: Finding | None = None
    for place, time_ns, mine in loop.by_place(outermost):
        each = loop.per_step(len(mine))
        if each < LEAST_PER_STEP or not place or time_ns > len(mine) * MOST_MEAN_NS:
            continue
        whole_ns = loop.cost_ns(mine, with_device=False) + gaps.get((place.file, place.line), 0)
        share = loop.share(whole_ns)
        names = {loop.trace.strings[name] for name in np.unique(spans["name"][mine]).tolist()}
        if share < LEAST_PERCENT or (best is not None and best.share_percent >= share):
            continue
        looping = " in a loop over a tensor" if names & set(_LOOPING) else ""
        best = Finding(
            "tiny-operators",
            sentence(
                f"{place} runs {{}} operators a step{looping}, {{}} each on average: {{}} of step time with the Python between them",
                round(each),
                (time_ns / len(mine), "ns"),
                (share, "%"),
            ),
            "Replace the loop by operators on whole tensors, or compile it with torch.compile.",
            share,
            whole_ns,
            place,
            loop.module_of(int(mine[0])),
            tuple(mine[:MOST_ROWS].tolist()),
        )
    return best
