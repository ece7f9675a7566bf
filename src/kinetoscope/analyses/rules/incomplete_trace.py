"""Events are missing from the trace, so that times and counts are too small."""

from __future__ import annotations

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.losses import NOT_STOPPED, UNFINISHED_SPANS, UNKNOWN_WAITS, UNREAD_GRADIENTS

EXPECTED = (
    NOT_STOPPED,
    UNFINISHED_SPANS,
    UNKNOWN_WAITS,
    UNREAD_GRADIENTS,
    "processes_not_followed",
    "processes_not_recorded",
    "unwritable_names",
)
"""Losses that leave the numbers of the recorded steps as they are: the end of a recording that was cut off, other processes, names."""


def incomplete_trace(loop: Loop) -> Finding | None:
    """Find losses that make numbers too small."""
    lost = [one for one in loop.trace.losses if one["code"] not in EXPECTED]
    if not lost:
        return None
    worst = max(lost, key=lambda one: one["count"])
    return Finding(
        "incomplete-trace",
        sentence(
            f"The trace is incomplete: {{}} {worst['what']}; times and counts are lower bounds",
            worst["count"],
        ),
        f"{worst['why'].rstrip('.')}. The table `losses` lists all.",
        0.0,
        None,
    )
