"""The overhead of recording with shapes, memory, stacks and modules on, in both profilers."""

from argparse import Namespace

from benchmarks.harness import Result, interleave, ratio_result, report_added, run
from benchmarks.workloads import EVERYTHING, collecting, tiny_training_step


def measure(options: Namespace) -> list[Result]:
    """Measure the overhead."""
    step = tiny_training_step()
    for _ in range(20):
        step()
    contenders = {
        "kinetoscope": lambda: collecting(theirs=False, **EVERYTHING),
        "torch.profiler": lambda: collecting(theirs=True, **EVERYTHING),
    }
    times = interleave(step, contenders, *((2, 3) if options.quick else (20, 10)))
    result = ratio_result("recording a step, everything on", 0.35, times, "kinetoscope", "torch.profiler")
    result.notes += report_added(times)
    return [result]


if __name__ == "__main__":
    run(measure)
