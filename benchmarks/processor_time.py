"""What recording adds to a step of the demo's GPT with small batches, in processor time: of the thread that trains, and of the whole process with our helper threads.

Recordings with several flags, torch calling empty callbacks, and torch.profiler take turns in random order. Each slice is compared with the
slices without a profiler right before and after it. Recordings of ten steps include starting, stopping, and what helper threads do afterwards.
"""

import gc
import random
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from benchmarks.demo_overhead import gpt_step
from benchmarks.floor import empty_callbacks
from benchmarks.harness import DRAWS, Result, run
from benchmarks.workloads import collecting, operators_of

FLOOR, FLOOR_OF_INPUTS = "empty callbacks", "empty callbacks that need inputs"
OURS, THEIRS, OURS_TEN, THEIRS_TEN = (
    "kinetoscope",
    "torch.profiler",
    "kinetoscope, ten steps",
    "torch.profiler, ten steps",
)
NO_SAMPLES, SHAPES, THEIR_SHAPES = (
    "kinetoscope without samples",
    "kinetoscope, record_shapes",
    "torch.profiler, record_shapes",
)
NO_SAMPLES_TEN = "kinetoscope without samples, ten steps"
CONTROL = "no profiler"
# The demo itself has 16: steps so short that recording them shows.
BATCH = "4"
STEPS, STEPS_BESIDE = 10, 5
# Above torch's empty callbacks, of the whole process; with inputs, above those that need inputs.
MOST_POINTS, MOST_POINTS_OF_SHAPES = 2.0, 3.0
# Helper threads finish with a recording that is over in this time.
SETTLING_S = 0.01

Pair = tuple[float, float]


@dataclass
class Contender:
    """A way to record, and by how much each of its slices was above the slices beside it, as a share: of the thread, and of the process."""

    session: Callable[[], AbstractContextManager[object]]
    whole: bool = False  # with starting and stopping
    added: list[Pair] = field(default_factory=list)


def clocks_ns() -> tuple[int, int]:
    """Return the processor time of this thread, and of the process."""
    return time.thread_time_ns(), time.process_time_ns()


def slice_ns(
    step: Callable[[], None], session: AbstractContextManager[object], *, whole: bool, steps: int
) -> Pair:
    """Run `steps` steps, all of a recording or in the middle of one; return the processor time of a step."""
    began = clocks_ns()
    with session:
        if not whole:
            step()
            began = clocks_ns()
        for _ in range(steps):
            step()
        ended = clocks_ns()
    time.sleep(SETTLING_S)
    if whole:
        ended = clocks_ns()
    return (ended[0] - began[0]) / steps, (ended[1] - began[1]) / steps


def interleave(
    step: Callable[[], None], contenders: Sequence[Contender], rounds: int, steps: int, beside: int
) -> list[Pair]:
    """Run every contender `rounds` times; return the processor time of a step of each slice without a profiler."""
    bare = []
    generator = random.Random(1)
    gc.collect()
    gc.freeze()
    order = list(contenders)
    for _ in range(rounds):
        generator.shuffle(order)
        before = slice_ns(step, nullcontext(), whole=False, steps=beside)
        for contender in order:
            gc.collect()
            gc.disable()
            ns = slice_ns(step, contender.session(), whole=contender.whole, steps=steps)
            after = slice_ns(step, nullcontext(), whole=False, steps=beside)
            gc.enable()
            thread, process = (
                2 * one / (first + last) - 1 for one, first, last in zip(ns, before, after, strict=True)
            )
            contender.added.append((thread, process))
            bare.append(after)
            before = after
    gc.unfreeze()
    return bare


def interval(value: Callable[[Sequence[int]], float], rounds: int) -> Pair:
    """Return the 95 % interval of a value that is computed from some rounds, by drawing rounds anew."""
    generator = random.Random(1)
    values = [value(generator.choices(range(rounds), k=rounds)) for _ in range(DRAWS)]
    low, high = np.nanquantile(values, (0.025, 0.975))
    return float(low), float(high)


def percent(contender: Contender, clock: int, rounds: Sequence[int]) -> float:
    """Return the median of what a contender adds to a step in some rounds, for the clock of the thread (0) or the process (1)."""
    return 100 * statistics.median(contender.added[one][clock] for one in rounds)


def shown(value: Callable[[Sequence[int]], float], rounds: int, unit: str, sign: str = "+") -> str:
    """Return a value of all rounds with its interval."""
    low, high = interval(value, rounds)
    return f"{value(range(rounds)):{sign}.2f}{unit} ({low:{sign}.2f} to {high:{sign}.2f})"


def measure(options: Namespace) -> list[Result]:
    """Measure all contenders; the notes have what each adds, and the ratios to torch.profiler."""
    rounds, steps, beside = (2, 1, 1) if options.quick else (options.rounds, STEPS, STEPS_BESIDE)
    step = gpt_step("--batch", BATCH)
    for _ in range(5):
        step()
    everyone = {
        CONTROL: Contender(nullcontext),
        FLOOR: Contender(empty_callbacks),
        FLOOR_OF_INPUTS: Contender(lambda: empty_callbacks(inputs=True)),
        OURS: Contender(lambda: collecting(theirs=False)),
        NO_SAMPLES: Contender(lambda: collecting(theirs=False, samples=False)),
        SHAPES: Contender(lambda: collecting(theirs=False, record_shapes=True)),
        THEIRS: Contender(lambda: collecting(theirs=True)),
        THEIR_SHAPES: Contender(lambda: collecting(theirs=True, record_shapes=True)),
        OURS_TEN: Contender(lambda: collecting(theirs=False), whole=True),
        NO_SAMPLES_TEN: Contender(lambda: collecting(theirs=False, samples=False), whole=True),
        THEIRS_TEN: Contender(lambda: collecting(theirs=True), whole=True),
    }
    operators = operators_of(step)
    # Compiled, loaded, and its threads started, before anything is compared.
    for contender in everyone.values():
        slice_ns(step, contender.session(), whole=contender.whole, steps=1)
    bare = interleave(step, list(everyone.values()), rounds, steps, beside)
    thread_ms, process_ms = (statistics.median(values) / 1e6 for values in zip(*bare, strict=True))
    notes = [
        f"a step of {operators} operators takes {thread_ms:.1f} ms of the thread, {process_ms:.1f} ms of the process"
    ]
    for name, contender in everyone.items():
        cells = [
            f"{clock} {shown(lambda some, c=contender, at=at: percent(c, at, some), rounds, ' %')}"
            for at, clock in enumerate(("thread", "process"))
        ]
        notes.append(f"{name}: {', '.join(cells)}")
    for ours, theirs in ((OURS, THEIRS), (SHAPES, THEIR_SHAPES), (OURS_TEN, THEIRS_TEN)):
        cells = [
            f"{clock} {shown(lambda some, o=ours, t=theirs, at=at: percent(everyone[o], at, some) / percent(everyone[t], at, some), rounds, ' x', '')}"
            for at, clock in enumerate(("thread", "process"))
        ]
        notes.append(f"{ours} / {theirs}: {', '.join(cells)}")
    results = []
    for what, ours, floor, most in (
        ("default flags", OURS, FLOOR, MOST_POINTS),
        ("ten steps from start to stop", OURS_TEN, FLOOR, None),
        ("record_shapes", SHAPES, FLOOR_OF_INPUTS, MOST_POINTS_OF_SHAPES),
    ):

        def points(some: Sequence[int], ours: str = ours, floor: str = floor) -> float:
            return percent(everyone[ours], 1, some) - percent(everyone[floor], 1, some)

        results.append(
            Result(
                f"processor time of a GPT step, {what}, above {floor}",
                "none" if most is None else f"<= {most:g} points",
                shown(points, rounds, " points"),
                None if most is None else points(range(rounds)) <= most,
            )
        )
    results[0].notes += notes
    return results


if __name__ == "__main__":
    run(
        measure,
        lambda parser: parser.add_argument(
            "--rounds", type=int, default=16, help="slices of each contender (%(default)s)"
        ),
    )
