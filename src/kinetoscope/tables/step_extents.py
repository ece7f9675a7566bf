"""When each step of a program begins and ends: where its devices are the bottleneck, with their work and not with the marks of the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.model.processes import process_runs
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.steps import OPTIMIZER
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.device.work import device_work, thread_owners

LEAST_AHEAD = 0.1
"""A host that is ahead of its devices by less than this part of a step, on average, is not ahead: kernels end a little after the call that launched them."""


@dataclass(frozen=True, eq=False)
class StepExtents:
    """The extents of the steps of a trace, each an array with an entry for each row of `steps`.

    Attributes:
        start_ns: When each begins: at its mark or, where the device still has earlier work then, when that is done.
        end_ns: When each ends: at the end of its mark or, where the host is ahead, when the device has done what was launched in it.
        is_ahead: Whether the host of its process runs ahead of its devices, so that these say when a step ends; otherwise marks do.
    """

    start_ns: Rows
    end_ns: Rows
    is_ahead: Mask

    @property
    def duration_ns(self) -> Rows:
        """How long each takes."""
        return self.end_ns - self.start_ns


@derived
def step_extents(trace: TraceData) -> StepExtents:
    """Return the extents of the steps of a trace, once.

    A host that launches work without waiting for it is done with a step before the device is: its marks then say how long launching takes, and not how long a step
    takes. There, a step ends when the work that was launched in it has ended on all devices of the process, and begins when the work launched before it has. So
    steps do not overlap, and hold all of the time in which the devices work for them.
    """
    marks = trace.columns("steps")
    start_ns, is_ahead = marks["start_ns"].astype(np.int64), np.zeros(len(marks), dtype=bool)
    end_ns = start_ns + marks["duration_ns"]
    extents = StepExtents(start_ns, end_ns, is_ahead)
    work = device_work(trace)
    if len(work.rows) == 0:
        return extents
    spans, call = trace.columns("spans"), starters(trace).call[work.rows]
    owner_of_thread, owners = thread_owners(trace)
    numbers = [owners.index(device.owner) if device.owner in owners else -1 for device in work.devices]
    owner = np.array(numbers, dtype=np.int64)[work.device]
    owner = np.where(call >= 0, owner_of_thread[np.append(spans["thread"], -1)[call]], owner)
    launched_ns = np.append(spans["start_ns"], 0)[call].astype(np.int64)
    for rows in steps_of_processes(trace):
        # What is of an unknown process counts for all.
        work_rows = np.flatnonzero((owner == owner_of_steps(trace)[rows[0]]) | (owner < 0))
        linked = call[work_rows] >= 0
        # What runs before all that was launched in the recording was launched before it.
        first_ns = work.start_ns[work_rows[linked]].min(initial=np.iinfo(np.int64).max)
        earlier_ns = work.end_ns[work_rows[~linked & (work.start_ns[work_rows] < first_ns)]]
        work_rows = work_rows[linked][np.argsort(launched_ns[work_rows[linked]], kind="stable")]
        done_ns = np.maximum.accumulate(
            np.append(earlier_ns.max(initial=np.iinfo(np.int64).min), work.end_ns[work_rows])
        )
        start, end = (
            np.maximum(times, done_ns[np.searchsorted(launched_ns[work_rows], times, side="left")])
            for times in (start_ns[rows], end_ns[rows])
        )
        median_ns = max(float(np.median(end - start)), 1.0)
        if len(work_rows) and (end - end_ns[rows]).mean() >= LEAST_AHEAD * median_ns:
            start_ns[rows], end_ns[rows], is_ahead[rows] = start, end, True
    return extents


@derived
def start_up_steps(trace: TraceData) -> Mask:
    """For each row of `steps` whether it holds what ran before the loop: every sum and share of step time leaves it out.

    That is the first step of a process whose steps are found from the optimizer, unless it is the only one, or the recording began,
    or what a ring has left of it begins, in the loop.
    """
    marks = trace.columns("steps")
    is_start_up = np.zeros(len(marks), dtype=bool)
    runs = process_runs(trace)
    for rows in steps_of_processes(trace):
        first = rows[0]
        run = runs[max(int(marks["process_row"][first]), 0)]
        in_loop = bool(run.first_step) or marks["number"][first] > 0
        if len(rows) > 1 and marks["source"][first] == OPTIMIZER and not in_loop:
            is_start_up[first] = True
    return is_start_up


@derived
def owner_of_steps(trace: TraceData) -> Rows:
    """The owner of the thread that runs each step, see `thread_owners`."""
    span = trace.column("steps", "span")
    thread = np.full(len(span), -1, np.int64)
    thread[span >= 0] = trace.column("spans", "thread")[span[span >= 0]]
    return np.asarray(thread_owners(trace)[0][thread], dtype=np.int64)


def steps_of_processes(trace: TraceData) -> list[Rows]:
    """The rows of `steps` of each process, in the order of time."""
    owner, start_ns = owner_of_steps(trace), trace.column("steps", "start_ns")
    order = np.lexsort((start_ns, owner))
    edges = np.flatnonzero(np.diff(owner[order])) + 1
    return [rows for rows in np.split(order, edges) if len(rows)]
