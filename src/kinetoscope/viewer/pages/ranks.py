"""The page Ranks: a job of many ranks by their summaries: a map of all steps, single collectives, and the traces of two ranks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.analyses.findings import for_page
from kinetoscope.ledger.parts import PARTS
from kinetoscope.model import units
from kinetoscope.model.arrow import number_array, to_arrow
from kinetoscope.model.rows import Rows
from kinetoscope.model.time_spent import part_words
from kinetoscope.summaries.communication import coordinates_of
from kinetoscope.summaries.job import Job
from kinetoscope.summaries.lateness import less_waiting
from kinetoscope.viewer.requests import Answer, Limited, Query, choice, integer

Opener = Callable[[str], int]

MEASURES = {"holds_up_ns": "holding up others", "duration_ns": "step"} | {
    name: part_words(name) for name in PARTS
}
"""Columns by which the map can be colored, and their titles. Steps are not first, because ranks that wait for a late one have long steps, too."""
_ONE_AT_A_TIME = threading.Lock()
# The details of a cell take about a kilobyte of a report.
_MOST_REPORTED = 1_000


def answer(job: Job, path: str, query: Query, opened: Opener | None = None) -> Answer:
    """Respond to `ranks` and the paths below it.

    Args:
        job: The summaries.
        path: `ranks` returns the options of the map, `ranks/findings` the findings, `ranks/table` the ranks, `ranks/cells`
            the values of the map by the option `by`, `ranks/step` one cell of it, `ranks/arrivals` one collective, and `ranks/pair` opens two traces.
        query: The options.
        opened: Opens a trace in the viewer and returns its number; None if that is not possible.

    Raises:
        LookupError: There is no such path.
        ArgumentError: An option has a value that cannot be used.
        StateError: A trace cannot be opened.
    """
    rest = path.partition("/")[2]
    if rest == "pair":
        return pair(job, _row(job, query), opened)
    if rest == "cells":
        # Not under the lock, because it only reads columns that are in memory: the map must not wait for the findings.
        return cells(job, choice(query, "by", list(MEASURES)))
    with _ONE_AT_A_TIME:
        # Under the lock, so that results that several responses need are computed once.
        match rest:
            case "":
                return about(job)
            case "findings":
                return for_page(job.report)
            case "table":
                return table(job)
            case "step":
                return step(job, _row(job, query), integer(query, "step"))
            case "arrivals":
                return arrivals(job, integer(query, "collective"))
    raise LookupError(path)


def reported(job: Job) -> Iterator[tuple[str, dict[str, str]]]:
    """List the requests for a report: the whole map, and the steps and collectives of its latest cells."""
    yield from (("ranks", {}), ("ranks/findings", {}), ("ranks/table", {}))
    for name, _ in about(job)["measures"]:
        yield "ranks/cells", {"by": name}
    late = cells(job, "holds_up_ns")["value"].to_numpy()
    has_step = ~np.isnan(cells(job, "duration_ns")["value"].to_numpy())
    steps, meetings = _steps(job), set()
    # Without collectives, the first cells.
    for cell in np.argsort(-np.nan_to_num(late, nan=-1), kind="stable")[:_MOST_REPORTED].tolist():
        row, number = cell // len(steps), int(steps[cell % len(steps)])
        if has_step[cell]:
            yield "ranks/step", {"rank": str(job.sections.ranks[row]), "step": str(number)}
            meetings |= {collective["collective"] for collective in step(job, row, number)["collectives"]}
    for meeting in sorted(meetings):
        yield "ranks/arrivals", {"collective": str(meeting)}


def about(job: Job) -> dict[str, Any]:
    """Return the options of the map: measures, steps and groups."""
    return {
        "ranks": len(job),
        "steps": _steps(job).tolist(),
        "measures": [
            [name, title]
            for name, title in MEASURES.items()
            if name != "holds_up_ns" or len(less_waiting(job.sections)[0])
        ],
        "dimensions": [*coordinates_of(job.sections)],
        "notes": job.notes,
    }


def table(job: Job) -> Limited:
    """Return the table `ranks`, with the position of each rank in the dimensions of the job."""
    # Of all kinds of steps.
    rows = job.ranks().drop_columns("step_kind")
    for name, coordinates in sorted(coordinates_of(job.sections).items()):
        rows = rows.append_column(name, number_array(coordinates, absent=coordinates < 0))
    return Limited(rows, rows.num_rows)


def cells(job: Job, measure: str) -> pa.Table:
    """Return the values of the map, for each rank and each step in order; NaN if there is none."""
    steps = _steps(job)
    values = np.full((len(job), len(steps)), np.nan, dtype=np.float32)
    sections = job.sections
    if measure == "holds_up_ns":
        # The input of `stragglers`: a rank that waits for others delays none.
        rows, numbers, measured = less_waiting(sections)
        measured = np.maximum(measured, 0)
    else:
        rows, numbers = sections.rows("steps"), sections.numbers("steps", "step")
        measured = sections.numbers("steps", measure)
    columns = np.searchsorted(steps, numbers)
    is_step = (columns < len(steps)) & (steps[np.minimum(columns, len(steps) - 1)] == numbers)
    values[rows[is_step], columns[is_step]] = measured[is_step]
    return pa.table({"value": number_array(values.ravel())})


def step(job: Job, row: int, number: int) -> dict[str, Any]:
    """Return a step of a rank: its breakdown with the medians of all ranks, and its collectives."""
    sections = job.sections
    of_step = np.flatnonzero(sections.numbers("steps", "step") == number)
    of_rank = of_step[sections.rows("steps")[of_step] == row]
    if not len(of_rank):
        raise ArgumentError(f"rank {sections.ranks[row]} has no step {number}")
    parts = []
    for name in ("duration_ns", *PARTS):
        values = sections.numbers("steps", name)
        parts.append([MEASURES[name], int(values[of_rank[0]]), int(np.median(values[of_step]))])
    matched = sections.matched
    groups, group_of = sections.groups
    here = np.flatnonzero(
        (matched.rank == row) & (sections.numbers("collectives", "step")[matched.rows] == number)
    )
    records = matched.rows[here]
    names = sections.texts("collectives", "name", records)
    size = sections.numbers("collectives", "bytes")[records]
    collectives = [
        {
            "collective": (meeting := int(matched.place[index])),
            "name": name,
            "group": groups[group_of[record]].name or "all ranks",
            "ranks": int(matched.count[meeting]),
            "bytes": None if message < 0 else message,
            "late_ns": int(matched.late_of_row_ns[index]),
            "last_rank": int(sections.ranks[matched.last[meeting]]),
            "last_ns": int(matched.late_ns[meeting]),
        }
        for index, record, name, message in zip(
            here.tolist(), records.tolist(), names, size.tolist(), strict=True
        )
    ]
    return {
        "rank": int(sections.ranks[row]),
        "host": job.summaries["host"][row].as_py(),
        "source": job.summaries["source"][row].as_py(),
        "step": number,
        "parts": parts,
        "collectives": collectives,
    }


def arrivals(job: Job, meeting: int) -> pa.Table:
    """Return the time at which each rank arrived at a collective."""
    matched = job.sections.matched
    rows = np.flatnonzero(matched.place == meeting)
    if not len(rows):
        raise ArgumentError(
            f"collective={meeting} is not valid: there are {units.count(len(matched.first), 'collective')}"
        )
    columns: dict[str, Any] = {
        "rank": job.sections.ranks[matched.rank[rows]],
        "late_ns": matched.late_of_row_ns[rows],
        "duration_ns": job.sections.numbers("collectives", "duration_ns")[matched.rows[rows]],
    }
    return to_arrow("viewer: arrivals", columns)


def pair(job: Job, row: int, opened: Opener | None) -> dict[str, Any]:
    """Open the traces of a rank and of the one whose step is closest to the median, among those whose traces exist."""
    sections = job.sections
    late = _source(job, row)
    step_ns = sections.step_ns
    distance = np.abs(step_ns - np.median(step_ns[step_ns >= 0]))
    other_rows = [
        other
        for other in np.argsort(distance, kind="stable").tolist()
        if other != row and _has_trace(job, other)
    ]
    if not other_rows:
        raise StateError(
            "No other rank's trace was found at the path in its summary, so there is nothing to compare with."
        )
    if opened is None:
        raise StateError("Traces cannot be opened from here.")
    return {
        "base": opened(_source(job, other_rows[0])),
        "new": opened(late),
        "ranks": [int(sections.ranks[other]) for other in (other_rows[0], row)],
    }


def _source(job: Job, row: int) -> str:
    source, rank = str(job.summaries["source"][row].as_py() or ""), job.sections.ranks[row]
    if not source:
        raise StateError(
            f"The summary of rank {rank} has no trace path: the trace was not saved, or was saved after the summary."
        )
    if not _has_trace(job, row):
        raise StateError(f"The trace of rank {rank} is not at {source}, where its summary says it is.")
    return source


def _has_trace(job: Job, row: int) -> bool:
    source = str(job.summaries["source"][row].as_py() or "")
    return bool(source) and ("://" in source or Path(os.path.expanduser(source)).exists())


def _steps(job: Job) -> Rows:
    numbers = np.unique(job.sections.numbers("steps", "step"))
    return np.asarray(numbers, dtype=np.int64)


def _row(job: Job, query: Query) -> int:
    rank = integer(query, "rank")
    rows = np.flatnonzero(job.sections.ranks == rank)
    if not len(rows):
        raise ArgumentError(f"rank={rank} is not valid: there is no summary of it")
    return int(rows[0])
