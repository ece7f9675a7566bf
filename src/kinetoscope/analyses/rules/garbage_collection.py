"""Python collects its garbage in the steps: it stops the program, and every rank at another time.

Source: PyTorch's advice for large jobs (collect at the same step on all ranks). Threshold: 3 % of step time, of all steps together,
since a full collection comes seldom. A line that calls `gc.collect` is known by its text.
"""

from __future__ import annotations

import re

import numpy as np

from kinetoscope.analyses.finding import CannotTell, Finding, Signal
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model import units
from kinetoscope.model.nesting import GARBAGE_COLLECTION
from kinetoscope.tables.host.source_lines import line_text

LEAST_PERCENT = 3.0
LEAST_PYTHON_PERCENT = 20.0
LEAST_STRETCH_NS = 1_000_000
"""Where Python takes less than this, or no stretch of it is as long as a full collection, collections are not what to look for."""
MOST_OF_TIME = 0.5
"""The program's own calls are what to change if they take more than this part of the time."""
_CALL = re.compile(r"\bgc\.collect\(")


def gc_pause(loop: Loop) -> Finding | CannotTell | None:
    """Find steps that Python's garbage collector stops for a noticeable time."""
    spans, strings = loop.trace.columns("spans"), loop.trace.strings
    name = strings.index(GARBAGE_COLLECTION) if GARBAGE_COLLECTION in strings else -1
    rows = np.flatnonzero((spans["name"] == name) & loop.threads[spans["thread"]])
    rows = rows[loop.in_steps(rows)]
    if len(rows) == 0:
        records = loop.trace.run_info.record_python_gc_info
        length = loop.python.end_ns - loop.python.start_ns
        if records or loop.share(int(length[length >= LEAST_STRETCH_NS].sum())) < LEAST_PYTHON_PERCENT:
            return None
        return CannotTell("gc-pause", Signal.GARBAGE_COLLECTION)
    time_ns = loop.total_ns(rows)
    share = loop.share(time_ns)
    if share < LEAST_PERCENT:
        return None
    longest = rows[np.argsort(-spans["duration_ns"][rows], kind="stable")]
    place, of_place_ns, _ = loop.by_place(rows)[0]
    times = f"{units.count(len(rows), 'time')} in {units.count(len(loop.work), loop.unit.noun)}"
    if of_place_ns > MOST_OF_TIME * time_ns and _CALL.search(line_text(loop.trace, place.file, place.line)):
        said = f"The program collects garbage itself {times} at {place}"
        advice = (
            "Call gc.collect() less often, and at the same time on all ranks; gc.freeze() after the model is built "
            "makes each call shorter."
        )
    else:
        place = loop.place_of(int(longest[0]))
        said = f"Python collects garbage {times}"
        advice = (
            "Call gc.freeze() after the model is built, turn automatic collection off with gc.disable(), and collect now and then, on all "
            "ranks at the same time."
        )
    return Finding(
        "gc-pause",
        sentence(
            f"{said}: {{}} of {loop.unit.time}, at most {{}} at once",
            (share, "%"),
            (int(spans["duration_ns"][longest[0]]), "ns"),
        ),
        advice,
        share,
        time_ns,
        place,
        spans=tuple(longest[:MOST_ROWS].tolist()),
    )
