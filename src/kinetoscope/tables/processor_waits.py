"""How long a thread was ready to run, but had no processor: other programs, or other threads, had it.

The sampler reads it of each thread some hundred times a second, as the system counts it. In the time between two samples it is taken to be
spread evenly.
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
    """How long one thread had waited for a processor, over time.

    Attributes:
        time_ns: Moments, in order; the first is the beginning of its first sample of which it is known.
        waited_ns: How long it had waited until each of them.
    """

    time_ns: Rows
    waited_ns: Rows

    @property
    def known(self) -> bool:
        """Whether it was recorded."""
        return len(self.time_ns) > 1

    def within(self, start_ns: Rows, end_ns: Rows) -> Rows:
        """How long it waited in some windows, at most their duration."""
        if not self.known:
            return np.zeros(len(start_ns), dtype=np.int64)
        until = [np.interp(edge_ns, self.time_ns, self.waited_ns) for edge_ns in (start_ns, end_ns)]
        return np.clip((until[1] - until[0]).astype(np.int64), 0, np.maximum(end_ns - start_ns, 0))


@derived
def processor_waits(trace: TraceData, thread: int) -> ProcessorWaits:
    """What a thread, a row of `threads`, waited for a processor; once for a trace."""
    samples = trace.columns("samples")
    rows = np.flatnonzero((samples["thread"] == thread) & (samples["waited_ns"] >= 0))
    end, period = samples["time_ns"][rows], samples["period_ns"][rows]
    waited = _as_it_was(samples["waited_ns"][rows].astype(np.int64), period.astype(np.int64))
    # Between the end of a sample and the beginning of the next one, none is known.
    begin = np.maximum(end - period, np.append(np.iinfo(np.int64).min, end)[: len(end)])
    time_ns = np.stack([begin, end], axis=1).ravel().astype(np.int64)
    steps = np.stack([np.zeros_like(waited), waited], axis=1).ravel()
    return ProcessorWaits(time_ns, np.cumsum(steps))


def _as_it_was(waited_ns: Rows, period_ns: Rows) -> Rows:
    """Clamp the wait of each period, passing the rest on to earlier ones.

    The system counts a wait when it ends, so that a long one may be more than the period in which it did: the rest belongs before it.
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
    """The thread of some, for each row of `threads` whether it counts, that samples saw run or wait to run for longest; -1 without any."""
    samples = trace.columns("samples")
    is_active = mine[samples["thread"]] & (samples["state"] != SampleState.BLOCKED)
    by_thread = Groups(np.where(is_active, samples["thread"], -1), len(mine))
    return by_thread.largest(samples["period_ns"]) if is_active.any() else -1


def waits_in(
    trace: TraceData, thread: int, parts: Intervals, waiting: Intervals, start_ns: Rows, end_ns: Rows
) -> Rows:
    """How long a thread had no processor in some parts of windows: such waits are spread evenly over the time in which it ran or was ready to run.

    Args:
        trace: The trace.
        thread: The thread, a row of `threads`; -1 for none.
        parts: When a wait counts.
        waiting: When the process waits for a device, and needs no processor.
        start_ns: When each window begins.
        end_ns: When each ends.
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
