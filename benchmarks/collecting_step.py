"""The overhead of recording a training step of tiny operators, against torch.profiler's defaults and with_stack=True.

Kinetoscope records stacks and modules in both comparisons, torch.profiler only in the second. A paused recorder shows what
torch itself spends to call any callback at every operator: the least that a recorder of operators can cost.
"""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity

from benchmarks.harness import Result, interleave, ratio_result, report_added, run
from benchmarks.workloads import collecting, operators_of, recorder, tiny_training_step

PAUSED = "kinetoscope, paused"


@contextmanager
def paused() -> Iterator[None]:
    """Have torch call the recorder at every operator, which records nothing."""
    with recorder(theirs=False)() as session:
        session.toggle_collection_dynamic(False, [ProfilerActivity.CPU])
        yield


def measure(options: Namespace) -> list[Result]:
    """Measure both comparisons in one run."""
    step = tiny_training_step()
    contenders = {
        "kinetoscope": lambda: collecting(theirs=False),
        PAUSED: paused,
        "torch.profiler": lambda: collecting(theirs=True),
        "torch.profiler with_stack": lambda: collecting(theirs=True, with_stack=True),
    }
    for _ in range(20):
        step()
    times = interleave(step, contenders, *((2, 3) if options.quick else (30, 15)))
    plain = ratio_result("recording a step, default flags", 0.5, times, "kinetoscope", "torch.profiler")
    stacks = ratio_result(
        "recording a step, against with_stack=True", 0.3, times, "kinetoscope", "torch.profiler with_stack"
    )
    floor = ratio_result("calling callbacks that record nothing", None, times, PAUSED, "torch.profiler")
    plain.notes += [f"{operators_of(step)} records per step", *report_added(times)]
    return [plain, floor, stacks]


if __name__ == "__main__":
    run(measure)
