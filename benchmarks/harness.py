"""How every benchmark measures: contenders take turns in short slices of one process, in an order drawn anew each round.

A slice enters the contender's context, lets one piece of work pass, and times each of the following ones by the wall
clock and by the CPU time of the thread. What a contender adds is the difference to the work without any profiler, at
the minimum and at the median over all slices; the null control is the same work once more under another name,
so what it "adds" is how much of a difference means nothing here.
"""

import argparse
import contextlib
import gc
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

BASELINE = "no profiler"
NULL_CONTROL = "null control"


@dataclass
class Times:
    """The times of one contender's pieces of work, in nanoseconds."""

    wall_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)

    def minimum_ns(self, clock: str = "cpu") -> int:
        """The shortest, by `wall` or `cpu`."""
        return min(self.of(clock))

    def median_ns(self, clock: str = "cpu") -> float:
        """The median, by `wall` or `cpu`."""
        return statistics.median(self.of(clock))

    def of(self, clock: str) -> list[int]:
        """The times by one clock."""
        return self.cpu_ns if clock == "cpu" else self.wall_ns


@dataclass
class Result:
    """One row of the table of bars: what was asked, what came out, and whether that meets it."""

    what: str
    bar: str
    measured: str
    meets: bool | None
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """`meets`, `misses` or `-` where there is nothing to judge."""
        return {True: "meets", False: "MISSES", None: "-"}[self.meets]


def interleave(
    work: Callable[[], object],
    contenders: dict[str, Callable[[], AbstractContextManager[object]]],
    rounds: int,
    pieces: int,
) -> dict[str, Times]:
    """Lets the contenders, the baseline and the null control take turns, `rounds` times, `pieces` of work each."""
    everyone = {BASELINE: contextlib.nullcontext, NULL_CONTROL: contextlib.nullcontext, **contenders}
    times = {name: Times() for name in everyone}
    order = list(everyone)
    generator = random.Random(1)
    for _ in range(rounds):
        generator.shuffle(order)
        for name in order:
            gc.collect()
            gc.disable()
            with everyone[name]():
                work()
                for _ in range(pieces):
                    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
                    work()
                    times[name].cpu_ns.append(time.thread_time_ns() - cpu)
                    times[name].wall_ns.append(time.perf_counter_ns() - wall)
            gc.enable()
    return times


def added(times: dict[str, Times], name: str, clock: str, statistic: str) -> float:
    """What a contender adds to one piece of work, in nanoseconds, by `cpu` or `wall`, at the `minimum` or `median`."""
    if statistic == "minimum":
        return times[name].minimum_ns(clock) - times[BASELINE].minimum_ns(clock)
    return times[name].median_ns(clock) - times[BASELINE].median_ns(clock)


def report_added(times: dict[str, Times]) -> list[str]:
    """One line a contender: what it adds by both clocks and both statistics, also as a share of the work itself."""
    lines = []
    for name, base in times.items():
        if name == BASELINE:
            lines.append(
                f"{name}: {base.minimum_ns() / 1e6:.3f} ms CPU at the minimum, {base.median_ns() / 1e6:.3f} ms at the "
                f"median, {base.minimum_ns('wall') / 1e6:.3f} / {base.median_ns('wall') / 1e6:.3f} ms wall"
            )
            continue
        cells = [
            f"{clock} {statistic} {added(times, name, clock, statistic) / 1e6:+.3f} ms"
            f" ({100 * added(times, name, clock, statistic) / reference(times, clock, statistic):+.1f} %)"
            for clock in ("cpu", "wall")
            for statistic in ("minimum", "median")
        ]
        lines.append(f"{name}: " + ", ".join(cells))
    return lines


def reference(times: dict[str, Times], clock: str, statistic: str) -> float:
    """What the work takes without a profiler."""
    return times[BASELINE].minimum_ns(clock) if statistic == "minimum" else times[BASELINE].median_ns(clock)


def ratio_result(what: str, limit: float, times: dict[str, Times], ours: str, theirs: str) -> Result:
    """Judges what ours adds against what theirs adds, by thread CPU time at the median, all other ratios noted."""
    ratios = {
        (clock, statistic): added(times, ours, clock, statistic) / added(times, theirs, clock, statistic)
        for clock in ("cpu", "wall")
        for statistic in ("minimum", "median")
    }
    judged = ratios["cpu", "median"]
    notes = [
        "ratios: "
        + ", ".join(f"{clock} {statistic} {value:.2f}" for (clock, statistic), value in ratios.items())
    ]
    return Result(what, f"<= {limit} x torch.profiler", f"{judged:.2f} x", judged <= limit, notes)


def timed(action: Callable[[], object]) -> tuple[float, object]:
    """Runs an action once with the garbage collector held back; returns its wall time in seconds and its value."""
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    value = action()
    seconds = time.perf_counter() - began
    gc.enable()
    return seconds, value


def machine() -> str:
    """Says in one line what the numbers were measured on."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return f"{model}, Python {platform.python_version()}, torch {torch.__version__}, one thread"


def run(
    measure: Callable[[argparse.Namespace], Sequence[Result]],
    add_options: Callable[[argparse.ArgumentParser], object] | None = None,
) -> None:
    """The command line that all scripts share: `--quick` for a smoke test, `--json FILE` for `python -m benchmarks`."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: does it run? (the numbers mean nothing)"
    )
    parser.add_argument("--json", type=Path, help="also write the results here")
    if add_options is not None:
        add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = measure(options)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results]), encoding="utf-8")
    print(machine())
    for result in results:
        print(f"{result.verdict:6}  {result.what}: {result.measured} (bar: {result.bar})")
        for note in result.notes:
            print(f"        {note}")
