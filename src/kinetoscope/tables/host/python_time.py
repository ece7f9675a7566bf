"""The time between operators, charged to the lines of Python that ran in it.

If calls of Python functions were recorded, a gap belongs exactly to the innermost call of the program's own code; samples of the thread
show which of its lines ran. Gaps between the same two places of the program are one kind, and the samples in any of them divide the time
of all. Without samples, the two places decide: the time belongs to the innermost function on both stacks, at the line that called the
later place. If that is not the recorded call's function, the time belongs to the first line of the recorded call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model import hierarchy
from kinetoscope.model.columns import Columns
from kinetoscope.model.groups import Groups
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.nesting import by_level, depths_of
from kinetoscope.model.rows import Mask, ProcessRow, Rows, begins_run, divided, mask_of, rows_of_runs
from kinetoscope.model.schema import FLAG_ASYNC, Phase, SampleState, SpanKind
from kinetoscope.model.steps import step_at, stretch_at
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.device.work import Owner
from kinetoscope.tables.host.data_loading import loading_spans, waits_that_make
from kinetoscope.tables.host.requests import ran_in_requests, request_marks, requests_as_steps
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.stacks import span_stacks, user_frames, user_stacks
from kinetoscope.tables.windows import host_activity, host_owners, owned, recorded_extent


@dataclass(frozen=True, eq=False)
class Gaps:
    """Stretches in which a process ran no operator, backward function or runtime call, and did not wait for a worker or a device.

    No gap spans two steps. A data loader worker has gaps only while it makes batches; other processes have them in the whole recording.
    In a trace with requests and without steps, each other thread also has gaps while it works for a request.

    Attributes:
        start_ns: The start.
        end_ns: The end.
        thread: The thread of the training loop, the worker or the request, as a row in `threads`.
        step: The row of `steps`, -1 outside.
        before: The last operator on the thread that ended before the gap, as a row in `spans`; -1 for none.
        in_loading: Whether the loop made a batch itself.
        in_backward: Whether backward functions ran before and after it: the time belongs to autograd's engine, not to Python.
        kind: Gaps between the same two places of the program share a kind; a gap with enough samples is a kind of its own.
        shares: How the time of each kind is divided.
    """

    start_ns: Rows
    end_ns: Rows
    thread: NDArray[np.int32]
    step: Rows
    before: Rows
    in_loading: Mask
    in_backward: Mask
    kind: Rows
    shares: Shares

    @cached_property
    def stretch_ns(self) -> Rows:
        """The duration of each gap together with adjacent gaps, which ranges and calls separate."""
        order = np.lexsort((self.start_ns, self.in_loading, self.thread))
        start, end = self.start_ns[order], self.end_ns[order]
        apart = begins_run(self.step[order], self.thread[order])
        apart[1:] |= start[1:] != end[:-1]
        stretch = np.cumsum(apart) - 1
        stretch_ns = np.empty_like(start)
        stretch_ns[order] = Groups(stretch, len(order)).sums(end - start)[stretch]
        return stretch_ns

    @property
    def duration_ns(self) -> Rows:
        """The duration of each gap."""
        return self.end_ns - self.start_ns

    def __len__(self) -> int:
        """The number of gaps."""
        return len(self.start_ns)

    @cached_property
    def stack(self) -> Rows:
        """The row of `stacks` with the largest share of each gap; -1 if unknown."""
        return self.shares.stack[self.shares.main[self.kind]]


@dataclass(frozen=True, eq=False)
class Shares:
    """The stacks that ran in the gaps of each kind.

    Attributes:
        kind: The kind of gap; ascending.
        thread: The thread, as a row in `threads`.
        stack: The row of `stacks` that is charged; -1 if unknown.
        other: If the line is not known exactly, a second stack in the same function: the time lies between both lines; else -1.
        module: The row in `modules` of the module whose forward ran; -1 outside of modules.
        blocked: Whether the thread was not running, for example while it read a file.
        wait: What a blocked thread waited for: a `SampleWait`.
        part: The fraction of the time of its kind; those of a kind add up to 1.
    """

    kind: Rows
    thread: Rows
    stack: Rows
    other: Rows
    module: Rows
    blocked: Mask
    wait: Rows
    part: NDArray[np.float64]

    @property
    def kinds(self) -> int:
        """The number of kinds."""
        return int(self.kind.max(initial=-1)) + 1

    @cached_property
    def main(self) -> Rows:
        """The largest share of each kind."""
        order = np.lexsort((self.part, self.kind))
        largest = np.zeros(self.kinds, dtype=np.int64)
        largest[self.kind[order]] = order  # the last one counts
        return largest

    def of_kinds(self, kinds: Rows) -> tuple[Rows, Rows]:
        """The shares of some kinds: for each share its row and the index of its kind in `kinds`."""
        first = np.searchsorted(self.kind, kinds)
        count = np.searchsorted(self.kind, kinds, side="right") - first
        kind_index, row = rows_of_runs(first, count)
        return row, kind_index


@derived
def gaps(trace: TraceData) -> Gaps:
    """Find the gaps of a trace and what ran in them."""
    columns = [
        process_columns for owner in host_owners(trace) for process_columns in _of_process(trace, owner)
    ]
    parts = [np.concatenate(column) for column in zip(*columns, strict=True)] if columns else _NOTHING
    start, end, thread, step, before, in_loading, in_backward, *kind_keys = parts
    samples = trace.columns("samples")
    sampled = stretch_at(samples["thread"], samples["time_ns"], thread, start, end)
    is_sampled = Groups(sampled, len(start)).sizes() >= _OWN_SAMPLES
    keys = np.stack((np.where(is_sampled, np.arange(len(start)), -1), thread, *kind_keys), axis=1)
    kinds = Groups.by(list(keys.T.astype(np.int32)))
    kind = kinds.of_row.astype(np.int64)
    shares = _shares(trace, keys[kinds.first], np.append(kind, -1)[sampled])
    return Gaps(
        start, end, thread.astype(np.int32), step, before, in_loading != 0, in_backward != 0, kind, shares
    )


def charged(trace: TraceData, chosen: Mask | None = None) -> Rows:
    """Divide the time of some gaps among their shares.

    Args:
        trace: The trace.
        chosen: A mask of `gaps`; None for all.

    Returns:
        The time of each share; the sum is exactly the time of the chosen gaps.
    """
    all_gaps = gaps(trace)
    shares = all_gaps.shares
    kind_ns = Groups(all_gaps.kind, shares.kinds).sums(all_gaps.duration_ns, chosen)
    return divided(kind_ns, shares.kind, shares.part)


@derived
def covered_ranges(trace: TraceData) -> Mask:
    """Ranges whose self time `gaps` already charge to Python lines: summing both would count it twice."""
    spans, all_gaps = trace.columns("spans"), gaps(trace)
    measured = mask_of(all_gaps.thread, len(trace.columns("threads")) + 1)
    covered = (spans["kind"] == SpanKind.USER_ANNOTATION) & measured[spans["thread"]]
    covered &= (spans["stream"] < 0) & ((spans["flags"] & FLAG_ASYNC) == 0)
    covered[np.setdiff1d(loading_spans(trace).waits, waits_that_make(trace))] = False
    return np.asarray(covered)


# A gap with this many samples is a kind of its own.
_OWN_SAMPLES = 3
_NEVER = np.iinfo(np.int64).max
_NOTHING = [np.zeros(0, dtype=np.int64)] * 12


def _shares(trace: TraceData, kinds: Rows, of_sample: Rows) -> Shares:
    """Divide each kind of gap by its samples or, without samples, by the places at its ends."""
    samples = trace.columns("samples")
    function = _functions(trace)
    call = np.append(kinds[:, 6], -1)[of_sample]
    # A recorded call is exact: a sample only selects one of its lines.
    inside = np.flatnonzero((of_sample >= 0) & ((call < 0) | (function[samples["stack"]] == function[call])))
    is_blocked = samples["state"][inside] == SampleState.BLOCKED
    wait = np.where(is_blocked, samples["wait"][inside].astype(np.int64), -1)
    keys = (of_sample[inside], samples["stack"][inside], samples["module"][inside], wait)
    ran, share_of = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)
    weight = Groups(share_of.ravel(), len(ran)).sums(samples["period_ns"][inside])
    by_ends = np.setdiff1d(np.arange(len(kinds)), ran[:, 0])
    earlier, later, toward_later, _, called = kinds[by_ends, 2:7].T
    at_ends, other_lines = _common_functions(trace, earlier, later, toward_later != 0)
    elsewhere = (called >= 0) & (function[at_ends] != function[called])
    at_ends, other_lines = np.where(elsewhere, called, at_ends), np.where(elsewhere, -1, other_lines)
    kind = np.concatenate((ran[:, 0], by_ends))
    order = np.argsort(kind, kind="stable")
    weight = np.concatenate((np.maximum(weight, 1.0), np.ones(len(by_ends))))
    columns = (
        kind,
        np.concatenate((ran[:, 1], at_ends)),
        np.concatenate((np.full(len(ran), -1), other_lines)),
        np.concatenate((ran[:, 2], kinds[by_ends, 5])),
        np.concatenate((ran[:, 3], np.full(len(by_ends), -1))),
        weight / Groups(kind, len(kinds)).sums(weight)[kind],
    )
    kind, stack, other, module, wait, part = (column[order] for column in columns)
    return Shares(kind, kinds[kind, 1], stack, other, module, wait >= 0, np.maximum(wait, 0), part)


def _of_process(trace: TraceData, owner: Owner) -> list[tuple[NDArray[Any], ...]]:
    """The gaps of one process, as columns for each of its threads; none if it ran nothing."""
    spans, steps = trace.columns("spans"), trace.columns("steps")
    of_process = owned(trace, owner)
    spans_there = np.flatnonzero(
        of_process[spans["thread"]] & (spans["stream"] < 0) & ((spans["flags"] & FLAG_ASYNC) == 0)
    )
    marked = np.flatnonzero(of_process[np.append(spans["thread"], -1)[steps["span"]]])
    thread, extent = _place(trace, owner.process, spans_there, marked)
    if thread < 0:
        return []
    host = host_activity(trace, owner)
    batches = np.concatenate((loading_spans(trace).fetches, waits_that_make(trace)))
    batches = batches[spans["thread"][batches] == thread]
    making = Intervals.of(spans["start_ns"][batches], _ends(spans, batches))
    free = extent - host.calls - host.waiting - host.communication
    by_loop, by_loader = free - host.loading, free & host.loading & making
    if len(requests_as_steps(trace)) == 0:
        return [_of_thread(trace, spans_there, thread, marked, by_loop, by_loader)]
    columns = []
    for other_thread, ran in enumerate(ran_in_requests(trace)):
        if other_thread != thread and (not of_process[other_thread] or len(ran) == 0):
            continue
        # A request does not wait for other threads: these work for other requests.
        calls = spans_there[
            (spans["thread"][spans_there] == other_thread) & _is_call(spans["kind"][spans_there])
        ]
        moments = ran - Intervals.of(spans["start_ns"][calls], _ends(spans, calls))
        if other_thread == thread:
            moments = moments | (by_loop - ran)
        columns.append(_of_thread(trace, spans_there, other_thread, marked, moments, Intervals.none()))
    return columns


def _is_call(kind: NDArray[np.uint8]) -> Mask:
    """Host operators and runtime calls; neither ranges nor the profiler's own spans."""
    return np.asarray(is_operator(kind) | ((kind >= SpanKind.RUNTIME) & (kind != SpanKind.OVERHEAD)))


def _of_thread(
    trace: TraceData, process_spans: Rows, thread: int, marked: Rows, free: Intervals, making: Intervals
) -> tuple[NDArray[Any], ...]:
    """The gaps of one thread, as columns.

    Args:
        trace: The trace.
        process_spans: The spans of the process.
        thread: The thread.
        marked: The steps of the process.
        free: When the thread ran no operator and did not wait.
        making: When it did neither while it made batches itself.
    """
    spans, steps = trace.columns("spans"), trace.columns("steps")
    on_thread = process_spans[spans["thread"][process_spans] == thread]
    located, marks = _marks(trace, on_thread)
    called = on_thread[hierarchy.recorded_calls(trace).mask[on_thread]]
    of_program = program_calls(trace)
    entered = called[of_program.mask[called]]
    inside = np.append(spans["module"], np.int32(-1))
    # Also where torch's code enters a module.
    entering = called[inside[called] != inside[spans["caller"][called]]]
    cutting = np.concatenate((entering, entered, on_thread[request_marks(trace)[on_thread]]))
    # The inputs are a few sorted arrays, which a stable sort merges quickly.
    cuts = np.sort(np.concatenate((marks, spans["start_ns"][cutting], _ends(spans, cutting))), kind="stable")
    by_loop = _cut(free, steps, marked, cuts)
    by_loader = _cut(making, steps, marked, cuts)
    start, end, step = (np.concatenate(both) for both in zip(by_loop, by_loader, strict=True))
    in_loading = np.arange(len(start)) >= len(by_loop[0])
    calls = on_thread[hierarchy.host_work(trace, with_steps=False).mask[on_thread]]
    calls = calls[spans["kind"][calls] != SpanKind.USER_ANNOTATION]
    # Inner calls never end last.
    calls = calls[hierarchy.is_outermost(trace, calls)]
    begin, finish = spans["start_ns"][calls], _ends(spans, calls)
    backward = (spans["kind"][calls] == SpanKind.BACKWARD) | (spans["phase"][calls] == Phase.BACKWARD)
    # A backward function has the stack of its forward operator, which does not show where the loop is.
    stack = np.where(backward, -1, span_stacks(trace)[calls])
    previous = np.searchsorted(finish, start, side="right") - 1
    before = np.where(previous >= 0, np.append(calls, -1)[previous], -1)
    following = np.minimum(np.searchsorted(begin, end, side="left"), len(calls))
    module = np.append(spans["module"][calls], -1)
    if hierarchy.requested_calls(trace)[called].any():
        around = inside[_innermost(spans, called, hierarchy.recorded_calls(trace), start)].astype(np.int64)
    else:
        around = _common_modules(trace, np.where(previous >= 0, module[previous], -1), module[following])
    edges = np.append(backward, False)
    in_backward = edges[previous] & edges[following]
    within = _innermost(spans, entered, of_program, start)
    # Program code that runs during backward is Python time; a call around the whole backward is not.
    hooked = np.append(spans["start_ns"], -1)[within] >= np.append(finish, _NEVER)[previous]
    in_backward &= ~hooked
    within[in_backward] = -1
    function = np.append(spans["own_stack"], -1)[within]
    around[in_backward] = -1
    earlier = _last(np.concatenate((finish, marks)), np.concatenate((stack, located)), start)
    later = _last(-np.concatenate((begin, marks)), np.concatenate((stack, located)), -end)
    earlier, later = (np.where(in_backward, -1, side) for side in (earlier, later))
    # Use the line of the next call, unless it is a backward function.
    at_mark = np.searchsorted(marks, end, side="left")
    marked_first = np.append(marks, _NEVER)[at_mark] <= np.append(begin, _NEVER - 1)[following]
    toward_later = (marked_first | ~np.append(backward, True)[following]).astype(np.int64)
    whose = np.full(len(start), thread, dtype=np.int64)
    kind_keys = (earlier, later, toward_later, around, function)
    return start, end, whose, step, before, in_loading, in_backward, *kind_keys


def _place(trace: TraceData, process: ProcessRow, process_spans: Rows, marked: Rows) -> tuple[int, Intervals]:
    """The main thread of a process and when it counts: the loop's thread, a loader worker's, or the busiest."""
    spans, steps = trace.columns("spans"), trace.columns("steps")
    everything = Intervals.between(*recorded_extent(trace, process))
    # A part of a trace may lack the span of a step.
    if len(marked) and (mark := int(steps["span"][marked[0]])) >= 0:
        return int(spans["thread"][mark]), everything
    fetches = loading_spans(trace).fetches
    fetches = fetches[np.isin(fetches, process_spans)]
    loops = np.unique(spans["thread"][loading_spans(trace).waits])
    fetches = fetches[~np.isin(spans["thread"][fetches], loops)]
    if len(fetches):
        making = Intervals.of(spans["start_ns"][fetches], _ends(spans, fetches))
        return int(spans["thread"][fetches[0]]), making
    if len(process_spans) == 0:
        return -1, everything
    by_thread = Groups(spans["thread"][process_spans], len(trace.columns("threads")))
    return by_thread.largest(spans["self_ns"][process_spans]), everything


def _marks(trace: TraceData, rows: Rows) -> tuple[Rows, Rows]:
    """The stacks, as rows of `stacks`, and times at which the program entered and left ranges and recorded calls."""
    spans = trace.columns("spans")
    ranges = rows[spans["kind"][rows] == SpanKind.USER_ANNOTATION]
    # Stretches of requests begin where an event loop or a pool resumes them, not at a place of the program.
    ranges = ranges[~request_marks(trace)[ranges]]
    calls = rows[program_calls(trace).mask[rows]]
    # A call shows the line of its caller.
    caller = np.append(trace.column("stacks", "parent"), np.int32(-1))[spans["own_stack"][calls]]
    stack = np.concatenate((span_stacks(trace)[ranges], caller)).astype(np.int64)
    marked, stack = np.concatenate((ranges, calls))[stack >= 0], stack[stack >= 0]
    time = np.concatenate((spans["start_ns"][marked], _ends(spans, marked)))
    order = np.argsort(time, kind="stable")
    return np.concatenate((stack, stack))[order], time[order]


def _last(time: Rows, stack: Rows, until: Rows) -> Rows:
    """The last known stack up to each time; -1 for none."""
    stacked = np.flatnonzero(stack >= 0)
    stacked = stacked[np.argsort(time[stacked], kind="stable")]
    last = np.searchsorted(time[stacked], until, side="right") - 1
    return np.asarray(np.where(last >= 0, np.append(stack[stacked], -1)[last], -1), dtype=np.int64)


def _cut(moments: Intervals, steps: Columns, marked: Rows, marks: Rows) -> tuple[Rows, Rows, Rows]:
    """Cut stretches at the boundaries of steps and at sorted marks; return the start, end and step of each part."""
    marked = marked[np.argsort(steps["start_ns"][marked], kind="stable")]
    begin_ns = steps["start_ns"][marked].astype(np.int64)
    end_ns = begin_ns + steps["duration_ns"][marked]
    # Where steps overlap, the latest wins.
    end_ns[:-1] = np.minimum(end_ns[:-1], begin_ns[1:])
    edges = np.sort(np.concatenate((marks, begin_ns, end_ns)), kind="stable")
    first = np.searchsorted(edges, moments.start_ns, side="right")
    last = np.searchsorted(edges, moments.end_ns, side="left")
    stretch, edge = rows_of_runs(first, np.maximum(last - first, 0))
    # A part ends at the next cut or, for the last part of a stretch, at the end of the stretch.
    start, end = np.append(moments.start_ns, edges[edge]), np.append(moments.end_ns, moments.end_ns[stretch])
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    end[:-1] = np.minimum(end[:-1], start[1:])
    real = end > start
    step = np.append(marked, -1)[step_at(start[real], begin_ns, end_ns - begin_ns)]
    return start[real], end[real], step


def _innermost(spans: Columns, calls: Rows, population: hierarchy.Hierarchy, time_ns: Rows) -> Rows:
    """The innermost of some calls of a population at each time; -1 outside of them."""
    return _core.running_at(spans["start_ns"], spans["duration_ns"], population.parent, calls, time_ns)


@derived
def program_calls(trace: TraceData) -> hierarchy.Hierarchy:
    """The recorded Python calls of the program's own code, as a hierarchy."""
    spans = trace.columns("spans")
    frame = np.append(trace.column("stacks", "frame"), np.int32(-1))[spans["own_stack"]]
    mask = (spans["kind"] == SpanKind.PYTHON) & hierarchy.requested_calls(trace)
    mask &= np.append(user_frames(trace), False)[frame]

    def parent() -> NDArray[np.int32]:
        caller = spans["caller"]
        # A caller's row is lower than its callee's, so no depths are needed.
        nearest = _core.nearest_marked(caller, np.zeros_like(caller), mask)
        return np.asarray(np.append(nearest, np.int32(-1))[caller])

    return hierarchy.Enclosing(spans, mask, parent)


def _functions(trace: TraceData) -> NDArray[np.int32]:
    """For each stack a number for its innermost function of the program's own code; -1 for none, and at the end for "no stack"."""
    frames, stacks = trace.columns("frames"), trace.columns("stacks")
    function = Groups.by([frames["file"], frames["function"]]).of_row
    frame = np.append(stacks["frame"], np.int32(-1))[np.append(user_stacks(trace), -1)]
    return np.asarray(np.append(function, np.int32(-1))[frame])


def _ends(spans: Columns, rows: Rows) -> Rows:
    return np.asarray(spans["start_ns"][rows] + spans["duration_ns"][rows], dtype=np.int64)


def _common_modules(trace: TraceData, one: Rows, other: Rows) -> Rows:
    """For each pair of modules the innermost module that contains both; -1 for none."""
    holder = trace.column("modules", "holder").tolist()
    pairs = Groups.by([one, other])
    holders = []
    for first, second in zip(one[pairs.first].tolist(), other[pairs.first].tolist(), strict=True):
        around = set()
        while first >= 0:
            around.add(first)
            first = holder[first]
        while second >= 0 and second not in around:
            second = holder[second]
        holders.append(second)
    return np.array(holders, dtype=np.int64)[pairs.of_row]


def _common_functions(trace: TraceData, earlier: Rows, later: Rows, toward_later: Mask) -> tuple[Rows, Rows]:
    """The innermost functions from which pairs of stacks were called.

    Returns:
        For each pair two rows of `stacks` in that function: at the charged line, and at the other line, -1 for none.
    """
    first, parent, level = _alike(trace)
    first_alike, second_alike = first[earlier], first[later]
    second_alike[first_alike < 0] = first_alike[second_alike < 0] = -1
    first_alike[second_alike < 0] = -1
    below_one, below_other = np.full_like(first_alike, -1), np.full_like(first_alike, -1)
    apart = np.flatnonzero(first_alike != second_alike)
    while apart.size:
        above = level[first_alike[apart]] - level[second_alike[apart]]
        for here, below, deeper in (
            (first_alike, below_one, apart[above >= 0]),
            (second_alike, below_other, apart[above <= 0]),
        ):
            below[deeper] = here[deeper]
            here[deeper] = parent[here[deeper]]
        apart = apart[first_alike[apart] != second_alike[apart]]
    frames, frame = trace.columns("frames"), np.append(trace.column("stacks", "frame"), np.int32(-1))
    function = np.append(Groups.by([frames["file"], frames["function"]]).of_row, np.int32(-1))
    lines = function[frame[below_one]]
    lines_differ = (lines >= 0) & (lines == function[frame[below_other]])
    charged_line = np.where(toward_later, below_other, below_one)
    other_line = np.where(toward_later, below_one, below_other)
    return np.where(lines_differ, charged_line, first_alike), np.where(lines_differ, other_line, -1)


def _alike(trace: TraceData) -> tuple[Rows, Rows, NDArray[np.int32]]:
    """For each stack the first stack with the same functions and lines, its caller and its depth; the last entry is for "no stack"."""
    stacks, frames = trace.columns("stacks"), trace.columns("frames")
    rows = np.arange(len(stacks))
    caller = np.where(stacks["parent"] < rows, stacks["parent"], -1)
    level = np.append(depths_of(caller), np.int32(-1))
    line_of = Groups.by([frames[name] for name in ("file", "function", "line")]).of_row
    line_of = np.append(line_of, np.int32(-1))[stacks["frame"]]
    first = np.append(rows, -1).astype(np.int32)
    for alike in by_level(level[:-1]):
        groups = Groups.by([first[caller[alike]], line_of[alike]])
        first[alike] = alike[groups.first][groups.of_row]
    return first.astype(np.int64), np.append(first[caller], -1).astype(np.int64), level
