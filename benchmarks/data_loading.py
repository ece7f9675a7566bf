"""The overhead of recording data loading, in a loop over tiny batches, without workers and with two.

A batch is four numbers, so nearly all of the time is the loader's own; real loops do more per batch. With workers, wall
time is mostly waiting, so processor time is measured: that of the loop's thread, and that of the workers, which is
available when they have exited.
"""

import random
import statistics
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from resource import RUSAGE_CHILDREN, getrusage
from time import perf_counter_ns, thread_time_ns

from torch.profiler import ProfilerActivity
from torch.utils.data import DataLoader, Dataset

import kinetoscope
from benchmarks.harness import BASELINE, NULL_CONTROL, Result, added, interleave, report_added, run
from benchmarks.workloads import collecting

BATCH = 4
OURS, BARE, IDLE = (
    "kinetoscope with DataLoading",
    "kinetoscope",
    "kinetoscope with DataLoading, not recording",
)
THEIRS = "torch.profiler"
# 1 % of the step of a fast loop, which takes a millisecond.
LIMIT_US = 10.0
WORKER_PERCENT = 10.0


class Numbers(Dataset[int]):
    """Samples that take almost no time."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.length

    def __getitem__(self, index: int) -> int:
        """Return one sample."""
        return index


def epoch(batches: int, workers: int) -> Callable[[], None]:
    """Return a function that runs one loop over the batches."""
    context = "fork" if workers else None
    loader = DataLoader(Numbers(BATCH * batches), BATCH, num_workers=workers, multiprocessing_context=context)

    def loop() -> None:
        for _ in loader:
            pass

    return loop


@contextmanager
def not_recording() -> Iterator[None]:
    """Open a session that does not record, as between cycles."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nothing was recorded")
        with kinetoscope.profile(
            activities=[ProfilerActivity.CPU],
            schedule=lambda _step: kinetoscope.ProfilerAction.NONE,
            sources=[kinetoscope.DataLoading()],
        ):
            yield


def contenders() -> dict[str, Callable[[], AbstractContextManager[object]]]:
    """Return the contenders."""
    return {
        OURS: lambda: collecting(theirs=False, sources=[kinetoscope.DataLoading()]),
        BARE: lambda: collecting(theirs=False),
        IDLE: not_recording,
        THEIRS: lambda: collecting(theirs=True),
    }


def without_workers(batches: int, rounds: int) -> Result:
    """Measure the overhead per batch without workers."""
    times = interleave(epoch(batches, 0), contenders(), rounds, 2)
    each_us = {name: added(times, name, "cpu", "median") / batches / 1e3 for name in times}
    notes = [f"{name}: {each_us[name]:+.2f} us per batch" for name in times if name != BASELINE]
    return Result(
        "recording data loading, no workers",
        f"<= {LIMIT_US:g} us per batch",
        f"{each_us[OURS]:.1f} us; torch.profiler {each_us[THEIRS]:.1f} us",
        each_us[OURS] <= LIMIT_US,
        [*notes, *report_added(times)],
    )


def of_children_s() -> float:
    """Return the processor time of all exited children."""
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def with_workers(batches: int, rounds: int) -> Result:
    """Measure the overhead in processor time of two workers; note that of the loop, and wall time."""
    everyone = {BASELINE: nullcontext, NULL_CONTROL: nullcontext, **contenders()}
    loop, order = epoch(batches, 2), list(everyone)
    spent: dict[str, list[tuple[float, float, float]]] = {name: [] for name in order}
    generator = random.Random(1)
    for _ in range(rounds):
        generator.shuffle(order)
        for name in order:
            with everyone[name]():
                before, cpu, wall = of_children_s(), thread_time_ns(), perf_counter_ns()
                loop()
                cpu, wall, after = thread_time_ns() - cpu, perf_counter_ns() - wall, of_children_s()
            workers_s = after - before
            spent[name].append((workers_s * 1e6 / batches, cpu / 1e3 / batches, wall / 1e3 / batches))
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)]
        for name, rows in spent.items()
    }
    base = medians[BASELINE]
    notes = [
        f"{name}: a batch takes {workers:.0f} us of the workers' processors, {cpu:.0f} us of the loop's, {wall:.0f} us by the wall"
        for name, (workers, cpu, wall) in medians.items()
    ]
    percent, null = (100 * (medians[name][0] - base[0]) / base[0] for name in (OURS, NULL_CONTROL))
    return Result(
        "recording data loading, two workers",
        f"<= {WORKER_PERCENT:g} % of their processor time",
        f"{percent:+.1f} % (null control {null:+.1f} %)",
        percent <= WORKER_PERCENT,
        notes,
    )


def measure(options: Namespace) -> list[Result]:
    """Measure both."""
    if options.quick:
        return [without_workers(100, 2), with_workers(20, 1)]
    return [without_workers(10_000, 10), with_workers(2_000, 7)]


if __name__ == "__main__":
    run(measure)
