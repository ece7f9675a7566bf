"""The cost of recording on this machine: two small training steps, timed with and without it, and the estimate for a run.

The cost of a record depends on what ran since the previous one: in a loop of tiny operators the recorder's code and data stay in
the processor's caches, after a large operator they come from memory, which costs two to four times as much. So the cost is
measured twice, with records close together and far apart, and a run is interpolated between the two.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.hierarchy import host_work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.launcher.options import LaunchOptions
    from kinetoscope.trace import Trace

# Processor time, and wall time on a busy machine.
ENOUGH_S, PATIENCE_S = 0.4, 1.0
FEWEST_ROUNDS, MOST_ROUNDS, GROUPS = 6, 24, 3
# Other processes make steps longer, never shorter.
UNDISTURBED = 0.05
# After this much other work the recorder has left the caches completely.
_LONG_NS = 20_000
# How far off the estimate can be for other programs than the two measured; see benchmarks/overhead_estimate.py.
MODEL_ERROR = 0.2
_ENOUGH_GAPS = 1_000_000


@dataclass(frozen=True)
class Cost:
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
        close: With records close together.
        apart: With records far apart.
    """

    close: Cost
    apart: Cost

    @property
    def is_rough(self) -> bool:
        """Whether the machine was too busy for more than an order of magnitude."""
        return any(cost.high_ns - cost.low_ns > max(0.0, cost.record_ns) for cost in (self.close, self.apart))

    def record_ns(self, spacing_ns: float) -> float:
        """The cost of a record in a program with this spacing; never negative."""
        return self._between(spacing_ns, lambda cost: cost.record_ns)

    def share(self, records: int, spacing_ns: float, whole_ns: int) -> tuple[float, float, float]:
        """The share of a recorded time that recording took.

        Args:
            records: The number of records in that time.
            spacing_ns: The mean time from one to the next, as `spacing_of` returns it.
            whole_ns: The recorded time, including the cost of recording.

        Returns:
            The estimate and its lower and upper bound, each from 0 to 1.
        """
        lowest = self._between(spacing_ns, lambda cost: cost.low_ns) * (1 - MODEL_ERROR)
        highest = self._between(spacing_ns, lambda cost: cost.high_ns) * (1 + MODEL_ERROR)
        one, low, high = (
            min(1.0, cost_ns * records / max(1, whole_ns))
            for cost_ns in (self.record_ns(spacing_ns), lowest, highest)
        )
        return one, min(low, one), max(high, one)

    def _between(self, spacing_ns: float, value: Callable[[Cost], float]) -> float:
        """Interpolate; closer records cost at least half of `close`, and records farther apart cost no more than `apart`."""
        close_ns, apart_ns = (max(0.0, value(cost)) for cost in (self.close, self.apart))
        if self.apart.spacing_ns <= self.close.spacing_ns:
            return (close_ns + apart_ns) / 2
        width = log(self.apart.spacing_ns / self.close.spacing_ns)
        place = min(1.0, log(max(1.0, spacing_ns) / self.close.spacing_ns) / width)
        # A lower cost far apart is noise, and is not extrapolated.
        rise_ns = apart_ns - close_ns if place > 0 else max(0.0, apart_ns - close_ns)
        return max(close_ns / 2, close_ns + place * rise_ns)


def spacing_of(trace: Trace, counts: NDArray[np.bool_] | None = None) -> float:
    """The mean time between the host's records.

    Args:
        trace: The trace.
        counts: The spans that count; None for all of the host.

    Returns:
        The mean time in ns from the start of one record to the start of the next on its thread; longer gaps count as 20 us.
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


def measure_overhead(options: LaunchOptions) -> Overhead | None:
    """Time two small training steps with and without a recording with these options, in turns.

    Uses the processor time of this thread, and of many steps those that were disturbed least, so that other load on the
    machine matters little. Takes about 0.4 s, and up to a second on a busy machine.

    Args:
        options: How the program was recorded.

    Returns:
        The cost, or None if nothing was recorded of the steps.
    """
    import torch

    threads, collecting = torch.get_num_threads(), gc.isenabled()
    # With several threads, tiny operators would measure how the threads wait for each other.
    torch.set_num_threads(1)
    gc.disable()
    try:
        with warnings.catch_warnings():
            # One session makes all recordings, and most of them are never read.
            warnings.simplefilter("ignore")
            close = Timed(_training_step(rows=8, width=32), 8, time.thread_time_ns)
            apart = Timed(_training_step(rows=64, width=128), 3, time.thread_time_ns)
            return measured([close, apart], options.session(None))
    finally:
        torch.set_num_threads(threads)
        if collecting:
            gc.enable()


class Timed:
    """A program whose steps are timed in slices, alternately without and with a recording."""

    def __init__(self, step: Callable[[], None], per_slice: int, clock_ns: Callable[[], int]) -> None:
        self._step, self._per_slice, self._clock_ns = step, per_slice, clock_ns
        self._bare_ns: list[list[int]] = []
        self._recorded_ns: list[list[int]] = []
        self._records = 0

    def take_turn(self, session: Any) -> None:
        """Time a slice of each kind."""
        self._bare_ns.append(self._slice_ns())
        session.start()
        try:
            self._recorded_ns.append(self._slice_ns())
        finally:
            session.stop()
        if not self._records:
            self._records = len(host_work(session.trace)) // (self._per_slice + 1)

    def cost(self) -> Cost | None:
        """The cost of a record; None if there are no records."""
        if not self._records:
            return None
        bare_ns, recorded_ns = self._per_record_ns(0, 1)
        parts = [self._per_record_ns(part, GROUPS) for part in range(GROUPS)]
        added_ns = [recorded_ns - bare_ns, *(recorded - bare for bare, recorded in parts)]
        # Its records are evenly spaced: their distance is the time of a step, divided by their number.
        return Cost(recorded_ns, added_ns[0], min(added_ns), max(added_ns))

    def _per_record_ns(self, first: int, every: int) -> tuple[float, float]:
        """The time per record of the least disturbed steps in some of the turns, without and with recording."""
        bare_ns, recorded_ns = (
            float(np.quantile(np.concatenate(slices[first::every]), UNDISTURBED)) / self._records
            for slices in (self._bare_ns, self._recorded_ns)
        )
        return bare_ns, recorded_ns

    def _slice_ns(self) -> list[int]:
        """The times of a few steps, after one to warm up."""
        self._step()
        times_ns = []
        for _ in range(self._per_slice):
            begin_ns = self._clock_ns()
            self._step()
            times_ns.append(self._clock_ns() - begin_ns)
        return times_ns


def measured(programs: list[Timed], session: Any) -> Overhead | None:
    """Alternate between two programs for a while; the first has its records closer together."""
    begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
    for done in range(MOST_ROUNDS):
        spent = time.thread_time() - begin_cpu_s >= ENOUGH_S or time.monotonic() - begin_s >= PATIENCE_S
        if spent and done >= FEWEST_ROUNDS:
            break
        for program in programs:
            program.take_turn(session)
    close, apart = (program.cost() for program in programs)
    return None if close is None or apart is None else Overhead(close, apart)


def _training_step(rows: int, width: int) -> Callable[[], None]:
    """Make a training step of four layers with attention: forward, backward, and an Adam-like update of each parameter.

    It uses no optimizer of torch: the first one imports a large part of torch, which is not possible at exit.

    Args:
        rows: The length of the sequences.
        width: Their width: the work of an operator grows with it, and so does the time between two records.
    """
    import torch
    from torch import nn

    def step() -> None:
        # No `torch.device` here: it would send every call through a Python function, which few programs do.
        with torch.inference_mode(mode=False), torch.enable_grad():
            hidden = inputs
            for layer in layers:
                found = layer(hidden)
                weights = torch.softmax(found.transpose(-2, -1) @ found / width**0.5, dim=-1)
                hidden = hidden + (found @ weights).view(2, rows, width)
            hidden.square().mean().backward()
            with torch.no_grad():
                for parameter, (mean, square) in zip(parameters, moments, strict=True):
                    gradient = parameter.grad
                    mean.lerp_(gradient, 0.1)
                    square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
                    parameter.addcdiv_(mean, square.sqrt().add_(1e-8), value=-1e-4)
                    parameter.grad = None

    # Independent of the defaults that the program has set.
    with torch.device("cpu"), torch.inference_mode(mode=False), torch.random.fork_rng(devices=[]):
        layers = nn.Sequential(
            nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()
        ).to(torch.float32)
        inputs = torch.randn(2, rows, width, dtype=torch.float32)
        parameters = list(layers.parameters())
        moments = [(torch.zeros_like(one), torch.zeros_like(one)) for one in parameters]
    return step
