"""The overhead of recording the demo's GPT (a step of 20 ms or more) with default flags, and any overhead after stop().

The overhead while recording is measured by interleaving in one process. The overhead after stop() is measured by
interleaving a process that has recorded with two others that never have; the second one is the null control.
"""

import multiprocessing
import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from benchmarks.harness import BASELINE, NULL_CONTROL, Result, interleave, reference, report_added, run
from benchmarks.workloads import collecting
from kinetoscope.examples import train_gpt

LIMIT_PERCENT = 2.0
LEAST_STEP_MS = 20.0


def gpt_step(*arguments: str) -> Callable[[], None]:
    """Build the demo's model with the demo's defaults, unless `arguments` say otherwise, and return its training step."""
    options = train_gpt.arguments(list(arguments))
    torch.manual_seed(options.seed)
    text = train_gpt.TrainingText(train_gpt.TEXT_FILE)
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


class Neighbor:
    """A process that runs steps on request; it has recorded before, or never has."""

    def __init__(self, *, recorded: bool) -> None:
        # Forked from a process that has run nothing yet, so that all start in the same state.
        forks = multiprocessing.get_context("fork")
        self.pipe, theirs = forks.Pipe()
        self.process = forks.Process(target=serve, args=(theirs, recorded), daemon=True)
        self.process.start()
        self.ask(0)

    def ask(self, steps: int) -> list[int]:
        """Run `steps` steps in the process; return the CPU time of each in nanoseconds."""
        self.pipe.send(steps)
        return self.pipe.recv()

    def close(self) -> None:
        """End the process."""
        self.pipe.send(None)
        self.process.join()
        self.pipe.close()


def serve(pipe: Connection, recorded: bool) -> None:
    """Run steps on request, in the process of a `Neighbor`."""
    step = gpt_step()
    step()
    if recorded:
        with collecting(theirs=False):
            for _ in range(3):
                step()
    while (steps := pipe.recv()) is not None:
        spent = []
        for _ in range(steps):
            began = time.thread_time_ns()
            step()
            spent.append(time.thread_time_ns() - began)
        pipe.send(spent)


def one_trio(rounds: int, pieces: int) -> tuple[float, float]:
    """Compare a process that has recorded, and a control, with one that never has; return the differences in percent."""
    neighbors = {
        "never": Neighbor(recorded=False),
        "control": Neighbor(recorded=False),
        "after": Neighbor(recorded=True),
    }
    spent: dict[str, list[int]] = {name: [] for name in neighbors}
    for turn in range(rounds):
        names = list(neighbors)
        for name in names[turn % 3 :] + names[: turn % 3]:
            spent[name] += neighbors[name].ask(pieces + 1)[1:]
    for neighbor in neighbors.values():
        neighbor.close()
    base = statistics.median(spent["never"])
    after, control = (100 * (statistics.median(spent[name]) / base - 1) for name in ("after", "control"))
    return after, control


def after_stop(trios: int, rounds: int, pieces: int) -> Result:
    """Compare processes that have recorded with others that never have.

    Processes that run the same program differ by some percent because of their memory layout. So there are several trios,
    and their median is compared with the scatter of the controls.
    """
    after, control = zip(*(one_trio(rounds, pieces) for _ in range(trios)), strict=True)
    remaining = statistics.median(after)
    scatter = statistics.median(abs(value) for value in control)
    return Result(
        "GPT step after stop()",
        "indistinguishable from unprofiled",
        f"{remaining:+.2f} %",
        remaining <= scatter,
        [
            f"each of {trios} processes: {', '.join(f'{value:+.1f}' for value in after)} %",
            f"null controls: {', '.join(f'{value:+.1f}' for value in control)} %; differences up to {scatter:.2f} % are noise",
        ],
    )


def measure(options: Namespace) -> list[Result]:
    """Measure the overhead while recording and after stop()."""
    # First, because it forks this process, which must not have run anything before.
    afterwards = after_stop(*((1, 2, 1) if options.quick else (7, 6, 5)))
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
        recording.notes.append(
            f"the step is SHORTER than the {LEAST_STEP_MS:g} ms that the target is defined for"
        )
    return [recording, afterwards]


if __name__ == "__main__":
    run(measure)
