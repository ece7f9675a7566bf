"""The overhead of recording compiled programs, in both profilers: their graphs are compiled before."""

from argparse import Namespace
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.harness import Result, interleave, ratio_result, report_added, run
from benchmarks.workloads import collecting

LIMIT = 0.5


def trained(backend: str) -> Callable[[], object]:
    """A step of a small model of which the forward and backward are compiled."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)))
    compiled, x = torch.compile(model, backend=backend), torch.randn(32, 64)
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        compiled(x).square().mean().backward()
        optimizer.step()

    return step


def broken() -> Callable[[], object]:
    """Many calls of a function that is compiled in two parts."""

    def in_two_parts(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).relu()
        torch._dynamo.graph_break()
        return (y + 1).sin()

    compiled, x = torch.compile(in_two_parts), torch.randn(64, 64)

    def calls() -> None:
        with torch.no_grad():
            for _ in range(50):
                compiled(x)

    return calls


PROGRAMS: dict[str, Callable[[], Callable[[], object]]] = {
    "a training step, Inductor": lambda: trained("inductor"),
    "a training step, AOTAutograd alone": lambda: trained("aot_eager"),
    "50 calls of a function with a graph break": broken,
}


def measure(options: Namespace) -> list[Result]:
    """Measure each program; quick runs leave out the one that takes longest to compile."""
    results = []
    for name, make in PROGRAMS.items():
        if options.quick and "AOTAutograd" not in name:
            continue
        work = make()
        for _ in range(10):
            work()
        contenders = {
            "kinetoscope": lambda: collecting(theirs=False),
            "torch.profiler": lambda: collecting(theirs=True),
        }
        times = interleave(work, contenders, *((1, 2) if options.quick else (10, 10)))
        result = ratio_result(name, LIMIT, times, "kinetoscope", "torch.profiler")
        result.notes += report_added(times)
        results.append(result)
    return results


if __name__ == "__main__":
    run(measure)
