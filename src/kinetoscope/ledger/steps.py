"""The steps of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.ledger.parts import step_parts
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.closures import Closures, find_closures
from kinetoscope.model.dictionary import table_definition
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import host_work, is_outermost, operator_spans
from kinetoscope.model.processes import of_processes, thread_processes
from kinetoscope.model.rows import begins_run
from kinetoscope.model.schema import STEP_SOURCES, Phase, SpanKind
from kinetoscope.model.steps import step_at
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.costs.flops import step_work
from kinetoscope.tables.host.compiling import compile_time
from kinetoscope.tables.host.data_loading import in_waits
from kinetoscope.tables.host.python_time import gaps
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.named_steps import named_steps
from kinetoscope.tables.stacks import user_stacks
from kinetoscope.tables.step_extents import start_up_steps, step_extents
from kinetoscope.tables.stored import memory_recorded
from kinetoscope.tables.windows import host_owners, owned

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.columns import Columns
    from kinetoscope.model.trace_data import TraceData

EVERY = slice(None)


def steps(trace: TraceData, peak_flops: Any = None) -> pyarrow.Table:
    """Return the `steps` table.

    The three phases are sums of self times on all threads, as `phase_times` returns them; several busy threads can add up to more than
    the duration. The parts from `compute_ns` to `idle_ns` add up to it: they are those of
    `breakdown` for the device on which the process works most.

    Args:
        trace: The trace.
        peak_flops: The peak FLOP/s of each device that the work ran on: a number, or a mapping from element types to numbers.
            None: the built-in table and `register_peak_flops`.

    Returns:
        The table; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: `peak_flops` is not a number above 0 or a mapping to such numbers.
    """
    spans, own = trace.columns("spans"), trace.columns("steps")
    step, phase = spans["step"], spans["phase"]
    self_ns = phase_times(trace)
    ran, by_step = host_work(trace, with_steps=False).mask, Groups(step, len(own))
    columns: dict[str, Any] = {"number": own["number"], "span": own["span"]}
    columns |= {name: getattr(step_extents(trace), name) for name in ("start_ns", "duration_ns")}
    columns["operators"] = by_step.sums(ran & operator_spans(trace).mask)
    for part in Phase:
        columns[f"{part.name.lower()}_ns"] = by_step.sums(self_ns, ran & (phase == part))
    columns |= step_parts(trace)
    columns["compile_ns"] = compile_ns(trace)
    columns |= _largest_gaps(trace)
    columns |= step_work(trace, step_extents(trace).duration_ns, peak_flops)
    columns |= of_processes(trace, own["process_row"])
    columns["start_up"] = start_up_steps(trace)
    columns["source"] = Labels(own["source"], STEP_SOURCES)
    called = named_steps(trace)
    columns |= {"name": Labels(called.name, called.names), "arguments": called.arguments}
    columns["peak_bytes"] = _peaks(trace) if memory_recorded(trace) else None
    return to_arrow(table_definition("steps"), columns)


@derived
def phase_times(trace: TraceData) -> NDArray[np.int64]:
    """The self time of each span that counts for its phase.

    What runs while a batch is waited for counts for none, nor does a range while it waits for backward on another thread, nor the range of
    an optimizer's step while it runs a closure: what that runs counts itself.
    """
    found = np.where(in_waits(trace), 0, trace.column("spans", "self_ns"))
    spans = trace.columns("spans")
    thread, parent, start = spans["thread"], spans["parent"], spans["start_ns"]
    end = start + spans["duration_ns"]
    is_work = host_work(trace).mask
    back = np.flatnonzero((spans["phase"] == Phase.BACKWARD) & is_work)
    forward = spans["forward"][back]
    elsewhere = np.where(forward >= 0, thread[forward], thread[back]) != thread[back]
    is_range = (spans["kind"] == SpanKind.USER_ANNOTATION) & (spans["phase"] != Phase.BACKWARD)

    def leave_out(moments: Intervals, ranges: NDArray[np.int64], inner: NDArray[np.int64]) -> None:
        """Subtract some moments from the self times of ranges, whose nested parts are `inner`."""
        taken = np.zeros(len(found), dtype=np.int64)
        taken[ranges] = moments.within(start[ranges], end[ranges])
        np.subtract.at(taken, parent[inner], moments.within(start[inner], end[inner]))
        found[ranges] = np.maximum(found[ranges] - taken[ranges], 0)

    left_out: dict[int, Intervals] = {}
    for waiting in np.unique(thread[forward[elsewhere]]).tolist():
        runs = np.unique(thread[back[elsewhere & (thread[forward] == waiting)]])
        rows = back[np.isin(thread[back], runs)]
        rows = rows[is_outermost(trace, rows)]
        left_out[waiting] = Intervals.of(start[rows], end[rows])
        ranges = np.flatnonzero(is_range & (thread == waiting))
        inner = np.flatnonzero(np.append(is_range, False)[parent] & is_work & (thread == waiting))
        leave_out(left_out[waiting], ranges, inner)
    found_closures = closures(trace)
    steps_of_optimizers = is_range & (spans["phase"] == Phase.OPTIMIZER) & (spans["stream"] < 0)
    for one in np.unique(found_closures.thread).tolist():
        mine = found_closures.thread == one
        moments = Intervals.of(found_closures.start_ns[mine], found_closures.end_ns[mine])
        ranges = np.flatnonzero(steps_of_optimizers & (thread == one))
        inner = np.flatnonzero(np.append(steps_of_optimizers, False)[parent] & is_work & (thread == one))
        leave_out(moments - left_out.get(one, Intervals.none()), ranges, inner)
    return found


@derived
def closures(trace: TraceData) -> Closures:
    """The closures that optimizers' steps run."""
    return find_closures(trace.columns("spans"), trace.strings)


def compile_ns(trace: TraceData) -> NDArray[np.int64]:
    """How long torch.compile worked in each step, on any thread of the process of the step."""
    own = trace.columns("steps")
    start, found = own["start_ns"].astype(np.int64), np.zeros(len(own), dtype=np.int64)
    thread = np.append(trace.column("spans", "thread"), -1)[own["span"]]
    for owner in host_owners(trace):
        mine = owned(trace, owner)
        rows = np.flatnonzero(mine[thread])
        found[rows] = compile_time(trace, mine).within(start[rows], start[rows] + own["duration_ns"][rows])
    return found


def _largest_gaps(trace: TraceData) -> dict[str, Any]:
    """The longest gap of each step, and the line that took most of it."""
    steps, frames, found = len(trace.columns("steps")), trace.columns("frames"), gaps(trace)
    extents = step_extents(trace)
    # Of a host that runs ahead, only what is left of a gap in the extent of its step is time of that step.
    start_ns = np.maximum(found.start_ns, np.append(extents.start_ns, 0)[found.step])
    duration_ns = np.minimum(found.end_ns, np.append(extents.end_ns, 0)[found.step]) - start_ns
    rows = np.flatnonzero((found.step >= 0) & (duration_ns > 0) & ~found.in_loading & ~found.in_backward)
    # Gaps are cut where ranges and calls of modules begin and end: those that touch are one.
    apart = begins_run(found.step[rows], found.thread[rows])
    apart[1:] |= found.start_ns[rows][1:] != found.end_ns[rows][:-1]
    whole = np.cumsum(apart) - 1
    length = Groups(whole, len(rows)).sums(duration_ns[rows])
    order = np.lexsort((duration_ns[rows], length[whole]))
    longest, taken = np.full((2, steps), -1, dtype=np.int64)
    longest[found.step[rows[order]]] = rows[order]  # the last one counts
    taken[found.step[rows[order]]] = whole[order]
    stack = np.append(found.stack, -1)[longest]
    frame = np.append(trace.column("stacks", "frame"), -1)[np.append(user_stacks(trace), -1)[stack]]
    return {
        "largest_gap_ns": np.append(length, 0)[taken],
        "largest_gap_file": Labels(np.append(frames["file"], -1)[frame], trace.strings),
        "largest_gap_line": np.append(frames["line"], -1)[frame],
    }


def _peaks(trace: TraceData) -> NDArray[np.int64]:
    """The most live host bytes of its process within each step; what was live when it began counts too."""
    own, blocks = trace.columns("steps"), trace.columns("allocations")
    on_host = blocks["device_type"] == 0
    if len(trace.columns("processes")) == 0:
        return _peaks_of(own, blocks, EVERY, np.flatnonzero(on_host))
    peaks = np.zeros(len(own), dtype=np.int64)
    of_block = thread_processes(trace)[blocks["thread"]]
    for process in np.unique(own["process_row"]).tolist():
        steps = np.flatnonzero(own["process_row"] == process)
        peaks[steps] = _peaks_of(own, blocks, steps, np.flatnonzero(on_host & (of_block == process)))
    return peaks


def _peaks_of(
    steps: Columns, blocks: Columns, rows: slice | NDArray[np.int64], events: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The most live bytes in some steps of one process, by its events."""
    start_ns, duration_ns = steps["start_ns"][rows], steps["duration_ns"][rows]
    time_ns, total = blocks["time_ns"][events], blocks["total_bytes"][events]
    peaks = np.append(total, 0)[np.searchsorted(time_ns, start_ns, side="left") - 1]
    at = step_at(time_ns, start_ns, duration_ns)
    np.maximum.at(peaks, at[at >= 0], total[at >= 0])
    found: NDArray[np.int64] = peaks
    return found
