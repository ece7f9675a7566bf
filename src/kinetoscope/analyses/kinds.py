"""The kinds of steps that a finding is about: what runs in some of the steps only is no average over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinetoscope.analyses.loop import Loop
from kinetoscope.model import units
from kinetoscope.model.rows import Rows
from kinetoscope.tables.host.units_of_work import Unit
from kinetoscope.tables.step_kinds import kinds_in

RARELY = 0.1
"""Steps of a kind that have so much less of something than those that have most are not what it is about."""
UNEVEN = 1.5
"""Where some of the kinds have so many times as much as others, what is said of each step is said to be an average."""


@dataclass(frozen=True)
class StepsOfKinds:
    """Steps of the kinds in which something happens.

    Attributes:
        count: How many steps.
        time_ns: How long they take together.
        words: Which these are, as the beginning of a sentence; empty where these are all steps.
        are_even: Whether a step of each kind has about as much of it.
    """

    count: int
    time_ns: int
    words: str
    are_even: bool


def steps_with(loop: Loop, rows: Rows, kind_ns: Sequence[float] = ()) -> StepsOfKinds:
    """The steps of a loop that some spans are about.

    Args:
        loop: The loop.
        rows: The spans.
        kind_ns: Their time in the steps of each kind, where other time than that of the spans counts.
    """
    kind = loop.kind_of_step
    often = np.array([int((kind == number).sum()) for number in range(int(kind.max(initial=0)) + 1)])
    if not kind_ns:
        step, duration_ns = loop.step_of(rows), loop.trace.column("spans", "duration_ns")[rows]
        of_row = np.append(kind, -1)[step]
        kind_ns = [int(duration_ns[of_row == number].sum()) for number in range(len(often))]
    each_ns = np.array(kind_ns) / np.maximum(often, 1)
    has_it = each_ns >= RARELY * each_ns.max()
    is_about = has_it[kind]
    is_even = UNEVEN * each_ns[has_it].min() >= each_ns.max()
    count = int(is_about.sum())
    if loop.unit is Unit.RECORDING or has_it.all() or not each_ns.any():
        return StepsOfKinds(len(loop.start_ns), loop.whole_ns, "", is_even)
    time_ns = int(loop.with_processor(np.arange(len(kind)), loop.end_ns - loop.start_ns)[is_about].sum())
    words = f"In {count:,} of {units.count(len(kind), loop.unit.noun)}{_which(loop, is_about)}: "
    return StepsOfKinds(count, time_ns, words, is_even)


def _which(loop: Loop, is_about: Rows) -> str:
    """Which steps these are, if they are of one kind: by the name that the program gave them, or what they run more of than others."""
    kinds = np.unique(loop.work.kind[is_about]).tolist()
    rows = [row for row in kinds_in(loop.trace) if row["kind"] in kinds] if loop.unit is Unit.STEP else []
    if len(rows) != 1 or not (rows[0]["name"] or rows[0]["most_of"]):
        return ""
    return f", those named {rows[0]['name']}" if rows[0]["name"] else f", those that run {rows[0]['most_of']}"
