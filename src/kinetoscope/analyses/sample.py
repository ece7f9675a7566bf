"""The part of a large trace that findings, the account and lists of what took most are of: some steps, chosen evenly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.combine.cut import BEGINLESS_NS, TracePart, cut_with_rows
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows, begins_run, ends_run
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.host.units_of_work import Unit, units_of_work
from kinetoscope.tables.step_kinds import LEAST_OF_KIND

MOST_SPANS = 1_000_000
"""A trace with more is looked at in part."""
SAMPLED_SPANS = 200_000
"""So many spans a sample has, about."""
FEWEST_STEPS = 12
MOST_STEPS = 0.6
"""A sample of a larger part of the steps is not worth it."""
MANY_STEPS = 64
"""So many steps chosen evenly in time have some of each kind; of fewer, each size of step has its share."""
LEAST_LARGER = 1.5
"""Steps with so many times the spans of the next smaller one are of another kind."""
LARGE_KIND = 0.2
"""Of a kind with so large a part of all spans, a sample has enough steps to be one."""
_SPREAD = 2654435761


@dataclass(frozen=True, eq=False)
class Sample:
    """A part of a trace.

    Attributes:
        trace: The part, with times as in the whole; the whole itself where it is small.
        rows: For each span of it the row in the whole.
        text: What it is, such as `1,600 of 12,000 steps`; empty where it is the whole.
        times: How many times as much time the steps of the whole take, the first left out, or how many times as many spans it has without steps.
    """

    trace: TraceData
    rows: Rows
    text: str = ""
    times: float = 1.0


@derived
def sample_of(trace: TraceData) -> Sample:
    """The part of a trace that is looked at, once: all of a trace of moderate size, of requests, of several processes, or of more than a host."""
    count = len(trace.columns("spans"))
    several = len(trace.columns("processes")) > 0 or len(trace.columns("streams")) > 0
    if count <= MOST_SPANS or several:
        return Sample(trace, np.arange(count))
    unit = Unit.STEP if len(trace.columns("steps")) else units_of_work(trace).unit
    if unit.overlaps:
        return Sample(trace, np.arange(count))
    if unit is Unit.STEP:
        chosen = _steps(trace, SAMPLED_SPANS / count)
        if len(chosen) > MOST_STEPS * len(trace.columns("steps")):
            return Sample(trace, np.arange(count))
        part = _part_of_steps(trace, chosen)
        duration_ns = trace.column("steps", "duration_ns")
        text = f"{len(chosen):,} of {units.count(len(duration_ns), 'step')}"
        times = float(duration_ns[1:].sum() / max(duration_ns[chosen[1:]].sum(), 1))
    else:
        part = _middle(trace, SAMPLED_SPANS / count)
        lasts_ns = int(part.end_ns[0] - part.start_ns[0])
        text = f"{units.duration(lasts_ns)} of {units.duration(trace.duration_ns)}"
        times = count / SAMPLED_SPANS
    return Sample(*cut_with_rows(trace, part), text, times)


def _steps(trace: TraceData, share: float) -> Rows:
    """The first step, and of each kind of the others an equal share: those that were recorded in full, and others evenly."""
    spans, count = trace.columns("spans"), len(trace.columns("steps"))
    of_step, part = Groups(spans["step"], count), max(share, FEWEST_STEPS / count)
    kinds = [np.arange(1, count)]
    if part * count < MANY_STEPS:
        sizes = of_step.sizes()
        order = kinds[0][np.argsort(sizes[1:], kind="stable")]
        larger = np.flatnonzero(sizes[order][1:] > LEAST_LARGER * sizes[order][:-1]) + 1
        kinds = np.split(order, larger)
        large = [steps for steps in kinds if sizes[steps].sum() >= LARGE_KIND * sizes[1:].sum()]
        # One step is enough where two would be too large to be looked at.
        fewest = (
            LEAST_OF_KIND if max(sizes[steps].max() for steps in large) * LEAST_OF_KIND < MOST_SPANS else 1
        )
        part = max(part, fewest / min(map(len, large)))
    is_deep = of_step.sums(spans["shapes"] >= 0) > 0
    chosen = [np.zeros(1, np.int64)]
    for steps in kinds:
        left = min(max(1, round(part * len(steps))), len(steps))
        for some in (steps[is_deep[steps]], steps[~is_deep[steps]]):
            chosen.append(_evenly(some, min(left, len(some))))
            left -= len(chosen[-1])
    return np.unique(np.concatenate(chosen))


def _evenly(steps: Rows, count: int) -> Rows:
    """One of each of so many equal groups of some steps."""
    edges = np.linspace(0, len(steps), count + 1).astype(np.int64)
    offset = (np.arange(count) * _SPREAD % 2**32) / 2**32
    return steps[edges[:-1] + (offset * np.diff(edges)).astype(np.int64)]


def _part_of_steps(trace: TraceData, chosen: Rows) -> TracePart:
    """Windows of steps, those that follow each other in one."""
    start_ns, duration_ns = (trace.column("steps", name)[chosen] for name in ("start_ns", "duration_ns"))
    run = chosen - np.arange(len(chosen))
    start_ns = start_ns[begins_run(run)]
    end_ns = (trace.column("steps", "start_ns")[chosen] + duration_ns)[ends_run(run)]
    return TracePart(0, np.where(start_ns <= 0, BEGINLESS_NS, start_ns), end_ns, steps=chosen, overlaps=False)


def _middle(trace: TraceData, share: float) -> TracePart:
    """A window in the middle of a trace without steps."""
    starts_ns = np.sort(trace.column("spans", "start_ns"))
    first = int((1 - share) / 2 * len(starts_ns))
    last = min(first + int(share * len(starts_ns)), len(starts_ns) - 1)
    begin_ns, end_ns = int(starts_ns[first]), int(starts_ns[last])
    return TracePart(begin_ns, np.array([begin_ns]), np.array([end_ns]), overlaps=False)
