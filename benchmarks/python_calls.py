"""What recording every Python call adds: to calls of empty functions, C functions and generators, and to a training step.

Both sides record all calls, torch.profiler by with_stack=True. Ours without calls, and with the exact spans of module
calls only, stand beside them: the first installs nothing, so what it adds to a call is the null control's.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator

from benchmarks.harness import BASELINE, Result, added, interleave, ratio_result, report_added, run
from benchmarks.workloads import collecting, tiny_training_step

# Half of theirs is what this project asks of all that collects. Most of the cost here is the interpreter's, which tells
# of each call, and both sides pay that.
LIMIT = 0.5


def empty() -> None:
    """What is called."""


def numbers(count: int) -> Iterator[int]:
    """A generator that runs `count` times."""
    yield from range(count)


def python_calls(count: int) -> None:
    """Calls a function in Python."""
    for _ in range(count):
        empty()


def c_calls(count: int) -> None:
    """Calls a quick function in C."""
    for _ in range(count):
        isinstance(count, int)


def generator_runs(count: int) -> None:
    """Runs a generator from value to value."""
    for _ in numbers(count):
        pass


CALLS: dict[str, Callable[[int], None]] = {
    "a call of a Python function": python_calls,
    "a call of a C function": c_calls,
    "a run of a generator": generator_runs,
}


def measure(options: Namespace) -> list[Result]:
    """Measures the three kinds of calls, then the training step."""
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
        "collecting a step with all Python calls", LIMIT, times, "python_calls", "torch.profiler with_stack"
    )
    result.notes += report_added(times)
    return [*results, result]


if __name__ == "__main__":
    run(measure)
