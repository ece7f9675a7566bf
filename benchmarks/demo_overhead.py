"""A training step of the demo's GPT, 20 ms or more: how much slower under default flags, and whether anything stays after stop.

While recording is measured in slices of one process. What is left after stop() cannot be: a process that has recorded is
compared, slice by slice, with two others that never have (the second one is the null control), several times over.
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
    """Builds the demo's model with the demo's own defaults and returns its training step."""
    options = train_gpt.arguments([])
    torch.manual_seed(options.seed)
    text = train_gpt.Text(train_gpt.TEXT_FILE)
    model = train_gpt.GPT(len(text.alphabet), options.width, options.heads, options.layers, options.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)

    def step() -> None:
        inputs, targets = text.batch(options.batch, options.context)
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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


def one_trio(rounds: int, pieces: int) -> tuple[float, float]:
    """Starts two processes that never record and one that has; returns by how many percent it and the control differ."""
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
    after, control = (100 * (statistics.median(spent[name]) / base - 1) for name in ("after", "control"))
    return after, control


def after_stop(trios: int, rounds: int, pieces: int) -> Result:
    """Compares processes that have recorded with others that never have.

    Two processes that run the same program differ by some percent all their lives, by where their memory happens to lie. So
    there are several trios, and what counts is the median over them beside how far the controls are scattered.
    """
    after, control = zip(*(one_trio(rounds, pieces) for _ in range(trios)), strict=True)
    left = statistics.median(after)
    scatter = statistics.median(abs(value) for value in control)
    return Result(
        "GPT step after stop()",
        "indistinguishable from unprofiled",
        f"{left:+.2f} %",
        left <= scatter,
        [
            f"each of {trios} processes: {', '.join(f'{value:+.1f}' for value in after)} %",
            f"null controls: {', '.join(f'{value:+.1f}' for value in control)} %; up to {scatter:.2f} % means nothing",
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
    rounds, pieces = (1, 2) if options.quick else (20, 10)
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
    return [recording, after_stop(*((1, 2, 1) if options.quick else (7, 6, 5)))]


if __name__ == "__main__":
    run(measure, options_of)
