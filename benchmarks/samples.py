"""What sampling Python stacks costs in the demo's GPT step, and how samples by line compare with py-spy's.

The cost is measured by interleaving sessions with and without samples in one process: the CPU time of the whole process in a step,
and that of the sampler's own thread. The lines are those of three programs, each run once with Kinetoscope and once under py-spy,
which has to be on the path (`pip install py-spy`); without it, only the cost is measured.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import kinetoscope
from benchmarks.demo_overhead import gpt_step
from benchmarks.harness import Result, run
from kinetoscope.collect import ProfilerActivity

LIMIT_PERCENT = 1.0
LIMIT_POINTS = 5.0
PY_SPY_RATE = 400


def sampler_ns() -> int:
    """Return the CPU time of the sampler's thread so far."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text(encoding="utf-8").strip() == "kscope sampler":
            return int((task / "schedstat").read_text(encoding="utf-8").split()[0])
    return 0


def cost(rounds: int, pieces: int) -> Result:
    """Measure what samples add to a step."""
    step = gpt_step()
    for _ in range(5):
        step()
    spent: dict[bool, list[int]] = {True: [], False: []}
    sampler = wall = 0
    for _ in range(rounds):
        for samples in random.sample([True, False], 2):
            with kinetoscope.profile(activities=[ProfilerActivity.CPU], engine="native", samples=samples):
                step()
                began_sampler, began = sampler_ns(), time.perf_counter_ns()
                for _ in range(pieces):
                    before = time.process_time_ns()
                    step()
                    spent[samples].append(time.process_time_ns() - before)
                if samples:
                    sampler += sampler_ns() - began_sampler
                    wall += time.perf_counter_ns() - began
    off = statistics.median(spent[False])
    added = 100 * (statistics.median(spent[True]) / off - 1)
    share = 100 * sampler / wall
    return Result(
        "samples, in the demo's GPT step",
        f"<= {LIMIT_PERCENT:.0f} % of a step",
        f"{share:.2f} %",
        share <= LIMIT_PERCENT,
        [
            f"CPU time of the sampler's thread, of the time of {rounds * pieces} steps; a step takes {off / 1e6:.1f} ms of CPU time",
            f"the whole process, median: {added:+.2f} %; minimum: {100 * (min(spent[True]) / min(spent[False]) - 1):+.2f} %",
        ],
    )


def arithmetic() -> Callable[[], object]:
    """Loops in functions that call each other."""

    def squares(limit: int) -> int:
        total = 0
        for number in range(limit):
            total += number * number
            total %= 1_000_003
        return total

    def collatz(start: int) -> int:
        steps = 0
        while start != 1:
            start = start // 2 if start % 2 == 0 else 3 * start + 1
            steps += 1
        return steps

    def work() -> int:
        total = squares(3000)
        for start in range(1, 60):
            total += collatz(start)
        words = [str(number) for number in range(2000)]
        return total + len("".join(sorted(words)))

    return work


def training() -> Callable[[], object]:
    """A training step whose input is made in Python."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def batch() -> torch.Tensor:
        rows = []
        for row in range(64):
            values = [(row * 31 + column) % 17 / 17 for column in range(64)]
            rows.append(torch.tensor(values))
        return torch.stack(rows)

    def work() -> None:
        inputs = batch()
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()

    return work


def texts() -> Callable[[], object]:
    """Generators, recursion, and C functions that take long."""
    records = [{"name": f"row {number}", "values": list(range(number % 20))} for number in range(200)]

    def tokens(text: str) -> Iterator[str]:
        word = ""
        for letter in text:
            if letter.isalnum():
                word += letter
            elif word:
                yield word
                word = ""

    def depth(node: object) -> int:
        if isinstance(node, dict):
            return 1 + max(map(depth, node.values()))
        if isinstance(node, list):
            return 1 + sum(depth(one) for one in node[:3])
        return 0

    def work() -> int:
        text = json.dumps(records)
        found = Counter(tokens(text))
        parsed = json.loads(text)
        return len(found) + depth(parsed)

    return work


PROGRAMS = {make.__name__: make for make in (arithmetic, training, texts)}


def run_program(name: str, seconds: float, recording: Path | None) -> None:
    """Run a program for some time, with or without a recording; the time begins with a line on standard output."""
    torch.set_num_threads(1)
    work = PROGRAMS[name]()
    work()

    def loop() -> None:
        print("running", flush=True)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            work()

    if recording is None:
        loop()
        return
    with kinetoscope.profile(activities=[ProfilerActivity.CPU], engine="native", path=recording):
        loop()


def started(name: str, seconds: float, *more: str | Path) -> subprocess.Popen[str]:
    """Start a program in a process of its own, and wait until it runs."""
    words = [sys.executable, "-m", "benchmarks.samples", "--program", name, "--seconds", str(seconds), *more]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def own_shares(name: str, seconds: float, folder: Path) -> tuple[dict[str, float], int]:
    """Return the share of each line by Kinetoscope's samples, and how many there are."""
    path = folder / f"{name}.recording"
    started(name, seconds, "--recording", path).wait()
    counts: Counter[str] = Counter()
    for row in (
        kinetoscope.open(path).samples().select(["file", "line", "state", "thread", "stack"]).to_pylist()
    ):
        if row["state"] == "running" and "run_program" in row["stack"]:
            counts[f"{row['file'].rsplit('/', 1)[-1]}:{row['line']}"] += 1
    return shares(counts)


def py_spy_shares(name: str, seconds: float, folder: Path) -> tuple[dict[str, float], int]:
    """Return the share of each line by py-spy's samples, and how many there are."""
    path = folder / f"{name}.txt"
    process = started(name, seconds + 3)
    words = [
        "record",
        "--pid",
        str(process.pid),
        "--rate",
        str(PY_SPY_RATE),
        "--duration",
        str(round(seconds)),
    ]
    subprocess.run(["py-spy", *words, "--format", "raw", "--output", path], check=True, capture_output=True)
    process.kill()
    process.wait()
    counts: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8").splitlines():
        stack, _, count = line.rpartition(" ")
        place = stack.rpartition("(")[2].rstrip(")")
        if "run_program" in stack:
            counts[place.rsplit("/", 1)[-1]] += int(count)
    return shares(counts)


def shares(counts: Counter[str]) -> tuple[dict[str, float], int]:
    """Return the percentage of each line, and the sum."""
    total = sum(counts.values())
    return {line: 100 * count / total for line, count in counts.items()}, total


def lines(name: str, seconds: float) -> Result:
    """Compare the lines of one program."""
    with tempfile.TemporaryDirectory() as folder:
        ours, own_count = own_shares(name, seconds, Path(folder))
        theirs, their_count = py_spy_shares(name, seconds, Path(folder))
    differences = {line: ours.get(line, 0) - theirs.get(line, 0) for line in {*ours, *theirs}}
    most = sorted(differences, key=lambda line: -max(ours.get(line, 0), theirs.get(line, 0)))[:8]
    largest = max(map(abs, differences.values()), default=0.0)
    return Result(
        f"samples by line, {name}",
        f"<= {LIMIT_POINTS:.0f} points from py-spy",
        f"{largest:.1f} points",
        largest <= LIMIT_POINTS,
        [
            f"{own_count} samples, py-spy {their_count}; lines by both: "
            + ", ".join(f"{line} {ours.get(line, 0):.1f}/{theirs.get(line, 0):.1f}" for line in most)
        ],
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options by which the script runs its programs."""
    parser.add_argument("--program", choices=list(PROGRAMS), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--recording", type=Path, help=argparse.SUPPRESS)


def measure(options: argparse.Namespace) -> list[Result]:
    """Measure the cost, and the lines if there is py-spy."""
    if options.program is not None:
        run_program(options.program, options.seconds, options.recording)
        return []
    results = [cost(*((1, 2) if options.quick else (20, 40)))]
    if shutil.which("py-spy") is None:
        print("Samples by line are not compared: py-spy is not on the path.")
        return results
    seconds = 1 if options.quick else 30
    return results + [lines(name, seconds) for name in PROGRAMS]


if __name__ == "__main__":
    run(measure, add_options)
