"""What each nanosecond of a step was spent on, on the thread or device that the step waits for at that moment.

The parts of a step add up to its duration exactly. What an operator needs on this machine is the least time for its operations and bytes
(`tables.costs.attainable`), and what a call costs, with the Python that issues it; the rest of its time is slow, with its cause where one shows. Of an operator
that a line calls again and again in a step, one call is needed: it could be one on a whole tensor. A step's floor is what it needs and what it must wait for.
`account` adds what findings say, and is what people see.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

import kinetoscope._core as _core
from kinetoscope.ledger.avoidable_work.waste import called_again, waste_of
from kinetoscope.ledger.steps import step_parts
from kinetoscope.model.hierarchy import host_work, is_outermost, operator_spans
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.nesting import GARBAGE_COLLECTION
from kinetoscope.model.rows import ProcessRow, rows_of_runs
from kinetoscope.model.schema import FLAG_ASYNC, SampleWait, SpanKind
from kinetoscope.model.time_spent import FLOOR_WAITS, Cause, Entry
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.costs.attainable import least_call_ns, rates_of
from kinetoscope.tables.costs.columns import costs_of
from kinetoscope.tables.costs.peaks import least_seconds
from kinetoscope.tables.device.launches import starters, waiting_calls
from kinetoscope.tables.device.work import WorkCategory, device_work
from kinetoscope.tables.host.compiling import compiles
from kinetoscope.tables.host.python_time import gaps
from kinetoscope.tables.host.requests import parts_of_requests, requests_of
from kinetoscope.tables.host.units_of_work import Unit, UnitsOfWork, units_of_work
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.processor_waits import processor_waits
from kinetoscope.tables.stacks import program_stacks, span_stacks
from kinetoscope.tables.windows import (
    ASKING,
    Activity,
    Windows,
    activities,
    owned,
    windows,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData

    Rows = NDArray[np.int64]
    Mask = NDArray[np.bool_]


RECORD_NS = 80
"""What recording one operator takes at least."""
ISSUING = 15.0
"""Up to so many times the fixed cost of a call, what runs between two operators issues the next one: Python (attributes, arguments, modules, the optimizer), or the engine
of autograd. Chosen by the twins of `benchmarks/blind_programs.py`: well-written steps take 1.0 to 1.5 times their floor."""


# A blocked thread, by what it waits for.
BLOCKED = (Cause.BLOCKED, *(one for one in Cause if Cause.LOCK <= one <= Cause.SYSTEM_CALL))


def wait_of(cause: Cause) -> SampleWait:
    """What a blocked thread waits for, by the cause."""
    return (
        SampleWait(cause - Cause.LOCK + 1) if Cause.LOCK <= cause <= Cause.SYSTEM_CALL else SampleWait.UNKNOWN
    )


class _Columns:
    """A dataclass of columns that have equal lengths."""

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """Return the rows of all parts, those of one part after those of the other."""
        names = [one.name for one in fields(cast("Any", cls))]
        none = [np.zeros(0, np.int64)]
        return cls(*(np.concatenate([getattr(one, name) for one in parts] or none) for name in names))


@dataclass(frozen=True, eq=False)
class Cells(_Columns):
    """Parts of steps; those of one step add up to its duration.

    Attributes:
        step: The place of the step in the windows of its process.
        entry: An `Entry`.
        cause: A `Cause`.
        span: A span that shows it, -1 without.
        name: The name of the operator by its row in the strings, -1 without.
        stack: The row of the stack of the line, -1 without.
        module: The row of the module, -1 outside all.
        count: Of how many calls or stretches it is.
        time_ns: How long.
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
        """Cells of one entry, those without time left out; what is not given is -1, and of one stretch each."""
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

    def whole_parts(self, rows: Rows) -> tuple[Rows, Rows]:
        """The entry and the cause of some cells, with what runs between operators as one: the part of it that is needed and the rest are both Python, or autograd's engine."""
        entry, cause = self.entry[rows], self.cause[rows]
        between = (entry == Entry.NEEDED) & (self.name[rows] < 0)
        python, engine = between & (cause == Cause.CALL), between & (cause == Cause.AUTOGRAD)
        entry = np.where(python, Entry.PYTHON, np.where(engine, Entry.SLOW, entry))
        return entry, np.where(python, Cause.NONE, cause)


@dataclass(frozen=True, eq=False)
class ProcessAccount:
    """The account of the steps of one process, start-up included.

    Attributes:
        trace: The trace.
        window: Its steps, and the device that worked most.
        thread: The thread that runs the steps, -1 where it is unknown.
        cells: The parts of the steps.
        processor_share: For each step the share of what needs a processor, needed work left out, that was spent without one.
        work: The steps, requests or recording that these are the account of, in the order of the windows.
    """

    trace: TraceData
    window: Windows
    thread: int
    cells: Cells
    processor_share: NDArray[np.float64]
    work: UnitsOfWork

    @property
    def duration_ns(self) -> Rows:
        """How long each step took."""
        return self.window.end_ns - self.window.start_ns

    @cached_property
    def counted(self) -> Mask:
        """Which steps count: start-up is left out."""
        return ~self.work.is_start_up

    @cached_property
    def entry_ns(self) -> Rows:
        """For each step the time of each entry."""
        found = np.zeros((len(self.window.step), len(Entry)), np.int64)
        np.add.at(found, (self.cells.step, self.cells.entry), self.cells.time_ns)
        return found

    @cached_property
    def floor_ns(self) -> Rows:
        """The floor of each step: what it needs, and what it must wait for."""
        cells, found = self.cells, self.entry_ns[:, Entry.NEEDED].copy()
        must = (cells.entry == Entry.WAITING) & np.isin(cells.cause, FLOOR_WAITS)
        np.add.at(found, cells.step[must], cells.time_ns[must])
        return found


@dataclass(frozen=True, eq=False)
class LeftOut:
    """What findings say that a program can leave out. Each has an entry for every span, and 0 at the end for no span.

    Attributes:
        part: Which part of the work, from 0 to 1.
        part_of_calls: Which part of what issues it.
        why: A `Cause` for it.
    """

    part: NDArray[np.float64]
    part_of_calls: NDArray[np.float64]
    why: NDArray[np.uint8]


@derived
def attributed(trace: TraceData) -> list[ProcessAccount]:
    """The account of each process by the trace alone; see `attribute`."""
    return attribute(trace, None)


def account_of_process(accounts: list[ProcessAccount], process: int) -> ProcessAccount | None:
    """The account of a process, a row of `processes`; None where it has none."""
    return next((one for one in accounts if one.window.activity.owner.process == process), None)


def attribute(trace: TraceData, left_out: LeftOut | None) -> list[ProcessAccount]:
    """The account of each process with steps or, where none has any, of those with requests, else of all that was recorded of each.

    Args:
        trace: The trace.
        left_out: What findings say that it can leave out; None for nothing.
    """
    work = units_of_work(trace)
    if work.unit is Unit.REQUEST:
        return _of_requests(work, left_out)
    found: dict[ProcessRow, Windows] = {}
    busy_ns: dict[ProcessRow, int] = {}
    every = windows(trace, "step")
    with_steps = [one for one in every if (one.step >= 0).any()]
    for one in with_steps or every:
        process = one.activity.owner.process
        computing = one.activity.compute.total_ns
        if computing > busy_ns.get(process, -1):
            found[process], busy_ns[process] = one, computing
    return [_of_process(work.of_process(process), one, left_out) for process, one in found.items()]


def _of_process(work: UnitsOfWork, window: Windows, left_out: LeftOut | None) -> ProcessAccount:
    """The account of the steps of one process."""
    trace = work.trace
    thread, steps = _thread(trace, window), np.arange(len(window.step))
    layers = _layers(trace, window, thread)
    pieces = _pieces(layers, _Stretches(steps, window.start_ns, window.end_ns))
    cells = _cells(trace, pieces, left_out, on_device=window.activity.device is not None)
    waited_ns = np.zeros(len(steps), np.int64)
    if window.activity.device is None and work.unit is Unit.STEP:
        waited_ns = step_parts(trace)["processor_wait_ns"][work.row]
    elif thread >= 0 and window.activity.device is None:
        waited_ns = processor_waits(trace, thread).within(window.start_ns, window.end_ns)
    return ProcessAccount(trace, window, thread, *_without_processor(cells, waited_ns), work)


def _of_requests(work: UnitsOfWork, left_out: LeftOut | None) -> list[ProcessAccount]:
    """The account of the requests of each process."""
    trace = work.trace
    busiest: dict[ProcessRow, Activity] = {}
    for one in activities(trace):
        of = one.owner.process
        if of not in busiest or one.compute.total_ns > busiest[of].compute.total_ns:
            busiest[of] = one
    found = []
    for of, activity in busiest.items():
        requests = work.of_process(of) if of >= 0 else work
        if len(requests):
            extent = requests.start_ns, requests.end_ns
            window = Windows(activity, np.full(len(requests), -1), *extent, Intervals.of(*extent))
            found.append(_of_requests_in(requests, window, left_out))
    return found


def _of_requests_in(work: UnitsOfWork, window: Windows, left_out: LeftOut | None) -> ProcessAccount:
    """The account of the requests of one process: on each thread the time in which it worked for them, and what they waited for meanwhile."""
    trace, requests = work.trace, work.row
    known, parts = requests_of(trace), parts_of_requests(trace)
    place = np.full(len(known), -1)
    place[requests] = np.arange(len(requests))
    on_device = window.activity.device is not None
    found, waited_ns = [], np.zeros(len(requests), np.int64)
    busy_ns: dict[int, int] = {}
    for thread in np.unique(known.stretch_thread).tolist():
        rows = np.flatnonzero((known.stretch_thread == thread) & (place[known.of] >= 0))
        start, end, of = known.stretch_start_ns[rows], known.stretch_end_ns[rows], place[known.of[rows]]
        pieces = _pieces(_layers_of_requests(trace, window, thread), _Stretches(of, start, end))
        found.append(pieces)
        busy_ns[thread] = int(pieces.time_ns[pieces.what == _What.OPERATOR].sum())
        if not on_device:
            np.add.at(waited_ns, of, processor_waits(trace, thread).within(start, end))
    every = np.arange(len(requests))
    waits = {
        Cause.EXECUTOR: "executor",
        Cause.OTHERS: "others",
        Cause.AWAITED: "waiting",
    }
    cells = Cells.joined([
        _cells(trace, _Pieces.joined(found), left_out, on_device=on_device),
        *(Cells.of(every, Entry.WAITING, cause, parts[part][requests]) for cause, part in waits.items()),
    ])  # fmt: skip
    thread = max(busy_ns, key=lambda one: busy_ns[one], default=-1)
    return ProcessAccount(trace, window, thread, *_without_processor(cells, waited_ns), work)


def _cells(trace: TraceData, pieces: _Pieces, left_out: LeftOut | None, *, on_device: bool) -> Cells:
    """Attribute the time of pieces to entries and causes of the account."""
    return Cells.joined([
        _simple(pieces, _What.COLLECTION, Entry.GARBAGE_COLLECTION, Cause.NONE),
        _simple(pieces, _What.PROFILER, Entry.PROFILER, Cause.NONE),
        _simple(pieces, _What.COMPILING, Entry.COMPILING, Cause.NONE),
        _simple(pieces, _What.LOADING, Entry.WAITING, Cause.DATA),
        _simple(pieces, _What.COMMUNICATION, Entry.WAITING, Cause.COLLECTIVE),
        _simple(pieces, _What.COPY, Entry.WAITING, Cause.COPY),
        _simple(pieces, _What.DEVICE, Entry.WAITING, Cause.DEVICE),
        _simple(pieces, _What.NOTHING, Entry.UNKNOWN, Cause.NONE),
        *_python(trace, pieces, left_out),
        *_of_operators(trace, pieces, left_out, on_device=on_device),
        *_of_kernels(trace, pieces, left_out),
    ])  # fmt: skip


def _thread(trace: TraceData, window: Windows) -> int:
    """The thread that runs the steps of a process or, without steps, the one that ran most."""
    spans = trace.columns("spans")
    marks = np.append(trace.column("steps", "span"), -1)[window.step]
    marked = spans["thread"][marks[marks >= 0]]
    if len(marked):
        return int(marked[0])
    rows = operator_spans(trace).rows
    rows = rows[owned(trace, window.activity.owner)[spans["thread"][rows]] & (spans["stream"][rows] < 0)]
    if len(rows) == 0:
        return -1
    return int(np.argmax(np.bincount(spans["thread"][rows], weights=spans["self_ns"][rows])))


# Which moment belongs to what: layers of stretches of time, of which the first that has a moment counts.


class _What(IntEnum):
    """What a moment belongs to."""

    NOTHING = 0
    COLLECTION = 1
    PROFILER = 2
    COMPILING = 3
    LOADING = 4
    OPERATOR = 5
    KERNEL = 6
    COMMUNICATION = 7
    COPY = 8
    DEVICE = 9
    GAP = 10


@dataclass(frozen=True, eq=False)
class _Layer:
    """Stretches of time in order that do not overlap, and what each is of: a span, or a gap; -1 for none."""

    what: _What
    start_ns: Rows
    end_ns: Rows
    of: Rows


@dataclass(frozen=True, eq=False)
class _Pieces(_Columns):
    """Parts of steps, each of which belongs to one thing; those of a step add up to it."""

    step: Rows
    what: Rows
    of: Rows
    start_ns: Rows
    time_ns: Rows


@dataclass(frozen=True, eq=False)
class _Stretches:
    """Stretches of time on one thread, and the step or request that each is of."""

    step: Rows
    start_ns: Rows
    end_ns: Rows


def _layer(what: _What, moments: Intervals) -> _Layer:
    """A layer of moments of which no more is known."""
    return _Layer(what, moments.start_ns, moments.end_ns, np.full(len(moments), -1))


def _pieces(layers: list[_Layer], stretches: _Stretches) -> _Pieces:
    """Cut stretches where what they wait for changes."""
    ends = [
        stretches.start_ns,
        stretches.end_ns,
        *(one.start_ns for one in layers),
        *(one.end_ns for one in layers),
    ]
    edges = _sorted_once(np.concatenate(ends))
    edges = edges[(edges >= stretches.start_ns.min(initial=0)) & (edges <= stretches.end_ns.max(initial=0))]
    begin = edges[:-1]
    what, of = np.zeros(len(begin), np.int64), np.full(len(begin), -1)
    left = np.arange(len(begin))
    for layer in layers:
        if len(layer.start_ns) == 0:
            continue
        at = np.searchsorted(layer.start_ns, begin[left], side="right") - 1
        inside = (at >= 0) & (begin[left] < layer.end_ns[at])
        rows, at = left[inside], at[inside]
        what[rows], of[rows] = layer.what, layer.of[at]
        left = left[~inside]
    first, last = (np.searchsorted(edges, side) for side in (stretches.start_ns, stretches.end_ns))
    at, row = rows_of_runs(first, np.maximum(last - first, 0))
    return _Pieces(stretches.step[at], what[row], of[row], begin[row], np.diff(edges)[row])


def _sorted_once(values: Rows) -> Rows:
    """The distinct ones of some values in order, by sorting: `np.unique` takes several times as long."""
    # Made of a few that are in order, which a stable sort merges.
    found = np.sort(values, kind="stable")
    return np.asarray(found[np.append(True, found[1:] != found[:-1])[: len(found)]], dtype=np.int64)


def _layers(trace: TraceData, window: Windows, thread: int) -> list[_Layer]:
    """What can have a moment of a step, what comes first first."""
    activity = window.activity
    host = activity.host
    before = [*_pauses(trace, thread), _layer(_What.LOADING, host.loading)]
    operators = [_innermost_operators(trace, thread), _other_threads(trace, window, thread)]
    waits = [
        _layer(_What.COMMUNICATION, activity.communication),
        _layer(_What.COPY, activity.copies),
        _layer(_What.DEVICE, host.waiting | activity.queued),
    ]
    if activity.device is None:
        return [*before, *operators, *waits, _between(trace, thread)]
    return [_kernels(trace, window), *waits, *before, *operators, _between(trace, thread)]


def _layers_of_requests(trace: TraceData, window: Windows, thread: int) -> list[_Layer]:
    """The same of the requests on a thread: other threads, and what they started on a device, work for other requests."""
    activity = window.activity
    host = [*_pauses(trace, thread), _innermost_operators(trace, thread), _between(trace, thread)]
    if activity.device is None:
        return [*host[:-1], _layer(_What.COMMUNICATION, activity.communication), host[-1]]
    calls = waiting_calls(trace)
    waiting = _when(trace, calls[trace.column("spans", "thread")[calls] == thread])
    waits = [
        _layer(_What.COMMUNICATION, activity.communication & waiting),
        _layer(_What.COPY, activity.copies & waiting),
        _layer(_What.DEVICE, waiting),
    ]
    return [_kernels(trace, window, thread), *waits, *host]


def _pauses(trace: TraceData, thread: int) -> list[_Layer]:
    """When a thread collected garbage, recorded, or compiled."""
    spans = trace.columns("spans")
    collections = _named_on(trace, GARBAGE_COLLECTION, thread)
    overhead = np.flatnonzero((spans["kind"] == SpanKind.OVERHEAD) & (spans["thread"] == thread))
    return [
        _layer(_What.COLLECTION, _when(trace, collections)),
        _layer(_What.PROFILER, _when(trace, overhead)),
        _layer(_What.COMPILING, _compiling(trace, thread)),
    ]


def _between(trace: TraceData, thread: int) -> _Layer:
    """When a thread ran Python between operators."""
    found = gaps(trace)
    mine = np.flatnonzero(found.thread == thread)
    mine = mine[np.argsort(found.start_ns[mine], kind="stable")]
    return _Layer(_What.GAP, found.start_ns[mine], found.end_ns[mine], mine)


def _when(trace: TraceData, rows: Rows) -> Intervals:
    """When some spans ran."""
    spans = trace.columns("spans")
    start = spans["start_ns"][rows]
    return Intervals.of(start, start + spans["duration_ns"][rows])


def _named_on(trace: TraceData, name: str, thread: int) -> Rows:
    """The spans of a name on a thread."""
    if name not in trace.strings:
        return np.zeros(0, np.int64)
    spans = trace.columns("spans")
    return np.flatnonzero((spans["name"] == trace.strings.index(name)) & (spans["thread"] == thread))


def _compiling(trace: TraceData, thread: int) -> Intervals:
    """When torch.compile compiled on a thread."""
    rows = [
        (one["start_ns"], one["start_ns"] + one["duration_ns"])
        for one in compiles(trace).select(["thread", "start_ns", "duration_ns"]).to_pylist()
        if one["thread"] == thread and one["start_ns"] is not None and one["duration_ns"] is not None
    ]
    start, end = np.array(rows, np.int64).reshape(-1, 2).T
    return Intervals.of(start, end)


def _innermost_operators(trace: TraceData, thread: int) -> _Layer:
    """When each operator, backward function or call of a runtime on a thread was the innermost one: its self time, where it was."""
    spans, rows = trace.columns("spans"), _work_on(trace, thread)
    start = spans["start_ns"][rows]
    edges = _sorted_once(np.concatenate((start, start + spans["duration_ns"][rows])))
    inside = _core.running_at(spans["start_ns"], spans["duration_ns"], spans["parent"], rows, edges[:-1])
    # Time of a range inside an operator is that operator's.
    is_work = np.append(is_operator(spans["kind"]) | _is_other_work(spans["kind"]), False)
    above = np.append(_core.nearest_marked(spans["parent"], spans["depth"], is_work[:-1]), np.int32(-1))
    of = above[inside].astype(np.int64)
    known = of >= 0
    return _Layer(_What.OPERATOR, edges[:-1][known], edges[1:][known], of[known])


def _is_other_work(kind: NDArray[np.uint8]) -> Mask:
    """Calls of a device's runtime, collectives and what else runs on the host without being an operator or a range."""
    return np.asarray((kind >= SpanKind.RUNTIME) & (kind != SpanKind.OVERHEAD))


def _work_on(trace: TraceData, thread: int) -> Rows:
    """What ran on a thread of the host and nests, ranges and steps left out, in order."""
    spans = trace.columns("spans")
    kind = spans["kind"]
    chosen = host_work(trace, with_steps=False).mask & (spans["thread"] == thread) & (spans["lane"] == 0)
    chosen &= (is_operator(kind) | _is_other_work(kind)) & (spans["stream"] < 0)
    chosen &= ((spans["flags"] & FLAG_ASYNC) == 0) & (spans["duration_ns"] > 0)
    return np.flatnonzero(chosen)


def _other_threads(trace: TraceData, window: Windows, thread: int) -> _Layer:
    """The operators that ran on other threads of a process, such as that of backward for a device: the one that began first has a moment."""
    spans = trace.columns("spans")
    rows = operator_spans(trace).rows
    rows = rows[
        (spans["thread"][rows] != thread) & owned(trace, window.activity.owner)[spans["thread"][rows]]
    ]
    rows = rows[(spans["stream"][rows] < 0) & ((spans["flags"][rows] & FLAG_ASYNC) == 0)]
    rows = rows[is_outermost(trace, rows)]
    return _first_come(trace, _What.OPERATOR, rows)


def _kernels(trace: TraceData, window: Windows, thread: int | None = None) -> _Layer:
    """The kernels of a device that compute, or those that a thread launched: the one that began first has a moment."""
    work = device_work(trace)
    mine = np.array([one == window.activity.device for one in work.devices], dtype=bool)[work.device]
    mine &= work.category == WorkCategory.COMPUTE
    if thread is not None:
        mine &= np.append(trace.column("spans", "thread"), -1)[starters(trace).call[work.rows]] == thread
    return _first_come(trace, _What.KERNEL, work.rows[mine])


def _first_come(trace: TraceData, what: _What, rows: Rows) -> _Layer:
    """A layer of spans that may overlap: each has the moments that no earlier one has."""
    spans = trace.columns("spans")
    rows = rows[np.argsort(spans["start_ns"][rows], kind="stable")]
    start = spans["start_ns"][rows]
    end = np.maximum.accumulate(start + spans["duration_ns"][rows])
    begin = np.maximum(start, np.append(np.iinfo(np.int64).min, end)[: len(end)])
    some = end > begin
    return _Layer(what, begin[some], end[some], rows[some].astype(np.int64))


# What the moments were spent on.


def _simple(
    pieces: _Pieces, chosen: _What | Mask, entry: Entry, cause: Cause, of_each_ns: Rows | None = None
) -> Cells:
    """The pieces of which no more is known, one cell a step; of each all of its time, or so much."""
    rows = np.flatnonzero(pieces.what == chosen if isinstance(chosen, _What) else chosen)
    steps, step = np.unique(pieces.step[rows], return_inverse=True)
    time_ns = np.zeros(len(steps), np.int64)
    np.add.at(time_ns, step, (pieces.time_ns if of_each_ns is None else of_each_ns)[rows])
    return Cells.of(steps, entry, cause, time_ns, count=np.bincount(step, minlength=len(steps)))


def _python(trace: TraceData, pieces: _Pieces, left_out: LeftOut | None) -> list[Cells]:
    """Time between operators: of each kind of gap, in each step, what its shares say. A part of it issues the next operator."""
    found = gaps(trace)
    gap = pieces.what == _What.GAP
    in_backward = np.zeros(len(gap), bool)
    in_backward[gap] = found.in_backward[pieces.of[gap]]
    issues_ns = _issues_ns(trace, pieces, gap, left_out)
    rows = np.flatnonzero(gap & ~in_backward)
    keys = pieces.step[rows] * (int(found.kind.max(initial=0)) + 1) + found.kind[pieces.of[rows]]
    distinct, cell = np.unique(keys, return_inverse=True)
    whole, issuing = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
    np.add.at(whole, cell, pieces.time_ns[rows])
    np.add.at(issuing, cell, issues_ns[rows])
    count = np.bincount(cell, minlength=len(distinct))
    step, kind = np.divmod(distinct, int(found.kind.max(initial=0)) + 1)
    share, of = found.shares.of_kinds(kind)
    part, blocked, wait = (getattr(found.shares, name)[share] for name in ("part", "blocked", "wait"))
    time_ns = _divided(whole, of, part)
    needed_ns = np.minimum(time_ns, np.where(blocked, 0, np.floor(issuing[of] * part)).astype(np.int64))
    more = {"stack": found.shares.stack[share], "module": found.shares.module[share], "count": count[of]}

    def chosen(mask: Mask, entry: Entry, cause: Cause | NDArray[Any], took_ns: Rows) -> Cells:
        some = {name: values[mask] for name, values in more.items()}
        return Cells.of(step[of][mask], entry, cause, took_ns[mask], **some)

    waits = np.where(wait > 0, Cause.LOCK - 1 + wait, Cause.BLOCKED)[blocked]
    return [
        chosen(~blocked, Entry.NEEDED, Cause.CALL, needed_ns),
        chosen(~blocked, Entry.PYTHON, Cause.NONE, time_ns - needed_ns),
        chosen(blocked, Entry.WAITING, waits, time_ns),
        _simple(pieces, in_backward, Entry.NEEDED, Cause.AUTOGRAD, issues_ns),
        _simple(pieces, in_backward, Entry.SLOW, Cause.AUTOGRAD, pieces.time_ns - issues_ns),
    ]


def _issues_ns(trace: TraceData, pieces: _Pieces, gap: Mask, left_out: LeftOut | None) -> Rows:
    """What of each piece between operators issues the next one: nothing where the operator before it is one of a loop, or could be left out."""
    found = gaps(trace)
    part = np.minimum(1.0, ISSUING * rates_of(trace).fixed_ns / np.maximum(found.stretch_ns, 1))
    part[called_again(trace)[found.before]] = 0.0
    if left_out is not None:
        part *= 1.0 - left_out.part_of_calls[found.before]
    issues_ns = np.zeros(len(gap), np.int64)
    issues_ns[gap] = np.floor(pieces.time_ns[gap] * part[pieces.of[gap]])
    return issues_ns


def _divided(whole: Rows, of: Rows, part: NDArray[np.float64]) -> Rows:
    """Divide whole numbers among parts that add up to 1 for each of them, in order, so that nothing is lost.

    Args:
        whole: What is divided.
        of: Which of these each part is of; ascending.
        part: The parts.
    """
    if len(of) == 0:
        return np.zeros(0, np.int64)
    first = np.append(True, of[1:] != of[:-1])
    last = np.append(first[1:], True)
    until = np.cumsum(part)
    start = (until - part)[first][np.cumsum(first) - 1]
    edge = np.round(whole[of] * np.clip(until - start, 0.0, 1.0)).astype(np.int64)
    edge[last] = whole[of[last]]
    return np.asarray(edge - np.where(first, 0, np.append(0, edge[:-1])), dtype=np.int64)


def _of_operators(
    trace: TraceData, pieces: _Pieces, left_out: LeftOut | None, *, on_device: bool
) -> list[Cells]:
    """What operators of the host took: what they need, what calling them costs, what is not needed, and the rest."""
    spans = trace.columns("spans")
    rows = np.flatnonzero(pieces.what == _What.OPERATOR)
    of, step = pieces.of[rows], pieces.step[rows]
    counted = _counted_around(trace)[of]
    row = np.where(counted >= 0, counted, of)
    # The pieces of an operator whose cost counts follow each other. One that is made of others is several runs, of which the first is its call.
    first = np.flatnonzero(np.append(True, (row[1:] != row[:-1]) | (step[1:] != step[:-1]))[: len(rows)])
    if len(first) == 0:
        return []
    span, step = row[first], step[first]
    time_ns = np.add.reduceat(pieces.time_ns[rows], first)
    if on_device:
        return _grouped(trace, step, span, [(Entry.SLOW, np.full(len(span), Cause.LAUNCH), time_ns)])
    calls = np.add.reduceat((pieces.start_ns[rows] == spans["start_ns"][of]).astype(np.int64), first)
    return _grouped(trace, step, span, _divided_operators(trace, span, time_ns, calls, left_out))


def _divided_operators(
    trace: TraceData, span: Rows, time_ns: Rows, calls: Rows, left_out: LeftOut | None
) -> list[tuple[Entry, NDArray[Any], Rows]]:
    """Divide the time of operators, one entry after the other from what is left of it: each entry, its causes, and its times."""
    costs, rates, waste = costs_of(trace), rates_of(trace), waste_of(trace)
    counts, wasted, why = costs.counted.counts[span], waste.part[span], waste.why[span]
    if left_out is not None:
        more = left_out.part[span] > wasted
        wasted, why = (
            np.where(more, left_out.part[span], wasted),
            np.where(more, left_out.why[span], why),
        )
    least_ns = np.append(least_call_ns(trace), 0.0)[costs.calls.of_span[span]]
    parts: list[tuple[Entry, NDArray[Any], Rows]] = []
    left = time_ns.copy()

    def take(entry: Entry, cause: Cause | NDArray[Any], amount: NDArray[Any]) -> None:
        # Most traces have nothing of some entries.
        if amount.any():
            taken = np.minimum(left, amount.astype(np.int64, copy=False))
            np.subtract(left, taken, out=left)
            parts.append((entry, np.broadcast_to(np.asarray(cause), len(span)), taken))

    take(Entry.PROFILER, Cause.NONE, np.minimum(RECORD_NS * calls, time_ns // 2))
    take(Entry.NOT_NEEDED, why, np.floor(left * wasted))
    take(Entry.WAITING, Cause.COLLECTIVE, np.where(_calls_other_ranks(trace)[span], left, 0))
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
    """Which spans are operators that call other ranks, and wait for them where they are not asynchronous."""
    names = np.array([text.startswith(ASKING) for text in trace.strings], dtype=bool)
    spans = trace.columns("spans")
    return np.asarray(names[spans["name"]] & (spans["stream"] < 0), dtype=bool)


def _grouped(
    trace: TraceData, step: Rows, span: Rows, parts: list[tuple[Entry, NDArray[Any], Rows]]
) -> list[Cells]:
    """Add up parts of operators that have the step, the operator, the line, the module and the causes in common."""
    spans = trace.columns("spans")
    stack = span_stacks(trace)[span]
    keys = [step.astype(np.int32), spans["name"][span], stack, spans["module"][span]]
    keys += [cause.astype(np.int32) for _, cause, _ in parts if cause.strides[0]]
    group, first = _core.group(keys)
    more: dict[str, Any] = {
        "span": span[first],
        "name": spans["name"][span[first]],
        "stack": stack[first],
        "module": spans["module"][span[first]],
    }
    own = step[first]
    return [
        Cells.of(
            own, entry, cause[first], _core.group_sums(group, len(first), time_ns),
            count=_core.group_sums(group, len(first), (time_ns > 0).astype(np.int64)), **more,
        )
        for entry, cause, time_ns in parts
    ]  # fmt: skip


@derived
def _counted_around(trace: TraceData) -> Rows:
    """For each span the operator whose cost counts for it: itself or one around it; -1 where none does."""
    spans = trace.columns("spans")
    found = _core.nearest_marked(spans["parent"], spans["depth"], costs_of(trace).counted.counts)
    return found.astype(np.int64)


def _of_kernels(trace: TraceData, pieces: _Pieces, left_out: LeftOut | None) -> list[Cells]:
    """What kernels of a device took: what their operators need at the peak of the device, and the rest."""
    rows = np.flatnonzero(pieces.what == _What.KERNEL)
    if len(rows) == 0:
        return []
    spans, costs = trace.columns("spans"), costs_of(trace)
    operator = starters(trace).operator[pieces.of[rows]].astype(np.int64)
    counted = np.append(_counted_around(trace), -1)[operator]
    # A kernel with a formula of its own counts itself.
    counted = np.where(costs.counted.counts[pieces.of[rows]], pieces.of[rows], counted)
    row = np.where(counted >= 0, counted, np.where(operator >= 0, operator, pieces.of[rows]))
    steps = int(pieces.step.max(initial=0)) + 1
    cell, first = _core.group([(row * steps + pieces.step[rows]).astype(np.int64)])
    span, step = row[first], pieces.step[rows[first]]
    time_ns = _core.group_sums(cell, len(first), pieces.time_ns[rows])
    least = least_seconds(trace, costs)
    least_ns = np.zeros(len(span)) if least is None else np.nan_to_num(least[costs.calls.of_span[span]]) * 1e9
    size = costs.bytes_moved[span]
    whole = np.maximum(spans["device_ns"][span], time_ns)
    rate = np.where((size > 0) & (whole > _LEAST_FOR_A_RATE_NS), size / np.maximum(whole, 1), 0.0).max(
        initial=0.0
    )
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
    known = costs.counted.counts[span] & (least_ns > 0)
    return _grouped(trace, step, span, [
        *not_needed,
        (Entry.NEEDED, none, np.where(known, needed, 0)),
        (Entry.SLOW, none, np.where(known, time_ns - needed, 0)),
        (Entry.UNKNOWN, unknown, np.where(known, 0, time_ns)),
    ])  # fmt: skip


# Shorter kernels show no rate of memory.
_LEAST_FOR_A_RATE_NS = 20_000
# From these the time without a processor is taken, from each the same share; and from what calls cost.
_OF_PROCESSOR = (Entry.SLOW, Entry.NOT_NEEDED, Entry.PYTHON)


def _needs_processor(cells: Cells) -> Mask:
    """Which cells the time without a processor is taken from: all but the work that is needed, and waits."""
    of_calls = (cells.entry == Entry.NEEDED) & (cells.cause != Cause.NONE)
    return np.asarray(of_calls | np.isin(cells.entry, _OF_PROCESSOR))


def _without_processor(cells: Cells, waited_ns: Rows) -> tuple[Cells, NDArray[np.float64]]:
    """Take the time without a processor out of what needs one: out of work that is needed only what is left.

    Args:
        cells: The parts of the steps.
        waited_ns: For each step how long its thread had no processor; zeros with a device, which computes on without the host.

    Returns:
        The parts with that time as a wait, and for each step the share of what needs a processor, needed work left out, that was spent without one.
    """
    if not waited_ns.any():
        return cells, np.zeros(len(waited_ns))
    concerned = _needs_processor(cells)
    is_needed = ~concerned & np.isin(cells.entry, (Entry.NEEDED, Entry.UNKNOWN))
    concerned_ns = np.bincount(
        cells.step[concerned], weights=cells.time_ns[concerned], minlength=len(waited_ns)
    ).astype(np.int64)
    taken = _taken(cells, concerned, waited_ns)
    taken += _taken(cells, is_needed, np.maximum(waited_ns - concerned_ns, 0))
    step_taken_ns = np.bincount(cells.step, weights=taken, minlength=len(waited_ns)).astype(np.int64)
    columns = {name: getattr(cells, name) for name in Cells.__dataclass_fields__}
    columns["time_ns"] = cells.time_ns - taken
    # What is taken out whole is no part any more; mostly nothing is.
    left = columns["time_ns"] > 0
    if not left.all():
        columns = {name: values[left] for name, values in columns.items()}
    waits = Cells.of(np.arange(len(waited_ns)), Entry.WAITING, Cause.PROCESSOR, step_taken_ns)
    return Cells.joined([Cells(**columns), waits]), np.minimum(waited_ns / np.maximum(concerned_ns, 1), 1.0)


def _taken(cells: Cells, chosen: Mask, amount_ns: Rows) -> Rows:
    """What is taken out of each cell so that the chosen ones of each step lose so much, or all that they have, each the same share."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(cells.step[rows], kind="stable")]
    steps, of = np.unique(cells.step[rows], return_inverse=True)
    step_ns = np.bincount(of, weights=cells.time_ns[rows], minlength=len(steps))
    amount = np.minimum(amount_ns[steps], step_ns.astype(np.int64))
    taken = np.zeros(len(chosen), np.int64)
    taken[rows] = np.minimum(_divided(amount, of, cells.time_ns[rows] / step_ns[of]), cells.time_ns[rows])
    return taken


def frame_of_stacks(trace: TraceData) -> NDArray[np.int32]:
    """For each stack the row of the frame of its innermost line of the program; -1 without, and at the end for no stack."""
    frame = np.append(trace.column("stacks", "frame"), np.int32(-1))
    return np.asarray(frame[np.append(program_stacks(trace), -1)], dtype=np.int32)
