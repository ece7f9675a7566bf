"""The cost of `with_stack=True` after recording: the table and the Chrome trace with Python calls."""

import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Result, run, timed
from benchmarks.workloads import record_operators, recorder

# Fractions of torch.profiler's time. torch.profiler records every call; ours are those that ran operators.
LIMITS = {"key_averages().table()": 1 / 10, "export_chrome_trace()": 1 / 3}


def seconds(theirs: bool, operators: int, finish: Callable[[Any], object]) -> float:
    """Record operators with stacks, and return the time from stop() to the result in seconds."""
    session = recorder(theirs, with_stack=True)()
    record_operators(session, operators)

    def rest() -> None:
        session.stop()
        finish(session)

    return timed(rest)[0]


def options_of(parser: ArgumentParser) -> None:
    """Add the option for the size, for machines with little memory."""
    parser.add_argument("--ops", type=int, default=20_000, help="number of operators that both record")


def measure(options: Namespace) -> list[Result]:
    """Measure both in turns, and compare the medians."""
    operators, rounds = (1_000, 1) if options.quick else (options.ops, 3)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder, "trace.json"))

        def exported(session: Any) -> None:
            session.export_chrome_trace(target)
            os.unlink(target)

        finishes: dict[str, Callable[[Any], object]] = {
            "key_averages().table()": lambda session: session.key_averages().table(),
            "export_chrome_trace()": exported,
        }
        for what, finish in finishes.items():
            pairs = [
                (seconds(False, operators, finish), seconds(True, operators, finish)) for _ in range(rounds)
            ]
            ours, theirs = (median(values) for values in zip(*pairs, strict=True))
            results.append(
                Result(
                    f"stop() and {what} with stacks, {operators:,} operators",
                    f"<= {LIMITS[what]:.2f} of torch.profiler",
                    f"{ours / theirs:.3f}",
                    ours / theirs <= LIMITS[what],
                    [f"kinetoscope {ours * 1e3:.0f} ms, torch.profiler {theirs * 1e3:.0f} ms"],
                )
            )
    return results


if __name__ == "__main__":
    run(measure, options_of)
