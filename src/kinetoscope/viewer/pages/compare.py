"""The page Compare: the differences of two open traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.analyses.loop import Loop
from kinetoscope.comparison.measures import BYTE_COUNTS, COUNTS, Run, run_of
from kinetoscope.comparison.result import Comparison, basis, headline, summary_of_side
from kinetoscope.comparison.runs import compare_runs
from kinetoscope.model import units
from kinetoscope.model.trace_data import derived
from kinetoscope.trace import Trace
from kinetoscope.viewer.open_traces import Offer
from kinetoscope.viewer.requests import Answer, Query, integer
from kinetoscope.viewer.timeline.rows import MODULES, STREAM, THREAD
from kinetoscope.viewer.timeline.tracks import timeline, tracks
from kinetoscope.viewer.timeline.window import window

TABLES = ("times", "counts", "memory")
SIDES = ("base", "new")
# So many parts of the difference of a step are shown, and the rest as one.
_MOST_PARTS = 9
_OF_PART = ("what", "base_ns", "new_ns", "change_ns", "file", "line", "text", "module")
# Width in pixels of the drawn step of each trace.
_PIXELS = 4_000
_DRAWN = (THREAD, MODULES, STREAM)


def answer(offers: Sequence[Offer], path: str, query: Query) -> Answer:
    """Respond to `compare`, and below it to `steps`, `steps/base`, `steps/new` and each of `TABLES`.

    The options `base` and `new` are numbers of open traces, and `step` is the number of the step to draw.

    Raises:
        LookupError: There is no such path.
        ArgumentError: An option is not the number of an open trace, or of a step.
        StateError: A trace cannot be read.
    """
    # Summaries of a job cannot be compared.
    traces = [number for number, offer in enumerate(offers) if offer.job is None]
    defaults = [*traces, len(offers), len(offers)][:2]
    numbers = [_number(offers, query, name, default) for default, name in zip(defaults, SIDES, strict=True)]
    sides = {name: _trace(offers[number]) for name, number in zip(SIDES, numbers, strict=True)}
    _, _, rest = path.partition("/")
    part, _, side = rest.partition("/")
    if part == "steps" and (not side or side in sides):
        asked = integer(query, "step") if "step" in query else None
        if side:
            return boxes(sides[side], step(sides[side], side, asked))
        return {name: step(trace, name, asked) for name, trace in sides.items()}
    if rest and rest not in TABLES:
        raise LookupError(path)
    runs = [
        replace(_run(trace), name=offers[number].name)
        for trace, number in zip(sides.values(), numbers, strict=True)
    ]
    comparison = compare_runs(runs[:1], runs[1:])
    if rest:
        return comparison.table(rest)
    names = [offer.name if offer.job is None else "" for offer in offers]
    return about(comparison) | {"traces": names, "base": numbers[0], "new": numbers[1]}


def _explanation(comparison: Comparison) -> dict[str, Any] | None:
    explanation = comparison.explanation
    if explanation is None or not comparison.differs:
        return None
    shown_parts = replace(explanation, parts=explanation.largest(_MOST_PARTS)).to_dict()
    parts = [{name: part[name] for name in _OF_PART} for part in shown_parts["parts"]]
    times = {name: shown_parts[name] for name in ("base_ns", "new_ns")}
    return {"title": comparison.explanation_title, **times, "parts": parts}


def about(comparison: Comparison) -> dict[str, Any]:
    """Return the data above the tables, as a report needs it, where no traces can be selected."""
    return {
        "verdict": comparison.verdict,
        "headline": headline(comparison),
        "reason": comparison.reason,
        "basis": basis(comparison),
        "explanation": _explanation(comparison),
        "sides": [summary_of_side(side) for side in (comparison.base, comparison.new)],
        "losses": comparison.losses,
        "counts": COUNTS,
        "bytes": sorted(BYTE_COUNTS),
        "traces": [],
        "base": 0,
        "new": 1,
    }


def step(trace: Trace, side: str, number: int | None = None) -> dict[str, Any]:
    """A step of a trace, for `compare/steps`, which has that of either side.

    Args:
        trace: The trace.
        side: `base` or `new`, for error messages.
        number: The number of the step; None for a typical one.

    Returns:
        Its number (`step`; None in a trace without steps), `start_ns` and `duration_ns`, and the `tracks` of its process on the
        timeline: the number (`id`), the `label` and how many `rows`.

    Raises:
        ArgumentError: The trace has no such step.
    """
    loop, run = Loop(trace), _run(trace)
    if not run.unit.repeats:
        return {"step": None, "start_ns": 0, "duration_ns": 0, "tracks": []}
    if number is None:
        # At the lower quartile of durations; longer ones were often disturbed on a busy machine.
        index = run.counted[np.argsort(run.step_ns[run.counted], kind="stable")[len(run.counted) // 4]]
    elif number in run.numbers:
        index = np.argmax(run.numbers == number)
    else:
        first, last = int(run.numbers.min()), int(run.numbers.max())
        raise ArgumentError(f"{side} has no step {number}: it has {first} to {last}")
    track_ids = {
        track.id
        for track in timeline(trace)
        if track.sort in _DRAWN and track.process == max(loop.process, 0)
    }
    return {
        "step": int(run.numbers[index]),
        "start_ns": int(loop.start_ns[index]),
        "duration_ns": int(loop.end_ns[index] - loop.start_ns[index]),
        "tracks": [
            {name: track[name] for name in ("id", "label", "rows")}
            for group in tracks(trace, {})["groups"]
            for track in group["tracks"]
            if track["id"] in track_ids
        ],
    }


def boxes(trace: Trace, drawn: dict[str, Any]) -> pyarrow.Table:
    """Respond to `compare/steps/base` and `compare/steps/new`: the tracks of a `step`, as a window of the timeline."""
    start = drawn["start_ns"]
    return window(
        trace,
        {
            "start": str(start),
            "end": str(start + max(drawn["duration_ns"], 1)),
            "width": str(_PIXELS),
            "tracks": ",".join(str(track["id"]) for track in drawn["tracks"]),
        },
    )


@derived
def _run(trace: Trace) -> Run:
    return run_of(trace, with_account=True)


def _number(offers: Sequence[Offer], query: Query, name: str, default: int) -> int:
    number = integer(query, name, default)
    if not 0 <= number < len(offers):
        open_now = units.count(len(offers), "trace")
        raise ArgumentError(f"{name}='{number}' is not valid: {open_now} can be compared, numbered from 0")
    return number


def _trace(offer: Offer) -> Trace:
    if offer.trace is None:
        raise StateError(offer.problem or "There is no such trace.")
    return offer.trace
