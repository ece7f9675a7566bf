"""Warm-up: the steps at the beginning of a loop that are not like the later ones, and what they cost more.

One definition for findings, summaries, pages and comparisons. Start-up, what ran before the loop, is none of it: the step that holds it, where
the program marks no steps, is not among the steps of a `Loop`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinetoscope.analyses.loop import Loop
from kinetoscope.model import units
from kinetoscope.model.rows import Rows
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.step_extents import start_up_steps, step_extents

LEAST_STEPS = 3
TIMES_USUAL = 1.5
"""Leading steps that take this many times the median of the later half warm up."""


@dataclass(frozen=True)
class WarmUp:
    """What the first steps cost of the process whose steps took longest.

    Attributes:
        process: Its row in `processes`, -1 in a trace of one process.
        steps: How many of its steps warm up, start-up left out.
        cost_ns: What they took more than as many usual ones.
        usual_ns: The median of the steps after them.
        start_up_ns: How long the step took that holds what ran before the loop; 0 where there is none.
    """

    process: int
    steps: int
    cost_ns: int
    usual_ns: float
    start_up_ns: int

    @property
    def which(self) -> str:
        """Which steps these are, as every text about them says: the first step that counts is not the one that holds start-up."""
        after = " after start-up" if self.start_up_ns else ""
        return f"the first step{after}" if self.steps == 1 else f"the first {self.steps:,} steps{after}"

    @property
    def text(self) -> str:
        """What they cost in words, such as `warm-up: the first step took 90 ms more than a usual one`; empty without any."""
        usual = "a usual one" if self.steps == 1 else "as many usual ones"
        text = f"warm-up: {self.which} took {units.duration(self.cost_ns)} more than {usual}"
        return text if self.steps else ""


def leading_steps(step_ns: NDArray[np.float64], compiling: Rows) -> int:
    """How many of the first steps are not like the later ones: the slow ones, and all up to the last early compilation.

    Args:
        step_ns: How long each step took.
        compiling: The step of each compilation, -1 outside all.
    """
    count = len(step_ns)
    if count < LEAST_STEPS:
        return 0
    usual = float(np.median(step_ns[count // 2 :]))
    slow = step_ns[: count // 2] > TIMES_USUAL * usual
    leading = int(np.argmin(slow)) if not slow.all() else len(slow)
    early = compiling[(compiling >= 0) & (compiling < count // 2)]
    return max(leading, int(early.max(initial=-1)) + 1)


@derived
def warm_up(trace: TraceData) -> WarmUp:
    """What the first steps of a trace cost."""
    return of_loop(Loop(trace))


def of_loop(loop: Loop) -> WarmUp:
    """What the first steps of a loop cost."""
    is_start_up = start_up_steps(loop.trace) & (loop.trace.column("steps", "process_row") == loop.process)
    start_up_ns = int(step_extents(loop.trace).duration_ns[is_start_up].sum())
    step_ns = loop.work.duration_ns.astype(np.float64)
    steps = leading_steps(step_ns, loop.compilations) if loop.step_count else 0
    usual_ns = float(np.median(step_ns[steps:])) if loop.step_count else 0.0
    cost_ns = int(np.maximum(step_ns[:steps] - usual_ns, 0).sum())
    return WarmUp(loop.process, steps, cost_ns, usual_ns, start_up_ns)
