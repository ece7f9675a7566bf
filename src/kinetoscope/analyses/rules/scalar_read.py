"""A value of a tensor is read by Python again and again: `.item()`, `.tolist()` of elements, `if tensor`, `nonzero`.

Each read waits for all work on a device, and on the host costs more than the arithmetic. Source: the explicit and implicit
synchronization rules of torch's and NVIDIA's tuning guides; no public threshold, so 20 of a step from one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding, NotNeeded
from kinetoscope.analyses.loop import MOST_ROWS, Loop, Place
from kinetoscope.display.sentence import sentence

if TYPE_CHECKING:
    from kinetoscope.analyses.loop import Rows

READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal")
LEAST_PER_STEP = 20
LEAST_PERCENT = 1.0


def _with_what_is_read(loop: Loop, place: Place, reads: Rows) -> Rows:
    """Reads, with the other operators of their line in their modules: a line that reads values is there to compute them."""
    spans = loop.trace.columns("spans")
    modules = np.unique(spans["module"][reads])
    called = np.flatnonzero(
        loop.outermost & loop.threads[spans["thread"]] & np.isin(spans["module"], modules) & ~loop.in_loading
    )
    return next((rows for one, _, rows in loop.by_place(called) if one == place), reads) if place else reads


def scalar_read(loop: Loop) -> Finding | None:
    """Find the line that reads most values."""
    rows = loop.rows_named(*READS)
    rows = rows[loop.outermost[rows] & ~loop.in_optimizer[rows] & ~loop.of_torch[rows]]
    for place, _, mine in loop.by_place(rows):
        each = loop.per_pass(len(mine))
        # The reads, what computes them, and the Python around them: what a single read of all values would save most of.
        read = _with_what_is_read(loop, place, mine)
        around_ns = loop.cost_ns(read, with_device=False) + sum(
            gap.time_ns for gap in loop.gaps if (gap.place.file, gap.place.line) == (place.file, place.line)
        )
        share = loop.share(around_ns)
        if each < LEAST_PER_STEP or share < LEAST_PERCENT:
            continue
        return Finding(
            "scalar-read",
            sentence(
                f"{place or 'The program'} reads {{}} values of tensors into Python{loop.unit.in_each}: {{}} of {loop.unit.time}",
                round(each),
                (share, "%"),
            ),
            "Keep the values in a tensor and read them once, with .tolist() or .cpu(); log less often.",
            share,
            around_ns,
            place,
            loop.module_of(int(mine[0])),
            tuple(mine[:MOST_ROWS].tolist()),
            not_needed=NotNeeded(read, 1.0 - 1.0 / each),
        )
    return None
