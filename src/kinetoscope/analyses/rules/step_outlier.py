"""Single steps take far longer than the others, and do something that the others do not.

Source: probing reports steps of twice the median, SageMaker Debugger steps beyond three standard deviations. Here a step is an
outlier at twice the median, when it costs at least 5 % of all step time.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop, Place
from kinetoscope.display.sentence import sentence
from kinetoscope.model import units
from kinetoscope.tables.host.data_loading import loading_spans
from kinetoscope.tables.intervals import Intervals

LEAST_STEPS = 6
TIMES_MEDIAN = 2.0
LEAST_PERCENT = 5.0
# What explains a step has this part of the time that the step took too long.
EXPLAINS = 0.3
LEAST_PYTHON_NS = 50_000_000
"""A shorter stretch without operators may be the machine's."""


def step_outlier(loop: Loop) -> Finding | None:
    """Find the longest step, and what it has more of than the median step."""
    if len(loop.steps) < LEAST_STEPS:
        return None
    duration = loop.end_ns - loop.start_ns
    median = float(np.median(duration))
    late = np.flatnonzero(duration > TIMES_MEDIAN * median)
    excess_ns = int((duration[late] - median).sum())
    share = loop.share(excess_ns)
    if len(late) == 0 or share < LEAST_PERCENT or len(late) > len(duration) // 3:
        return None
    worst = int(late[np.argmax(duration[late])])
    cause, place, rows = _cause(loop, worst, float(duration[worst]) - median)
    if not cause:
        # The machine was busy elsewhere: nothing of the program explains it.
        return None
    number = int(loop.trace.column("steps", "number")[loop.steps[worst]])
    others = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
    return Finding(
        "step-outlier",
        sentence(
            f"Step {number}{others} took {{}}, the median step {{}}: {cause}",
            (float(duration[worst]), "ns"),
            (median, "ns"),
        ),
        "Look at what this step does that others do not; do it less often, or outside the loop.",
        share,
        excess_ns,
        place,
        spans=rows,
    )


def _cause(loop: Loop, step: int, excess_ns: float) -> tuple[str, Place, tuple[int, ...]]:
    """What a step has most more of than the median step: calls of an operator, waiting for data, or Python at a place.

    An operator that ran as often as always and only took longer is no cause: the machine was busy, mostly.
    """
    spans = loop.trace.columns("spans")
    steps = len(loop.start_ns)
    rows = np.flatnonzero(loop.inside & (spans["thread"] == loop.thread) & ~loop.in_loading)
    at = loop.step_of(rows)
    rows, at = rows[at >= 0], at[at >= 0]
    best: tuple[float, str, Place, tuple[int, ...]] = (EXPLAINS * excess_ns, "", Place(), ())
    for name in np.unique(spans["name"][rows[at == step]]).tolist():
        mine = spans["name"][rows] == name
        each = np.bincount(at[mine], weights=spans["self_ns"][rows[mine]], minlength=steps)
        calls = np.bincount(at[mine], minlength=steps)
        more, more_calls = float(each[step] - np.median(each)), int(calls[step] - np.median(calls))
        if more > best[0] and more_calls > 0:
            there = rows[mine & (at == step)]
            there = there[np.argsort(-spans["self_ns"][there], kind="stable")][:MOST_ROWS]
            place = loop.place_of(int(there[0]))
            where = f" at {place}" if place else ""
            text = f"it has {more_calls:,} more calls of {loop.trace.strings[name]}{where}, which take {units.duration(more)}"
            best = (more, text, place, tuple(there.tolist()))
    waits = loading_spans(loop.trace).waits
    waits = waits[spans["thread"][waits] == loop.thread]
    at = loop.step_of(waits)
    each = np.bincount(at[at >= 0], weights=spans["duration_ns"][waits[at >= 0]], minlength=steps)
    if (more := float(each[step] - np.median(each))) > best[0]:
        there = waits[at == step]
        best = (
            more,
            f"it waits {units.duration(more)} longer for data",
            Place(),
            tuple(there[:MOST_ROWS].tolist()),
        )
    python = loop.python & Intervals.between(int(loop.start_ns[step]), int(loop.end_ns[step]))
    if len(python):
        length = python.end_ns - python.start_ns
        longest = int(np.argmax(length))
        if float(length[longest]) > max(best[0], LEAST_PYTHON_NS):
            ended = np.flatnonzero(loop.outermost & (spans["thread"] == loop.thread))
            ended = ended[spans["start_ns"][ended] + spans["duration_ns"][ended] <= python.start_ns[longest]]
            row = int(ended[-1]) if len(ended) else -1
            place = loop.place_of(row) if row >= 0 else Place()
            where = f" after {place}" if place else ""
            text = f"no operator runs for {units.duration(float(length[longest]))}{where}"
            best = (float(length[longest]), text, place, (row,) if row >= 0 else ())
    return best[1:]
