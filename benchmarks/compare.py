"""Comparing runs: how long it takes, how often it finds a difference where there is none, and how often it finds a planted one.

Runs of one program (A/A) are recordings of several processes, drawn at random for each comparison: of a training step on one thread, and of
40 steps of six layers on two threads, of which one process in ten may be slower throughout even on an idle machine. They are recorded with
the machine as it is, and beside processes that compute. The planted difference is one layer that raises to a power that is no whole number instead of squaring: it has
the same operators, sizes and lines, and takes 3 % of a step longer. Its recordings take turns with those of the program without it.
"""

import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import kinetoscope
from benchmarks.big_traces import pattern, write_trace
from benchmarks.harness import Result, beside, run
from kinetoscope.comparison.measures import Run, run_of
from kinetoscope.comparison.result import FASTER, SLOWER, Comparison
from kinetoscope.comparison.runs import compare_runs

LIMIT_S = 2.0
EVENTS = 1_270_000  # 1,000,000 spans
FALSE_PERCENT, FOUND_PERCENT, PLACED_PERCENT = 1.0, 95.0, 90.0
PLANTED = 0.03
SLICE = 20  # steps of a recording
RECORDINGS = 4  # of a process
MOST_ELEMENTS = 1 << 20  # of the layer in which something is planted
TWO_THREADS_STEPS = 40
SIDE = 5  # recordings of a side, in comparisons of several


class Gate(nn.Module):
    """The layer in which something is planted."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.register_buffer("scales", torch.rand(MOST_ELEMENTS) + 1)
        self.exponent = 2.5
        self.elements = 64

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Transform a batch."""
        out = self.linear(batch)
        scale = self.scales[: self.elements]
        return out + scale.pow(self.exponent).mean()


class Net(nn.Module):
    """Some layers, with the gate before the last one."""

    def __init__(self, size: int = 192) -> None:
        super().__init__()
        layers = (nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.LayerNorm(size)) for _ in range(4))
        self.layers = nn.Sequential(*layers)
        self.gate = Gate(size)
        self.head = nn.Linear(size, 10)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Classify a batch."""
        out = self.layers(batch)
        out = self.gate(out)
        return self.head(out)


class Program:
    """The training step: of the net on one thread, or of six plain layers on two."""

    def __init__(self, threads: int = 1) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(threads)
        self.net = Net() if threads == 1 else nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
        self.size = 192 if threads == 1 else 256
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.batch, self.labels = torch.randn(64, self.size), torch.randint(0, 10, (64,))

    def step(self) -> None:
        """Train one step."""
        self.optimizer.zero_grad()
        functional.cross_entropy(self.net(self.batch), self.labels).backward()
        self.optimizer.step()

    def record(self, steps: int, name: str) -> tuple[Run, float]:
        """What a recording did, and the seconds that its steps took."""
        with kinetoscope.profile(with_stack=True, with_modules=True, record_shapes=True) as prof:
            began = time.perf_counter()
            for _ in range(steps):
                self.step()
                prof.step()
            took = time.perf_counter() - began
        with prof.trace as trace:
            return run_of(trace, name), took


def fastest(action, times: int = 200) -> float:
    """The fewest seconds that something takes."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        found.append(time.perf_counter() - began)
    return min(found)


def plant(program: Program) -> tuple[float, float]:
    """Find two powers of which the second takes 3 % of a step longer, by the number of elements that are raised.

    Returns:
        The two powers.

    Raises:
        RuntimeError: The layer has too few elements for so long a step.
    """
    step_s = fastest(program.step)
    gate = program.net.gate

    def longer(elements: int) -> float:
        some = gate.scales[:elements]
        return fastest(lambda: some.pow(2.5)) - fastest(lambda: some.pow(2.0))

    # Twice: elements that do not fit into the cache take longer.
    elements = 8192
    for _ in range(2):
        elements = round(elements * PLANTED * step_s / max(longer(elements), 1e-9))
        if not 0 < elements <= MOST_ELEMENTS:
            raise RuntimeError(
                f"{elements:,} elements would take {PLANTED:.0%} of a step: the layer has {MOST_ELEMENTS:,}"
            )
    gate.elements = elements
    return 2.0, 2.5


def is_alarm(found: Comparison) -> bool:
    """Whether a comparison says that anything changed."""
    return found.verdict in (FASTER, SLOWER) or bool(found.changed) or bool(found.changed_counts)


def speed(events: int, folder: Path) -> Result:
    """Time a comparison of two saved traces, from opening to the verdict."""
    written = folder / "long.json"
    repeated = pattern()
    write_trace(repeated, events, written)
    with kinetoscope.open(written) as trace:
        spans = len(trace.columns("spans"))
        for side in ("base", "new"):
            trace.save(folder / f"{side}.ktrace")
    seconds = []
    for _ in range(3):
        before = time.process_time()
        kinetoscope.compare(folder / "base.ktrace", folder / "new.ktrace")
        seconds.append(time.process_time() - before)
    note = f"processor time of the fastest of 3, {repeated.source}"
    return Result(
        f"comparing two traces of {spans:,} spans",
        f"<= {LIMIT_S:g} s",
        f"{min(seconds):.2f} s",
        min(seconds) <= LIMIT_S,
        [note],
    )


def recorded(processes: int, steps: int, threads: int, folder: Path) -> list[list[Run]]:
    """Recordings of the program without anything planted, by process."""
    found = []
    for number in range(processes):
        target = folder / f"{number}.pickle"
        words = ["--record", target, "--steps", str(steps), "--threads", str(threads)]
        subprocess.run([sys.executable, "-m", "benchmarks.compare", *words], check=True)
        found.append(pickle.loads(target.read_bytes()))
    return found


def slowest(runs: list[list[Run]]) -> str:
    """How much the recordings of single processes differ, and how busy the machine is."""
    medians = [float(np.median(process[0].step_ns[process[0].counted])) / 1e6 for process in runs]
    return (
        f"steps of the first recording of {len(medians)} processes: {min(medians):.2f} to {max(medians):.2f} ms, median "
        f"{float(np.median(medians)):.2f} ms; load of the machine {os.getloadavg()[0]:.1f}"
    )


def false_alarms(runs: list[list[Run]], comparisons: int, what: str) -> list[Result]:
    """Compare a program with itself: one recording a side from different processes, and one of each of several processes a side."""
    chance = random.Random(0)
    results = []
    side = min(SIDE, len(runs) // 2)
    for several in (False, True):
        alarms, notes = 0, [slowest(runs)]
        for _ in range(comparisons):
            drawn = [chance.choice(process) for process in chance.sample(runs, 2 * side if several else 2)]
            found = compare_runs(drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :])
            if is_alarm(found):
                alarms += 1
                notes.append(f"{found!r}: {', '.join(f'{one.kind} {one.name}' for one in found.changed[:3])}")
        percent = 100 * alarms / comparisons
        recordings = f"{side} recordings" if several else "one recording"
        results.append(
            Result(
                f"{comparisons} comparisons of {what} with itself, {recordings} a side: alarms",
                f"< {FALSE_PERCENT:g} %",
                f"{percent:.1f} %",
                percent < FALSE_PERCENT,
                notes,
            )
        )
    return results


def planted(comparisons: int, seconds: float) -> list[Result]:
    """Record the program with and without the planted difference in turn, and compare."""
    found, placed, notes = 0, 0, []
    chance = random.Random(0)
    for number in range(comparisons):
        program = Program()
        for _ in range(20):
            program.step()
        powers = dict(zip(("base", "new"), plant(program), strict=True))
        sides: dict[str, list[Run]] = {"base": [], "new": []}
        spent = 0.0
        while spent < seconds:
            for side in chance.sample(list(powers), 2):
                program.net.gate.exponent = powers[side]
                run_, took = program.record(SLICE, f"{side} {len(sides[side])}")
                sides[side].append(run_)
                spent += took
        result = compare_runs(sides["base"], sides["new"])
        slower = [one for one in result.changed if one.verdict == SLOWER]
        modules = [one.name for one in slower if one.kind == "module"]
        lines = [one.detail for one in slower if one.kind == "line"]
        good = result.verdict == SLOWER
        right = modules[:1] == ["gate"] and bool(lines) and "scale.pow" in lines[0]
        found += good
        placed += good and right
        notes.append(
            f"{number}: {result!r}; modules {modules}, lines {lines}, {len(sides['base'])} recordings a side"
        )
    what = f"{comparisons} comparisons with {100 * PLANTED:g} % of a step planted in a module, {seconds:g} s of recording each"
    rates = [100 * one / comparisons for one in (found, placed)]
    return [
        Result(f"{what}: found", f">= {FOUND_PERCENT:g} %", f"{rates[0]:.1f} %", rates[0] >= FOUND_PERCENT, notes),
        Result(f"{what}: with module and line", f">= {PLACED_PERCENT:g} %", f"{rates[1]:.1f} %", rates[1] >= PLACED_PERCENT, []),
    ]  # fmt: skip


def options_of(parser: ArgumentParser) -> None:
    """Add how much to record and compare."""
    parser.add_argument(
        "--processes", type=int, default=12, help="processes that record the program (%(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=100, help="steps of each of their recordings (%(default)s)"
    )
    parser.add_argument(
        "--alarms", type=int, default=500, help="comparisons of the program with itself (%(default)s)"
    )
    parser.add_argument(
        "--planted", type=int, default=100, help="comparisons with something planted (%(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds of recording for each of them (%(default)s)"
    )
    parser.add_argument(
        "--beside",
        type=int,
        default=2 * (os.cpu_count() or 1),
        help="processes that compute beside the program in the second half of the recordings (%(default)s)",
    )
    parser.add_argument("--threads", type=int, default=1, help="of a program that only records (%(default)s)")
    parser.add_argument("--only-alarms", action="store_true", help="only compare programs with themselves")
    parser.add_argument(
        "--record", type=Path, help="only record, into this file; the benchmark calls itself so"
    )


def measure(options: Namespace) -> list[Result]:
    """Measure all of it."""
    if options.record is not None:
        program = Program(options.threads)
        # Two threads are what one process may be unlucky with throughout, from its first step on.
        for _ in range(20):
            program.step()
        runs = [program.record(options.steps, f"recording {number}")[0] for number in range(RECORDINGS)]
        options.record.write_bytes(pickle.dumps(runs))
        return []
    quick = options.quick
    processes, results = 2 if quick else options.processes, []
    with tempfile.TemporaryDirectory() as folder:
        if not options.only_alarms:
            results.append(speed(20_000 if quick else EVENTS, Path(folder)))
        for others in (0, options.beside):
            for threads, steps in ((1, options.steps), (2, TWO_THREADS_STEPS)):
                with beside(others):
                    runs = recorded(processes, 5 if quick else steps, threads, Path(folder))
                what = f"a program of {threads} thread{'s' * (threads > 1)}, {f'beside {others} others' if others else 'machine as it is'},"
                results += false_alarms(runs, 3 if quick else options.alarms, what)
    if options.only_alarms:
        return results
    return [*results, *planted(1 if quick else options.planted, 0.2 if quick else options.seconds)]


if __name__ == "__main__":
    run(measure, options_of)
