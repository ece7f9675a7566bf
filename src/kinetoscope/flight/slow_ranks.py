"""Which ranks of a job that runs hold up the others now: a comparison of the last steps in their rings, from outside of the job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pyarrow as pa

from kinetoscope._errors import KinetoscopeError, StateError
from kinetoscope.analyses.lateness import FEWEST_OF_WORK
from kinetoscope.display.sentence import plain
from kinetoscope.flight.jobs import RUNS, Attempt, RankFiles
from kinetoscope.flight.ring_stacks import opened_ring
from kinetoscope.model.schema import FLAG_BEGUN_BEFORE, FLAG_UNFINISHED
from kinetoscope.model.steps import MARKED
from kinetoscope.summaries.job import Job
from kinetoscope.summaries.summary import summary_of

LAST_S = 8.0
"""So much of the end of each ring is compared, or more of those with few recorded steps."""

_READERS = 4
_BEFORE_NS = 1_000_000


def slow_ranks(rings: Sequence[RankFiles], now_ns: int | None = None) -> dict[int, str]:
    """The ranks that hold up the others, the worst first, each with a sentence that says by how much, by what, and at which line.

    Args:
        rings: The files of the ranks.
        now_ns: The monotonic clock; None for now.
    """
    job = job_of_rings(rings, now_ns)
    findings = [] if job is None else job.report.findings
    return {finding.rank: plain(finding.finding) for finding in findings if finding.rank >= 0}


def job_of_rings(rings: Sequence[RankFiles], now_ns: int | None = None) -> Job | None:
    """The last steps of the ranks that run, compared; None for fewer than two ranks, or where too few steps were recorded.

    Args:
        rings: The files of the ranks.
        now_ns: The monotonic clock; None for now.
    """
    running = [ring for ring in rings if ring.state == RUNS and ring.log is not None]
    if len(running) < 2:
        return None
    summary = partial(_summary, time.monotonic_ns() if now_ns is None else now_ns)
    with ThreadPoolExecutor(_READERS) as readers:
        summaries = [table for table in readers.map(summary, running) if table is not None]
    # Processes that are no ranks of one job.
    with suppress(KinetoscopeError):
        job = Job(pa.concat_tables(summaries)) if len(summaries) > 1 else None
        return job if job is not None and job.sections.counts("steps").min() >= FEWEST_OF_WORK else None
    return None


def compared(attempt: Attempt) -> Job:
    """The last steps of the ranks of a job that runs.

    Raises:
        StateError: Fewer than two ranks run, or they have recorded too few steps.
    """
    job = job_of_rings(attempt.rings())
    if job is None:
        raise StateError(
            f"{attempt.name}: fewer than two ranks run here, or they have recorded too few steps yet"
        )
    return job


def _summary(now_ns: int, ring: RankFiles) -> pa.Table | None:
    """The summary of the last whole steps in a ring, further back if fewer were recorded; None if it cannot be read."""
    recorded_ns = [step.began_ns for step in ring.log.steps if step.recorded] if ring.log is not None else []
    # The last one may be the step that runs; a step's mark is written shortly before its line in the log.
    first_ns = recorded_ns[-FEWEST_OF_WORK - 1 :][:1]
    from_ns = min([int(now_ns - LAST_S * 1e9), *(began_ns - _BEFORE_NS for began_ns in first_ns)])
    with suppress(KinetoscopeError, OSError), opened_ring(ring.recording, from_ns) as trace:
        steps = trace.columns("steps")
        is_cut = (trace.column("spans", "flags")[steps["span"]] & (FLAG_UNFINISHED | FLAG_BEGUN_BEFORE)) != 0
        is_whole = ~is_cut | (steps["source"] != MARKED)
        if is_whole.any():
            return summary_of(trace.select_steps(steps["number"][is_whole].tolist()), str(ring.recording))
    return None
