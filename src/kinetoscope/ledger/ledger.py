"""The ledger: what each nanosecond of a step was spent on, on the thread or device that the step waits for at that moment (`moments`).

The cells of a step add up to its duration exactly. An operator needs the least time for its operations and bytes on this machine (`tables.costs.attainable`),
the fixed cost of a call, and the Python that issues it; the rest of its time is slow, with the cause where one shows. If a line calls an operator again and
again in a step, only one call is needed: one call could process a whole tensor. A step's floor is its needed time plus the waits that it cannot avoid.
`analyses.account.accounts` adds the findings; users see that.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.ledger.avoidable_work.waste import called_again, waste_of
from kinetoscope.ledger.moments import (
    Category,
    Columnar,
    MomentRows,
    WorkMoments,
    busiest_of_processes,
    moments_of_requests,
    moments_of_steps,
)
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import spans_named
from kinetoscope.model.rows import Mask, Rows, divided
from kinetoscope.model.schema import ASKING, SampleWait
from kinetoscope.model.time_spent import FLOOR_WAITS, Cause, Entry
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.attainable import least_call_ns, rates_of
from kinetoscope.tables.costs.columns import costs_of
from kinetoscope.tables.costs.peaks import least_seconds
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.host.python_time import gaps
from kinetoscope.tables.host.units_of_work import units_of_work
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.stacks import span_stacks

RECORD_NS = 80
"""The least time that recording one operator takes."""
ISSUING = 15.0
"""Time between two operators counts as issuing the next one up to this many times the fixed cost of a call: Python (attributes, arguments, modules, the optimizer) or
autograd's engine. Calibrated with the twins of `benchmarks/blind_programs.py`: well-written steps take 1.0 to 1.5 times their floor."""


# The causes of a blocked thread.
BLOCKED = (Cause.BLOCKED, *(cause for cause in Cause if Cause.LOCK <= cause <= Cause.SYSTEM_CALL))


def wait_of(cause: Cause) -> SampleWait:
    """The `SampleWait` of a cause in `BLOCKED`."""
    return (
        SampleWait(cause - Cause.LOCK + 1) if Cause.LOCK <= cause <= Cause.SYSTEM_CALL else SampleWait.UNKNOWN
    )


@dataclass(frozen=True, eq=False)
class Cells(Columnar):
    """Slices of the time of steps; the cells of one step add up to its duration.

    Attributes:
        step: The index of the step in the units of work of its process.
        entry: An `Entry`.
        cause: A `Cause`.
        span: An example span, -1 for none.
        name: The row of the operator's name in the strings, -1 for none.
        stack: The row of the Python stack, -1 for none.
        module: The row of the module, -1 outside of modules.
        count: The number of calls or stretches that the cell sums up.
        time_ns: The time of the cell.
    """

    step: Rows
    entry: Rows
    cause: Rows
    span: Rows
    name: Rows
    stack: Rows
    module: Rows
    count: Rows
    time_ns: Rows

    @classmethod
    def of(
        cls, step: Rows, entry: Entry, cause: Cause | NDArray[Any], time_ns: Rows, **more: Rows | int
    ) -> Cells:
        """Cells of one entry, without those of zero time; columns not in `more` are -1, and `count` is 1."""
        count = len(step)
        columns: dict[str, Any] = {"span": -1, "name": -1, "stack": -1, "module": -1, "count": 1} | more
        columns |= {"step": step, "entry": int(entry), "cause": cause, "time_ns": time_ns}
        some = np.flatnonzero(time_ns > 0)
        return cls(
            *(
                np.broadcast_to(columns[name], count)[some].astype(np.int64, copy=False)
                for name in cls.__dataclass_fields__
            )
        )

    @property
    def needed_ns(self) -> Rows:
        """The time of each cell that belongs to the floor: needed work and unavoidable waits count in full, everything else is 0."""
        must_wait = (self.entry == Entry.WAITING) & np.isin(self.cause, FLOOR_WAITS)
        return np.where((self.entry == Entry.NEEDED) | must_wait, self.time_ns, 0)

    def whole_parts(self, rows: Rows) -> tuple[Rows, Rows]:
        """The entry and cause of some cells, where the needed and the other time between operators count as one: Python or autograd's engine."""
        entry, cause = self.entry[rows], self.cause[rows]
        between = (entry == Entry.NEEDED) & (self.name[rows] < 0)
        python, engine = between & (cause == Cause.CALL), between & (cause == Cause.AUTOGRAD)
        entry = np.where(python, Entry.PYTHON, np.where(engine, Entry.SLOW, entry))
        return entry, np.where(python, Cause.NONE, cause)


@dataclass(frozen=True, eq=False)
class ProcessLedger(WorkMoments):
    """The ledger of the units of work of one process on one device, or on its host if it used none; includes start-up.

    Attributes:
        cells: Where the time went; the cells of a unit, by its index in `work`, add up to its duration.
        processor_share: For each unit, the time without a CPU core as a fraction of the time that needs one, needed work excluded.
        waits_of_work_ns: For each unit, the part of its wait for a CPU core that was subtracted from operators; the rest came from time between them.
    """

    cells: Cells
    processor_share: NDArray[np.float64]
    waits_of_work_ns: Rows

    @property
    def trace(self) -> TraceData:
        """The trace."""
        return self.work.trace

    @property
    def process(self) -> int:
        """The row of the process in `processes`; -1 in a trace of one process."""
        return self.activity.owner.process

    @property
    def duration_ns(self) -> Rows:
        """How long each unit took, in nanoseconds."""
        return self.work.duration_ns

    @cached_property
    def counted(self) -> Mask:
        """Whether each unit counts; start-up does not."""
        return ~self.work.is_start_up

    @cached_property
    def counted_step(self) -> Rows:
        """The index of each unit among those that count; -1 for start-up."""
        return np.where(self.counted, np.cumsum(self.counted) - 1, -1)

    @cached_property
    def entry_ns(self) -> Rows:
        """The time of each unit in each `Entry`."""
        shape = (len(self.work), len(Entry))
        by_entry = Groups.cells(self.cells.step, self.cells.entry, shape)
        return by_entry.sums(self.cells.time_ns)

    @cached_property
    def floor_ns(self) -> Rows:
        """The floor of each unit: needed work plus unavoidable waits."""
        return Groups(self.cells.step, len(self.work)).sums(self.cells.needed_ns)


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Work that findings call avoidable. Each array has one entry per span, and a 0 at the end for "no span".

    Attributes:
        part: The avoidable fraction of the span's work, from 0 to 1.
        part_of_calls: The avoidable fraction of the Python that issues it.
        why: The `Cause`.
    """

    part: NDArray[np.float64]
    part_of_calls: NDArray[np.float64]
    why: NDArray[np.uint8]


@derived
def raw_ledger(trace: TraceData) -> list[ProcessLedger]:
    """The ledger of each process on its busiest device: of its steps, or of requests if no process has steps, or else of the whole recording.

    It comes from the trace alone, without findings.
    """
    unit = units_of_work(trace).unit
    if unit.overlaps:
        return [ledger_of(moments) for moments in moments_of_requests(trace)]
    counted = [moments for moments in moments_of_steps(trace) if moments.work.unit is unit]
    of_activity = {id(moments.activity): moments for moments in counted}
    busiest = busiest_of_processes(moments.activity for moments in counted)
    return [ledger_of(of_activity[id(activity)]) for activity in busiest.values()]


def ledger_of_process(ledgers: list[ProcessLedger], process: int) -> ProcessLedger | None:
    """The ledger of a process, a row of `processes`; None if it has none."""
    return next((ledger for ledger in ledgers if ledger.process == process), None)


def ledger_of(
    moments: WorkMoments, left_out: LeftOut | None = None, raw: ProcessLedger | None = None
) -> ProcessLedger:
    """Divide the moments of units of work into needed time and the causes of the rest.

    Args:
        moments: The moments.
        left_out: The work that findings call avoidable; None for none.
        raw: With `left_out`, the ledger without it.
    """
    units = np.arange(len(moments.work))
    cells = Cells.joined([
        _cells(moments, left_out),
        *(Cells.of(units, Entry.WAITING, cause, time_ns) for cause, time_ns in moments.suspended.items()),
    ])  # fmt: skip
    return _without_processor(cells, moments, raw)


# The categories whose moments become one entry and cause. All others are divided further.
_UNDIVIDED = {
    Category.GARBAGE_COLLECTION: (Entry.GARBAGE_COLLECTION, Cause.NONE),
    Category.PROFILER: (Entry.PROFILER, Cause.NONE),
    Category.COMPILING: (Entry.COMPILING, Cause.NONE),
    Category.DATA_LOADING: (Entry.WAITING, Cause.DATA),
    Category.COMMUNICATION: (Entry.WAITING, Cause.COLLECTIVE),
    Category.COPY: (Entry.WAITING, Cause.COPY),
    Category.DEVICE_WAIT: (Entry.WAITING, Cause.DEVICE),
    Category.RUNNING: (Entry.PYTHON, Cause.NONE),
    Category.UNKNOWN: (Entry.UNKNOWN, Cause.NONE),
}


def _cells(moments: WorkMoments, left_out: LeftOut | None) -> Cells:
    trace, pieces = moments.work.trace, moments.moments
    return Cells.joined([
        *(_simple(pieces, category, *spent) for category, spent in _UNDIVIDED.items()),
        *_python(trace, pieces, left_out),
        *_of_operators(trace, pieces, left_out, on_device=moments.on_device),
        *_of_kernels(trace, pieces, left_out),
    ])  # fmt: skip


def _simple(
    pieces: MomentRows, chosen: Category | Mask, entry: Entry, cause: Cause, of_each_ns: Rows | None = None
) -> Cells:
    """One cell per step for the chosen moments, with all of their time or `of_each_ns`."""
    rows = np.flatnonzero(pieces.category == chosen if isinstance(chosen, Category) else chosen)
    steps, step = np.unique(pieces.unit[rows], return_inverse=True)
    by_step = Groups(step, len(steps))
    time_ns = by_step.sums((pieces.time_ns if of_each_ns is None else of_each_ns)[rows])
    return Cells.of(steps, entry, cause, time_ns, count=by_step.sizes())


def _python(trace: TraceData, pieces: MomentRows, left_out: LeftOut | None) -> list[Cells]:
    """Time between operators: each kind of gap in each step is divided by its shares. A part of it issues the next operator."""
    between = gaps(trace)
    gap = pieces.category == Category.PYTHON
    in_backward = np.zeros(len(gap), bool)
    in_backward[gap] = between.in_backward[pieces.of[gap]]
    issues_ns = _issues_ns(trace, pieces, gap, left_out)
    rows = np.flatnonzero(gap & ~in_backward)
    keys = pieces.unit[rows] * (int(between.kind.max(initial=0)) + 1) + between.kind[pieces.of[rows]]
    distinct, cell = np.unique(keys, return_inverse=True)
    groups = Groups(cell, len(distinct))
    time, issuing, count = groups.sums(pieces.time_ns[rows]), groups.sums(issues_ns[rows]), groups.sizes()
    step, kind = np.divmod(distinct, int(between.kind.max(initial=0)) + 1)
    share, cell_of = between.shares.of_kinds(kind)
    part, blocked, wait = (getattr(between.shares, name)[share] for name in ("part", "blocked", "wait"))
    time_ns = divided(time, cell_of, part)
    needed_ns = np.minimum(time_ns, np.where(blocked, 0, np.floor(issuing[cell_of] * part)).astype(np.int64))
    more = {
        "stack": between.shares.stack[share],
        "module": between.shares.module[share],
        "count": count[cell_of],
    }

    def chosen(mask: Mask, entry: Entry, cause: Cause | NDArray[Any], took_ns: Rows) -> Cells:
        some = {name: values[mask] for name, values in more.items()}
        return Cells.of(step[cell_of][mask], entry, cause, took_ns[mask], **some)

    waits = np.where(wait > 0, Cause.LOCK - 1 + wait, Cause.BLOCKED)[blocked]
    return [
        chosen(~blocked, Entry.NEEDED, Cause.CALL, needed_ns),
        chosen(~blocked, Entry.PYTHON, Cause.NONE, time_ns - needed_ns),
        chosen(blocked, Entry.WAITING, waits, time_ns),
        _simple(pieces, in_backward, Entry.NEEDED, Cause.AUTOGRAD, issues_ns),
        _simple(pieces, in_backward, Entry.SLOW, Cause.AUTOGRAD, pieces.time_ns - issues_ns),
    ]


def _issues_ns(trace: TraceData, pieces: MomentRows, gap: Mask, left_out: LeftOut | None) -> Rows:
    """The time of each gap that issues the next operator. After a repeated call of a loop it is 0; after avoidable work it is reduced."""
    all_gaps = gaps(trace)
    part = np.minimum(1.0, ISSUING * rates_of(trace).fixed_ns / np.maximum(all_gaps.stretch_ns, 1))
    part[called_again(trace)[all_gaps.before]] = 0.0
    if left_out is not None:
        part *= 1.0 - left_out.part_of_calls[all_gaps.before]
    issues_ns = np.zeros(len(gap), np.int64)
    issues_ns[gap] = np.floor(pieces.time_ns[gap] * part[pieces.of[gap]])
    return issues_ns


def _of_operators(
    trace: TraceData, pieces: MomentRows, left_out: LeftOut | None, *, on_device: bool
) -> list[Cells]:
    """The cells of host operators: needed time, call costs, avoidable work, and the rest. On a device, all of their time is launch latency."""
    spans = trace.columns("spans")
    rows = np.flatnonzero(pieces.category == Category.OPERATOR)
    owner, step = pieces.of[rows], pieces.unit[rows]
    counted = _counted_around(trace)[owner]
    row = np.where(counted >= 0, counted, owner)
    # Consecutive pieces with the same counted operator form a run. A composite operator has several runs; the first contains its call.
    runs = Groups.runs(row, step)
    span, step = row[runs.first], step[runs.first]
    time_ns = runs.sums(pieces.time_ns[rows])
    if on_device:
        return _grouped(trace, step, span, [(Entry.SLOW, np.full(len(span), Cause.LAUNCH), time_ns)])
    calls = runs.sums(pieces.start_ns[rows] == spans["start_ns"][owner])
    return _grouped(trace, step, span, _divided_operators(trace, span, time_ns, calls, left_out))


def _divided_operators(
    trace: TraceData, span: Rows, time_ns: Rows, calls: Rows, left_out: LeftOut | None
) -> list[tuple[Entry, NDArray[Any], Rows]]:
    """Divide the time of operators: one entry after the other takes its amount from what is left. Return entries with causes and times."""
    costs, rates, waste = costs_of(trace), rates_of(trace), waste_of(trace)
    counts, wasted, why = costs.counted.counts[span], waste.part[span], waste.why[span]
    if left_out is not None:
        more = left_out.part[span] > wasted
        wasted, why = (np.where(more, left_out.part[span], wasted), np.where(more, left_out.why[span], why))
    least_ns = np.append(least_call_ns(trace), 0.0)[costs.calls.of_span[span]]
    parts: list[tuple[Entry, NDArray[Any], Rows]] = []
    left = time_ns.copy()

    def take(entry: Entry, cause: Cause | NDArray[Any], amount: NDArray[Any]) -> None:
        # Most traces lack some entries.
        if amount.any():
            taken = np.minimum(left, amount.astype(np.int64, copy=False))
            np.subtract(left, taken, out=left)
            parts.append((entry, np.broadcast_to(np.asarray(cause), len(span)), taken))

    take(Entry.WAITING, Cause.COLLECTIVE, np.where(_calls_other_ranks(trace)[span], left, 0))
    take(Entry.PROFILER, Cause.NONE, np.minimum(RECORD_NS * calls, left // 2))
    take(Entry.NOT_NEEDED, why, np.floor(left * wasted))
    unknown = costs.unknown[span] | (counts & (costs.flops[span] <= 0) & (costs.bytes_moved[span] < 0))
    take(Entry.NEEDED, Cause.NONE, np.where(counts, least_ns * (1.0 - wasted), 0.0))
    call_ns, again = np.where(unknown, 0.0, np.ceil(rates.fixed_ns * calls)), called_again(trace)[span]
    take(Entry.NEEDED, Cause.CALL, np.where(again, 0.0, call_ns))
    take(Entry.SLOW, Cause.CALL, np.where(again, call_ns, 0.0))
    take(Entry.UNKNOWN, Cause.NO_INPUTS, np.where(unknown, left, 0))
    take(Entry.SLOW, np.where(waste.fresh[span], Cause.FRESH_MEMORY, waste.slow[span]), left.copy())
    return parts


@derived
def _calls_other_ranks(trace: TraceData) -> Mask:
    """Spans on the host that call a collective, and wait for other ranks unless they are asynchronous."""
    is_named = spans_named(trace, lambda text: text.startswith(ASKING))
    return np.asarray(is_named & (trace.column("spans", "stream") < 0))


def communication_moments(moments: WorkMoments) -> Intervals:
    """When units of work waited for communication: a collective ran, or an operator that calls one did."""
    pieces, asks = moments.moments, np.zeros(len(moments.moments.unit), bool)
    if not moments.on_device:
        operators = pieces.category == Category.OPERATOR
        asks[operators] = _calls_other_ranks(moments.work.trace)[pieces.of[operators]]
    return moments.when((pieces.category == Category.COMMUNICATION) | asks)


def _grouped(
    trace: TraceData, step: Rows, span: Rows, parts: list[tuple[Entry, NDArray[Any], Rows]]
) -> list[Cells]:
    """Add up the parts of operators by step, operator name, stack, module and causes."""
    spans = trace.columns("spans")
    stack = span_stacks(trace)[span]
    keys = [step.astype(np.int32), spans["name"][span], stack, spans["module"][span]]
    keys += [cause.astype(np.int32) for _, cause, _ in parts if cause.strides[0]]
    groups = Groups.by(keys)
    first = groups.first
    more: dict[str, Any] = {
        "span": span[first],
        "name": spans["name"][span[first]],
        "stack": stack[first],
        "module": spans["module"][span[first]],
    }
    steps = step[first]
    return [
        Cells.of(
            steps, entry, cause[first], groups.sums(time_ns), count=groups.sums(time_ns > 0), **more,
        )
        for entry, cause, time_ns in parts
    ]  # fmt: skip


@derived
def _counted_around(trace: TraceData) -> Rows:
    """For each span the operator whose cost covers it: the span itself or the nearest such ancestor; -1 for none."""
    spans = trace.columns("spans")
    counted = _core.nearest_marked(spans["parent"], spans["depth"], costs_of(trace).counted.counts)
    return counted.astype(np.int64)


def _of_kernels(trace: TraceData, pieces: MomentRows, left_out: LeftOut | None) -> list[Cells]:
    """The cells of device kernels: the time that their operators need at the peak of the device, and the rest."""
    rows = np.flatnonzero(pieces.category == Category.KERNEL)
    if len(rows) == 0:
        return []
    spans, costs = trace.columns("spans"), costs_of(trace)
    operator = starters(trace).operator[pieces.of[rows]].astype(np.int64)
    counted = np.append(_counted_around(trace), -1)[operator]
    # A kernel with a formula of its own counts itself.
    counted = np.where(costs.counted.counts[pieces.of[rows]], pieces.of[rows], counted)
    row = np.where(counted >= 0, counted, np.where(operator >= 0, operator, pieces.of[rows]))
    steps = int(pieces.unit.max(initial=0)) + 1
    groups = Groups.by([(row * steps + pieces.unit[rows]).astype(np.int64)])
    first = groups.first
    span, step = row[first], pieces.unit[rows[first]]
    time_ns = groups.sums(pieces.time_ns[rows])
    least = least_seconds(trace, costs)
    least_ns = np.zeros(len(span)) if least is None else np.nan_to_num(least[costs.calls.of_span[span]]) * 1e9
    size = costs.bytes_moved[span]
    device_ns = np.maximum(spans["device_ns"][span], time_ns)
    rate = np.where(
        (size > 0) & (device_ns > _LEAST_FOR_A_RATE_NS), size / np.maximum(device_ns, 1), 0.0
    ).max(initial=0.0)
    if rate > 0:
        least_ns = np.maximum(least_ns, np.where(size > 0, size / rate, 0.0))
    none, unknown = np.full(len(span), Cause.NONE), np.full(len(span), Cause.NO_INPUTS)
    not_needed = []
    if left_out is not None:
        part = left_out.part[operator[first]]
        wasted = np.floor(time_ns * part).astype(np.int64)
        time_ns, least_ns = time_ns - wasted, least_ns * (1.0 - part)
        not_needed = [(Entry.NOT_NEEDED, left_out.why[operator[first]], wasted)]
    needed = np.minimum(time_ns, least_ns.astype(np.int64))
    is_known = costs.counted.counts[span] & (least_ns > 0)
    return _grouped(trace, step, span, [
        *not_needed,
        (Entry.NEEDED, none, np.where(is_known, needed, 0)),
        (Entry.SLOW, none, np.where(is_known, time_ns - needed, 0)),
        (Entry.UNKNOWN, unknown, np.where(is_known, 0, time_ns)),
    ])  # fmt: skip


# Shorter kernels do not show the memory bandwidth.
_LEAST_FOR_A_RATE_NS = 20_000
# Time without a CPU core is subtracted from these entries and from call costs, from each in proportion.
_OF_PROCESSOR = tuple(entry for entry in Entry if entry not in (Entry.NEEDED, Entry.WAITING))


def _without_processor(cells: Cells, moments: WorkMoments, raw: ProcessLedger | None) -> ProcessLedger:
    """Subtract the time without a CPU core from the cells that need one: first from time that is not needed, then from needed work.

    Args:
        cells: The cells of the units.
        moments: Their moments, with each unit's time without a CPU core.
        raw: The ledger without findings, which decides how much of the wait operators lose and how much Python loses; None if this is it.
    """
    waited_ns = moments.processor_wait_ns
    of_moments: dict[str, Any] = {field.name: getattr(moments, field.name) for field in fields(WorkMoments)}
    # Kernels continue when the host has no core.
    on_host = (
        np.full(len(cells.span), not moments.on_device) | (cells.span < 0) | (cells.cause == Cause.LAUNCH)
    )
    of_calls = (cells.entry == Entry.NEEDED) & (cells.cause != Cause.NONE)
    is_known = (cells.entry != Entry.UNKNOWN) | (cells.span >= 0)
    first = on_host & is_known & (of_calls | np.isin(cells.entry, _OF_PROCESSOR))
    second = on_host & ~first & (cells.entry == Entry.NEEDED)
    by_unit = Groups(cells.step, len(waited_ns))
    first_ns = by_unit.sums(cells.time_ns, first)
    is_work, taken = cells.span >= 0, np.zeros(len(cells.span), np.int64)
    if raw is None:
        taken = _taken(cells, first, waited_ns) + _taken(cells, second, np.maximum(waited_ns - first_ns, 0))
    else:
        raw_by_unit = Groups(raw.cells.step, len(waited_ns))
        of_raw = raw_by_unit.sums(raw.cells.time_ns, raw.cells.cause == Cause.PROCESSOR)
        for mask, amount_ns in ((is_work, raw.waits_of_work_ns), (~is_work, of_raw - raw.waits_of_work_ns)):
            before_ns = by_unit.sums(cells.time_ns, first & mask)
            taken += _taken(cells, first & mask, amount_ns)
            taken += _taken(cells, second & mask, np.maximum(amount_ns - before_ns, 0))
    left_over = replace(cells, time_ns=cells.time_ns - taken)
    left_over = left_over[left_over.time_ns > 0]
    waits_ns = by_unit.sums(taken)
    waits = Cells.of(np.arange(len(waited_ns)), Entry.WAITING, Cause.PROCESSOR, waits_ns)
    share = np.minimum(waited_ns / np.maximum(first_ns, 1), 1.0)
    return ProcessLedger(
        **of_moments,
        cells=Cells.joined([left_over, waits]),
        processor_share=share,
        waits_of_work_ns=by_unit.sums(taken, is_work),
    )


def _taken(cells: Cells, chosen: Mask, amount_ns: Rows) -> Rows:
    """The time that each chosen cell loses, in proportion, so that the cells of a step together lose `amount_ns` or all they have."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(cells.step[rows], kind="stable")]
    steps, group = np.unique(cells.step[rows], return_inverse=True)
    step_ns = Groups(group, len(steps)).sums(cells.time_ns[rows])
    amount = np.minimum(amount_ns[steps], step_ns)
    taken = np.zeros(len(chosen), np.int64)
    taken[rows] = np.minimum(
        divided(amount, group, cells.time_ns[rows] / step_ns[group]), cells.time_ns[rows]
    )
    return taken
