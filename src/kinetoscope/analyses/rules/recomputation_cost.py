"""Activation checkpointing runs the forward pass again, for a noticeable part of the step.

No public threshold: 5 % of step time. Checkpointing every layer costs a forward pass, a third of the arithmetic of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding, NotNeeded
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.hierarchy import is_outermost
from kinetoscope.tables.intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_PERCENT = 5.0


def _with_python(loop: Loop, rows: NDArray[np.int64]) -> tuple[int, Intervals | None]:
    """What some operators take in the steps with the Python around them, that of their modules and of checkpointing, where the loop's thread runs nothing else meanwhile, and when; 0 and None with a device.

    They run inside a function of backward: from its start on, until what it is itself for begins.
    """
    spans = loop.trace.columns("spans")
    mine = rows[spans["thread"][rows] == loop.thread]
    if loop.device is not None or len(mine) == 0:
        return 0, None
    engine, group = np.unique(spans["parent"][mine], return_inverse=True)
    until = np.zeros(len(engine), np.int64)
    np.maximum.at(until, group, spans["start_ns"][mine] + spans["duration_ns"][mine])
    others = np.flatnonzero((spans["recompute"] == 0) & np.isin(spans["parent"], engine[engine >= 0]))
    of = np.searchsorted(engine, spans["parent"][others])
    others, of = (one[spans["start_ns"][others] >= until[of]] for one in (others, of))
    follows = np.full(len(engine), np.iinfo(np.int64).max)
    np.minimum.at(follows, of, spans["start_ns"][others])
    until = np.where(follows < np.iinfo(np.int64).max, follows, until)
    inside = engine >= 0
    rows = engine[inside]
    ran = Intervals.of(spans["start_ns"][rows], until[inside])
    return loop.typical_sum(rows, until[inside] - spans["start_ns"][rows]), ran


def recomputation_cost(loop: Loop) -> Finding | None:
    """Find the time of operators that run again in backward."""
    rows = np.flatnonzero(loop.inside & (loop.trace.column("spans", "recompute") > 0))
    rows = rows[is_outermost(loop.trace, rows)]
    with_python_ns, ran = _with_python(loop, rows)
    time_ns = max(loop.cost_ns(rows), with_python_ns)
    share = loop.share(time_ns)
    if share < LEAST_PERCENT:
        return None
    place, _, mine = loop.by_place(rows)[0]
    return Finding(
        "recomputation-cost",
        sentence(
            f"Activation checkpointing runs {loop.counted(len(rows), 'operator')} again{f', most at {place}' if place else ''}: {{}} of {loop.unit.time}",
            (share, "%"),
        ),
        "Checkpoint fewer layers if memory allows, or only operators that are cheap to run again "
        "(context_fn=create_selective_checkpoint_contexts).",
        share,
        time_ns,
        place,
        loop.module_of(int(mine[0])),
        tuple(mine[:MOST_ROWS].tolist()),
        not_needed=NotNeeded(rows),
        time=None if ran is None else ran | loop.when(rows),
    )
