"""Events are missing from the trace, so that numbers are too small, or may be wrong."""

from __future__ import annotations

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.losses import consequence


def incomplete_trace(loop: Loop) -> Finding | None:
    """Find losses that make numbers too small or uncertain."""
    losses = [loss for loss in loop.trace.losses if consequence([loss["code"]])]
    if not losses:
        return None
    largest = max(losses, key=lambda loss: loss["count"])
    effect = consequence(loss["code"] for loss in losses)
    return Finding(
        "incomplete-trace",
        sentence(f"{effect[0].upper()}{effect[1:]}: {{}} {largest['what']}", largest["count"]),
        f"{largest['why'].rstrip('.')}. The table `losses` lists all.",
        0.0,
        None,
    )
