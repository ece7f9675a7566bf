"""Measure overheads by interleaving contenders in short slices of one process, in a new random order each round.

A slice enters the contender's context, runs one piece of work as a warm-up, and measures the wall time and the thread's CPU
time of each following piece. The overhead of a contender is the difference to the work without a profiler, of the minimum
and of the median over all slices. The null control is the same work without a profiler again, so its "overhead" is noise.
What the machine's other load does to a round it does to all contenders, so intervals are found by drawing whole rounds anew.
"""

import argparse
import contextlib
import gc
import json
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

BASELINE = "no profiler"
NULL_CONTROL = "null control"
DRAWS = 400


@dataclass
class Times:
    """The times of a contender's pieces of work, in nanoseconds, round by round."""

    wall_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)
    pieces: int = 1

    def minimum_ns(self, clock: str = "cpu") -> int:
        """Return the minimum `wall` or `cpu` time."""
        return min(self.of(clock))

    def median_ns(self, clock: str = "cpu") -> float:
        """Return the median `wall` or `cpu` time."""
        return statistics.median(self.of(clock))

    def of(self, clock: str) -> list[int]:
        """Return the `wall` or `cpu` times."""
        return self.cpu_ns if clock == "cpu" else self.wall_ns

    def of_rounds(self, rounds: Sequence[int]) -> "Times":
        """Return the times of some rounds, which may be named more than once."""
        wall_ns, cpu_ns = (
            [value for one in rounds for value in values[one * self.pieces : (one + 1) * self.pieces]]
            for values in (self.wall_ns, self.cpu_ns)
        )
        return Times(wall_ns, cpu_ns, self.pieces)


@dataclass
class Result:
    """One row of the result table: a benchmark, its target and the measured value."""

    what: str
    target: str
    measured: str
    meets: bool | None
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """`meets`, `MISSES`, or `-` without a target."""
        return {True: "meets", False: "MISSES", None: "-"}[self.meets]


def interleave(
    work: Callable[[], object],
    contenders: dict[str, Callable[[], AbstractContextManager[object]]],
    rounds: int,
    pieces: int,
) -> dict[str, Times]:
    """Run the contenders, the baseline and the null control in turns, `rounds` times with `pieces` of work each."""
    everyone = {BASELINE: contextlib.nullcontext, NULL_CONTROL: contextlib.nullcontext, **contenders}
    times = {name: Times(pieces=pieces) for name in everyone}
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


@contextlib.contextmanager
def beside(processes: int) -> Iterator[None]:
    """Keep the machine busy with processes that compute."""
    computing = [
        subprocess.Popen([sys.executable, "-c", "while True: sum(range(100_000))"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in computing:
            process.kill()
            process.wait()


def added(times: dict[str, Times], name: str, clock: str, statistic: str, base: str = BASELINE) -> float:
    """Return what a contender adds to another per piece of work, in nanoseconds, for a clock and a statistic."""
    if statistic == "minimum":
        return times[name].minimum_ns(clock) - times[base].minimum_ns(clock)
    return times[name].median_ns(clock) - times[base].median_ns(clock)


def interval(
    times: dict[str, Times], value: Callable[[dict[str, Times]], float], names: Sequence[str]
) -> tuple[float, float]:
    """Return the 95 % interval of a value that is computed from the times of some contenders, by drawing rounds anew."""
    taken = {name: times[name] for name in names}
    rounds = min(len(one.cpu_ns) // one.pieces for one in taken.values())
    generator = random.Random(1)
    values = []
    for _ in range(DRAWS):
        drawn = generator.choices(range(rounds), k=rounds)
        values.append(value({name: one.of_rounds(drawn) for name, one in taken.items()}))
    low, high = np.nanquantile(values, (0.025, 0.975))
    return float(low), float(high)


def report_added(times: dict[str, Times]) -> list[str]:
    """Return one line per contender with its overheads for both clocks and both statistics."""
    lines = []
    for name, base in times.items():
        if name == BASELINE:
            lines.append(
                f"{name}: {base.minimum_ns() / 1e6:.3f} ms CPU minimum, {base.median_ns() / 1e6:.3f} ms median, "
                f"{base.minimum_ns('wall') / 1e6:.3f} / {base.median_ns('wall') / 1e6:.3f} ms wall"
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
    """Return the time of the work without a profiler."""
    return times[BASELINE].minimum_ns(clock) if statistic == "minimum" else times[BASELINE].median_ns(clock)


def ratio_result(
    what: str, limit: float | None, times: dict[str, Times], ours: str, theirs: str, base: str = BASELINE
) -> Result:
    """Compare two overheads by the median of thread CPU time, with the other ratios in a note; None: no target."""
    ratios = {
        (clock, statistic): added(times, ours, clock, statistic, base)
        / added(times, theirs, clock, statistic, base)
        for clock in ("cpu", "wall")
        for statistic in ("minimum", "median")
    }
    ratio = ratios["cpu", "median"]
    low, high = interval(
        times,
        lambda drawn: added(drawn, ours, "cpu", "median", base) / added(drawn, theirs, "cpu", "median", base),
        (ours, theirs, base),
    )
    notes = [
        "ratios: "
        + ", ".join(f"{clock} {statistic} {value:.2f}" for (clock, statistic), value in ratios.items())
    ]
    target = "none" if limit is None else f"<= {limit} x torch.profiler"
    return Result(
        what,
        target,
        f"{ratio:.2f} x ({low:.2f} to {high:.2f})",
        None if limit is None else ratio <= limit,
        notes,
    )


def timed(action: Callable[[], object]) -> tuple[float, object]:
    """Run an action with the garbage collector off; return its wall time in seconds and its result."""
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    value = action()
    seconds = time.perf_counter() - began
    gc.enable()
    return seconds, value


def machine() -> str:
    """Describe the machine in one line."""
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
    """Run a script: parse its command line, measure, and print and write the results."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="use tiny sizes as a smoke test; the results are meaningless"
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    if add_options is not None:
        add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = measure(options)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results]), encoding="utf-8")
    print(machine())
    for result in results:
        print(f"{result.verdict:6}  {result.what}: {result.measured} (target: {result.target})")
        for note in result.notes:
            print(f"        {note}")
