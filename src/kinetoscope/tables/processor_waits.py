"""How long a thread was runnable but had no CPU core, because other programs or threads used it.

The sampler reads the system's counter for each thread about a hundred times a second. Between two samples, the wait is assumed to be spread
evenly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.schema import SampleState
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.intervals import Intervals


@dataclass(frozen=True, eq=False)
class ProcessorWaits:
    """The cumulative wait of one thread for a CPU core.

    Attributes:
        time_ns: Sorted times; the first is the start of the first sample with a known wait.
        waited_ns: The total wait up to each time.
    """

    time_ns: Rows
    waited_ns: Rows

    @property
    def known(self) -> bool:
        """Whether waits were recorded."""
        return len(self.time_ns) > 1

    def within(self, start_ns: Rows, end_ns: Rows) -> Rows:
        """The wait in some windows, at most their duration."""
        if not self.known:
            return np.zeros(len(start_ns), dtype=np.int64)
        until = [np.interp(edge_ns, self.time_ns, self.waited_ns) for edge_ns in (start_ns, end_ns)]
        return np.clip((until[1] - until[0]).astype(np.int64), 0, np.maximum(end_ns - start_ns, 0))


@derived
def processor_waits(trace: TraceData, thread: int) -> ProcessorWaits:
    """The waits of a thread, a row of `threads`, for a CPU core."""
    samples = trace.columns("samples")
    rows = np.flatnonzero((samples["thread"] == thread) & (samples["waited_ns"] >= 0))
    end, period = samples["time_ns"][rows], samples["period_ns"][rows]
    waited = _as_it_was(samples["waited_ns"][rows].astype(np.int64), period.astype(np.int64))
    # Between the end of a sample and the start of the next one, no wait is known.
    begin = np.maximum(end - period, np.append(np.iinfo(np.int64).min, end)[: len(end)])
    time_ns = np.stack([begin, end], axis=1).ravel().astype(np.int64)
    steps = np.stack([np.zeros_like(waited), waited], axis=1).ravel()
    return ProcessorWaits(time_ns, np.cumsum(steps))


def _as_it_was(waited_ns: Rows, period_ns: Rows) -> Rows:
    """Clamp the wait of each period to its length, moving the excess to earlier periods.

    The system counts a wait when it ends, so a long one may exceed the period in which it ended.
    """
    if (waited_ns <= period_ns).all():
        return waited_ns
    clamped, before = np.zeros_like(waited_ns), 0
    for period in range(len(waited_ns) - 1, -1, -1):
        wait_ns = int(waited_ns[period]) + before
        clamped[period] = min(wait_ns, int(period_ns[period]))
        before = wait_ns - int(clamped[period])
    return clamped


def running_thread(trace: TraceData, mine: Mask) -> int:
    """Of the threads in a mask whose waits for a CPU core are known, the one that samples saw running or runnable for longest; -1 if none."""
    samples = trace.columns("samples")
    is_active = mine[samples["thread"]] & (samples["state"] != SampleState.BLOCKED)
    is_active &= samples["waited_ns"] >= 0
    by_thread = Groups(np.where(is_active, samples["thread"], -1), len(mine))
    return by_thread.largest(samples["period_ns"]) if is_active.any() else -1


def waits_in(
    trace: TraceData, thread: int, parts: Intervals, waiting: Intervals, start_ns: Rows, end_ns: Rows
) -> Rows:
    """How long a thread had no CPU core in parts of windows; waits spread evenly over the time in which it was running or runnable.

    Args:
        trace: The trace.
        thread: The thread, a row of `threads`; -1 for none.
        parts: When waits count.
        waiting: When the process waits for a device and needs no CPU core.
        start_ns: The start of each window.
        end_ns: The end of each window.
    """
    samples, waits = trace.columns("samples"), processor_waits(trace, thread)
    if thread < 0 or not waits.known:
        return np.zeros(len(start_ns), dtype=np.int64)
    blocked = np.flatnonzero((samples["thread"] == thread) & (samples["state"] == SampleState.BLOCKED))
    until_ns = samples["time_ns"][blocked].astype(np.int64)
    away = waiting | Intervals.of(until_ns - samples["period_ns"][blocked], until_ns)
    ready_ns = end_ns - start_ns - away.within(start_ns, end_ns)
    waited_ns = np.minimum(waits.within(start_ns, end_ns), ready_ns)
    ran_ns = (parts - away).within(start_ns, end_ns)
    return np.asarray(np.floor(waited_ns * (ran_ns / np.maximum(ready_ns, 1))), dtype=np.int64)
