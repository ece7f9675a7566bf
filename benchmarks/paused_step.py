"""What a step costs while a session is paused by `toggle_collection_dynamic(False)`, against no profiler, and against torch.profiler paused."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity

from benchmarks.harness import BASELINE, Result, Times, added, interleave, interval, report_added, run
from benchmarks.workloads import recorder, tiny_training_step

MOST_PERCENT = 0.3


@contextmanager
def paused(theirs: bool) -> Iterator[object]:
    """A session that is paused for all of a slice."""
    with recorder(theirs)() as session:
        session.toggle_collection_dynamic(False, [ProfilerActivity.CPU])
        yield session


def percent_of(times: dict[str, Times], name: str) -> float:
    """Return what a contender adds, as a percentage of a step."""
    return 100 * added(times, name, "cpu", "median") / times[BASELINE].median_ns()


def measure(options: Namespace) -> list[Result]:
    """Measure both profilers in one run."""
    step = tiny_training_step(layers=1)
    for _ in range(20):
        step()
    contenders = {"kinetoscope": lambda: paused(theirs=False), "torch.profiler": lambda: paused(theirs=True)}
    times = interleave(step, contenders, *((2, 3) if options.quick else (60, 40)))
    results = []
    for name, limit in (("kinetoscope", MOST_PERCENT), ("torch.profiler", None)):
        share = percent_of(times, name)
        low, high = interval(times, lambda drawn, name=name: percent_of(drawn, name), (name, BASELINE))
        results.append(
            Result(
                f"a step while {name} is paused",
                "none" if limit is None else f"<= {limit} % of a step",
                f"{share:+.2f} % ({low:+.2f} to {high:+.2f} %)",
                None if limit is None else share <= limit,
                report_added(times) if limit is not None else [],
            )
        )
    return results


if __name__ == "__main__":
    run(measure)
