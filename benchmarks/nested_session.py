"""The time of `start()` and `stop()` of a session inside a running one, and of torch.profiler's session alone."""

import statistics
import warnings
from argparse import Namespace

import torch

from benchmarks.harness import Result, run, timed
from benchmarks.workloads import recorder

LIMIT_MS = 0.5
SETTINGS: dict[str, dict[str, bool]] = {
    "the same flags": {},
    "shapes besides": {"record_shapes": True},
}


def once_ms(theirs: bool, **flags: bool) -> tuple[float, float]:
    """Return the milliseconds of the start and of the stop of a session with a few operators."""
    session = recorder(theirs, **flags)()
    start_s, _ = timed(session.start)
    torch.ones(3) + 1
    stop_s, _ = timed(session.stop)
    return start_s * 1e3, stop_s * 1e3


def measure(options: Namespace) -> list[Result]:
    """Measure sessions with the flags of the one around them, and with more, taking turns with torch.profiler's."""
    repeats = 10 if options.quick else 300
    results = []
    for label, flags in SETTINGS.items():
        ours, theirs = [], []
        with warnings.catch_warnings():
            # That a recording was not read.
            warnings.simplefilter("ignore")
            for _ in range(repeats):
                with recorder(theirs=False)():
                    once_ms(theirs=False, **flags)
                    ours.append(once_ms(theirs=False, **flags))
                theirs.append(once_ms(theirs=True, **flags))
        starts, stops = (statistics.median(one[part] for one in ours) for part in (0, 1))
        both = statistics.median(start + stop for start, stop in ours)
        of_torch = statistics.median(start + stop for start, stop in theirs)
        results.append(
            Result(
                f"start() and stop() of a session inside another one, {label}",
                f"<= {LIMIT_MS:g} ms",
                f"{both:.3f} ms",
                both <= LIMIT_MS,
                [
                    (
                        f"start {starts:.3f} ms, stop {stops:.3f} ms; torch.profiler alone {of_torch:.2f} ms "
                        f"({of_torch / both:.0f} times as long)"
                    )
                ],
            )
        )
    return results


if __name__ == "__main__":
    run(measure)
