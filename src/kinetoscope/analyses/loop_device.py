"""The device of a training loop, as the rules for findings look at it: its work in the steps, and when it was idle and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from kinetoscope.model.kinds import is_operator, is_runtime_call
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.run_info import DeviceProperties
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.costs.evaluate import rule_of
from kinetoscope.tables.costs.peaks import MATRIX
from kinetoscope.tables.device.copies import Direction, copy_directions
from kinetoscope.tables.device.launches import starters, waiting_calls
from kinetoscope.tables.device.work import Device, WorkCategory, device_work
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.windows import Activity, activities, owned

# Calls that free memory of a device at once wait for all of its work.
_FREES = re.compile(
    r"(cuda|hip|cu)(Mem|Host)?Free(Host|Array|MipmappedArray)?(_v\d)?$|(cuda|hip)HostUnregister$"
)
_FORMER_CONVOLUTIONS = ("aten::cudnn_convolution", "aten::miopen_convolution")


@dataclass(frozen=True)
class IdleGaps:
    """Stretches in which a device had nothing to do.

    Attributes:
        start_ns: When each begins.
        length_ns: How long each is, waiting for data excluded.
        wait: The call of the host that waited for the device when it began, so that nothing was queued then; -1 without.
    """

    start_ns: Rows
    length_ns: Rows
    wait: Rows


class LoopDevice:
    """The device on which a training loop worked most.

    Attributes:
        name: The device, such as `cuda:0`.
        properties: Its model and memory; None where the trace does not have them.
        rows: Its kernels, copies and fills that start in the steps, ascending.
        category: What each is: a `WorkCategory`.
        activity: When it did what.
        identity: The same device as tables know it.
        idle: When it had nothing to do within the steps: it did nothing, and nothing was queued.
        stalled: When it did nothing although work was queued.
    """

    def __init__(self, trace: TraceData, device: Device, activity: Activity, steps: Intervals) -> None:
        self._trace, self._steps = trace, steps
        self.name = device.name
        self.properties: DeviceProperties | None = trace.run_info.properties_of(device.index)
        self.activity = activity
        self.identity = device
        nothing = steps - activity.compute - activity.communication - activity.copies
        self.idle, self.stalled = nothing - activity.queued, nothing & activity.queued
        work = device_work(trace)
        is_ours = work.device == work.devices.index(device)
        step = np.searchsorted(steps.start_ns, work.start_ns, side="right") - 1
        is_ours &= (step >= 0) & (work.start_ns < np.append(steps.end_ns, 0)[step])
        self.rows: Rows = work.rows[is_ours].astype(np.int64)
        self.category = work.category[is_ours]

    @classmethod
    def of(cls, trace: TraceData, process: int, name: str, start_ns: Rows, end_ns: Rows) -> Self | None:
        """The device of this name that a process used; None if it used none.

        Args:
            trace: The trace.
            process: The row of the process in `processes`, -1 in a trace of one process.
            name: The device.
            start_ns: When each step starts.
            end_ns: When each ends.
        """
        for use in activities(trace):
            if use.owner.process == process and use.device is not None and use.device.name == name:
                return cls(trace, use.device, use, Intervals.of(start_ns, end_ns))
        return None

    @cached_property
    def captures(self) -> bool:
        """Whether launches were captured into a graph, which does not run them: the device is then idle by intention."""
        spans = self._trace.columns("spans")
        names = np.unique(spans["name"][spans["kind"] == SpanKind.RUNTIME])
        return any("StreamBeginCapture" in self._trace.strings[name] for name in names.tolist())

    @cached_property
    def kernels(self) -> Rows:
        """Its kernels that compute."""
        kernel = self._trace.column("spans", "kind")[self.rows] == SpanKind.KERNEL
        return np.asarray(self.rows[kernel & (self.category == WorkCategory.COMPUTE)])

    @cached_property
    def is_product(self) -> Mask:
        """Which of its kernels were launched by operators that multiply matrices, or inside of one."""
        return self.of_families(self.kernels, MATRIX)

    @property
    def products(self) -> Rows:
        """These kernels."""
        return np.asarray(self.kernels[self.is_product])

    @cached_property
    def copies(self) -> tuple[Rows, list[Direction]]:
        """Its copies between memories, and where each goes."""
        rows = self.rows[self._trace.column("spans", "kind")[self.rows] == SpanKind.MEMCPY]
        return rows, copy_directions(self._trace, rows) if len(rows) else []

    @cached_property
    def families(self) -> list[str]:
        """For each string of the trace that names an operator, the family of its formula; empty for all others."""
        spans = self._trace.columns("spans")
        families = [""] * len(self._trace.strings)
        for name in np.unique(spans["name"][is_operator(spans["kind"])]).tolist():
            text = self._trace.strings[name]
            rule = rule_of(text)
            # Operators of torch before 1.11, of which no formula is known.
            other = "convolution" if text.startswith(_FORMER_CONVOLUTIONS) else ""
            families[name] = rule.family if rule else other
        return families

    def operators(self, rows: Rows) -> Rows:
        """The operator that launched each of some rows, -1 where it is unknown."""
        return np.asarray(starters(self._trace).operator[rows], dtype=np.int64)

    def of_families(self, rows: Rows, families: frozenset[str]) -> Mask:
        """Which of some rows were launched by an operator of one of some families of formulas, or inside of one."""
        spans = self._trace.columns("spans")
        member = np.array([family in families for family in self.families], dtype=bool)
        name, parent = np.append(spans["name"], 0), np.append(spans["parent"], -1)
        above = self.operators(rows)
        is_member = np.zeros(len(rows), dtype=bool)
        while (above >= 0).any():
            is_member |= (above >= 0) & member[name[above]]
            above = parent[above].astype(np.int64)
        return is_member

    @cached_property
    def gaps(self) -> IdleGaps:
        """Its idle time, in stretches of which each has one cause."""
        host, spans = self.activity.host, self._trace.columns("spans")
        start, end = self.idle.start_ns, self.idle.end_ns
        length = end - start - host.loading.within(start, end)
        waits = self.waits()
        begun = spans["start_ns"][waits]
        order = np.argsort(begun, kind="stable")
        waits, begun = waits[order], begun[order]
        # The last wait that began before the gap may be short and lie inside a longer one: of all that began, the one that ends last.
        ended = begun + spans["duration_ns"][waits]
        last = np.searchsorted(begun, start, side="right") - 1
        reach = np.maximum.accumulate(ended) if len(ended) else ended
        longest = np.searchsorted(reach, reach, side="left") if len(reach) else reach
        wait_of_gap = np.full(len(start), -1, dtype=np.int64)
        after_wait = np.flatnonzero(last >= 0)
        covers = after_wait[reach[last[after_wait]] >= start[after_wait]]
        wait_of_gap[covers] = waits[longest[last[covers]]]
        return IdleGaps(start, length, wait_of_gap)

    @cached_property
    def after_stalls(self) -> Rows:
        """The work that ended each stretch in which it did nothing although work was queued; -1 for none."""
        rows = self._all_rows
        start = self._trace.column("spans", "start_ns")[rows]
        order = np.argsort(start, kind="stable")
        next_row = np.searchsorted(start[order], self.stalled.end_ns, side="left")
        return np.append(rows[order], -1)[np.minimum(next_row, len(rows))].astype(np.int64)

    @cached_property
    def first_of_streams(self) -> Rows:
        """The first work of each of its streams in the trace: what ran there before is not known."""
        spans, rows = self._trace.columns("spans"), self._all_rows
        order = rows[np.lexsort((spans["start_ns"][rows], spans["stream"][rows]))]
        first = np.diff(spans["stream"][order], prepend=-1) != 0
        return np.asarray(order[first], dtype=np.int64)

    @property
    def _all_rows(self) -> Rows:
        work = device_work(self._trace)
        return np.asarray(work.rows[work.device == work.devices.index(self.identity)], dtype=np.int64)

    @property
    def all_computing(self) -> Rows:
        """Its kernels that compute, in the whole trace."""
        work, rows = device_work(self._trace), self._all_rows
        return rows[np.isin(rows, work.rows[work.category == WorkCategory.COMPUTE])]

    def waits(self, *, frees: bool = True) -> Rows:
        """The calls of the host in which it waited for this device: synchronization, copies that return when they are done, and freeing memory."""
        spans, launched = self._trace.columns("spans"), starters(self._trace)
        copies = self.rows[self.category == WorkCategory.COPY]
        copies = copies[launched.call[copies] >= 0]
        call = launched.call[copies]
        done, ended = (spans["start_ns"][rows] + spans["duration_ns"][rows] for rows in (copies, call))
        blocking = call[ended >= done]
        calls_of_kind = [waiting_calls(self._trace), blocking]
        if frees:
            calls = np.flatnonzero(is_runtime_call(spans["kind"]))
            names = np.unique(spans["name"][calls]).tolist()
            named = [name for name in names if _FREES.match(self._trace.strings[name])]
            calls_of_kind.append(calls[np.isin(spans["name"][calls], named)])
        waits = np.unique(np.concatenate(calls_of_kind).astype(np.int64))
        return np.asarray(waits[owned(self._trace, self.activity.owner)[spans["thread"][waits]]])
