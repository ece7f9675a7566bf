"""Memory that is held grows with every step.

Source: TraceML reports 1 GiB over 50 steps. Here growth counts from 1 % of the peak a step on, over at least 6 steps, in at
least 80 % of them.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import CannotTell, Finding, Signal
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence

LEAST_STEPS = 6
LEAST_OF_PEAK = 0.01
LEAST_RISING = 0.8


def memory_growth(loop: Loop) -> Finding | CannotTell | None:
    """Find what is allocated in each step, and still held at the end of the recording."""
    blocks = loop.trace.columns("allocations")
    if len(loop.steps) < LEAST_STEPS:
        return None
    if len(blocks) == 0:
        return CannotTell("memory-growth", Signal.MEMORY)
    kept = np.flatnonzero(
        (blocks["bytes"] > 0) & (blocks["match"] < 0) & (blocks["time_ns"] < loop.end_ns[-1])
    )
    step = np.searchsorted(loop.start_ns, blocks["time_ns"][kept], side="right") - 1
    inside = step >= 0
    kept, step = kept[inside], step[inside]
    each = np.bincount(step, weights=blocks["bytes"][kept], minlength=len(loop.start_ns))
    peak = int(blocks["total_bytes"].max(initial=0))
    # The last step still holds what the next would release.
    rising = each[:-1] >= LEAST_OF_PEAK * peak
    typical = float(np.median(each[:-1]))
    if peak == 0 or rising.mean() < LEAST_RISING or typical <= 0:
        return None
    spans = blocks["span"][kept]
    largest = kept[np.argsort(-blocks["bytes"][kept], kind="stable")]
    rows = [int(row) for row in dict.fromkeys(blocks["span"][largest].tolist()) if row >= 0][:MOST_ROWS]
    known = kept[spans >= 0]
    first = rows[0] if rows else -1
    place, module = loop.place_of(first), loop.module_of(first)
    if len(known):
        place = max(
            loop.by_place(blocks["span"][known].astype(np.int64), blocks["bytes"][known]),
            key=lambda one: one[1],
        )[0]
    return Finding(
        "memory-growth",
        sentence(
            f"Memory grows by {{}} in each step; what stays is allocated{f' at {place}' if place else ''}",
            (typical, "bytes"),
        ),
        "Find who keeps these tensors: a list of losses or outputs keeps their whole graph; append loss.detach() or loss.item().",
        0.0,
        None,
        place,
        module,
        tuple(rows),
    )
