"""What ran in the steps of a loop: operators, Python between them, and work of devices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kinetoscope.analyses.loop import Loop
from kinetoscope.model.hierarchy import host_work
from kinetoscope.model.kinds import is_device_work
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import SpanKind
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.host.data_loading import in_waits
from kinetoscope.tables.host.python_time import gaps


@dataclass(frozen=True, eq=False)
class Ran:
    """What ran in steps, of one kind: a row for each time that something ran.

    Attributes:
        key: What ran, as a number.
        step: The place of the step among those that are compared; -1 outside.
        time_ns: How long.
        span: The row of spans that shows it, -1 without.
    """

    key: Rows
    step: Rows
    time_ns: Rows
    span: Rows

    def of(self, key: NDArray[np.int32] | Rows) -> Ran:
        """The same with other keys, without what has none, below 0."""
        has_key = key >= 0
        return Ran(
            key[has_key].astype(np.int64), self.step[has_key], self.time_ns[has_key], self.span[has_key]
        )


class RanInSteps:
    """What ran in the steps of a loop, of the loop's process."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._trace = loop, loop.trace

    @cached_property
    def operators(self) -> Ran:
        """Operators, functions of backward and calls of a runtime with their self times, by their rows of `spans`; waits for data are none."""
        spans = self._trace.columns("spans")
        process = self._trace.column("threads", "process_row").take(spans["thread"])
        work = host_work(self._trace, with_steps=False).mask & (process == self._loop.process)
        work &= (spans["kind"] != SpanKind.USER_ANNOTATION) & ~in_waits(self._trace)
        return self._in_steps(np.flatnonzero(work), spans["self_ns"])

    @cached_property
    def python(self) -> Ran:
        """Time between operators, by the rows of the shares of gaps: a gap whose kind ran in several lines has several rows."""
        between = gaps(self._trace)
        process = np.append(self._trace.column("threads", "process_row"), -1)[between.thread]
        step = self._loop.work.place_in(between.step, between.start_ns, between.thread)
        rows = np.flatnonzero((step >= 0) & ~between.in_loading & (process == self._loop.process))
        share, index = between.shares.of_kinds(between.kind[rows])
        row = rows[index]
        time_ns = np.round(between.duration_ns[row] * between.shares.part[share]).astype(np.int64)
        return Ran(share, step[row], time_ns, between.before[row])

    @cached_property
    def kernels(self) -> Ran:
        """Kernels, copies and fills that the steps launched, by their rows of `spans`."""
        spans, streams = self._trace.columns("spans"), self._trace.columns("streams")
        rows = np.flatnonzero(is_device_work(spans["kind"]) & (spans["stream"] >= 0))
        owner = streams["process_row"][spans["stream"][rows]]
        return self._in_steps(rows[owner == self._loop.process], spans["duration_ns"])

    def launched_in(self, rows: Rows) -> Rows:
        """The step that launched some work of devices or, where no launch is known, in which it ran."""
        launched = starters(self._trace).call[rows]
        return self._loop.work.place_of(np.where(launched >= 0, launched, rows))

    def _in_steps(self, rows: Rows, time_ns: Rows) -> Ran:
        step = self.launched_in(rows)
        rows, step = rows[step >= 0], step[step >= 0]
        return Ran(rows, step, time_ns[rows].astype(np.int64), rows)
