"""What one recorded step of `kinetoscope.leave_on` costs, and one that is not recorded, in microseconds: between the steps, and within.

One of 8 steps is recorded, as if the budget allowed that. Between the steps: the call of `step` that begins a recorded one ("on"), the
one that ends it ("off"), the one between two that are not recorded, and, since a call from time to time does what is left for many steps,
the mean over all. Within: how much longer than plain ones a recorded step takes, and the two after it. Warm: the step of the program is a
small one, which leaves the recorder in the caches of the processor. Cold: before each call, memory larger than those caches is read.
"""

import statistics
import tempfile
import time
from argparse import Namespace
from collections import defaultdict

import torch

import kinetoscope
from benchmarks.harness import Result, run
from benchmarks.workloads import tiny_training_step
from kinetoscope.flight.flight import FlightRecorder

MOST_SWITCHING_US = 100
LEVEL = 3
# Larger than the caches of the processors that jobs run on.
EVICTING_BYTES = 128 << 20
PARTS = (
    "on",
    "off",
    "not recorded",
    "mean call",
    "in the recorded step",
    "in the step after",
    "in the second after",
)


def hold_plan(recorder: FlightRecorder) -> None:
    """Record one of 8 steps, and look at each, whatever that costs."""
    recorder._plan.level = LEVEL
    recorder._budget._decide = lambda planned_share: False  # type: ignore[method-assign]
    recorder._budget._choose_together = lambda: None  # type: ignore[method-assign]


def parts_of(steps: int, *, cold: bool) -> dict[str, float]:
    """The microseconds of each of `PARTS`: medians, except for the mean call."""
    work = tiny_training_step(layers=1)
    evicting = torch.ones(EVICTING_BYTES // 8, dtype=torch.int64)
    for _ in range(20):
        work()
    calls: dict[str, list[float]] = defaultdict(list)
    within: dict[int, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory() as folder,
        kinetoscope.leave_on(folder=folder, keep="32MiB", on=("hang",)) as recorder,
    ):
        hold_plan(recorder)
        records = recorder._plan.records
        since = 9
        for number in range(steps):
            before, now = records(number - 1), records(number)
            if cold:
                evicting.sum()
            began_ns = time.perf_counter_ns()
            recorder.step(number)
            called_ns = time.perf_counter_ns()
            work()
            ended_ns = time.perf_counter_ns()
            since = 0 if now else since + 1
            if number < steps // 10:
                continue
            for call in ("mean call", "on" if now else "off" if before else "not recorded"):
                calls[call].append(called_ns - began_ns)
            within[min(since, 3)].append(ended_ns - called_ns)
    plain_ns = statistics.median(within[3])
    found = {name: statistics.median(calls[name]) for name in ("on", "off", "not recorded")}
    found["mean call"] = statistics.fmean(calls["mean call"])
    for at, name in enumerate(PARTS[4:]):
        found[name] = statistics.median(within[at]) - plain_ns
    return {name: ns / 1000 for name, ns in found.items()}


def measure(options: Namespace) -> list[Result]:
    """Measure warm and cold."""
    torch.set_num_threads(1)
    results = []
    for cold in (False, True):
        found = parts_of(100 if options.quick else 2000 if cold else 8000, cold=cold)
        state = "cold" if cold else "warm"
        both = found["on"] + found["off"]
        results.append(
            Result(
                f"leave_on, {state}: recording switched on and off for a step",
                f"<= {MOST_SWITCHING_US} us",
                f"{both:.1f} us",
                both <= MOST_SWITCHING_US,
            )
        )
        results += [
            Result(f"leave_on, {state}: {name}", "none", f"{found[name]:.1f} us", None) for name in PARTS
        ]
    return results


if __name__ == "__main__":
    run(measure)
