"""The page Compare: two of the open traces, and what takes longer or less in one than in the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.analyses.loop import Loop
from kinetoscope.comparison.measures import BYTE_COUNTS, COUNTS, Run, run_of
from kinetoscope.comparison.result import Comparison, basis, headline, summary_of_side
from kinetoscope.comparison.runs import compare_runs
from kinetoscope.model import units
from kinetoscope.model.schema import KIND_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.open_traces import Offer
    from kinetoscope.viewer.server.requests import Answer, Query

TABLES = ("times", "counts", "memory")
# A timeline is hardly wider than so many pixels.
_MOST_SPANS = 1_500
_MOST_DIGITS = 6


def answer(offers: Sequence[Offer], path: str, query: Query) -> Answer:
    """Respond to `compare`, `compare/steps`, and `compare/` with one of `TABLES`; the options `base` and `new` are numbers of open traces.

    Raises:
        LookupError: There is no such path.
        ArgumentError: An option is no number of an open trace.
        StateError: A trace cannot be read.
    """
    places = [_place(offers, query, name, default) for name, default in (("base", 0), ("new", 1))]
    base, new = (_trace(offers[place]) for place in places)
    _, _, rest = path.partition("/")
    if rest == "steps":
        return steps(base, new)
    if rest and rest not in TABLES:
        raise LookupError(path)
    runs = [
        replace(_run(trace), name=offers[place].name)
        for trace, place in zip((base, new), places, strict=True)
    ]
    found = compare_runs(runs[:1], runs[1:])
    if rest:
        return found.table(rest)
    names = [one.name for one in offers]
    return about(found) | {"traces": names, "base": places[0], "new": places[1]}


def about(found: Comparison) -> dict[str, Any]:
    """What the page says above its tables; of a report, which has no traces to choose from."""
    return {
        "verdict": found.verdict,
        "headline": headline(found),
        "reason": found.reason,
        "basis": basis(found),
        "sides": [summary_of_side(side) for side in (found.base, found.new)],
        "losses": [
            f"{run.name}: {run.losses}" for side in (found.base, found.new) for run in side.runs if run.losses
        ],
        "counts": COUNTS,
        "bytes": sorted(BYTE_COUNTS),
        "traces": [],
        "base": 0,
        "new": 1,
    }


def steps(base: Trace, new: Trace) -> list[dict[str, Any]]:
    """Respond to `compare/steps`: of each trace a step of usual length, and the outermost operators in it."""
    return [_typical_step(trace) for trace in (base, new)]


def _typical_step(trace: Trace) -> dict[str, Any]:
    """The step at the lower quartile of lengths: on a busy machine, most longer ones were interrupted."""
    loop, run = Loop(trace), _run(trace)
    if not run.has_steps:
        return {"step": None, "start_ns": 0, "duration_ns": 0, "spans": [], "left_out": 0}
    counted = run.counted
    place = int(counted[np.argsort(run.step_ns[counted], kind="stable")[len(counted) // 4]])
    spans = trace.columns("spans")
    start, end = int(loop.start_ns[place]), int(loop.end_ns[place])
    rows = np.flatnonzero(loop.outermost & (spans["thread"] == loop.thread))
    rows = rows[(spans["start_ns"][rows] >= start) & (spans["start_ns"][rows] < end)]
    longest = np.sort(rows[np.argsort(-spans["duration_ns"][rows], kind="stable")[:_MOST_SPANS]])
    paths = trace.column("modules", "path")
    found = [
        {
            "span": row,
            "name": trace.strings[int(spans["name"][row])],
            "kind": KIND_NAMES[int(spans["kind"][row])],
            "module": paths[spans["module"][row]] if spans["module"][row] >= 0 else "",
            "start_ns": int(spans["start_ns"][row]) - start,
            "duration_ns": int(spans["duration_ns"][row]),
        }
        for row in longest.tolist()
    ]
    number = int(run.numbers[place])
    return {
        "step": number,
        "start_ns": start,
        "duration_ns": end - start,
        "spans": found,
        "left_out": len(rows) - len(longest),
    }


def _run(trace: Trace) -> Run:
    """What a trace did, looked at once."""
    return trace.cached("compared_run", lambda: run_of(trace))


def _place(offers: Sequence[Offer], query: Query, name: str, default: int) -> int:
    """An option that is the number of an open trace."""
    text = query.get(name, str(default))
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) >= len(offers):
        open_now = units.count(len(offers), "trace")
        raise ArgumentError(f"{name}={text[:50]!r} is not valid: {open_now} can be compared, numbered from 0")
    return int(text)


def _trace(offer: Offer) -> Trace:
    """The trace of an offer."""
    if offer.trace is None:
        raise StateError(offer.problem or "There is no such trace.")
    return offer.trace
