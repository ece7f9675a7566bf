"""The overhead of recording a training step of tiny operators, against torch.profiler's defaults and with_stack=True.

Kinetoscope records stacks and modules in both comparisons, torch.profiler only in the second. Empty callbacks show what
torch itself spends to call any callback at every operator: the least that a recorder of operators can cost.
"""

from argparse import Namespace

from benchmarks.floor import FLOOR, against_the_floor, empty_callbacks
from benchmarks.harness import Result, interleave, ratio_result, report_added, run
from benchmarks.workloads import collecting, operators_of, tiny_training_step


def measure(options: Namespace) -> list[Result]:
    """Measure both comparisons in one run."""
    step = tiny_training_step()
    contenders = {
        "kinetoscope": lambda: collecting(theirs=False),
        FLOOR: empty_callbacks,
        "torch.profiler": lambda: collecting(theirs=True),
        "torch.profiler with_stack": lambda: collecting(theirs=True, with_stack=True),
    }
    for _ in range(20):
        step()
    times = interleave(step, contenders, *((2, 3) if options.quick else (40, 15)))
    plain = ratio_result("recording a step, default flags", 0.45, times, "kinetoscope", "torch.profiler")
    stacks = ratio_result(
        "recording a step, against with_stack=True", 0.3, times, "kinetoscope", "torch.profiler with_stack"
    )
    floor = against_the_floor("recording a step", times, "kinetoscope", "torch.profiler")
    plain.notes += [f"{operators_of(step)} records per step", *report_added(times)]
    return [plain, *floor, stacks]


if __name__ == "__main__":
    run(measure)
