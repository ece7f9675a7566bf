"""The overhead that the summary of a run estimates, against the overhead measured by interleaving recorded and unrecorded steps.

The summary multiplies the number of records in the steps by the cost of a record, which it calibrates with two small steps of its own.
The measured overhead is the difference between recorded and unrecorded steps, as a share of recorded steps.
"""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from benchmarks.demo_overhead import gpt_step
from benchmarks.harness import BASELINE, Result, Times, added, interleave, interval, report_added, run
from benchmarks.workloads import tiny_training_step
from kinetoscope.collect.session.options import RecordingOptions
from kinetoscope.launcher.options import LaunchOptions
from kinetoscope.launcher.overhead import measure_overhead, spacing_of
from kinetoscope.model.hierarchy import host_work

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
    launch_options: LaunchOptions, step: Callable[[], None], whole_ns: float
) -> tuple[tuple[float, float, float], int]:
    """Return the summary's overhead as a share of a step, its bounds, and the number of records per step."""
    session, steps = launch_options.session(None), 4
    with session:
        for _ in range(steps):
            step()
    counts = host_work(session.trace).mask
    records = int(counts.sum()) // steps
    overhead = measure_overhead(launch_options)
    if overhead is None:
        return (0.0, 0.0, 0.0), records
    return overhead.share(records, spacing_of(session.trace, counts), round(whole_ns)), records


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
            (guess, low, high), records = estimated(launch_options, step, times["recorded"].median_ns())
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


if __name__ == "__main__":
    run(measure)
