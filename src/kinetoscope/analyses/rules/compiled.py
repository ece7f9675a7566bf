"""torch.compile compiles again while the program trains, or cuts its graph into pieces.

Compiling shows as ranges of TorchDynamo; where it breaks a graph, it makes a function for the rest, whose name says where. No public
threshold: any break, and compiling in any step but the first for 1 % of step time.
"""

from __future__ import annotations

import re

import numpy as np

from kinetoscope.analyses.finding import CannotTell, Finding, Signal
from kinetoscope.analyses.loop import MOST_ROWS, Loop, Place
from kinetoscope.display.sentence import sentence
from kinetoscope.model import units
from kinetoscope.model.hierarchy import is_outermost

LEAST_PERCENT = 1.0
_COMPILES = "_compile.compile_inner"
_COMPILER = "torch/_dynamo/"
_LOOKUPS = ("TorchDynamo Cache Lookup", "Pregraph bytecode")
_REGION = re.compile(r"Torch-Compiled Region: (\d+)/\d+")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")


def recompiles(loop: Loop) -> Finding | None:
    """Find steps after the first in which something is compiled."""
    rows = loop.ranges_and_operators_named(_COMPILES)
    step = loop.step_of(rows)
    late = rows[step > 0]
    late = late[is_outermost(loop.trace, late)]
    time_ns = loop.total_ns(late)
    share = loop.share(time_ns)
    if len(late) == 0 or share < LEAST_PERCENT:
        return None
    place = _caller(loop, int(late[0]))
    return Finding(
        "recompiles",
        sentence(
            f"torch.compile compiles {units.count(len(late), 'time')} after the first step{f', first at {place}' if place else ''}: "
            "{} of step time",
            (share, "%"),
        ),
        "Keep shapes and Python values equal, mark sizes that change with torch._dynamo.mark_dynamic, and see TORCH_LOGS=recompiles for the "
        "reasons.",
        share,
        time_ns,
        place,
        spans=tuple(late[:MOST_ROWS].tolist()),
    )


def graph_breaks(loop: Loop) -> Finding | CannotTell | None:
    """Find functions that torch.compile compiles in pieces."""
    trace, strings = loop.trace, loop.trace.strings
    regions = loop.ranges_and_operators_named("Torch-Compiled Region: ")
    if len(regions) == 0:
        return None
    frames = trace.columns("frames")
    breaks: dict[tuple[str, int], str] = {}
    for function, file in zip(frames["function"].tolist(), frames["file"].tolist(), strict=True):
        if found := _RESUMED.match(strings[function].rpartition(".")[2]):
            breaks[found[1], int(found[2])] = strings[file]
    if len(frames) == 0:
        pieces = {
            found[1]
            for one in np.unique(trace.column("spans", "name")[regions]).tolist()
            if (found := _REGION.match(strings[one]))
        }
        return CannotTell("graph-breaks", Signal.STACKS) if len(pieces) > 1 else None
    if not breaks:
        return None
    lookups = loop.ranges_and_operators_named(*_LOOKUPS)
    (function, line), file = min(breaks.items())
    place = Place(file, line, function, line)
    return Finding(
        "graph-breaks",
        sentence(
            f"torch.compile breaks its graphs in {units.count(len(breaks), 'place')}, such as {function} ({place}), and runs "
            f"{loop.counted(len(regions), 'compiled region')}",
        ),
        "Find the reasons with TORCH_LOGS=graph_breaks or fullgraph=True: print, .item(), data-dependent branches, unsupported calls.",
        loop.share(loop.typical_ns(lookups)),
        None,
        place,
        spans=tuple(regions[:MOST_ROWS].tolist()),
    )


def _caller(loop: Loop, row: int) -> Place:
    """The line that called what is being compiled: the caller of the compiler's outermost frame."""
    stacks, frames = loop.trace.columns("stacks"), loop.trace.columns("frames")
    stack, found = int(loop.trace.column("spans", "own_stack")[row]), -1
    while stack >= 0:
        above = int(stacks["parent"][stack])
        if _COMPILER in loop.trace.strings[int(frames["file"][stacks["frame"][stack]])]:
            found = above
        stack = above
    return loop.place_of_stack(found)
