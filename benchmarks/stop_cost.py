"""The time of `stop()` after 200,000 operators, with default flags and with everything on."""

import statistics
from argparse import Namespace

from benchmarks.harness import Result, run, timed
from benchmarks.workloads import EVERYTHING, record_operators, recorder

LIMIT_MS = 1.0


def stop_ms(theirs: bool, operators: int, **flags: bool) -> float:
    """Record operators, and return the time of `stop()` in milliseconds."""
    session = recorder(theirs, **flags)()
    record_operators(session, operators)
    return timed(session.stop)[0] * 1e3


def measure(options: Namespace) -> list[Result]:
    """Measure both settings, and torch.profiler once each for comparison."""
    operators, repeats = (5_000, 2) if options.quick else (200_000, 15)
    results = []
    for label, flags in (("default flags", {}), ("everything on", EVERYTHING)):
        ours = [stop_ms(theirs=False, operators=operators, **flags) for _ in range(repeats)]
        theirs = stop_ms(theirs=True, operators=operators, **flags)
        median = statistics.median(ours)
        notes = [
            (
                f"min {min(ours):.3f} ms, max {max(ours):.3f} ms of {repeats}; torch.profiler {theirs:.0f} ms "
                f"({theirs / median:.0f} times as long)"
            )
        ]
        results.append(
            Result(
                f"stop() after {operators:,} operators, {label}",
                f"<= {LIMIT_MS:g} ms",
                f"{median:.3f} ms",
                median <= LIMIT_MS,
                notes,
            )
        )
    return results


if __name__ == "__main__":
    run(measure)
