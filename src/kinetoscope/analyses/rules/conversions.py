"""Tensors are copied to change their type or their layout.

Source: torch's tuning guide (channels last, autocast), TraceLens (layout changes above 10 % of convolutions). Threshold: 5 % of step
time. Copies between host and device are `device_copies`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding, NotNeeded
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.analyses.rules.output_in_step import kinds_of_stacks
from kinetoscope.display.sentence import sentence
from kinetoscope.model import units
from kinetoscope.model.schema import SpanKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_PERCENT = 5.0


_CONVERSIONS = ("aten::to", "aten::_to_copy", "aten::type_as")


def dtype_conversion(loop: Loop) -> Finding | None:
    """Find the line that converts most between types, or what autocast converts for its operators."""
    own = _worst(
        loop,
        "dtype-conversion",
        _outermost(loop, *_CONVERSIONS),
        "converts tensors to another type",
        "Create tensors in the type in which they are used, or let torch.autocast convert once.",
    )
    of_autocast = _worst(
        loop,
        "dtype-conversion",
        _of_autocast(loop),
        "is in torch.autocast, which converts tensors to another type",
        "Use autocast only around layers that are large enough to gain from it: for small ones converting parameters and inputs takes longer than is saved. Without "
        "gradients, torch.autocast keeps converted parameters within one block: one block around all layers converts each once.",
    )
    return max(
        (one for one in (own, of_autocast) if one is not None),
        key=lambda one: one.share_percent,
        default=None,
    )


def _of_autocast(loop: Loop) -> NDArray[np.int64]:
    """Conversions in an operator that then calls an operator of its own name, as autocast does."""
    spans = loop.trace.columns("spans")
    parent = np.append(spans["parent"], -1)
    name = np.append(spans["name"], -1)
    inside = np.flatnonzero(loop.inside & (spans["parent"] >= 0))
    casting = np.zeros(len(spans) + 1, bool)
    casting[parent[inside[name[parent[inside]] == name[inside]]]] = True
    rows = loop.rows_named("aten::to")
    rows = rows[casting[parent[rows]] & (parent[rows] >= 0)]
    return np.asarray(rows[~loop.in_loading[rows]])


def layout_copy(loop: Loop) -> Finding | None:
    """Find the line that copies most to another layout."""
    return _worst(
        loop,
        "layout-copy",
        _outermost(loop, "aten::contiguous", "aten::clone"),
        "copies tensors to another layout",
        "Keep one layout throughout (for convolutions memory_format=torch.channels_last), and use views or reshape() where no copy "
        "is needed.",
    )


def _outermost(loop: Loop, *names: str) -> NDArray[np.int64]:
    """Operators of some names that the program called itself, those left out that copy between host and device."""
    rows = loop.rows_named(*names)
    # A conversion inside another operator is that operator's affair.
    spans, launches = loop.trace.columns("spans"), loop.trace.columns("launches")
    # What copies or saves objects is output, whatever it converts.
    is_output = np.append(kinds_of_stacks(loop), -1)[spans["own_stack"][rows]] >= 0
    rows = rows[loop.outermost[rows] & ~loop.in_loading[rows] & ~is_output]
    device, host = launches["device"], launches["host"]
    known = (device >= 0) & (host >= 0)
    calls = host[known][spans["kind"][device[known]] == SpanKind.MEMCPY]
    start, thread = spans["start_ns"], spans["thread"]
    copies = np.zeros(len(rows), dtype=bool)
    for one in np.unique(thread[rows]).tolist():
        mine = thread[rows] == one
        when = np.sort(start[calls[thread[calls] == one]])
        end = start[rows[mine]] + spans["duration_ns"][rows[mine]]
        copies[mine] = np.searchsorted(when, end) > np.searchsorted(when, start[rows[mine]])
    return np.asarray(rows[~copies])


def _worst(loop: Loop, code: str, rows: NDArray[np.int64], what: str, advice: str) -> Finding | None:
    """What some operators take together, at the line at which they take most."""
    lines = loop.by_place(rows)
    if not lines:
        return None
    place, _, mine = lines[0]
    backward = loop.backward_of(rows)
    time_ns = loop.cost_ns(rows) + loop.cost_ns(backward)
    share = loop.share(time_ns)
    if share < LEAST_PERCENT:
        return None
    here = f"{place or 'The program'} {what} {loop.counted(len(mine), 'time')}"
    others = f", and {units.count(len(lines) - 1, 'other line')}" if len(lines) > 1 else ""
    return Finding(
        code,
        sentence(f"{here}{others}: {{}} of {loop.unit.time}", (share, "%")),
        advice,
        share,
        time_ns,
        place,
        loop.module_of(int(mine[0])),
        tuple(mine[:MOST_ROWS].tolist()),
        not_needed=NotNeeded(np.concatenate((rows, backward))),
    )
