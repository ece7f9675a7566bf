"""The overhead that the summary of a run estimates, against the overhead measured by interleaving recorded and unrecorded steps.

The summary multiplies the number of records in the steps by the cost of a record, which it calibrates with two small steps of its own.
The measured overhead is the difference between recorded and unrecorded steps, as a share of recorded steps. Both are processor time, which other
programs on the machine take least part in. `--runs N` measures N times, beside `--beside` processes that compute, and counts the printed
intervals that do not contain the measured overhead.
"""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from benchmarks.demo_overhead import gpt_step
from benchmarks.harness import (
    BASELINE,
    Result,
    Times,
    added,
    beside,
    interleave,
    interval,
    report_added,
    run,
)
from benchmarks.workloads import tiny_training_step
from kinetoscope.collect.request.options import RecordingOptions
from kinetoscope.launcher.options import LaunchOptions
from kinetoscope.launcher.overhead import measure_overhead, records_of

MOST_OFF = 0.2
# Programs, and the number of rounds of four steps that they need.
PROGRAMS: dict[str, tuple[Callable[[], Callable[[], None]], int]] = {
    "tiny transformer": (tiny_training_step, 60),
    "deeper transformer": (lambda: tiny_training_step(64, 8), 50),
    "wide transformer": (lambda: tiny_training_step(256, 4), 50),
    "demo's GPT": (gpt_step, 50),
}
LAUNCH_OPTIONS = {
    "default": LaunchOptions(prefix=Path("x")),
    "--shapes --memory": LaunchOptions(
        prefix=Path("x"),
        recording=RecordingOptions(
            record_shapes=True, profile_memory=True, with_stack=True, with_modules=True
        ),
    ),
}


def estimated(
    launch_options: LaunchOptions, step: Callable[[], None], steps: int = 40
) -> tuple[tuple[float, float, float], int]:
    """Return the summary's overhead as a share of a step, its bounds, and the number of records per step."""
    with launch_options.session(None) as session:
        for _ in range(steps):
            step()
            session.step()
    records = records_of(session.trace)[0]
    overhead = measure_overhead(launch_options)
    if overhead is None:
        return (0.0, 0.0, 0.0), records.count // steps
    return overhead.share(records), records.count // steps


def true_share(times: dict[str, Times]) -> float:
    """Return the measured overhead as a share of a recorded step."""
    cost_ns = added(times, "recorded", "cpu", "median")
    return cost_ns / (times[BASELINE].median_ns() + cost_ns)


def measure(options: Namespace) -> list[Result]:
    """Compare estimate and measurement for each program and set of options."""
    results = []
    for program, (make, rounds) in list(PROGRAMS.items())[: 1 if options.quick else None]:
        for flags, launch_options in LAUNCH_OPTIONS.items():
            step = make()
            step()
            times = interleave(
                step,
                {"recorded": lambda launch_options=launch_options: launch_options.session(None)},
                2 if options.quick else rounds,
                4,
            )
            truth = true_share(times)
            least, most = interval(times, true_share, ("recorded", BASELINE))
            (guess, low, high), records = estimated(launch_options, step)
            # An estimate can only be judged by a truth that is known better than that.
            known = most - least <= 2 * MOST_OFF * truth
            results.append(
                Result(
                    f"estimated overhead of the {program}, {flags}",
                    f"within {MOST_OFF:.0%} of the measured overhead" if known else "none",
                    f"{100 * guess:.1f} % estimated, {100 * truth:.1f} % measured ({100 * least:.1f} to {100 * most:.1f} %)",
                    abs(guess / truth - 1) <= MOST_OFF if known else None,
                    [
                        f"{records} records per step, {added(times, 'recorded', 'cpu', 'median') / max(records, 1):.0f} ns each",
                        f"printed bounds {100 * low:.1f} and {100 * high:.1f} %, {'with' if low <= most and high >= least else 'WITHOUT'} the truth",
                        *report_added(times),
                    ],
                )
            )
    return results


def covered(options: Namespace) -> list[Result]:
    """Measure and estimate again and again beside other processes, and count the printed intervals that miss the measured overhead."""
    results = []
    for program, (make, _) in list(PROGRAMS.items())[:1]:
        missed, notes = 0, []
        with beside(options.beside):
            for number in range(options.runs):
                step = make()
                step()
                launch_options = LAUNCH_OPTIONS["default"]
                times = interleave(
                    step,
                    {"recorded": lambda launch_options=launch_options: launch_options.session(None)},
                    20,
                    4,
                )
                truth = true_share(times)
                (guess, low, high), _ = estimated(launch_options, step)
                missed += not low <= truth <= high
                print(
                    f"{number}: {guess:.3f} ({low:.3f} to {high:.3f}), measured {truth:.3f}", file=sys.stderr
                )
                notes.append(
                    f"{number}: {100 * guess:.1f} % ({100 * low:.1f} to {100 * high:.1f}) printed, {100 * truth:.1f} % measured, "
                    f"load {os.getloadavg()[0]:.1f}{'' if low <= truth <= high else ' MISSED'}"
                )
        what = f"{options.runs} estimates of the {program} beside {options.beside} processes: intervals without the measured overhead"
        results.append(Result(what, "0", str(missed), missed == 0, notes))
    return results


def options_of(parser: ArgumentParser) -> None:
    """Add how often to measure beside other processes."""
    parser.add_argument("--runs", type=int, default=0, help="only count intervals that miss, in so many runs")
    parser.add_argument(
        "--beside", type=int, default=20, help="processes that compute meanwhile (%(default)s)"
    )


if __name__ == "__main__":
    run(lambda options: covered(options) if options.runs else measure(options), options_of)
