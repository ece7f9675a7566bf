"""The overhead of recording every Python call, for calls of empty functions, C functions and generators, and a training step.

Both profilers record all calls, torch.profiler with with_stack=True. For comparison, Kinetoscope also runs without recording
calls, and with module calls only; the former installs no hook, so its overhead per call is that of the null control.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator

from benchmarks.harness import BASELINE, Result, added, interleave, ratio_result, report_added, run
from benchmarks.workloads import collecting, tiny_training_step

# The usual target, half of torch.profiler's overhead. Most of the cost here is the interpreter's, which calls a hook for each
# call in both profilers.
LIMIT = 0.5


def empty() -> None:
    """Do nothing; the function to call."""


def numbers(count: int) -> Iterator[int]:
    """Yield `count` numbers."""
    yield from range(count)


def python_calls(count: int) -> None:
    """Call a Python function repeatedly."""
    for _ in range(count):
        empty()


def c_calls(count: int) -> None:
    """Call a fast C function repeatedly."""
    for _ in range(count):
        isinstance(count, int)


def generator_runs(count: int) -> None:
    """Resume a generator repeatedly."""
    for _ in numbers(count):
        pass


CALLS: dict[str, Callable[[int], None]] = {
    "a call of a Python function": python_calls,
    "a call of a C function": c_calls,
    "resuming a generator": generator_runs,
}


def measure(options: Namespace) -> list[Result]:
    """Measure the three kinds of calls, then the training step."""
    contenders = {
        "kinetoscope": lambda: collecting(theirs=False),
        "module_spans": lambda: collecting(theirs=False, module_spans=True),
        "python_calls": lambda: collecting(theirs=False, python_calls=True),
        "torch.profiler with_stack": lambda: collecting(theirs=True, with_stack=True),
    }
    rounds, pieces = (2, 3) if options.quick else (20, 10)
    count = 1_000 if options.quick else 20_000
    results = []
    for what, work in CALLS.items():
        times = interleave(lambda work=work: work(count), contenders, rounds, pieces)  # type: ignore[misc]
        result = ratio_result(f"recording {what}", LIMIT, times, "python_calls", "torch.profiler with_stack")
        each = {name: added(times, name, "cpu", "median") / count for name in times if name != BASELINE}
        result.notes.append("ns each: " + ", ".join(f"{name} {ns:+.0f}" for name, ns in each.items()))
        results.append(result)
    step = tiny_training_step()
    for _ in range(20):
        step()
    times = interleave(step, contenders, *((2, 3) if options.quick else (30, 15)))
    result = ratio_result(
        "recording a step with all Python calls", LIMIT, times, "python_calls", "torch.profiler with_stack"
    )
    result.notes += report_added(times)
    return [*results, result]


if __name__ == "__main__":
    run(measure)
