"""Conversions: tensors are copied to another type or layout."""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import NotNeeded
from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.analyses.rules.output_in_step import kinds_of_stacks
from kinetoscope.ledger.avoidable_work.waste import waste_of
from kinetoscope.model import units
from kinetoscope.model.rows import Rows, mask_of
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.time_spent import Cause

_CONVERSIONS = ("aten::to", "aten::_to_copy", "aten::type_as")
_AUTOCAST = (
    "Use autocast only around layers that are large enough to gain from it: for small ones converting parameters and inputs takes longer than is saved. Without "
    "gradients, torch.autocast keeps converted parameters within one block: one block around all layers converts each once."
)


@Rule(
    "dtype-conversion",
    "{place} {what} {times:time}{others}: {share} of {time}",
    "Create tensors in the type in which they are used, or let torch.autocast convert once.",
    finds="lines convert tensors to another type, or `torch.autocast` does for their operators",
    source="torch's tuning guide (autocast)",
    least=5.0,
    cause=Cause.TYPE,
).selects
def dtype_conversion(loop: Loop) -> Answer:
    """The line that converts most between types, or what autocast converts for its operators."""
    by_line = _copies(loop, _outermost(loop, *_CONVERSIONS), "converts tensors to another type")
    of_autocast = _copies(
        loop, _of_autocast(loop), "is in torch.autocast, which converts tensors to another type", _AUTOCAST
    )
    return [*by_line, *of_autocast]


@Rule(
    "layout-copy",
    "{place} copies tensors to another layout {times:time}{others}: {share} of {time}",
    "Keep one layout throughout (for convolutions memory_format=torch.channels_last), and use views or reshape() where no copy is needed.",
    finds="lines copy tensors to another layout",
    source="torch's tuning guide (channels last), TraceLens (layout changes above 10 % of convolutions)",
    least=5.0,
    cause=Cause.LAYOUT,
).selects
def layout_copy(loop: Loop) -> Answer:
    """The line that copies most to another layout."""
    return _copies(loop, _outermost(loop, "aten::contiguous", "aten::clone"))


def _of_autocast(loop: Loop) -> Rows:
    """Conversions in an operator that then calls an operator of its own name, as autocast does."""
    spans, rows = loop.trace.columns("spans"), loop.rows_named("aten::to")
    parent, name = spans["parent"], spans["name"]
    rows = rows[parent[rows] >= 0]
    holds_conversion = mask_of(parent[rows], len(spans) + 1)
    inner = np.flatnonzero(holds_conversion.take(parent) & loop.inside)
    casting = mask_of(parent[inner[name[parent[inner]] == name[inner]]], len(spans))
    rows = rows[casting[parent[rows]]]
    return np.asarray(rows[~loop.in_loading[rows]])


def _outermost(loop: Loop, *names: str) -> Rows:
    """Operators of some names that the program called itself, those left out that copy between host and device."""
    rows = loop.rows_named(*names)
    # A conversion inside another operator is that operator's affair.
    spans, launches = loop.trace.columns("spans"), loop.trace.columns("launches")
    # A conversion of a large intermediate goes with it.
    rows = rows[waste_of(loop.trace).why[rows] != Cause.EXPANDED]
    # What copies or saves objects is output, whatever it converts.
    is_output = np.append(kinds_of_stacks(loop), -1)[spans["own_stack"][rows]] >= 0
    rows = rows[loop.outermost[rows] & ~loop.in_loading[rows] & ~is_output]
    device, host = launches["device"], launches["host"]
    linked = (device >= 0) & (host >= 0)
    calls = host[linked][spans["kind"][device[linked]] == SpanKind.MEMCPY]
    start, thread = spans["start_ns"], spans["thread"]
    copies = np.zeros(len(rows), dtype=bool)
    for thread_row in np.unique(thread[rows]).tolist():
        on_thread = thread[rows] == thread_row
        when = np.sort(start[calls[thread[calls] == thread_row]])
        end = start[rows[on_thread]] + spans["duration_ns"][rows[on_thread]]
        copies[on_thread] = np.searchsorted(when, end) > np.searchsorted(when, start[rows[on_thread]])
    return np.asarray(rows[~copies])


def _copies(loop: Loop, rows: Rows, what: str = "", advice: str = "") -> list[Match]:
    """What some operators take together with their backward, at the line at which they take most; none without operators."""
    lines = loop.by_place(rows)
    if not lines:
        return []
    backward = loop.backward_of(rows)
    other_lines = f", and {units.count(len(lines) - 1, 'other line')}" if len(lines) > 1 else ""
    words = {"what": what, "times": len(lines[0][2]), "others": other_lines}
    left_out = NotNeeded(np.concatenate((rows, backward)))
    return [Match(rows, loop.cost_ns(rows) + loop.cost_ns(backward), words, advice=advice, left_out=left_out)]
