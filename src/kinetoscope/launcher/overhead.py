"""Measures the cost of recording on this machine, by two small programs with and without it, and estimates the cost for a run.

The cost of a record depends on what ran since the previous one: in a loop of tiny operators the recorder's code and data stay in the CPU's caches;
after a large operator they come from memory, which costs two to four times as much. So the cost is measured in a step of tiny operators, and with
the caches overwritten between them. A run is interpolated between the two.

All costs are CPU time, so their share of wall time is smaller if other programs used the CPU cores. On a busy machine other programs overwrite the
caches, too, and a record may cost anything between the two.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.hierarchy import host_work
from kinetoscope.model.rows import ProcessRow
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.host.host_shares import host_shares
from kinetoscope.tables.processor_waits import processor_waits, running_thread
from kinetoscope.tables.step_extents import start_up_steps
from kinetoscope.tables.windows import recorded_extent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.launcher.options import LaunchOptions
    from kinetoscope.trace import Trace

# CPU time, and wall time on a busy machine.
ENOUGH_S, PATIENCE_S = 0.4, 1.0
FEWEST_ROUNDS, MOST_ROUNDS, GROUPS = 6, 24, 3
# Of a smaller share of a program's time, no more need be known than that it is smaller.
LITTLE = 0.005
# Other processes make steps longer, never shorter.
UNDISTURBED = 0.25
# The first records of a recording cost more, because its memory is new. They are few in a run, and not timed.
_WARM_UP_RECORDS = 4_000
# After this much other work nothing of the recorder is in the caches.
_LONG_NS = 1_000_000
# More than the private caches of a core.
_CACHES_BYTES = 4 << 20
# The possible relative error for other programs; see benchmarks/overhead_estimate.py.
MODEL_ERROR = 0.2
# The same if other programs overwrite the caches.
DISTURBED_ERROR = 0.5
# Above this share of time without a CPU core, other programs matter.
_MUCH = 0.05
_ENOUGH_GAPS = 1_000_000


@dataclass(frozen=True)
class RecordCost:
    """The cost of a record in one program.

    Attributes:
        spacing_ns: The mean time from one record to the next, as `spacing_of` returns it.
        record_ns: The time that recording adds to the program, per record.
        low_ns: The lower bound of `record_ns`, from the scatter of the measurement.
        high_ns: The upper bound.
    """

    spacing_ns: float
    record_ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True)
class Overhead:
    """The measured cost of a record.

    Attributes:
        costs: In the programs that were timed, by increasing spacing; at least two.
        is_disturbed: Whether other programs used the CPU cores during part of the measurement.
    """

    costs: tuple[RecordCost, ...]
    is_disturbed: bool = False

    @property
    def is_rough(self) -> bool:
        """Whether the machine was too busy for more than a rough estimate."""
        return any(cost.high_ns - cost.low_ns > max(0.0, cost.record_ns) for cost in self.costs)

    def record_ns(self, spacing_ns: float) -> float:
        """The cost of a record in a program with this spacing; never negative."""
        return self._between(spacing_ns, lambda cost: cost.record_ns)

    def share(self, records: Records) -> tuple[float, float, float]:
        """The share of a process's running time that recording took.

        Args:
            records: What was recorded of it.

        Returns:
            The estimate and its lower and upper bound, each from 0 to 1.
        """
        lowest = self._between(records.spacing_ns, lambda cost: cost.low_ns)
        highest = self._between(records.spacing_ns, lambda cost: cost.high_ns)
        error = MODEL_ERROR
        if self.is_disturbed or records.waits_much:
            # Other programs may have overwritten the caches.
            lowest = min(lowest, *(max(0.0, cost.low_ns) for cost in self.costs))
            highest = max(highest, *(cost.high_ns for cost in self.costs))
            error = DISTURBED_ERROR
        share, low, high = (
            min(1.0, cost_ns * records.count / max(1, records.ran_ns))
            for cost_ns in (
                self.record_ns(records.spacing_ns),
                lowest * (1 - error),
                highest * (1 + error),
            )
        )
        return share, min(low, share), max(high, share)

    def _between(self, spacing_ns: float, value: Callable[[RecordCost], float]) -> float:
        """Interpolate between the timed spacings; closer records cost at least half the closest, farther ones at most the farthest."""
        log_spacings = [log(max(1.0, cost.spacing_ns)) for cost in self.costs]
        costs_ns = [max(0.0, value(cost)) for cost in self.costs]
        log_spacing = log(max(1.0, spacing_ns))
        if log_spacing >= log_spacings[0]:
            return float(np.interp(log_spacing, log_spacings, costs_ns))
        # A lower cost at a larger spacing is noise, and is not extrapolated.
        rise_ns = max(0.0, costs_ns[1] - costs_ns[0]) / max(log_spacings[1] - log_spacings[0], 1e-9)
        return max(costs_ns[0] / 2, costs_ns[0] - (log_spacings[0] - log_spacing) * rise_ns)


@dataclass(frozen=True)
class Records:
    """How much was recorded of one process in its steps or, without steps, in total.

    Attributes:
        process: Its name, empty in a trace of one process.
        count: The number of spans, without start-up.
        whole_ns: The time of the steps, or of the recording.
        in_steps: Whether it has steps.
        spacing_ns: The mean time from one span to the next while the thread ran.
        ran_ns: `whole_ns` without the time in which the loop's thread was ready to run, but had no CPU core.
    """

    process: str
    count: int
    whole_ns: int
    in_steps: bool
    spacing_ns: float
    ran_ns: int

    @property
    def waits_much(self) -> bool:
        """Whether other programs used the CPU cores for long enough to matter."""
        return self.ran_ns < (1 - _MUCH) * self.whole_ns


@derived
def records_of(trace: Trace) -> tuple[Records, ...]:
    """How much was recorded of each process of a trace, those with steps first."""
    table, records = trace.columns("processes"), []
    rows: list[ProcessRow | None] = [ProcessRow(row) for row in range(len(table))]
    for row in rows or [None]:
        shares = host_shares(trace, row)
        count = int(shares.counts.sum())
        ran_ns = max(shares.whole_ns - _waited_ns(trace, row), 1)
        # While the thread has no CPU core, the next record waits, too.
        spacing_ns = min(spacing_of(trace, shares.counts), max(1.0, ran_ns / max(count, 1)))
        name = "" if row is None else table["name"][row]
        records.append(Records(name, count, shares.whole_ns, shares.in_steps, spacing_ns, ran_ns))
    return tuple(sorted(records, key=lambda part: (not part.in_steps, -part.count / max(1, part.whole_ns))))


def _waited_ns(trace: Trace, process: ProcessRow | None) -> int:
    """How long the thread of a process's loop was ready but had no CPU core, during its steps or, without steps, in the whole recording."""
    steps = trace.columns("steps")
    thread_of_step = np.append(trace.column("spans", "thread"), -1)[steps["span"]]
    counted = ~start_up_steps(trace)
    of_process = np.ones(len(trace.columns("threads")) + 1, dtype=bool)
    if process is not None:
        counted &= steps["process_row"] == process
        of_process = np.append(trace.column("threads", "process_row"), -1) == process
    threads, start_ns = thread_of_step[counted], steps["start_ns"][counted].astype(np.int64)
    end_ns = start_ns + steps["duration_ns"][counted]
    if not counted.any():
        threads = np.array([running_thread(trace, of_process)])
        extent = recorded_extent(trace, ProcessRow(-1) if process is None else process)
        start_ns, end_ns = (np.array([edge_ns]) for edge_ns in extent)
    waited_ns = 0
    for thread in np.unique(threads).tolist():
        in_thread = threads == thread
        waited_ns += int(processor_waits(trace, thread).within(start_ns[in_thread], end_ns[in_thread]).sum())
    return waited_ns


def spacing_of(trace: Trace, counts: NDArray[np.bool_] | None = None) -> float:
    """The mean time between the host's records.

    Args:
        trace: The trace.
        counts: The spans that count; None for all of the host.

    Returns:
        The mean time in ns from the start of one record to the start of the next on its thread; longer gaps count as 1 ms.
    """
    spans = trace.columns("spans")
    rows = host_work(trace).rows if counts is None else np.flatnonzero(counts)
    if len(rows) > _ENOUGH_GAPS:
        first = (len(rows) - _ENOUGH_GAPS) // 2
        rows = rows[first : first + _ENOUGH_GAPS]
    thread, start_ns = spans["thread"][rows], spans["start_ns"][rows]
    order = np.lexsort((start_ns, thread))
    gaps_ns = np.diff(start_ns[order])[np.diff(thread[order]) == 0]
    return float(np.clip(gaps_ns, 1, _LONG_NS).mean()) if len(gaps_ns) else float(_LONG_NS)


def measure_overhead(options: LaunchOptions, records: Records | None = None) -> Overhead | None:
    """Time two small programs with and without a recording with these options, in turns.

    Uses CPU time of this thread and the least disturbed of many steps, so that other load matters little. Takes about 0.4 s,
    up to a second on a busy machine, and less if recording took little of the time.

    Args:
        options: How the programs are recorded.
        records: What was recorded of the program whose cost is estimated, if it is known.

    Returns:
        The cost, or None if nothing was recorded of the programs.
    """
    import torch

    threads, collecting = torch.get_num_threads(), gc.isenabled()
    # With several threads, tiny operators would measure how the threads wait for each other.
    torch.set_num_threads(1)
    gc.disable()
    try:
        with warnings.catch_warnings():
            # One session makes all recordings, most of which are never read.
            warnings.simplefilter("ignore")
            # Independent of the defaults that the program has set.
            with torch.inference_mode(mode=False), torch.enable_grad():
                with torch.device("cpu"), torch.random.fork_rng(devices=[]):
                    step, layers = _training_step(rows=8, width=32), _single_layers(rows=8, width=32)
                # Not under `torch.device`, which sends every call through a Python function, as few programs do.
                programs = [
                    TimedProgram([step], 8, time.thread_time_ns),
                    TimedProgram(layers, 8, time.thread_time_ns, _overwrite_caches()),
                ]
                return measured(programs, options.session(None), records)
    finally:
        torch.set_num_threads(threads)
        if collecting:
            gc.enable()


@dataclass
class TimedProgram:
    """A program whose steps are timed in slices, alternately without and with a recording.

    Attributes:
        parts: What a step runs, one after the other.
        per_slice: The number of timed steps in a slice.
        clock_ns: The clock.
        before_part: Runs before each part of a timed step, untimed.
    """

    parts: Sequence[Callable[[], object]]
    per_slice: int
    clock_ns: Callable[[], int]
    before_part: Callable[[], object] = tuple
    _bare_ns: list[list[int]] = field(default_factory=list, init=False)
    _recorded_ns: list[list[int]] = field(default_factory=list, init=False)
    _records: int = field(default=0, init=False)
    _spacing_ns: float = field(default=0.0, init=False)
    _warm_up: int = field(default=1, init=False)

    def take_turn(self, session: Any) -> None:
        """Time a slice with and one without recording, in alternating order."""
        if not self._records:
            self._count(session)
        if len(self._bare_ns) % 2 == 0:
            self._bare_ns.append(self._slice_ns())
        with session:
            self._recorded_ns.append(self._slice_ns())
        if len(self._bare_ns) < len(self._recorded_ns):
            self._bare_ns.append(self._slice_ns())

    def cost(self) -> RecordCost | None:
        """The cost of a record; None if there are no records."""
        if not self._records:
            return None
        bare_ns, recorded_ns = self._per_record_ns(0, 1)
        parts = [self._per_record_ns(part, GROUPS) for part in range(GROUPS)]
        added_ns = [recorded_ns - bare_ns, *(recorded - bare for bare, recorded in parts)]
        return RecordCost(self._spacing_ns, added_ns[0], min(added_ns), max(added_ns))

    def _count(self, session: Any) -> None:
        with session:
            self._slice_ns()
        work = host_work(session.trace)
        rows = work.rows
        self._records = len(rows) // (self._warm_up + self.per_slice)
        if not self._records:
            return
        counts = np.zeros_like(work.mask)
        by_time = rows[np.argsort(session.trace.columns("spans")["start_ns"][rows], kind="stable")]
        counts[by_time[-self._records * self.per_slice :]] = True
        self._spacing_ns = spacing_of(session.trace, counts)
        self._warm_up = max(1, _WARM_UP_RECORDS // self._records)

    def _per_record_ns(self, first: int, every: int) -> tuple[float, float]:
        """Time per record, without and with recording, in the least disturbed steps of some turns."""
        bare_ns, recorded_ns = (
            float(np.quantile(np.concatenate(slices[first::every]), UNDISTURBED)) / self._records
            for slices in (self._bare_ns, self._recorded_ns)
        )
        return bare_ns, recorded_ns

    def _slice_ns(self) -> list[int]:
        for _ in range(self._warm_up):
            for part in self.parts:
                part()
        return [self._step_ns() for _ in range(self.per_slice)]

    def _step_ns(self) -> int:
        step_ns = 0
        for part in self.parts:
            self.before_part()
            begin_ns = self.clock_ns()
            part()
            step_ns += self.clock_ns() - begin_ns
        return step_ns


def measured(programs: list[TimedProgram], session: Any, records: Records | None = None) -> Overhead | None:
    """Time programs in turns, until recording certainly took little of the time of `records`; None if one program made no records."""
    begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
    overhead: Overhead | None = None
    for rounds in range(1, MOST_ROUNDS + 1):
        for program in programs:
            program.take_turn(session)
        if rounds < GROUPS:
            continue
        costs = [cost for program in programs if (cost := program.cost()) is not None]
        if len(costs) < len(programs):
            return None
        wall_s, cpu_s = time.monotonic() - begin_s, time.thread_time() - begin_cpu_s
        ordered = tuple(sorted(costs, key=lambda cost: cost.spacing_ns))
        overhead = Overhead(ordered, is_disturbed=cpu_s < (1 - 2 * _MUCH) * wall_s)
        is_long_enough = rounds >= FEWEST_ROUNDS and (cpu_s >= ENOUGH_S or wall_s >= PATIENCE_S)
        if is_long_enough or (records is not None and overhead.share(records)[2] < LITTLE):
            break
    return overhead


def _overwrite_caches() -> Callable[[], object]:
    numbers = np.zeros(_CACHES_BYTES // 4, dtype=np.float32)
    return lambda: np.add(numbers, np.float32(1), out=numbers)


def _training_step(rows: int, width: int) -> Callable[[], None]:
    """Make a training step of four layers, two with attention: forward, backward, and an AdamW-like update of each parameter.

    Backward records cost more than others, so the mix is that of usual programs. The update avoids torch's optimizers, which import a large part
    of torch, and that is impossible at exit. `width` sets the work of an operator, and so the time between records.
    """
    import torch
    from torch import nn

    def step() -> None:
        hidden = inputs
        for index, layer in enumerate(layers):
            output = layer(hidden)
            if index % 2 == 0:
                weights = torch.softmax(output.transpose(-2, -1) @ output / width**0.5, dim=-1)
                output = (output @ weights).view(2, rows, width)
            hidden = hidden + output
        hidden.square().mean().backward()
        with torch.no_grad():
            for parameter, (mean, square, steps) in zip(parameters, moments, strict=True):
                gradient = parameter.grad
                steps.add_(1.0)
                parameter.mul_(1 - 1e-5)
                mean.lerp_(gradient, 0.1)
                square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
                parameter.addcdiv_(mean, (square.sqrt() / 0.9).add_(1e-8), value=-1e-4)
                parameter.grad = None

    layers = nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()) for _ in range(4))
    ).to(torch.float32)
    inputs = torch.randn(2, rows, width, dtype=torch.float32)
    parameters = list(layers.parameters())
    moments = [
        (torch.zeros_like(parameter), torch.zeros_like(parameter), torch.zeros((), dtype=torch.float32))
        for parameter in parameters
    ]
    return step


def _single_layers(rows: int, width: int) -> list[Callable[[], object]]:
    """Make single layers and updates of a few records each, as they occur between large operators, and a backward pass."""
    import torch
    from torch import nn

    def update() -> None:
        with torch.no_grad():
            mean.lerp_(parameter, 0.1)

    linear = nn.Linear(width, width).to(torch.float32)
    norm = nn.LayerNorm(width).to(torch.float32)
    inputs = torch.randn(2, rows, width, dtype=torch.float32)
    parameter = torch.randn(width, width, dtype=torch.float32)
    mean = torch.zeros_like(parameter)
    return [
        lambda: linear(inputs),
        lambda: norm(inputs),
        lambda: torch.softmax(inputs, dim=-1),
        lambda: inputs @ inputs.transpose(-2, -1),
        lambda: inputs.view(2, rows, 4, -1).transpose(1, 2).contiguous(),
        update,
        lambda: norm(linear(inputs)).sum().backward(),
    ]
