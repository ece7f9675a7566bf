"""What deep steps and records of garbage collection add to the light recording of `kinetoscope run`, in processor time of the whole process.

Long recordings of each kind, and stretches without a profiler, take turns in random order. Each recording has as many steps as deep steps repeat after, so that
their share is what it is in the long run, and once as few as a short program has.
"""

import random
import statistics
import time
from argparse import Namespace

import torch

import kinetoscope
from benchmarks.demo_overhead import gpt_step
from benchmarks.harness import Result, run
from benchmarks.workloads import tiny_training_step

LIGHT = {"with_stack": True, "with_modules": True, "activities": [kinetoscope.ProfilerActivity.CPU]}
KINDS = {"plain": None, "light": LIGHT, "deep": LIGHT | {"deep_steps": True, "garbage_collection": True}}
MOST_POINTS = 1.0
BATCH = "4"


def step_us(step, kind: str, steps: int) -> float:
    """The processor time of a step of one recording, in microseconds, without starting and stopping."""
    options = KINDS[kind]
    session = None if options is None else kinetoscope.profile(**options)
    if session is not None:
        session.start()
    began_ns = time.process_time_ns()
    for _ in range(steps):
        step()
    took_ns = time.process_time_ns() - began_ns
    if session is not None:
        session.stop()
    return took_ns / steps / 1000


def measure(options: Namespace) -> list[Result]:
    """Measure steps of tiny operators, and those of a small GPT."""
    torch.set_num_threads(1)
    draws, results = random.Random(1), []
    for name, step, long, rounds in (
        ("tiny operators", tiny_training_step(), 1280, 7),
        ("tiny operators, a short program", tiny_training_step(), 100, 15),
        ("small GPT", gpt_step("--batch", BATCH), 192, 7),
    ):
        for _ in range(20):
            step()
        times = {kind: [] for kind in KINDS}
        for _ in range(1 if options.quick else rounds):
            for kind in draws.sample(list(KINDS), len(KINDS)):
                times[kind].append(step_us(step, kind, 20 if options.quick else long))
        plain, light, deep = (statistics.median(times[kind]) for kind in KINDS)
        points = 100 * (deep - light) / plain
        spread = 100 * statistics.stdev(times["light"]) / plain if len(times["light"]) > 1 else 0.0
        results.append(
            Result(
                f"deep steps, {name}",
                f"<= {MOST_POINTS:g} points",
                f"{points:+.2f} points",
                points <= MOST_POINTS,
                [
                    f"step {plain:,.0f} us, light {100 * (light / plain - 1):+.1f} %, deep {100 * (deep / plain - 1):+.1f} %, light recordings differ by {spread:.1f} points"
                ],
            )
        )
    return results


if __name__ == "__main__":
    run(measure)
