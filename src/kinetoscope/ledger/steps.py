"""The `steps` table."""

from __future__ import annotations

from typing import Any

import numpy as np

from kinetoscope.ledger.parts import step_parts
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.closures import Closures, find_closures
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import host_work, is_outermost, operator_spans
from kinetoscope.model.processes import of_processes, thread_processes
from kinetoscope.model.rows import Rows, begins_run
from kinetoscope.model.schema import STEP_SOURCES, Phase, SpanKind
from kinetoscope.model.steps import step_at
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.flops import step_work
from kinetoscope.tables.host.compiling import compile_time
from kinetoscope.tables.host.data_loading import in_waits
from kinetoscope.tables.host.python_time import gaps
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.stacks import user_stacks
from kinetoscope.tables.step_extents import start_up_steps, step_extents
from kinetoscope.tables.step_kinds import named_steps
from kinetoscope.tables.stored import memory_recorded
from kinetoscope.tables.windows import host_owners, owned


def steps(trace: TraceData, peak_flops: Any = None) -> ArrowTable:
    """Return the `steps` table.

    The three phases sum self times over all threads (`phase_times`), so several busy threads can exceed the duration.
    The parts from `compute_ns` to `idle_ns` add up to it: they are those of `breakdown` for the busiest device of the process.

    Args:
        trace: The trace.
        peak_flops: The peak FLOP/s of each device that the work ran on: a number, or a mapping from element types to numbers.
            None: the built-in table and `register_peak_flops`.

    Returns:
        The table; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: `peak_flops` is not a number above 0 or a mapping to such numbers.
    """
    spans, marks = trace.columns("spans"), trace.columns("steps")
    step, phase = spans["step"], spans["phase"]
    self_ns = phase_times(trace)
    ran, by_step = host_work(trace, with_steps=False).mask, Groups(step, len(marks))
    columns: dict[str, Any] = {"number": marks["number"], "span": marks["span"]}
    columns |= {name: getattr(step_extents(trace), name) for name in ("start_ns", "duration_ns")}
    columns["operators"] = by_step.sums(ran & operator_spans(trace).mask)
    for part in Phase:
        columns[f"{part.name.lower()}_ns"] = by_step.sums(self_ns, ran & (phase == part))
    columns |= step_parts(trace)
    columns["compile_ns"] = compile_ns(trace)
    columns |= _largest_gaps(trace)
    columns |= step_work(trace, step_extents(trace).duration_ns, peak_flops)
    columns |= of_processes(trace, marks["process_row"])
    columns["start_up"] = start_up_steps(trace)
    columns["source"] = Labels(marks["source"], STEP_SOURCES)
    called = named_steps(trace)
    columns |= {"name": Labels(called.name, called.names), "arguments": called.arguments}
    columns["peak_bytes"] = _peaks(trace) if memory_recorded(trace) else None
    return to_arrow("steps", columns)


@derived
def phase_times(trace: TraceData) -> Rows:
    """The self time that each span adds to its phase.

    Three things add nothing: spans that run while the loop waits for a batch, a range while backward runs on another thread,
    and the range of an optimizer step while its closure runs, whose operators count for themselves.
    """
    phase_ns = np.where(in_waits(trace), 0, trace.column("spans", "self_ns"))
    spans = trace.columns("spans")
    thread, parent, start = spans["thread"], spans["parent"], spans["start_ns"]
    end = start + spans["duration_ns"]
    is_work = host_work(trace).mask
    back = np.flatnonzero((spans["phase"] == Phase.BACKWARD) & is_work)
    forward = spans["forward"][back]
    elsewhere = np.where(forward >= 0, thread[forward], thread[back]) != thread[back]
    is_range = (spans["kind"] == SpanKind.USER_ANNOTATION) & (spans["phase"] != Phase.BACKWARD)

    def leave_out(moments: Intervals, ranges: Rows, inner: Rows) -> None:
        """Subtract some moments from the self times of ranges, except where `inner` spans run in them."""
        taken = np.zeros(len(phase_ns), dtype=np.int64)
        taken[ranges] = moments.within(start[ranges], end[ranges])
        np.subtract.at(taken, parent[inner], moments.within(start[inner], end[inner]))
        phase_ns[ranges] = np.maximum(phase_ns[ranges] - taken[ranges], 0)

    left_out: dict[int, Intervals] = {}
    for waiting in np.unique(thread[forward[elsewhere]]).tolist():
        runs = np.unique(thread[back[elsewhere & (thread[forward] == waiting)]])
        rows = back[np.isin(thread[back], runs)]
        rows = rows[is_outermost(trace, rows)]
        left_out[waiting] = Intervals.of(start[rows], end[rows])
        ranges = np.flatnonzero(is_range & (thread == waiting))
        inner = np.flatnonzero(np.append(is_range, False)[parent] & is_work & (thread == waiting))
        leave_out(left_out[waiting], ranges, inner)
    steps_of_optimizers = is_range & (spans["phase"] == Phase.OPTIMIZER) & (spans["stream"] < 0)
    for thread_row in np.unique(closures(trace).thread).tolist():
        ranges = np.flatnonzero(steps_of_optimizers & (thread == thread_row))
        inner = np.flatnonzero(
            np.append(steps_of_optimizers, False)[parent] & is_work & (thread == thread_row)
        )
        moments = in_closures(trace, thread_row) - left_out.get(thread_row, Intervals.none())
        leave_out(moments, ranges, inner)
    return phase_ns


@derived
def closures(trace: TraceData) -> Closures:
    """The closures that optimizer steps run."""
    return find_closures(trace.columns("spans"), trace.strings)


def in_closures(trace: TraceData, thread: int) -> Intervals:
    """When a thread ran closures of optimizers."""
    all_closures = closures(trace)
    on_thread = all_closures.thread == thread
    return Intervals.of(all_closures.start_ns[on_thread], all_closures.end_ns[on_thread])


def compile_ns(trace: TraceData) -> Rows:
    """The time that torch.compile took in each step, on any thread of the step's process."""
    marks = trace.columns("steps")
    start, time_ns = marks["start_ns"].astype(np.int64), np.zeros(len(marks), dtype=np.int64)
    thread = np.append(trace.column("spans", "thread"), -1)[marks["span"]]
    for owner in host_owners(trace):
        owned_threads = owned(trace, owner)
        rows = np.flatnonzero(owned_threads[thread])
        time_ns[rows] = compile_time(trace, owned_threads).within(
            start[rows], start[rows] + marks["duration_ns"][rows]
        )
    return time_ns


def _largest_gaps(trace: TraceData) -> dict[str, Any]:
    steps, frames, idle = len(trace.columns("steps")), trace.columns("frames"), gaps(trace)
    extents = step_extents(trace)
    # The host may run ahead: only the part of a gap inside the extent of its step counts.
    start_ns = np.maximum(idle.start_ns, np.append(extents.start_ns, 0)[idle.step])
    duration_ns = np.minimum(idle.end_ns, np.append(extents.end_ns, 0)[idle.step]) - start_ns
    rows = np.flatnonzero((idle.step >= 0) & (duration_ns > 0) & ~idle.in_loading & ~idle.in_backward)
    # Ranges and module calls cut gaps: join those that touch.
    apart = begins_run(idle.step[rows], idle.thread[rows])
    apart[1:] |= idle.start_ns[rows][1:] != idle.end_ns[rows][:-1]
    joined_gap = np.cumsum(apart) - 1
    length = Groups(joined_gap, len(rows)).sums(duration_ns[rows])
    order = np.lexsort((duration_ns[rows], length[joined_gap]))
    longest, taken = np.full((2, steps), -1, dtype=np.int64)
    longest[idle.step[rows[order]]] = rows[order]  # the last one counts
    taken[idle.step[rows[order]]] = joined_gap[order]
    stack = np.append(idle.stack, -1)[longest]
    frame = np.append(trace.column("stacks", "frame"), -1)[np.append(user_stacks(trace), -1)[stack]]
    return {
        "largest_gap_ns": np.append(length, 0)[taken],
        "largest_gap_file": Labels(np.append(frames["file"], -1)[frame], trace.strings),
        "largest_gap_line": np.append(frames["line"], -1)[frame],
    }


def _peaks(trace: TraceData) -> Rows:
    """The peak of live host bytes of the process during each step, including bytes that were live when it began."""
    marks, blocks = trace.columns("steps"), trace.columns("allocations")
    of_block, on_host = thread_processes(trace)[blocks["thread"]], blocks["device_type"] == 0
    of_step = marks["process_row"] if len(trace.columns("processes")) else np.zeros(len(marks), np.int32)
    peaks = np.zeros(len(marks), dtype=np.int64)
    for process in np.unique(of_step).tolist():
        steps, events = np.flatnonzero(of_step == process), np.flatnonzero(on_host & (of_block == process))
        start_ns, time_ns = marks["start_ns"][steps], blocks["time_ns"][events]
        total = blocks["total_bytes"][events]
        most = np.append(total, 0)[np.searchsorted(time_ns, start_ns, side="left") - 1]
        step_of_event = step_at(time_ns, start_ns, marks["duration_ns"][steps])
        np.maximum.at(most, step_of_event[step_of_event >= 0], total[step_of_event >= 0])
        peaks[steps] = most
    return peaks
