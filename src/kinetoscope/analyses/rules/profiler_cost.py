"""The profiler itself takes a noticeable part of the step.

Measured where a source records it (torch's collector: buffers that fill up, modules that load), else a lower bound from the number of
records. Threshold: 5 % (probing).
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.kinds import is_call
from kinetoscope.model.schema import SpanKind

LEAST_PERCENT = 5.0
LEAST_RECORD_NS = 80
"""No record costs less: that is a Python call in a loop of nothing else. Most records cost some times as much."""


def profiler_cost(loop: Loop) -> Finding | None:
    """Find steps in which the profiler takes more than it should."""
    if loop.trace.run_info.recorded_by:
        return None
    spans = loop.trace.columns("spans")
    measured = np.flatnonzero((spans["kind"] == SpanKind.OVERHEAD) & loop.threads[spans["thread"]])
    measured = measured[loop.in_steps(measured)]
    recorded = np.flatnonzero(loop.threads[spans["thread"]] & (spans["kind"] != SpanKind.STEP))
    recorded = recorded[loop.in_steps(recorded)]
    measured_ns, least_ns = loop.total_ns(measured), LEAST_RECORD_NS * len(recorded)
    time_ns = max(measured_ns, least_ns)
    # The bound is processor time: while other programs have the processors, no record is made.
    waited_ns = loop.processor_wait_ns
    share = max(loop.share(measured_ns), min(100.0, 100.0 * least_ns / max(loop.whole_ns - waited_ns, 1)))
    if share < LEAST_PERCENT:
        return None
    return Finding(
        "profiler-cost",
        sentence(
            f"The profiler takes at least {{}} of {loop.unit.time}: it records {{}} events{loop.unit.each}",
            (share, "%"),
            round(loop.per_step(len(recorded))),
        ),
        _advice(loop, calls=2 * int(is_call(spans["kind"][recorded]).sum()) > len(recorded)),
        share,
        time_ns,
        spans=tuple(measured[:MOST_ROWS].tolist()),
    )


def _advice(loop: Loop, *, calls: bool) -> str:
    """What to leave out; `calls`: most records are calls of Python functions."""
    if not calls:
        return "Record fewer steps, and only what you look at: shapes, memory and stacks each cost time."
    if loop.trace.run_info.engine == "kineto":
        return "Record without with_stack=True: for stacks, torch's profiler records every call of a Python function."
    return "Record without python_calls=True and module_spans=True: stacks and modules of operators do not need them."
