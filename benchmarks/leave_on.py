"""What `kinetoscope.leave_on(budget="1%")` adds to a step: of the demo's GPT with small batches, and of a loop of tiny operators.

One recorder is left on. Once its budget has settled, blocks of steps with it and without it take turns, in random order within each pair, and each
pair is a comparison. What the recorder itself says that it costs is beside it. Without it means that nothing is recorded and `step` is not called; its threads
are there.
"""

import gc
import random
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable

import kinetoscope
from benchmarks.demo_overhead import gpt_step
from benchmarks.harness import Result, run
from benchmarks.processor_time import BATCH, interval
from benchmarks.workloads import tiny_training_step
from kinetoscope.flight.flight import FlightRecorder

BUDGET_PERCENT, MOST_PERCENT = 1.0, 1.2

Pair = tuple[float, float]


def clocks_ns() -> Pair:
    """Return the time, and the processor time of the process."""
    return time.perf_counter_ns(), time.process_time_ns()


def block(recorder: FlightRecorder, step: Callable[[], None], steps: int, *, left_on: bool) -> Pair:
    """Run some steps, with the recorder or without it; return what they took by both clocks."""
    session = recorder._session
    if session is None:
        raise RuntimeError(str(recorder.status()))
    if not left_on:
        recorder._switch(session, record=False)
    # The time between blocks is no step.
    recorder._began_ns = 0
    began = clocks_ns()
    for _ in range(steps):
        if left_on:
            recorder.step()
        step()
    ended = clocks_ns()
    return ended[0] - began[0], ended[1] - began[1]


def compare(name: str, step: Callable[[], None], steps: int, settling: int, pairs: int) -> list[Result]:
    """Leave a loop on until its budget has settled, and compare."""
    generator = random.Random(1)
    added: list[Pair] = []
    without: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        kinetoscope.leave_on(f"{BUDGET_PERCENT}%", folder=folder, keep="64MiB", on=("hang",)) as recorder,
    ):
        block(recorder, step, settling, left_on=True)
        gc.collect()
        gc.freeze()
        for _ in range(pairs):
            order = [True, False]
            generator.shuffle(order)
            took = {left_on: block(recorder, step, steps, left_on=left_on) for left_on in order}
            added.append((took[True][0] / took[False][0] - 1, took[True][1] / took[False][1] - 1))
            without.append(took[False][0] / steps)
        gc.unfreeze()
        status = recorder.status()
    results = []
    for at, clock in enumerate(("time", "processor time of the process")):

        def percent(some: object, at: int = at) -> float:
            return 100 * statistics.median(added[one][at] for one in some)  # type: ignore[attr-defined]

        low, high = interval(percent, pairs)
        results.append(
            Result(
                f"leave_on, {name}, {clock}",
                f"upper limit <= {MOST_PERCENT} %",
                f"{percent(range(pairs)):+.2f} % ({low:+.2f} to {high:+.2f} %)",
                high <= MOST_PERCENT,
                [f"a step takes {statistics.median(without) / 1e6:.3f} ms; the recorder says: {status}"]
                if at == 0
                else [],
            )
        )
    return results


def measure(options: Namespace) -> list[Result]:
    """Measure both loops."""
    gpt, tiny = gpt_step("--batch", BATCH), tiny_training_step(layers=1)
    if options.quick:
        return [*compare("GPT", gpt, 2, 2, 2), *compare("tiny operators", tiny, 5, 5, 2)]
    return [
        *compare("GPT", gpt, 32, 600, 30),
        *compare("tiny operators", tiny, 512, 6000, 30),
    ]


if __name__ == "__main__":
    run(measure)
