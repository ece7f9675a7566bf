"""Memory that is held grows with every step.

Source: TraceML reports 1 GiB over 50 steps. Here growth is measured against what the first steps needed, since the peak of a long
recording holds what has leaked itself: it counts from 1 % of that a step on, or from half of it over the whole recording, over at least 6
steps, in at least 80 % of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import CannotTell, Finding, Signal
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.int64]

LEAST_STEPS = 6
FIRST_STEPS = 3
LEAST_OF_FIRST = 0.01
LEAST_OF_FIRST_IN_ALL = 0.5
LEAST_RISING = 0.8


def memory_growth(loop: Loop) -> Finding | CannotTell | None:
    """Find what is allocated in each step, and still held at the end of the recording."""
    blocks = loop.trace.columns("allocations")
    if loop.step_count < LEAST_STEPS:
        return None
    if len(blocks) == 0:
        return CannotTell("memory-growth", Signal.MEMORY)
    kept = np.flatnonzero(
        (blocks["bytes"] > 0) & (blocks["match"] < 0) & (blocks["time_ns"] < loop.mark_end_ns[-1])
    )
    step = np.searchsorted(loop.mark_start_ns, blocks["time_ns"][kept], side="right") - 1
    inside = step >= 0
    kept, step = kept[inside], step[inside]
    # Each device has memory of its own, and what is much for one is little for another.
    device = blocks["device_type"].astype(np.int64) * 256 + blocks["device_index"]
    typical, growing = 0.0, None
    for one in np.unique(device[kept]).tolist():
        bytes_a_step = _growth(loop, blocks["bytes"][kept], step, device[kept] == one)
        first = (device == one) & (blocks["time_ns"] < loop.mark_end_ns[FIRST_STEPS - 1])
        needed = int(blocks["total_bytes"][first].max(initial=0))
        least = needed * min(LEAST_OF_FIRST, LEAST_OF_FIRST_IN_ALL / len(bytes_a_step))
        usual = float(np.median(bytes_a_step))
        if (bytes_a_step >= max(1.0, least)).mean() >= LEAST_RISING and usual > typical:
            typical, growing = usual, one
    if growing is None:
        return None
    kept = kept[device[kept] == growing]
    spans = blocks["span"][kept]
    largest = kept[np.argsort(-blocks["bytes"][kept], kind="stable")]
    rows = [int(row) for row in dict.fromkeys(blocks["span"][largest].tolist()) if row >= 0][:MOST_ROWS]
    known = kept[spans >= 0]
    largest_row = rows[0] if rows else -1
    place, module = loop.place_of(largest_row), loop.module_of(largest_row)
    if len(known):
        place = max(
            loop.by_place(blocks["span"][known].astype(np.int64), blocks["bytes"][known]),
            key=lambda one: one[1],
        )[0]
    return Finding(
        "memory-growth",
        sentence(
            f"Memory grows by {{}}{loop.unit.in_each}; what stays is allocated{f' at {place}' if place else ''}",
            (typical, "bytes"),
        ),
        "Find who keeps these tensors: a list of losses or outputs keeps their whole graph; append loss.detach() or loss.item().",
        0.0,
        None,
        place,
        module,
        tuple(rows),
    )


def _growth(loop: Loop, size: Bytes, step: Bytes, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """What each step keeps of some blocks; the last still holds what the next would release, and is left out."""
    each = np.bincount(step[chosen], weights=size[chosen], minlength=len(loop.start_ns))
    return each[:-1].astype(np.float64)
