"""Recording: what it cost, and what it lacks."""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.model.kinds import is_call
from kinetoscope.model.losses import consequence
from kinetoscope.model.schema import SpanKind

LEAST_RECORD_NS = 80
"""No record costs less: that is a Python call in a loop of nothing else. Most records cost some times as much."""


@Rule(
    "profiler-cost",
    "The profiler takes at least {share} of {time}: it records {recorded:each} events{a_step}",
    "Record fewer steps, and only what you look at: shapes, memory and stacks each cost time.",
    finds="the profiler itself takes part of the step",
    source="probing; measured where torch's collector records it, else a lower bound from the number of records",
    also=f"measured or at least {LEAST_RECORD_NS} ns a record",
    least=10.0,
    of_kinds=False,
).selects
def profiler_cost(loop: Loop) -> Answer:
    """Steps in which the profiler takes more than it should."""
    if loop.trace.run_info.recorded_by:
        return None
    spans = loop.trace.columns("spans")
    recorded = np.flatnonzero(loop.on_threads & (spans["kind"] != SpanKind.STEP))
    recorded = recorded[loop.in_steps(recorded)]
    measured = recorded[spans["kind"][recorded] == SpanKind.OVERHEAD]
    measured_ns, least_ns = loop.total_ns(measured), LEAST_RECORD_NS * len(recorded)
    # The bound is processor time: while other programs have the processors, no record is made.
    ran_ns = max(loop.duration_ns - loop.processor_wait_ns, 1)
    share = max(loop.share(measured_ns), min(100.0, 100.0 * least_ns / ran_ns))
    advice = ""
    if 2 * int(is_call(spans["kind"][recorded]).sum()) > len(recorded):
        advice = "Record without python_calls=True and module_spans=True: stacks and modules of operators do not need them."
        if loop.trace.run_info.engine == "kineto":
            advice = "Record without with_stack=True: for stacks, torch's profiler records every call of a Python function."
    words = {"recorded": len(recorded)}
    return Match(measured, max(measured_ns, least_ns), words, share_percent=share, advice=advice)


@Rule(
    "incomplete-trace",
    "{effect}: {count} {what}",
    "The table `losses` lists what is missing.",
    finds="events are missing, so some numbers are lower bounds or may be wrong; it says which",
    source="the trace's own counts",
    also="a loss that affects times, counts, memory or clocks",
).selects
def incomplete_trace(loop: Loop) -> Answer:
    """Losses that make numbers too small or uncertain."""
    losses = [loss for loss in loop.trace.losses if consequence([loss["code"]])]
    if not losses:
        return None
    largest = max(losses, key=lambda loss: loss["count"])
    effect = consequence(loss["code"] for loss in losses)
    words = {"effect": effect[0].upper() + effect[1:], "count": largest["count"], "what": largest["what"]}
    advice = f"{largest['why'].rstrip('.')}. The table `losses` lists all."
    return Match(values=words, gain_ns=None, advice=advice)
