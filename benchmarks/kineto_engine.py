"""From the end of a run to the printed table where torch's own collector recorded for both: `engine="kineto"` and torch.profiler.

Both pay what torch's stop takes, which no reader can save: it is measured on its own and noted, with what the ratio would
be if nothing came after it. Python's garbage collector runs as it does in a program; what the ratio is with it held back,
as the other benchmarks hold it, is noted too.
"""

import gc
import statistics
import time
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass

from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

import kinetoscope
from benchmarks.harness import Result, run
from benchmarks.workloads import record_operators

FACTOR = 15
CPU = [ProfilerActivity.CPU]


@dataclass(frozen=True)
class Times:
    """What one run took, in seconds, and how many events it had."""

    stop_s: float
    table_s: float
    events: int

    @property
    def us_per_event(self) -> float:
        """All of it for one event."""
        return (self.stop_s + self.table_s) / self.events * 1e6


def stop_to_table(theirs: bool, operators: int, collecting_garbage: bool) -> Times:
    """Records about so many operators and times `stop()` and `key_averages().table()`."""
    session = (
        torch_profile(activities=CPU) if theirs else kinetoscope.profile(activities=CPU, engine="kineto")
    )
    record_operators(session, operators)
    gc.collect()
    if not collecting_garbage:
        gc.disable()
    began = time.perf_counter()
    session.stop()
    stopped = time.perf_counter()
    session.key_averages().table(sort_by="self_cpu_time_total")
    ended = time.perf_counter()
    gc.enable()
    events = len(session.events())
    del session
    gc.collect()
    return Times(stopped - began, ended - stopped, events)


def options_of(parser: ArgumentParser) -> None:
    """torch.profiler needs a minute and 5 GB for a million."""
    parser.add_argument(
        "--operators",
        type=int,
        default=100_000,
        help="how many to record (default: 100000; the bar: 1000000)",
    )
    parser.add_argument("--rounds", type=int, default=2, help="how often both take turns (default: 2)")


def measure(options: Namespace) -> list[Result]:
    """Lets the two take turns, each first in every other round."""
    operators = 5_000 if options.quick else options.operators
    # The first run of either loads what it needs.
    for theirs in (False, True):
        stop_to_table(theirs, 2_000, collecting_garbage=True)
    results = []
    for collecting, label in ((True, ""), (False, ", garbage collector held back")):
        runs: dict[bool, list[Times]] = {False: [], True: []}
        for number in range(options.rounds):
            for theirs in (False, True) if number % 2 else (True, False):
                runs[theirs].append(stop_to_table(theirs, operators, collecting))
        ours, torchs = (min(runs[theirs], key=lambda times: times.us_per_event) for theirs in (False, True))
        factor = torchs.us_per_event / ours.us_per_event
        least = statistics.fmean(times.stop_s / times.events * 1e6 for times in runs[False])
        results.append(
            Result(
                f"Kineto engine: stop() and key_averages().table(), {ours.events:,} events{label}",
                f"<= 1/{FACTOR} of torch.profiler",
                f"1/{factor:.1f}",
                factor >= FACTOR if collecting else None,
                [
                    (
                        f"us an event: kinetoscope {ours.us_per_event:.2f} (stop {ours.stop_s / ours.events * 1e6:.2f}), "
                        f"torch.profiler {torchs.us_per_event:.2f} (stop {torchs.stop_s / torchs.events * 1e6:.2f}); "
                        f"best of {options.rounds} each"
                    ),
                    f"torch's own stop alone would leave 1/{torchs.us_per_event / least:.1f}",
                ],
            )
        )
    return results


if __name__ == "__main__":
    run(measure, options_of)
