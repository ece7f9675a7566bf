"""The training loop of a trace, as the rules for findings look at it: its steps, its thread, and the Python between operators."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.analyses.loop_device import LoopDevice
from kinetoscope.ledger.ledger import ProcessLedger, ledger_of_process, raw_ledger
from kinetoscope.ledger.parts import StepTime, parts_of_ledger, parts_of_units, step_time
from kinetoscope.ledger.steps import in_closures
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import is_outermost, lies_in, nearest_of, operator_spans
from kinetoscope.model.kinds import is_call
from kinetoscope.model.names import source_line
from kinetoscope.model.rows import Mask, Rows, distinct, mask_of
from kinetoscope.model.schema import IMPORTING, Phase, SampleWait, SpanKind
from kinetoscope.model.steps import step_at
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.device.collectives import collectives
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.host.compiling import compiles
from kinetoscope.tables.host.data_loading import in_waits, loading_spans
from kinetoscope.tables.host.host_shares import host_shares
from kinetoscope.tables.host.python_time import gaps
from kinetoscope.tables.host.requests import ran_in_requests
from kinetoscope.tables.host.units_of_work import Unit, units_of_work
from kinetoscope.tables.intervals import Intervals, ran_within, united, when_ran
from kinetoscope.tables.stacks import (
    library_frames,
    program_frames,
    project_lines,
    stacks_inside,
    stacks_with,
)
from kinetoscope.tables.step_extents import start_up_steps
from kinetoscope.tables.step_kinds import LEAST_OF_KIND
from kinetoscope.tables.windows import activities

MOST_ROWS = 10
"""A finding names at most this many spans as its evidence."""
USUAL_STEPS, MOST_TIMES = 0.9, 1.5
"""What a step has more of than so many times what this part of all steps have at most is not usual."""
# A time is above zero with a certainty of 97.5 % if it is this many standard deviations above it.
_SURE = 1.96
_ENGINE_FILES = ("/torch/autograd/graph.py", "/torch/autograd/__init__.py")
_ENGINE_FUNCTIONS = ("_engine_run_backward", "backward", "grad")
_WRAPPER_FILES = ("/torch/nn/parallel/distributed.py",)
_OPTIMIZERS = "/torch/optim/"
BUSY_MACHINE = 10.0
"""Where the loop's thread waits for a processor for this part of step time, in percent, what gets slower may be the machine's doing."""
LEAST_BUSY = 1.0
"""A program whose device is busy for less of its step time, in percent, is looked at as a program of the host."""


# Before Python 3.12 a comprehension was a function of its own.
_COMPREHENSION = re.compile(r"(\.<locals>\.<(listcomp|setcomp|dictcomp|genexpr)>)+$")


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's code.

    Attributes:
        file: The file; empty where the trace has no stacks.
        line: The line.
        function: The qualified name of the function.
        until: The last line of the place, where it is a range of lines.
        is_function: Whether only the function is known, and the line is its first: torch's collector writes no others.
    """

    file: str = ""
    line: int = 0
    function: str = ""
    until: int = 0
    is_function: bool = False

    def __bool__(self) -> bool:
        """Whether a place is known."""
        return bool(self.file)

    def __str__(self) -> str:
        """The place as people write it: `train.py:12`, or `forward (train.py:10)` where only the function is known."""
        return self.named if self.is_function else self._lines

    @property
    def named(self) -> str:
        """The place with its function: `forward (train.py:12)`."""
        return f"{self.function} ({self._lines})" if self.file else ""

    @property
    def _lines(self) -> str:
        """The line, or the range of lines, without folders."""
        lines = f"{self.line}-{self.until}" if self.until > self.line else str(self.line)
        return f"{os.path.basename(self.file)}:{lines}" if self.file else ""


def busiest(times: Mapping[SourceLine, float]) -> SourceLine:
    """The known place with the longest time; none where none is known."""
    return max((place for place in times if place), key=times.__getitem__, default=SourceLine())


@dataclass(frozen=True, eq=False)
class Gap:
    """Python that ran between operators, all times at one place together.

    Attributes:
        place: Where: the line that samples say or, without any, the lines of the innermost function from which both the operator before
            and the one after were called.
        time_ns: How long in all steps: what a step of each kind usually spends there (the median) times the number of these steps, so that a
            pause of the machine in one step is not taken for the program's.
        count: How many times.
        rows: The spans before the longest ones, the longest first.
        blocked_part: In which part of it, between 0 and 1, samples say that the thread did not run.
        wait: What it waited for most of that part: a `SampleWait`.
        called_part: In which part of it samples say that the line had called a function of a library other than torch, as `json.dumps`.
        kind_ns: What of the time is in the steps of each kind.
        stack_rows: The stacks that it ran in, by their rows in `stacks`.
        stack_ns: How long in each of these.
    """

    place: SourceLine
    time_ns: int
    count: int
    rows: tuple[int, ...]
    blocked_part: float = 0.0
    called_part: float = 0.0
    wait: int = SampleWait.UNKNOWN
    kind_ns: tuple[float, ...] = ()
    stack_rows: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    stack_ns: NDArray[Any] = field(default_factory=lambda: np.zeros(0))


class Loop:
    """The training loop of the process whose steps took longest, start-up left out; in a trace with requests and without steps, its requests.

    Attributes:
        trace: The trace.
        process: The row of its process in `processes`, -1 in a trace of one process.
        work: Its steps that count; in a trace without any its requests, which may overlap, and without both all that was recorded.
        unit: Which of these.
        thread: The row of the thread that runs the loop, or that ran most operators of requests; -1 where nothing was recorded.
        start_ns: When each step starts, as `step_extents` says.
        end_ns: When each step ends.
        mark_start_ns: When the host began each step: what it does is of the step that it is in.
        mark_end_ns: When the host ended it.
        duration_ns: The step time, or without steps all recorded time.
    """

    def __init__(self, trace: TraceData) -> None:
        self.trace = trace
        every = units_of_work(trace)
        self.unit, counted = every.unit, every[~every.is_start_up]
        if self.unit.overlaps:
            account = max(raw_ledger(trace), key=lambda ledger: int(ledger.duration_ns.sum()))
            self.process: int = account.process
            self.thread, self.work = account.thread, account.work
        elif self.unit is Unit.STEP:
            total_ns = {
                process: int(counted.of_process(process).duration_ns.sum())
                for process in np.unique(counted.process).tolist()
            }
            self.process = max(total_ns, key=lambda process: (total_ns[process], -process))
            self.work = counted.of_process(self.process)
            mark = trace.column("steps", "span")[self.work.row[0]]
            self.thread = int(np.append(trace.column("spans", "thread"), -1)[mark])
        else:
            self.thread, self.process = _busiest_thread(trace)
            self.work = every.of_process(self.process)
        self.start_ns, self.end_ns = self.work.start_ns, self.work.end_ns
        self.mark_start_ns, self.mark_end_ns = self.work.mark_start_ns, self.work.mark_end_ns
        self.duration_ns = int((self.end_ns - self.start_ns).sum())
        self._places = {-1: SourceLine()}

    @property
    def moments(self) -> Intervals:
        """The time that findings divide among them: that of its steps, or as long as all requests, of whose moments several may be one."""
        overlap = self.unit.overlaps
        return Intervals.between(0, self.duration_ns) if overlap else Intervals.of(self.start_ns, self.end_ns)

    @cached_property
    def whole_ns(self) -> int:
        """What shares are of: the step time and, on a busy machine, of it what its thread had a processor for."""
        return self.duration_ns - self.machine_is_busy * self.processor_wait_ns

    @property
    def step_count(self) -> int:
        """How many steps count; 0 where the trace has none."""
        return len(self.work) if self.unit is Unit.STEP else 0

    def share(self, time_ns: float) -> float:
        """A time as percent of step time, never above 100."""
        return min(100.0, 100.0 * time_ns / self.whole_ns) if self.whole_ns > 0 else 0.0

    def per_step(self, count: float) -> float:
        """A count over all steps as a count of one."""
        return count / max(1, len(self.start_ns))

    @cached_property
    def passes(self) -> float:
        """How often the model ran, without steps: the median over its modules' operators of how often each did; at least 1."""
        spans = self.trace.columns("spans")
        rows = np.flatnonzero(self.inside & self.outermost & (spans["module"] >= 0))
        if len(rows) == 0:
            return 1.0
        return max(1.0, float(np.median(Groups.by([spans["module"][rows], spans["name"][rows]]).sizes())))

    def counted(self, amount: int, noun: str, steps: int | None = None) -> str:
        """A count over all steps, or over so many of them, in words: `5 operators a step`, `once a step`."""
        each = max(1, round(amount / max(steps, 1) if steps is not None else self.per_step(amount)))
        often = "once" if (each, noun) == (1, "time") else units.count(each, noun)
        return f"{often}{self.unit.each}"

    @cached_property
    def kind_of_step(self) -> Rows:
        """The kind of each step, numbered from 0: rollout and optimizer steps, or evaluation after every tenth, are compared with their like.

        A kind with fewer than `LEAST_OF_KIND` steps is no part of the loop's work: its steps count for the kind with most of them.
        """
        _, kinds, often = np.unique(self.work.kind, return_inverse=True, return_counts=True)
        if len(often) == 0:
            return np.asarray(kinds, dtype=np.int64)
        merged = np.where(often >= LEAST_OF_KIND, np.arange(len(often)), np.argmax(often))
        return np.asarray(np.unique(merged[kinds], return_inverse=True)[1], dtype=np.int64)

    def usual_sum(self, step: Rows, values: NDArray[Any]) -> int:
        """The sum over all steps of some values, each of a step, at their usual pace: the median over the steps of each kind times their number."""
        return int(self.usual_by_kind(step, values).sum())

    def sums_by_kind(self, of_step: NDArray[Any]) -> tuple[float, ...]:
        """The sum of a value of each step over the steps of each kind."""
        kinds = Groups(self.kind_of_step, int(self.kind_of_step.max(initial=-1)) + 1)
        return tuple(kinds.sums(of_step).tolist())

    def usual_by_kind(self, step: Rows, values: NDArray[Any]) -> NDArray[np.float64]:
        """The same of the steps of each kind."""
        each = Groups(step, len(self.start_ns)).sums(values)
        steps = np.arange(len(each))
        return usual_totals(np.zeros_like(steps), steps, each, 1, self.kind_of_step)[:, 0]

    @property
    def processor_wait_ns(self) -> int:
        """How long the loop's thread was ready to run in the steps, but had no processor; 0 where it was not recorded."""
        return int(self._processor_waits.sum())

    @cached_property
    def _processor_waits(self) -> Rows:
        """How long the loop's thread was ready to run in each step, but had no processor."""
        if self.ledger is None:
            return np.zeros(len(self.start_ns), np.int64)
        return parts_of_ledger(self.ledger)["processor_wait_ns"][self.ledger.counted]

    def with_processor(self, step: Rows, time_ns: NDArray[Any]) -> NDArray[Any]:
        """What of times of the host, each of a step, its thread had a processor for: on a busy machine the share that it had in the step."""
        if not self.machine_is_busy:
            return time_ns
        share = 1.0 - self._processor_waits / np.maximum(self.end_ns - self.start_ns, 1)
        return np.asarray(time_ns * np.append(share, 1.0)[step])

    @cached_property
    def ledger(self) -> ProcessLedger | None:
        """What its process spent the time of all steps on, without what findings say; None where nothing was recorded."""
        return ledger_of_process(raw_ledger(self.trace), self.process)

    @cached_property
    def parts(self) -> dict[str, Rows]:
        """For each part, in words, how long each step spends on it: together its duration; no parts of a recording."""
        if self.ledger is None:
            return {}
        return {name: times[self.ledger.counted] for name, times in parts_of_units(self.ledger).items()}

    @cached_property
    def threads(self) -> Mask:
        """For each row of `threads`, and for -1, whether it is the thread of the loop, or one that worked for its requests."""
        in_loop = np.zeros(len(self.trace.columns("threads")) + 1, bool)
        if not self.unit.overlaps:
            in_loop[self.thread] = True
            return in_loop
        has_run = [len(intervals) > 0 for intervals in ran_in_requests(self.trace)]
        of_process = self.trace.column("threads", "process_row") == self.process
        in_loop[:-1] = np.array(has_run, bool) & of_process
        return in_loop

    @cached_property
    def machine_is_busy(self) -> bool:
        """Whether other programs had the processors for so long that times of the steps alone are no evidence; a device works on meanwhile."""
        is_on_host = self._used_device is None and not self.unit.overlaps
        return is_on_host and 100.0 * self.processor_wait_ns >= BUSY_MACHINE * max(self.duration_ns, 1)

    @cached_property
    def evaluations_ns(self) -> NDArray[np.float64]:
        """What evaluating the loss in closures of optimizers takes in each step, at the usual pace: in proportion to the functions of backward in it.

        L-BFGS evaluates as often as its line search asks, often at first and once where it has converged. Zeros without closures.
        """
        count = len(self.start_ns)
        took_ns = in_closures(self.trace, self.thread).within(self.mark_start_ns, self.mark_end_ns)
        back = np.flatnonzero(self.inside & (self.trace.column("spans", "kind") == SpanKind.BACKWARD))
        functions = Groups(self.step_of(back), count).sizes()
        with_closures = (took_ns > 0) & (functions > 0)
        if not with_closures.any():
            return np.zeros(count)
        each_ns = float(np.median(took_ns[with_closures] / functions[with_closures]))
        return np.where(with_closures, functions, 0) * each_ns

    @cached_property
    def on_threads(self) -> Mask:
        """Which spans ran on a thread of the loop."""
        return self.threads.take(self.trace.column("spans", "thread"))

    @cached_property
    def inside(self) -> Mask:
        """Which spans are the host's work in the steps of this process, marks of steps left out."""
        spans = self.trace.columns("spans")
        of_process = self.trace.column("threads", "process_row").take(spans["thread"]) == self.process
        counted = host_shares(self.trace).counts & of_process
        if self.unit.overlaps:
            rows = np.flatnonzero(counted)
            counted[rows[self.step_of(rows) < 0]] = False
        return np.asarray(counted & (spans["kind"] != SpanKind.USER_ANNOTATION))

    @cached_property
    def loading(self) -> Intervals:
        """When the program waited for the next batch or made it; with a device, while that did nothing."""
        of_process = [
            activity for activity in activities(self.trace) if activity.owner.process == self.process
        ]
        loading = united([activity.host.loading for activity in of_process])
        if self.device is None:
            return loading
        activity = self.device.activity
        return loading - activity.compute - activity.communication - activity.copies

    @cached_property
    def in_loading(self) -> Mask:
        """Which spans are a wait for the next batch, or make batches."""
        loading = loading_spans(self.trace)
        made = lies_in(self.trace, np.concatenate((loading.fetches, loading.pins)))
        return np.asarray(in_waits(self.trace) | made)

    @cached_property
    def optimizer_ranges(self) -> Rows:
        """Rows of the optimizers' steps; of an optimizer that wraps others only its own."""
        rows = self.ranges_named("Optimizer.step#")
        return rows[is_outermost(self.trace, rows)]

    @cached_property
    def in_optimizer(self) -> Mask:
        """Which spans run in a step of an optimizer; forward and backward of a closure do not count."""
        is_own = self.trace.column("spans", "phase") == Phase.OPTIMIZER
        return np.asarray(lies_in(self.trace, self.optimizer_ranges) & is_own)

    @cached_property
    def optimizer_ns(self) -> int:
        """What the steps of the optimizers usually cost, without what closures in them cost."""
        rows, spans = self.optimizer_ranges, self.trace.columns("spans")
        optimizing = when_ran(self.trace, rows) - in_closures(self.trace, self.thread)
        if self.device is None:
            return self.typical_sum(rows, ran_within(self.trace, rows, optimizing))
        optimizing &= self.device.idle
        work = np.flatnonzero(self.outermost & self.in_optimizer)
        return self.typical_sum(
            np.concatenate((rows, work)),
            np.concatenate((ran_within(self.trace, rows, optimizing), spans["device_ns"][work])),
        )

    def ranges_named(self, prefix: str) -> Rows:
        """Rows of ranges in the steps, on the loop's thread, whose name begins with `prefix`."""
        spans, strings = self.trace.columns("spans"), self.trace.strings
        rows = np.flatnonzero((spans["kind"] == SpanKind.USER_ANNOTATION) & self.on_threads)
        rows = rows[self.in_steps(rows)]
        names = [name for name in np.unique(spans["name"][rows]).tolist() if strings[name].startswith(prefix)]
        return rows[np.isin(spans["name"][rows], names)]

    def ranges_and_operators_named(self, *prefixes: str) -> Rows:
        """Rows of operators and ranges of the host in the steps, on the loop's thread, whose name begins with one of `prefixes`."""
        spans, strings = self.trace.columns("spans"), self.trace.strings
        rows = np.flatnonzero(self.on_threads & (spans["stream"] < 0) & ~is_call(spans["kind"]))
        rows = rows[self.in_steps(rows)]
        names = [row for row in np.unique(spans["name"][rows]).tolist() if strings[row].startswith(prefixes)]
        return rows[np.isin(spans["name"][rows], names)]

    def in_steps(self, rows: Rows) -> Mask:
        """Which spans start in a step that counts."""
        return self.step_of(rows) >= 0

    def step_of(self, rows: Rows) -> Rows:
        """The number of the step, among those that count, in which each span starts, on its device or on the host; -1 for none."""
        return self._step_of_span[rows]

    @cached_property
    def _step_of_span(self) -> Rows:
        spans = self.trace.columns("spans")
        step = self.step_at(spans["start_ns"], spans["thread"])
        if not self.unit.overlaps:
            of_device = np.flatnonzero(spans["stream"] >= 0)
            step[of_device] = self._extent_at(spans["start_ns"][of_device])
        return step

    def step_at(self, time_ns: Rows, thread: NDArray[Any] | None = None) -> Rows:
        """The number of the step, among those that count, in which the host is at some moments; -1 for none.

        Args:
            time_ns: The moments.
            thread: The thread of each, which says which of several requests it is of; that of the loop where it is not given.
        """
        return self.work.place_at(time_ns, np.full(len(time_ns), self.thread) if thread is None else thread)

    def _extent_at(self, time_ns: Rows) -> Rows:
        """The number of the step, among those that count, whose extent has each of some moments; -1 for none."""
        if self.unit.overlaps:
            return self.step_at(time_ns)
        return step_at(time_ns, self.start_ns, self.end_ns - self.start_ns).astype(np.int64)

    @cached_property
    def compilations(self) -> Rows:
        """The step of each compilation of a function by torch.compile, -1 outside all; those of backward graphs belong to one."""
        columns = ["stage", "start_ns", "thread"]
        rows = [row for row in compiles(self.trace).select(columns).to_pylist() if row["stage"] == "frame"]
        process = np.append(self.trace.column("threads", "process_row"), -1)
        thread = np.array([-1 if row["thread"] is None else row["thread"] for row in rows], dtype=np.int64)
        start_ns = np.array([row["start_ns"] for row in rows], dtype=np.int64)
        of_process = process[thread] == self.process
        return self.step_at(start_ns[of_process], thread[of_process])

    @property
    def first_warm_step(self) -> int:
        """The first of the steps that count in which nothing should be compiled: the second one, or where start-up is left out, the first."""
        of_process = self.trace.column("steps", "process_row") == self.process
        return 0 if start_up_steps(self.trace)[of_process].any() else 1

    @property
    def late_compilations(self) -> int:
        """How many functions are compiled in steps after the first."""
        return int((self.compilations >= self.first_warm_step).sum())

    def typical_ns(self, rows: Rows) -> int:
        """What some spans usually take in a step (the median) times the number of steps; inner ones must be left out."""
        return self.typical_sum(rows, self.trace.column("spans", "duration_ns")[rows])

    def typical_sum(self, rows: Rows, values: Rows) -> int:
        """The sum over all steps of some times, one for each row, at their usual pace: see `usual_sum`."""
        step = self.step_of(rows)
        return self.usual_sum(step, self.with_processor(step, values))

    def typical_at(self, time_ns: Rows, values: Rows) -> int:
        """The sum over all steps of some values, each at a moment, at their usual pace: see `usual_sum`."""
        return self.by_kind_at(time_ns, values)[0]

    def by_kind_at(self, time_ns: Rows, values: Rows) -> tuple[int, tuple[float, ...]]:
        """The same, and what of it is in the steps of each kind."""
        step = self._extent_at(time_ns)
        of_kinds = self.usual_by_kind(step, self.with_processor(step, values))
        return int(of_kinds.sum()), tuple(of_kinds.tolist())

    def cost_ns(self, rows: Rows, *, with_device: bool = True) -> int:
        """What some spans of the host usually cost: their time or, with a device, its idle time while they ran and its work for them.

        While a device still works, the host may take its time: what the device does not wait for costs nothing.

        Args:
            rows: The spans; inner ones must be left out.
            with_device: Whether what the device does for them counts, too.
        """
        if self.device is None:
            return self.typical_ns(rows)
        cost = ran_within(self.trace, rows, self.device.idle)
        if with_device:
            cost = cost + self.trace.column("spans", "device_ns")[rows]
        return self.typical_sum(rows, cost)

    def when(self, rows: Rows) -> Intervals:
        """When some spans cost time: while they run or, with a device, while it is idle meanwhile and while it works for them."""
        if self.device is None:
            return when_ran(self.trace, rows)
        of_host = self.trace.column("spans", "stream")[rows] < 0
        work, operator = self.device.rows, self.device.operators(self.device.rows)
        work, operator = work[operator >= 0], operator[operator >= 0]
        launched = work[lies_in(self.trace, rows[of_host], operator)]
        on_device = when_ran(self.trace, np.concatenate((rows[~of_host], launched)))
        return on_device | (when_ran(self.trace, rows[of_host]) & self.device.idle)

    def backward_of(self, rows: Rows) -> Rows:
        """What backward runs in the steps for some operators of forward, inner ones left out."""
        back, forward = self._backward_rows
        back = back[lies_in(self.trace, rows, forward)]
        return back[is_outermost(self.trace, back)]

    @cached_property
    def _backward_rows(self) -> tuple[Rows, Rows]:
        """What backward runs in the steps, and the operators of forward that it is of."""
        forward = self.trace.column("spans", "forward")
        back = np.flatnonzero((forward >= 0) & self.inside)
        return back, forward[back].astype(np.int64)

    @cached_property
    def in_engine(self) -> Mask:
        """For each stack whether autograd's engine runs in it, without a function of the program below; False at the end for no stack."""
        return np.append(stacks_inside(self.trace, *_ENGINE_FILES, functions=_ENGINE_FUNCTIONS), False)

    @cached_property
    def of_torch(self) -> Mask:
        """Which spans torch itself called, for no line of the program: what `DistributedDataParallel` does around forward and in backward."""
        spans = self.trace.columns("spans")
        inside = np.append(stacks_inside(self.trace, *_WRAPPER_FILES), False) | self.in_engine
        return np.asarray(inside.take(spans["own_stack"]) & (spans["stack"] == spans["own_stack"]))

    @cached_property
    def outermost(self) -> Mask:
        """Which spans are operators of the steps that no other operator called."""
        return mask_of(self.outermost_rows, len(self.inside))

    @cached_property
    def outermost_rows(self) -> Rows:
        """The same as rows."""
        rows = self._inside_rows
        return rows[is_outermost(self.trace, rows)]

    @cached_property
    def time(self) -> StepTime | None:
        """Where the step time went on the device on which the process worked most."""
        devices = (times for times in step_time(self.trace) if times.process == self.process)
        return max(devices, key=lambda times: times.working_ns, default=None)

    @cached_property
    def device(self) -> LoopDevice | None:
        """The device on which the process worked most; None where it used none, or hardly."""
        used = self._used_device
        return used if self.time and self.share(self.time.working_ns) >= LEAST_BUSY else None

    @cached_property
    def launched_kernels(self) -> int:
        """How many kernels that compute the steps launched on the device; one whose launch is not known counts where it ran."""
        if self.device is None:
            return 0
        rows = self.device.all_computing
        call = starters(self.trace).call[rows]
        return int((self.step_of(np.where(call >= 0, call, rows).astype(np.int64)) >= 0).sum())

    @property
    def hardly_used(self) -> LoopDevice | None:
        """The device on which the process worked most, where it hardly used any: then `device` is None."""
        return self._used_device if self.device is None else None

    @cached_property
    def _used_device(self) -> LoopDevice | None:
        if self.time is None or self.time.device == "cpu":
            return None
        return LoopDevice.of(self.trace, self.process, self.time.device, self.start_ns, self.end_ns)

    def of_process(self, rows: Rows) -> Mask:
        """Which spans are of the loop's process."""
        owner = self.trace.column("threads", "process_row")
        return np.asarray(owner[self.trace.column("spans", "thread")[rows]] == self.process)

    @cached_property
    def collectives(self) -> list[dict[str, Any]]:
        """The rows of `collectives` of all processes, in the columns that rules look at."""
        columns = ["span", "name", "group", "rank", "step", "phase", "bytes"]
        columns += ["transfer_start_ns", "transfer_ns", "exposed_ns"]
        columns += ["gb_per_s", "bus_gb_per_s"]
        rows: list[dict[str, Any]] = collectives(self.trace).select(columns).to_pylist()
        return rows

    @cached_property
    def _names(self) -> dict[str, int]:
        names = np.unique(self.trace.column("spans", "name")[self.inside]).tolist()
        return {self.trace.strings[name]: name for name in names}

    def are_named(self, rows: Rows, names: Collection[str]) -> Mask:
        """Which of some of the host's operators in the steps have one of `names`."""
        is_asked = mask_of(
            [self._names[name] for name in names if name in self._names], len(self.trace.strings)
        )
        return np.asarray(is_asked[self.trace.column("spans", "name")[rows]])

    def rows_named(self, *names: str) -> Rows:
        """Rows of the host's operators in the steps whose name is one of `names`."""
        rows = self._inside_rows
        return rows[self.are_named(rows, names)]

    @cached_property
    def _inside_rows(self) -> Rows:
        return np.flatnonzero(self.inside)

    def total_ns(self, rows: Rows) -> int:
        """How long some spans took together, each moment of a thread once."""
        thread = self.trace.column("spans", "thread")[rows]
        return sum(when_ran(self.trace, rows[thread == number]).total_ns for number in np.unique(thread))

    def called_by(self, rows: Rows) -> Rows:
        """The operator that the program called around each of some spans of the host, or what is not in one itself; -1 for -1."""
        operators = self._outermost_operator[rows]
        return np.where(operators >= 0, operators, rows)

    @cached_property
    def _outermost_operator(self) -> Rows:
        """For each span the outermost operator that it is or lies in; -1 without, and at the end for no span."""
        operator = operator_spans(self.trace).mask
        above = nearest_of(self.trace, operator).take(self.trace.column("spans", "parent"))
        outermost = operator & (above < 0)
        return nearest_of(self.trace, outermost).astype(np.int64)

    def place_of(self, row: int) -> SourceLine:
        """The user's line that started a span; none for -1."""
        return self.place_of_stack(int(self.trace.column("spans", "stack")[row]) if row >= 0 else -1)

    def place_of_stack(self, stack: int) -> SourceLine:
        """The innermost line of the program's own files on a stack: what an installed package does is at the line that called it."""
        return self.place_of_frame(int(project_lines(self.trace)[stack]) if stack >= 0 else -1)

    def place_of_frame(self, frame: int) -> SourceLine:
        """The line of a frame, a row of `frames`; none for -1."""
        if frame not in self._places:
            file, line, function = source_line(self.trace, frame)
            # Torch's collector notes a function when it is called, and not the line that it is at.
            is_function = self.trace.run_info.engine == "kineto"
            self._places[frame] = SourceLine(file, line, _COMPREHENSION.sub("", function), line, is_function)
        return self._places[frame]

    @cached_property
    def importing(self) -> Mask:
        """The stacks that import modules: that is start-up, also in a run without steps and in the middle of one."""
        return stacks_with(self.trace, IMPORTING)

    def common_stack(self, rows: Rows) -> int:
        """The innermost stack that all of some spans were called from, as its row; -1 where one has no stack."""
        parent = np.append(self.trace.column("stacks", "parent"), -1)
        common, *stacks = np.unique(self.trace.column("spans", "stack")[rows]).tolist() or [-1]
        for stack in stacks:
            # A parent has a lower row than what it calls.
            while common != stack:
                if common > stack:
                    common = int(parent[common])
                else:
                    stack = int(parent[stack])
        return int(common)

    def in_step_samples(self, chosen: Mask) -> Rows:
        """The rows of those of some samples that fall in the steps."""
        rows = np.flatnonzero(chosen)
        samples = self.trace.columns("samples")
        return rows[self.step_at(samples["time_ns"][rows], samples["thread"][rows]) >= 0]

    def sampled(self, stacks: Mask) -> tuple[int, Rows]:
        """How long samples of the loop's thread say that it was in some stacks in the steps, and their rows."""
        samples = self.trace.columns("samples")
        rows = self.in_step_samples(
            self.threads[samples["thread"]] & np.append(stacks, False)[samples["stack"]]
        )
        return int(samples["period_ns"][rows].sum()), rows

    def are_evidence(self, samples: Rows) -> bool:
        """Whether so many samples are not there by chance: one of 10 ms would be a fifth of ten steps of 5 ms.

        Their time must be above 1.96 times its standard deviation, which is that of a Poisson process.
        """
        period_ns = self.trace.column("samples", "period_ns")[samples].astype(np.float64)
        return bool(period_ns.sum() > _SURE * np.sqrt(np.square(period_ns).sum()))

    def most_sampled(self, rows: Rows) -> SourceLine:
        """The user's line in which some samples spent most time."""
        return busiest(self.sampled_times_ns(rows))

    def sampled_times_ns(self, rows: Rows) -> dict[SourceLine, int]:
        """The time of some samples by the user's line."""
        samples = self.trace.columns("samples")
        times: dict[SourceLine, int] = defaultdict(int)
        for stack, period_ns in zip(
            samples["stack"][rows].tolist(), samples["period_ns"][rows].tolist(), strict=True
        ):
            times[self.place_of_stack(stack)] += period_ns
        return times

    def caller_of(self, stack: int, called: Callable[[str], bool], otherwise: int = -1) -> SourceLine:
        """The user's line that called the outermost frame of a stack in a file that `called` accepts; that of `otherwise` without one."""
        frames, stacks = self.trace.columns("frames"), self.trace.columns("stacks")
        strings = self.trace.strings
        caller = otherwise
        while stack >= 0:
            above = int(stacks["parent"][stack])
            if called(strings[int(frames["file"][stacks["frame"][stack]])]):
                caller = above
            stack = above
        return self.place_of_stack(caller)

    def module_of(self, row: int) -> str:
        """The path of the module that a span ran in; empty outside all and for -1."""
        module = int(self.trace.column("spans", "module")[row]) if row >= 0 else -1
        return str(self.trace.column("modules", "path")[module]) if module >= 0 else ""

    def by_place(self, rows: Rows, values: Rows | None = None) -> list[tuple[SourceLine, int, Rows]]:
        """Group spans by the user's line that started them.

        Args:
            rows: Rows of spans.
            values: What to add up of each; their durations by default.

        Returns:
            For each line its sum and its rows, the largest sum first; spans without a stack are one group without a place.
        """
        spans = self.trace.columns("spans")
        values = spans["duration_ns"][rows] if values is None else values
        frame = program_frames(self.trace)[spans["stack"][rows]]
        groups = Groups.by([frame])
        sums = groups.sums(np.asarray(values, dtype=np.int64))
        order, begin = groups.rows()
        return [
            (
                self.place_of(int(rows[groups.first[line]])),
                int(sums[line]),
                rows[order[begin[line] : begin[line + 1]]],
            )
            for line in np.argsort(-sums, kind="stable").tolist()
        ]

    @cached_property
    def python(self) -> Intervals:
        """When the program of the loop ran without operator, call of a runtime, or wait: Python, or what no profiler sees.

        With a device only the moments in which it was idle: the others cost nothing.
        """
        all_gaps, rows = gaps(self.trace), self._gap_rows(0)
        python = Intervals.of(all_gaps.start_ns[rows], all_gaps.end_ns[rows])
        return python if self.device is None else python & self.device.idle

    @cached_property
    def gaps(self) -> list[Gap]:
        """The Python between operators by line, the longest first; what autograd's engine does between its functions is none."""
        return self._gaps(0, by_function=False)

    def python_functions(self, least_ns: int) -> list[Gap]:
        """The same by function, each at the line that takes most of it, of stretches of at least a length."""
        return self._gaps(least_ns, by_function=True)

    def _gaps(self, least_ns: int, *, by_function: bool) -> list[Gap]:
        all_gaps = gaps(self.trace)
        gap_rows = self._gap_rows(least_ns)
        gap_rows = gap_rows[~all_gaps.in_backward[gap_rows]]
        if len(gap_rows) == 0:
            return []
        length = self.python.within(all_gaps.start_ns[gap_rows], all_gaps.end_ns[gap_rows])
        step = self.step_at(all_gaps.start_ns[gap_rows], all_gaps.thread[gap_rows])
        steps = len(self.start_ns)
        # The time of each kind of gap in each step is divided into the shares of the kind.
        cells, cell_of = distinct((all_gaps.kind[gap_rows] * steps + step).astype(np.int64))
        in_cell = Groups(cell_of, len(cells)).sums(length)
        share, cell = all_gaps.shares.of_kinds(cells // steps)
        lines = [project_lines(self.trace)[stack] for stack in (all_gaps.shares.stack, all_gaps.shares.other)]
        groups = Groups.by(lines)
        lines_of_group = [
            self._from_to(*pair)
            for pair in zip(*(line[groups.first].tolist() for line in lines), strict=True)
        ]
        keys = [(line.file, line.function) if by_function else line for line in lines_of_group]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        place_of = np.array([numbers[key] for key in keys])[groups.of_row]
        importing = np.append(self.importing, False)[all_gaps.shares.stack]
        part = np.where(importing | self._shares_of_torch, 0.0, all_gaps.shares.part)
        # Time without a processor is no Python.
        ran = np.where(all_gaps.shares.blocked[share], 1.0, 1.0 - self._processor_share[cells[cell] % steps])
        line_of_share, time_ns = place_of[share], in_cell[cell] * part[share] * ran
        cells, cell_of = distinct((line_of_share * steps + cells[cell] % steps).astype(np.int64))
        of_step = Groups(cell_of, len(cells)).sums(time_ns)
        in_share = Groups(share, len(place_of)).sums(time_ns)
        longest_line = np.zeros(len(numbers), dtype=np.int64)
        order = np.argsort(groups.sums(in_share), kind="stable")
        longest_line[place_of[groups.first[order]]] = order  # the last one counts
        kind_ns = usual_totals(cells // steps, cells % steps, of_step, len(numbers), self.kind_of_step)
        usual = kind_ns.sum(axis=0)
        of_others = self._in_other_libraries[all_gaps.shares.stack]
        by_place = Groups(place_of, len(numbers))
        all_ns, blocked, called = (
            by_place.sums(in_share, chosen) for chosen in (None, all_gaps.shares.blocked, of_others)
        )
        by_wait = Groups.cells(all_gaps.shares.wait, place_of, (len(SampleWait), len(numbers)))
        waits = by_wait.sums(in_share, all_gaps.shares.blocked)
        by_stack = Groups.by([place_of, all_gaps.shares.stack])
        stack, stack_ns = all_gaps.shares.stack[by_stack.first], by_stack.sums(in_share)
        by_gap, begin = Groups(place_of[by_stack.first], len(numbers)).rows()
        # What shows a place: the operators before the longest gaps in which most ran there.
        main = place_of[all_gaps.shares.main[all_gaps.kind[gap_rows]]]
        order = np.lexsort((-length, main))
        first, last = (
            np.searchsorted(main[order], np.arange(len(numbers)), side=side) for side in ("left", "right")
        )
        listed = []
        for number in range(len(numbers)):
            before = all_gaps.before[gap_rows[order[first[number] : last[number]][:MOST_ROWS]]]
            rows = tuple(dict.fromkeys(before[before >= 0].tolist()))
            of_place = by_gap[begin[number] : begin[number + 1]]
            listed.append(
                Gap(
                    lines_of_group[longest_line[number]],
                    int(usual[number]),
                    int(last[number] - first[number]),
                    rows,
                    float(blocked[number] / all_ns[number]) if all_ns[number] else 0.0,
                    float(called[number] / all_ns[number]) if all_ns[number] else 0.0,
                    int(waits[:, number].argmax()),
                    tuple(kind_ns[:, number].tolist()),
                    stack[of_place],
                    stack_ns[of_place],
                )
            )
        return sorted((gap for gap in listed if gap.time_ns or gap.count), key=lambda gap: -gap.time_ns)

    @cached_property
    def _processor_share(self) -> NDArray[np.float64]:
        """For each step the share of the Python in it that was spent without a processor, as the account has it."""
        if self.ledger is None:
            return np.zeros(len(self.start_ns))
        return self.ledger.processor_share[self.ledger.counted]

    @cached_property
    def _in_other_libraries(self) -> Mask:
        """For each stack whether its last frame is of a library but torch, below a line of the program; False at the end for no stack."""
        of_program = program_frames(self.trace)
        frame = np.append(self.trace.column("stacks", "frame"), np.int32(-1))
        is_library = np.append(library_frames(self.trace), False)[frame]
        return np.asarray(is_library & (of_program >= 0) & (of_program != frame))

    @cached_property
    def _shares_of_torch(self) -> Mask:
        """Which shares of gaps are what autograd's engine does or waits for, or what an optimizer does between its operators.

        That is in their code or, where no sample says more, at the line that calls them.
        """
        spans, shares = self.trace.columns("spans"), gaps(self.trace).shares
        called = np.flatnonzero((spans["kind"] == SpanKind.BACKWARD) & self.on_threads)
        stacks = np.unique(
            np.concatenate((spans["own_stack"][called], spans["stack"][self.optimizer_ranges]))
        )
        frame = program_frames(self.trace)
        callers = np.unique(frame[stacks[stacks >= 0]])
        at_caller = np.isin(frame, callers[callers >= 0])[shares.stack] & (shares.other < 0)
        inside = self.in_engine | np.append(stacks_inside(self.trace, _OPTIMIZERS), False)
        return np.asarray(at_caller | inside[shares.stack])

    def _gap_rows(self, least_ns: int) -> Rows:
        all_gaps = gaps(self.trace)
        is_chosen = self.work.place_in(all_gaps.step, all_gaps.start_ns, all_gaps.thread) >= 0
        is_chosen &= self.threads[all_gaps.thread] & ~all_gaps.in_loading & (all_gaps.stretch_ns >= least_ns)
        return np.flatnonzero(is_chosen)

    def _from_to(self, frame: int, other: int) -> SourceLine:
        """The line of a frame, or from there to that of another frame of the same function."""
        here = self.place_of_frame(frame)
        there = self.place_of_frame(other) if other >= 0 else here
        if (here.file, here.function) != (there.file, there.function):
            return here
        low, high = sorted((here.line, there.line))
        return SourceLine(here.file, low, here.function, high, here.is_function)


def _busiest_thread(trace: TraceData) -> tuple[int, int]:
    """The row of the thread whose spans on the host took most, and that of its process; -1 where nothing was recorded."""
    spans = trace.columns("spans")
    threads = np.where(spans["stream"] < 0, spans["thread"], -1).astype(np.int32)
    by_thread = Groups(threads, len(trace.columns("threads")))
    thread = by_thread.largest(spans["self_ns"]) if len(by_thread) else -1
    has_process = thread >= 0 and len(trace.columns("processes")) > 0
    return thread, int(trace.column("threads", "process_row")[thread]) if has_process else -1


def usual_totals(key: Rows, step: Rows, value: NDArray[Any], keys: int, kind: Rows) -> NDArray[np.float64]:
    """What the values of each key come to in the steps of each kind, a row each, at their usual pace: without what happens in few steps only.

    Time that some of the steps take more, such as for pages of memory, is time of the program. What a single one takes, such as a pause, counts up to `MOST_TIMES` what
    `USUAL_STEPS` of the steps take at most.

    Args:
        key: The key of each value.
        step: Its step; no two values of a key are of one step, and steps without a value have 0.
        value: The values.
        keys: How many keys there are.
        kind: The kind of each step, from 0.
    """
    totals = []
    for kind_number, often in enumerate(Groups(kind, int(kind.max(initial=-1)) + 1).sizes().tolist()):
        of_kind = kind[step] == kind_number
        key_of, value_of = key[of_kind], value[of_kind].astype(np.float64)
        if often >= LEAST_OF_KIND:
            (most,) = _at_ranks(key_of, value_of, keys, often, int(USUAL_STEPS * (often - 1)))
            value_of = np.minimum(value_of, MOST_TIMES * most[key_of])
        totals.append(Groups(key_of, keys).sums(value_of))
    return np.array(totals).reshape(-1, keys)


def _at_ranks(
    key: Rows, value: NDArray[Any], keys: int, count: int, *ranks: int
) -> list[NDArray[np.float64]]:
    """The values of each key at some ranks, from 0, of `count` values, of which those that are not given are 0."""
    order = np.lexsort((value, key))
    key, value = key[order], np.append(value[order], 0.0)
    first = np.searchsorted(key, np.arange(keys))
    zeros = count - (np.searchsorted(key, np.arange(keys), side="right") - first)
    return [
        np.where(rank >= zeros, value[np.clip(first + rank - zeros, 0, len(value) - 1)], 0.0)
        for rank in ranks
    ]


def medians(key: Rows, value: NDArray[Any], keys: int, count: int) -> NDArray[np.float64]:
    """The median of `count` values of each key, of which those that are not given are 0."""
    lower, upper = _at_ranks(key, value, keys, count, (count - 1) // 2, count // 2)
    return (lower + upper) / 2
