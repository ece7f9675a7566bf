"""The moments of a unit of work: at each moment, the span or gap on the thread or device that the unit waits for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.arrow import integers
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import garbage_collections, host_work, is_outermost, operator_spans
from kinetoscope.model.kinds import is_operator, is_runtime_call
from kinetoscope.model.rows import Mask, ProcessRow, Rows, distinct_sorted
from kinetoscope.model.schema import FLAG_ASYNC, SpanKind
from kinetoscope.model.time_spent import Cause
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.device.launches import starters, waiting_calls
from kinetoscope.tables.device.work import WorkCategory, device_work
from kinetoscope.tables.host.compiling import compiles
from kinetoscope.tables.host.python_time import gaps
from kinetoscope.tables.host.requests import requests_of, suspended_time
from kinetoscope.tables.host.units_of_work import (
    Unit,
    UnitsOfWork,
    recordings_of,
    requests_as_work,
    units_of_work,
)
from kinetoscope.tables.intervals import Intervals, when_ran
from kinetoscope.tables.processor_waits import waits_in
from kinetoscope.tables.step_extents import step_extents
from kinetoscope.tables.windows import Activity, activities, owned


class Columnar:
    """A dataclass whose fields are columns of equal length."""

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """Concatenate the rows of all parts."""
        names = [field.name for field in fields(cast("Any", cls))]
        none = [np.zeros(0, np.int64)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts] or none) for name in names))

    def __getitem__(self, chosen: Mask) -> Self:
        return type(self)(*(getattr(self, field.name)[chosen] for field in fields(cast("Any", self))))


class Category(IntEnum):
    """The kinds of moments."""

    UNKNOWN = 0
    GARBAGE_COLLECTION = 1
    PROFILER = 2
    COMPILING = 3
    DATA_LOADING = 4
    OPERATOR = 5
    KERNEL = 6
    COMMUNICATION = 7
    COPY = 8
    DEVICE_WAIT = 9
    PYTHON = 10
    RUNNING = 11


_WAITS_OF_HOST = (Category.DATA_LOADING, Category.DEVICE_WAIT)
_OF_DEVICE = (Category.KERNEL, Category.COMMUNICATION, Category.COPY)


@dataclass(frozen=True, eq=False)
class _Layer:
    """Sorted, disjoint stretches of time, and the span or gap that each belongs to; -1 for none."""

    category: Category
    start_ns: Rows
    end_ns: Rows
    of: Rows


@dataclass(frozen=True, eq=False)
class MomentRows(Columnar):
    """Stretches of time in which a unit of work waits for one thing.

    Attributes:
        unit: The index of the unit.
        category: A `Category`.
        of: The row of the span or, for `PYTHON`, of the gap; -1 for none.
        start_ns: The start.
        time_ns: The duration.
    """

    unit: Rows
    category: Rows
    of: Rows
    start_ns: Rows
    time_ns: Rows


@dataclass(frozen=True, eq=False)
class _Stretches:
    """Stretches of time on one thread, and the index of the unit that each belongs to."""

    unit: Rows
    start_ns: Rows
    end_ns: Rows


@dataclass(frozen=True, eq=False)
class WorkMoments:
    """The moments of the units of work of one process, on one device or, if it used none, on its host.

    Attributes:
        work: The units; `moments.unit` indexes them.
        activity: The activity of the device and its host.
        thread: The thread that runs the units, -1 if unknown.
        moments: The moments; those of a unit and its `suspended` times add up to its duration.
        processor_wait_ns: For each unit, how long its thread had no CPU core while the unit waited for the thread.
        suspended: For each cause why requests ran on no thread, the time of each request.
    """

    work: UnitsOfWork
    activity: Activity
    thread: int
    moments: MomentRows
    processor_wait_ns: Rows
    suspended: dict[Cause, Rows]

    @property
    def on_device(self) -> bool:
        """Whether the units run on a device rather than the host."""
        return self.activity.device is not None

    def when(self, chosen: Category | Mask) -> Intervals:
        """The moments of a category, or where a mask is true."""
        mask = self.moments.category == chosen if isinstance(chosen, Category) else chosen
        start = self.moments.start_ns[mask]
        return Intervals.of(start, start + self.moments.time_ns[mask])


def busiest_of_processes(all_activities: Iterable[Activity]) -> dict[ProcessRow, Activity]:
    """For each process, a row of `processes`, the activity with the most compute time."""
    busiest: dict[ProcessRow, Activity] = {}
    for activity in all_activities:
        process = activity.owner.process
        if process not in busiest or activity.compute.total_ns > busiest[process].compute.total_ns:
            busiest[process] = activity
    return busiest


@derived
def moments_of_steps(trace: TraceData, by: str = "step") -> list[WorkMoments]:
    """The moments of each process and device by step; of the whole recording if the process has no steps or `by` is `trace`."""
    thread_of_step = np.append(trace.column("spans", "thread"), -1)[trace.column("steps", "span")]
    listed = []
    for activity in activities(trace):
        steps = np.flatnonzero(owned(trace, activity.owner)[thread_of_step])
        in_steps = Intervals.of(step_extents(trace).start_ns[steps], step_extents(trace).end_ns[steps])
        is_whole = by == "trace" or len(steps) == 0
        work = recordings_of(trace, [activity.owner.process]) if is_whole else units_of_work(trace)[steps]
        thread = _thread(trace, work, activity)
        stretches = _Stretches(np.arange(len(work)), work.start_ns, work.end_ns)
        moments = _moments(_layers(trace, work, activity, in_steps, thread), stretches)
        waited_ns = _processor_waits(trace, activity, moments, thread, stretches)
        listed.append(WorkMoments(work, activity, thread, moments, waited_ns, {}))
    return listed


@derived
def moments_of_requests(trace: TraceData, *, unfinished: bool = False) -> list[WorkMoments]:
    """The moments of the requests of each process, on its busiest device or its host; `unfinished` adds those that extend beyond the recording."""
    work = requests_as_work(trace, unfinished=unfinished)
    if len(work) == 0:
        return []
    moments = []
    for process, activity in busiest_of_processes(activities(trace)).items():
        requests = work.of_process(process) if process >= 0 else work
        if len(requests):
            moments.append(_of_requests(trace, requests, activity))
    return moments


def _of_requests(trace: TraceData, work: UnitsOfWork, activity: Activity) -> WorkMoments:
    """The moments of the requests of one process, from all threads that worked for them."""
    requests = requests_of(trace)
    unit_of = np.full(len(requests), -1)
    unit_of[work.row] = np.arange(len(work))
    of_threads, waited_ns = [], np.zeros(len(work), np.int64)
    operators_ns: dict[int, int] = {}
    for thread in np.unique(requests.stretch_thread).tolist():
        rows = np.flatnonzero((requests.stretch_thread == thread) & (unit_of[requests.of] >= 0))
        stretches = _Stretches(
            unit_of[requests.of[rows]], requests.stretch_start_ns[rows], requests.stretch_end_ns[rows]
        )
        moments = _moments(_layers_of_requests(trace, activity, thread), stretches)
        of_threads.append(moments)
        operators_ns[thread] = int(moments.time_ns[moments.category == Category.OPERATOR].sum())
        waits_ns = _processor_waits(trace, activity, moments, thread, stretches)
        waited_ns += Groups(stretches.unit, len(work)).sums(waits_ns)
    busiest = max(operators_ns, key=lambda thread: operators_ns[thread], default=-1)
    suspended = {cause: time_ns[work.row] for cause, time_ns in suspended_time(trace).items()}
    return WorkMoments(work, activity, busiest, MomentRows.joined(of_threads), waited_ns, suspended)


def _processor_waits(
    trace: TraceData, activity: Activity, moments: MomentRows, thread: int, stretches: _Stretches
) -> Rows:
    """How long a thread had no CPU core in each stretch, counting only moments of the host."""
    elsewhere = _WAITS_OF_HOST if activity.device is None else (*_WAITS_OF_HOST, *_OF_DEVICE)
    host = ~np.isin(moments.category, elsewhere)
    ran = Intervals.of(moments.start_ns[host], moments.start_ns[host] + moments.time_ns[host])
    return waits_in(trace, thread, ran, activity.host.waiting, stretches.start_ns, stretches.end_ns)


def _thread(trace: TraceData, work: UnitsOfWork, activity: Activity) -> int:
    """The thread that runs the steps of a process or, without steps, the one with the most operator time; -1 if it ran none."""
    spans = trace.columns("spans")
    marks = np.append(trace.column("steps", "span"), -1)[work.row]
    marked = spans["thread"][marks[marks >= 0]]
    if len(marked):
        return int(marked[0])
    rows = operator_spans(trace).rows
    rows = rows[owned(trace, activity.owner)[spans["thread"][rows]] & (spans["stream"][rows] < 0)]
    by_thread = Groups(spans["thread"][rows], len(trace.columns("threads")))
    return by_thread.largest(spans["self_ns"][rows]) if len(rows) else -1


# At each moment, the first layer with a stretch there wins.


def _layer(category: Category, when: Intervals) -> _Layer:
    return _Layer(category, when.start_ns, when.end_ns, np.full(len(when), -1))


def _moments(layers: list[_Layer], stretches: _Stretches) -> MomentRows:
    window, stretch, start_ns, end_ns = _core.first_layers(
        stretches.start_ns, stretches.end_ns, [(layer.start_ns, layer.end_ns) for layer in layers]
    )
    categories = np.repeat(
        [*(layer.category for layer in layers), Category.UNKNOWN], [*(len(layer.of) for layer in layers), 1]
    )
    owners = np.append(np.concatenate([layer.of for layer in layers]), -1)
    return MomentRows(
        stretches.unit[window], categories[stretch], owners[stretch], start_ns, end_ns - start_ns
    )


def _layers(
    trace: TraceData, work: UnitsOfWork, activity: Activity, in_steps: Intervals, thread: int
) -> list[_Layer]:
    """The layers of a step or a recording, in order of precedence."""
    host = activity.host
    loading = _layer(Category.DATA_LOADING, host.loading)
    operators = [_innermost_operators(trace, thread), _other_threads(trace, activity, thread)]
    on_device = [
        _layer(Category.COMMUNICATION, activity.communication),
        _layer(Category.COPY, activity.copies),
    ]
    waits = _layer(Category.DEVICE_WAIT, host.waiting | activity.queued)
    marked = host.ranges | host.sampled | in_steps
    between = [_between(trace, thread), _layer(Category.RUNNING, marked)]
    if work.unit is not Unit.STEP and not (trace.column("samples", "thread") == thread).any():
        # Outside of steps nothing shows that the program runs unless there is a call, a range, a step or a sample of the thread.
        unseen = Intervals.of(work.start_ns, work.end_ns) - (host.calls | marked)
        between.insert(0, _layer(Category.UNKNOWN, unseen))
    if activity.device is None:
        sharding = _layer(Category.COMMUNICATION, host.sharding)
        return [*_pauses(trace, thread), loading, waits, sharding, *operators, *on_device, *between]
    return [
        _kernels(trace, activity), *on_device, loading, waits, *_pauses(trace, thread), *operators, *between,
    ]  # fmt: skip


def _layers_of_requests(trace: TraceData, activity: Activity, thread: int) -> list[_Layer]:
    """The layers of requests on a thread. Other threads, and the device work that they launched, belong to other requests."""
    host = [*_pauses(trace, thread), _innermost_operators(trace, thread), _between(trace, thread)]
    if activity.device is None:
        return [*host[:-1], _layer(Category.COMMUNICATION, activity.communication), host[-1]]
    calls = waiting_calls(trace)
    waiting = when_ran(trace, calls[trace.column("spans", "thread")[calls] == thread])
    waits = [
        _layer(Category.COMMUNICATION, activity.communication & waiting),
        _layer(Category.COPY, activity.copies & waiting),
        _layer(Category.DEVICE_WAIT, waiting),
    ]
    return [_kernels(trace, activity, thread), *waits, *host]


def _pauses(trace: TraceData, thread: int) -> list[_Layer]:
    """When a thread collected garbage, spent time in the profiler, or compiled."""
    spans = trace.columns("spans")
    collections, overhead = (
        np.flatnonzero(chosen & (spans["thread"] == thread))
        for chosen in (garbage_collections(trace), spans["kind"] == SpanKind.OVERHEAD)
    )
    return [
        _layer(Category.GARBAGE_COLLECTION, when_ran(trace, collections)),
        _layer(Category.PROFILER, when_ran(trace, overhead)),
        _layer(Category.COMPILING, _compiling(trace, thread)),
    ]


def _between(trace: TraceData, thread: int) -> _Layer:
    all_gaps = gaps(trace)
    rows = np.flatnonzero(all_gaps.thread == thread)
    rows = rows[np.argsort(all_gaps.start_ns[rows], kind="stable")]
    return _Layer(Category.PYTHON, all_gaps.start_ns[rows], all_gaps.end_ns[rows], rows)


def _compiling(trace: TraceData, thread: int) -> Intervals:
    table = compiles(trace)
    of_thread, start, duration = (integers(table[name]) for name in ("thread", "start_ns", "duration_ns"))
    rows = (of_thread == thread) & (duration >= 0)
    return Intervals.of(start[rows], start[rows] + duration[rows])


def _innermost_operators(trace: TraceData, thread: int) -> _Layer:
    """When each operator, backward function or runtime call of a thread was the innermost one."""
    spans, rows = trace.columns("spans"), _work_on(trace, thread)
    start = spans["start_ns"][rows]
    edges = distinct_sorted(np.concatenate((start, start + spans["duration_ns"][rows])))
    inside = _core.running_at(spans["start_ns"], spans["duration_ns"], spans["parent"], rows, edges[:-1])
    # A range inside an operator counts for that operator.
    is_work = np.append(is_operator(spans["kind"]) | _is_other_work(spans["kind"]), False)
    above = np.append(_core.nearest_marked(spans["parent"], spans["depth"], is_work[:-1]), np.int32(-1))
    owner = above[inside].astype(np.int64)
    has_owner = owner >= 0
    return _Layer(Category.OPERATOR, edges[:-1][has_owner], edges[1:][has_owner], owner[has_owner])


def _is_other_work(kind: NDArray[np.uint8]) -> Mask:
    """Runtime calls and other host work that is no operator or range. Collectives on the host are excluded: they are communication."""
    return np.asarray(
        (kind >= SpanKind.RUNTIME) & (kind != SpanKind.OVERHEAD) & (kind != SpanKind.COLLECTIVE)
    )


def _work_on(trace: TraceData, thread: int) -> Rows:
    """The properly nested host spans of a thread, without ranges and steps."""
    spans = trace.columns("spans")
    kind = spans["kind"]
    chosen = host_work(trace, with_steps=False).mask & (spans["thread"] == thread) & (spans["lane"] == 0)
    chosen &= (is_operator(kind) | _is_other_work(kind)) & (spans["stream"] < 0)
    chosen &= ((spans["flags"] & FLAG_ASYNC) == 0) & (spans["duration_ns"] > 0)
    return np.flatnonzero(chosen)


def _other_threads(trace: TraceData, activity: Activity, thread: int) -> _Layer:
    """Operators and runtime calls on other threads of the process, such as the backward thread of a device, or in extra lanes."""
    spans = trace.columns("spans")
    elsewhere = (spans["thread"] != thread) | (spans["lane"] > 0)
    chosen = host_work(trace, with_steps=False).mask & elsewhere & (spans["stream"] < 0)
    chosen &= owned(trace, activity.owner).take(spans["thread"]) & ((spans["flags"] & FLAG_ASYNC) == 0)
    rows = np.flatnonzero(chosen & (is_operator(spans["kind"]) | is_runtime_call(spans["kind"])))
    return _first_come(trace, Category.OPERATOR, rows[is_outermost(trace, rows)])


def _kernels(trace: TraceData, activity: Activity, thread: int | None = None) -> _Layer:
    """The compute kernels of a device, or those of them that a thread launched."""
    work = device_work(trace)
    is_chosen = np.array([device == activity.device for device in work.devices], dtype=bool)[work.device]
    is_chosen &= work.category == WorkCategory.COMPUTE
    if thread is not None:
        is_chosen &= np.append(trace.column("spans", "thread"), -1)[starters(trace).call[work.rows]] == thread
    return _first_come(trace, Category.KERNEL, work.rows[is_chosen])


def _first_come(trace: TraceData, category: Category, rows: Rows) -> _Layer:
    """A layer of spans that may overlap: the one that started first wins."""
    spans = trace.columns("spans")
    rows = rows[np.argsort(spans["start_ns"][rows], kind="stable")]
    start = spans["start_ns"][rows]
    end = np.maximum.accumulate(start + spans["duration_ns"][rows])
    begin = np.maximum(start, np.append(np.iinfo(np.int64).min, end)[: len(end)])
    some = end > begin
    return _Layer(category, begin[some], end[some], rows[some].astype(np.int64))
