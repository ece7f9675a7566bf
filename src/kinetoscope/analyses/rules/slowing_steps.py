"""Steps take longer and longer, because what one line runs grows with their number.

The usual causes: a state that is carried on without `detach()`, so that backward walks the graphs of all earlier steps, and a tensor
that each step concatenates to. No public threshold: the last third of the steps takes 1.3 times as long as the first, and one line runs
more operators or allocates more in nearly every step, which is the same on a busy machine; or it explains half of that, and takes longer
in nearly every step. What grows by chance does not grow in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.schema import SpanKind

if TYPE_CHECKING:
    from kinetoscope.analyses.loop import Rows

LEAST_STEPS = 12
TIMES_FIRST = 1.3
LEAST_PERCENT = 5.0
EXPLAINS = 0.5
IN_ORDER = 0.8
"""The rank correlation of a line's time, number of operators, or bytes with the number of the step."""
_MOST_LINES = 10


def slowing_steps(loop: Loop) -> Finding | None:
    """Find the line whose operators take longer with every step."""
    if loop.step_count < LEAST_STEPS:
        return None
    first, last = _ends(loop.end_ns - loop.start_ns)
    if last < TIMES_FIRST * first:
        return None
    spans = loop.trace.columns("spans")
    best: tuple[float, Finding] | None = None
    for place, _, rows in loop.by_place(np.flatnonzero(loop.outermost))[:_MOST_LINES]:
        step = loop.step_of(rows)
        each, count, size = (
            np.bincount(step[step >= 0], values[step >= 0], len(loop.work))
            for values in (
                spans["duration_ns"][rows],
                np.ones(len(rows)),
                np.maximum(spans["bytes"][rows], 0),
            )
        )
        early, late = _ends(each)
        growth = late - early
        grows = max(_order(count), _order(size)) >= IN_ORDER
        # On a busy machine all operators take longer whenever other programs begin to work.
        slows = growth >= EXPLAINS * (last - first) and _order(each) >= IN_ORDER and not loop.machine_is_busy
        if not place or not (grows or slows):
            continue
        more_ns = int(np.maximum(each - early, 0).sum())
        share = loop.share(more_ns)
        if growth <= 0 or share < LEAST_PERCENT or (best is not None and best[0] >= growth):
            continue
        latest = rows[step == step.max()]
        finding = Finding(
            "slowing-steps",
            sentence(
                f"Steps get slower, from {{}} to {{}}: the operators of {place} take {{}} in the first steps and {{}} in the last",
                (first, "ns"),
                (last, "ns"),
                (early, "ns"),
                (late, "ns"),
            ),
            "Backward walks the graphs of earlier steps again: detach() what is carried from one step to the next, and keep no loss or output "
            "that has a graph."
            if _walks_earlier_graphs(loop, rows)
            else "Something grows with each step, such as a tensor that is concatenated to: allocate it once and fill it, or keep less of it.",
            share,
            more_ns,
            place,
            loop.module_of(int(latest[0])),
            tuple(latest[np.argsort(-spans["duration_ns"][latest], kind="stable")][:MOST_ROWS].tolist()),
        )
        best = growth, finding
    return None if best is None else best[1]


def _ends(values: Rows) -> tuple[float, float]:
    """The medians of the first and of the last third."""
    third = len(values) // 3
    return float(np.median(values[:third])), float(np.median(values[-third:]))


def _order(values: Rows) -> float:
    """How much values rise in order: the correlation of their ranks with their places; 0 for values that hardly rise."""
    first, last = _ends(values)
    if last <= 0 or last < TIMES_FIRST * first:
        return 0.0
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


def _walks_earlier_graphs(loop: Loop, rows: Rows) -> bool:
    """Whether most backward functions of some spans are of operators that ran in an earlier step."""
    spans = loop.trace.columns("spans")
    back = rows[(spans["kind"][rows] == SpanKind.BACKWARD) & (spans["forward"][rows] >= 0)]
    earlier = loop.step_of(spans["forward"][back].astype(np.int64)) < loop.step_of(back)
    return 2 * int(earlier.sum()) > len(back) > 0
