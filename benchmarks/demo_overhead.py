"""A training step of the demo's GPT, 20 ms or more: how much slower under default flags, and whether anything stays after stop.

While recording is measured in slices of one process. What is left after stop() cannot be: a process that has recorded is
compared, slice by slice, with two others that never have (the second one is the null control).
"""

import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

import torch

from benchmarks.harness import BASELINE, NULL_CONTROL, Result, interleave, reference, report_added, run
from benchmarks.workloads import collecting
from kinetoscope.examples import train_gpt

LIMIT_PERCENT = 2.0
LEAST_STEP_MS = 20.0


def gpt_step() -> Callable[[], None]:
    """Builds the demo's model and returns its training step, the batch as large as a step of 20 ms needs."""
    torch.manual_seed(0)
    model = train_gpt.GPT(characters=64, width=128, heads=4, layers=4, context=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(64, (8, 65))

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


class Neighbour:
    """A process that runs slices of steps when told to, one that has recorded before or one that never has."""

    def __init__(self, *, recorded: bool) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.demo_overhead",
            "--child",
            "after" if recorded else "never",
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask(0)

    def ask(self, steps: int) -> list[int]:
        """Lets it run so many steps; returns the CPU time of each in nanoseconds."""
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return [int(word) for word in self.process.stdout.readline().split()]

    def close(self) -> None:
        """Ends it."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def serve(*, recorded: bool) -> None:
    """The other end of `Neighbour`."""
    step = gpt_step()
    step()
    if recorded:
        with collecting(theirs=False):
            for _ in range(3):
                step()
    for line in sys.stdin:
        spent = []
        for _ in range(int(line)):
            began = time.thread_time_ns()
            step()
            spent.append(time.thread_time_ns() - began)
        print(*spent, flush=True)


def after_stop(rounds: int, pieces: int) -> Result:
    """Compares a process that has recorded with two that never have."""
    neighbours = {
        "never": Neighbour(recorded=False),
        "control": Neighbour(recorded=False),
        "after": Neighbour(recorded=True),
    }
    spent: dict[str, list[int]] = {name: [] for name in neighbours}
    for turn in range(rounds):
        names = list(neighbours)
        for name in names[turn % 3 :] + names[: turn % 3]:
            spent[name] += neighbours[name].ask(pieces + 1)[1:]
    for neighbour in neighbours.values():
        neighbour.close()
    base = statistics.median(spent["never"])
    left, control = (100 * (statistics.median(spent[name]) - base) / base for name in ("after", "control"))
    scatter = 100 * statistics.median(abs(value - base) for value in spent["never"]) / base
    within = max(abs(control), scatter)
    return Result(
        "GPT step after stop()",
        "indistinguishable from unprofiled",
        f"{left:+.2f} %",
        left <= within,
        [
            f"null control {control:+.2f} %, usual scatter of a step {scatter:.2f} %: up to {within:.2f} % means nothing"
        ],
    )


def options_of(parser: ArgumentParser) -> None:
    """`--child` is the script calling itself."""
    parser.add_argument("--child", choices=["never", "after"], help="used by the script itself")


def measure(options: Namespace) -> list[Result]:
    """Measures both bars."""
    if options.child:
        serve(recorded=options.child == "after")
        raise SystemExit(0)
    rounds, pieces = (2, 2) if options.quick else (25, 10)
    step = gpt_step()
    for _ in range(5):
        step()
    times = interleave(
        step,
        {
            "kinetoscope": lambda: collecting(theirs=False),
            "torch.profiler": lambda: collecting(theirs=True),
        },
        rounds,
        pieces,
    )
    percent = {
        (clock, name): 100 * (times[name].median_ns(clock) / reference(times, clock, "median") - 1)
        for clock in ("cpu", "wall")
        for name in ("kinetoscope", NULL_CONTROL, "torch.profiler")
    }
    step_ms = times[BASELINE].median_ns() / 1e6
    recording = Result(
        f"GPT step of {step_ms:.1f} ms, default flags",
        f"<= {LIMIT_PERCENT:g} % slower",
        f"{percent['cpu', 'kinetoscope']:+.2f} %",
        percent["cpu", "kinetoscope"] <= LIMIT_PERCENT,
        report_added(times),
    )
    if step_ms < LEAST_STEP_MS:
        recording.notes.append(f"the step is SHORTER than the {LEAST_STEP_MS:g} ms that the bar speaks of")
    return [recording, after_stop(rounds, pieces)]


if __name__ == "__main__":
    run(measure, options_of)
