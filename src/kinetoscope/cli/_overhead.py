"""What recording costs on this machine: a small training step, timed with and without it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetoscope.cli._recording import Wanted

MOST_ROUNDS, FEWEST_ROUNDS, ENOUGH_S = 20, 4, 1.0
STEPS_PER_ROUND = 6


@dataclass(frozen=True)
class Overhead:
    """The measured cost of one record.

    Attributes:
        record_ns: Nanoseconds that recording adds to one operator of a small training step.
        rough: Whether the machine was too busy for more than the order of magnitude.
    """

    record_ns: float
    rough: bool = False

    def total_ns(self, records: int) -> float:
        """What that many records cost, by this measure."""
        return self.record_ns * records


def measure_overhead(wanted: Wanted) -> Overhead | None:
    """Time a small training step with and without a recording of what `wanted` says, turn by turn.

    The processor time of this thread is taken, so that other load on the machine counts little, and the least of
    each kind, so that what disturbs a round does not count. Half a second is spent, a little more on a busy machine.

    Args:
        wanted: What was recorded.

    Returns:
        The cost, or None when nothing was recorded of the step.
    """
    import torch

    threads = torch.get_num_threads()
    # Tiny operators on several threads would measure how the threads wait for each other.
    torch.set_num_threads(1)
    try:
        return _measure(_small_training_step(), wanted)
    finally:
        torch.set_num_threads(threads)


def _measure(step: Callable[[], None], wanted: Wanted) -> Overhead | None:
    """Time the step with and without a recording."""
    _time(step)
    bare, recorded, records = [], [], 0
    begin_s = time.monotonic()
    for done in range(MOST_ROUNDS):
        if done >= FEWEST_ROUNDS and time.monotonic() - begin_s > ENOUGH_S:
            break
        bare.append(_time(step))
        session = replace(wanted, ring_bytes=None).session(None)
        session.start()
        try:
            recorded.append(_time(step))
        finally:
            session.stop()
        records = records or len(session.trace.columns("spans"))
    if records == 0:
        return None
    timed = records * STEPS_PER_ROUND / (STEPS_PER_ROUND + 1)
    rough = median(bare) > 1.3 * min(bare) or len(bare) < MOST_ROUNDS
    return Overhead(max(0.0, (min(recorded) - min(bare)) / timed), rough)


def _time(step: Callable[[], None]) -> int:
    """The processor time in ns that one round of steps takes, after one that meets everything for the first time."""
    step()
    begin_ns = time.thread_time_ns()
    for _ in range(STEPS_PER_ROUND):
        step()
    return time.thread_time_ns() - begin_ns


def _small_training_step() -> Callable[[], None]:
    """Make a training step of small operators: forward, backward, update.

    No optimizer of torch is used: the first one imports a large part of torch, which cannot be done at exit.
    """
    import torch
    from torch import nn

    def step() -> None:
        with torch.device("cpu"), torch.inference_mode(mode=False), torch.enable_grad():
            loss = model(inputs).square().mean()
            loss.backward()
            with torch.no_grad():
                for parameter in parameters:
                    parameter.add_(parameter.grad, alpha=-1e-4)
                    parameter.grad = None

    # Whatever defaults the program has set must not reach this.
    with torch.device("cpu"), torch.inference_mode(mode=False), torch.random.fork_rng(devices=[]):
        layers = [layer for _ in range(3) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU())]
        model = nn.Sequential(*layers).to(torch.float32)
        inputs = torch.randn(16, 32, dtype=torch.float32)
        parameters = list(model.parameters())
    return step
