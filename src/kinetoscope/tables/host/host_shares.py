"""The base of percentages in lists of operators, modules and lines: the host's spans and the total time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kinetoscope.model.columns import Columns
from kinetoscope.model.hierarchy import host_work
from kinetoscope.model.rows import Mask, ProcessRow, Rows
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.step_extents import start_up_steps, step_extents
from kinetoscope.tables.windows import recorded_extent


@dataclass(frozen=True)
class HostShares:
    """The spans that such lists count, and the time that their shares refer to.

    Attributes:
        counts: Whether a span counts: it is in a step of its process, without start-up and step marks; without steps, all count.
        spans: All spans of the trace.
        whole_ns: The total time: that of the steps, or of the whole recording.
        in_steps: Whether the total is that of steps.
        process: The row of the process in `processes`; None for all processes with steps or, if none has any, for all.
    """

    counts: Mask
    spans: Columns
    whole_ns: int
    in_steps: bool
    process: ProcessRow | None

    @cached_property
    def own_ns(self) -> Rows:
        """The self time of each span that counts, 0 for others."""
        return np.where(self.counts, self.spans["self_ns"], 0)


@derived
def host_shares(trace: TraceData, process: ProcessRow | None = None) -> HostShares:
    """The spans and the total time for lists of the host's work.

    Args:
        trace: The trace.
        process: A row of `processes`; None for all processes with steps or, if none has any, for all.
    """
    spans, steps = trace.columns("spans"), trace.columns("steps")
    counts = host_work(trace, with_steps=False).mask.copy()
    counted = ~start_up_steps(trace)
    rows = [ProcessRow(row) for row in range(len(trace.columns("processes")))] or [ProcessRow(-1)]
    if process is not None:
        rows = [process]
        counts &= trace.column("threads", "process_row").take(spans["thread"]) == process
        counted &= steps["process_row"] == process
    if counted.any():
        counts &= np.append(counted, False).take(spans["step"])
        whole_ns = int(step_extents(trace).duration_ns[counted].sum())
    else:
        extents = [recorded_extent(trace, row) for row in rows]
        whole_ns = sum(last - first for first, last in extents)
    return HostShares(counts, spans, whole_ns, bool(counted.any()), process)
