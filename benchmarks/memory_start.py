"""The time of `start()` with `profile_memory=True` in a process with many Python objects, in the first and later cycles.

The first cycle searches all objects that Python's garbage collector tracks for tensors. Later cycles search the model, the optimizer
and new objects. Two sessions take turns: one with many cycles, and a new one for each cycle.
"""

import gc
import statistics
import time
from argparse import Namespace
from collections.abc import Callable

import torch
from torch import nn

import kinetoscope
from benchmarks.harness import Result, run
from benchmarks.workloads import TinyLayer

LIMIT_MS = 5.0
OBJECTS, LAYERS, CYCLES = 100_000, 25, 12


def program(layers: int, objects: int) -> tuple[Callable[[], None], object]:
    """Build a transformer, its training step, and as many dictionaries as a large program has."""
    model = nn.Sequential(*(TinyLayer(8, 2) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(2, 4, 8)

    def step() -> None:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, [{"number": number} for number in range(objects)]


def session() -> kinetoscope.profile:
    """Return a CPU session with memory."""
    return kinetoscope.profile(
        activities=[kinetoscope.ProfilerActivity.CPU], profile_memory=True, engine="native"
    )


def start_ms(prof: kinetoscope.profile, step: Callable[[], None]) -> float:
    """Record a step and read the recording; return the processor time of `start()` in ms."""
    began = time.thread_time_ns()
    prof.start()
    spent = time.thread_time_ns() - began
    step()
    prof.stop()
    len(prof.trace.strings)
    return spent / 1e6


def measure(options: Namespace) -> list[Result]:
    """Compare later cycles with the first one."""
    step, objects = program(2, 1000) if options.quick else program(LAYERS, OBJECTS)
    step()
    gc.collect()
    cycles = 2 if options.quick else CYCLES
    first, later = [], []
    lasting = session()
    start_ms(lasting, step)
    for _ in range(cycles):
        first.append(start_ms(session(), step))
        for _ in range(3):
            step()
        later.append(start_ms(lasting, step))
    tracked = len(gc.get_objects())
    result = Result(
        f"start() of a later cycle with profile_memory, {tracked:,} objects and {LAYERS} layers",
        f"<= {LIMIT_MS:g} ms",
        f"{statistics.median(later):.1f} ms",
        statistics.median(later) <= LIMIT_MS,
        [
            f"first cycle of a session: {statistics.median(first):.1f} ms median, {min(first):.1f} ms minimum",
            f"later cycles: {statistics.median(later):.1f} ms median, {min(later):.1f} ms minimum",
            f"{len(objects):,} dictionaries in the program",
        ],
    )
    return [result]


if __name__ == "__main__":
    run(measure)
