"""The time from the end of a run to the printed table with torch's collector, for `engine="kineto"` and torch.profiler.

Both include torch's own stop, which nothing can shorten; a note has its time, and the ratio if nothing came after it.
Python's garbage collector runs as in a normal program; a note has the ratio with it off, as in the other benchmarks.
"""

import gc
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
    """The times of one run in seconds, and its number of events."""

    stop_s: float
    table_s: float
    events: int

    @property
    def us_per_event(self) -> float:
        """The total time per event in microseconds."""
        return (self.stop_s + self.table_s) / self.events * 1e6


def stop_to_table(theirs: bool, operators: int, collecting_garbage: bool) -> Times:
    """Record operators, and measure `stop()` and `key_averages().table()`."""
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
    """Add the options for sizes; torch.profiler needs a minute and 5 GB for a million operators."""
    parser.add_argument(
        "--operators",
        type=int,
        default=100_000,
        help="number of operators (default: 100000; the target is for 1000000)",
    )
    parser.add_argument("--rounds", type=int, default=2, help="number of turns of both (default: 2)")


def best_of_both(operators: int, rounds: int, collecting_garbage: bool) -> tuple[Times, Times]:
    """Run both in turns, each first in every other round; return our best run and torch's."""
    runs: dict[bool, list[Times]] = {False: [], True: []}
    for number in range(rounds):
        for theirs in (False, True) if number % 2 else (True, False):
            runs[theirs].append(stop_to_table(theirs, operators, collecting_garbage))
    ours, torchs = (min(runs[theirs], key=lambda times: times.us_per_event) for theirs in (False, True))
    return ours, torchs


def measure(options: Namespace) -> list[Result]:
    """Measure with the garbage collector on, compared with the target, and off."""
    operators = 5_000 if options.quick else options.operators
    # Warm-up: the first run of either imports and loads libraries.
    for theirs in (False, True):
        stop_to_table(theirs, 2_000, collecting_garbage=True)
    ours, torchs = best_of_both(operators, options.rounds, collecting_garbage=True)
    held_ours, held_torchs = best_of_both(operators, options.rounds, collecting_garbage=False)
    factor = torchs.us_per_event / ours.us_per_event
    notes = [
        (
            f"us per event: kinetoscope {ours.us_per_event:.2f} (stop {ours.stop_s / ours.events * 1e6:.2f}), torch.profiler "
            f"{torchs.us_per_event:.2f} (stop {torchs.stop_s / torchs.events * 1e6:.2f}); best of {options.rounds} each"
        ),
        f"with torch's own stop alone it would be 1/{torchs.us_per_event / (ours.stop_s / ours.events * 1e6):.1f}",
        f"with the garbage collector off: 1/{held_torchs.us_per_event / held_ours.us_per_event:.1f}",
    ]
    return [
        Result(
            f"Kineto engine: stop() and key_averages().table(), {ours.events:,} events",
            f"<= 1/{FACTOR} of torch.profiler",
            f"1/{factor:.1f}",
            factor >= FACTOR,
            notes,
        )
    ]


if __name__ == "__main__":
    run(measure, options_of)
