"""The overhead that the summary of a run prints, against steps of the same program that are not recorded, in turns with those that are.

The summary multiplies the records of the steps by what a record costs, which it finds between two small steps of its own by how far
apart the records lie. Here the truth is known: of the program's steps every other slice is recorded, and what that adds is a share of
the recorded steps.
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
    """The share of a recorded step that recording has by the summary's measure, with its bounds, and the records of a step."""
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
    """Compares each program and set of options."""
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
                    f"overhead printed for the {program}, {flags}",
                    f"within {MOST_OFF:.0%} of the truth",
                    f"{100 * guess:.1f} % printed, {100 * truth:.1f} % measured ({off:.2f} x)",
                    abs(off - 1) <= MOST_OFF,
                    [
                        f"{records} records a step, {cost_ns / max(records, 1):.0f} ns each",
                        f"printed bounds {100 * low:.1f} and {100 * high:.1f} %, {'with' if low <= truth <= high else 'WITHOUT'} the truth",
                        *report_added(times),
                    ],
                )
            )
    return results


if __name__ == "__main__":
    run(measure)
