"""The overhead that the summary of a run estimates, against the overhead measured by interleaving recorded and unrecorded steps.

The summary multiplies the number of records in the steps by the cost of a record, which it calibrates with two small steps of its own.
The measured overhead is the difference between recorded and unrecorded steps, as a share of recorded steps.
"""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from benchmarks.demo_overhead import gpt_step
from benchmarks.harness import BASELINE, Result, added, interleave, report_added, run
from benchmarks.workloads import tiny_training_step
from kinetoscope.collect.session.options import RecordingOptions
from kinetoscope.launcher.options import LaunchOptions
from kinetoscope.launcher.overhead import measure_overhead, spacing_of
from kinetoscope.model.hierarchy import host_work

MOST_OFF = 0.2
PROGRAMS: dict[str, Callable[[], Callable[[], None]]] = {
    "tiny transformer": tiny_training_step,
    "deeper transformer": lambda: tiny_training_step(64, 8),
    "demo's GPT": gpt_step,
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


def measure(options: Namespace) -> list[Result]:
    """Compare estimate and measurement for each program and set of options."""
    results = []
    for program, make in list(PROGRAMS.items())[: 1 if options.quick else None]:
        for flags, launch_options in LAUNCH_OPTIONS.items():
            step = make()
            step()
            rounds, pieces = (2, 2) if options.quick else (12, 8 if program == "demo's GPT" else 40)
            times = interleave(
                step,
                {"recorded": lambda launch_options=launch_options: launch_options.session(None)},
                rounds,
                pieces,
            )
            cost_ns = added(times, "recorded", "cpu", "median")
            recorded_ns = times[BASELINE].median_ns() + cost_ns
            (guess, low, high), records = estimated(launch_options, step, recorded_ns)
            truth = cost_ns / recorded_ns
            off = guess / truth if cost_ns > 0 else float("nan")
            results.append(
                Result(
                    f"estimated overhead of the {program}, {flags}",
                    f"within {MOST_OFF:.0%} of the measured overhead",
                    f"{100 * guess:.1f} % estimated, {100 * truth:.1f} % measured ({off:.2f} x)",
                    abs(off - 1) <= MOST_OFF,
                    [
                        f"{records} records per step, {cost_ns / max(records, 1):.0f} ns each",
                        f"printed bounds {100 * low:.1f} and {100 * high:.1f} %, {'with' if low <= truth <= high else 'WITHOUT'} the truth",
                        *report_added(times),
                    ],
                )
            )
    return results


if __name__ == "__main__":
    run(measure)
