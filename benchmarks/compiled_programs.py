"""The overhead of recording compiled programs, in both profilers, and the shares of modules in a model that is compiled whole."""

import statistics
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable

import torch

import kinetoscope
from benchmarks.floor import FLOOR, against_the_floor, empty_callbacks
from benchmarks.harness import Result, interleave, ratio_result, report_added, run
from benchmarks.workloads import collecting, recorder
from tests.support.compiled_programs import PROGRAMS, WIDTH, Transformer

LIMIT = 0.5
MOST_POINTS = 5
Shares = dict[tuple[str, str], float]


def overheads(options: Namespace) -> list[Result]:
    """Measure recording each program, whose graphs are compiled before; quick runs measure the one that compiles fastest."""
    results = []
    for program in PROGRAMS[-1:] if options.quick else PROGRAMS:
        work = program.compiled()
        for _ in range(10):
            work()
        contenders = {
            "kinetoscope": lambda: collecting(theirs=False),
            FLOOR: empty_callbacks,
            "torch.profiler": lambda: collecting(theirs=True),
        }
        times = interleave(work, contenders, *((1, 2) if options.quick else (10, 20)))
        result = ratio_result(program.name, LIMIT, times, "kinetoscope", "torch.profiler")
        result.notes += report_added(times)
        results += [result, *against_the_floor(program.name, times, "kinetoscope", "torch.profiler")]
    return results


def shares(step: Callable[[], object], repeats: int) -> Shares:
    """The share of each module in forward and backward, in percent: the median of some recordings."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(repeats):
        with recorder(theirs=False)() as session:
            for _ in range(5):
                step()
        rows = session.trace.table("modules").to_pylist()  # type: ignore[union-attr]
        for phase in ("forward", "backward"):
            whole = sum(row[f"{phase}_self_ns"] for row in rows)
            for row in rows:
                path = row["path"].removeprefix("_orig_mod.")
                found[phase, path].append(100 * row[f"{phase}_self_ns"] / whole)
    return {key: statistics.median(values) for key, values in found.items()}


def module_shares(options: Namespace) -> list[Result]:
    """Compare a block that is compiled whole with one whose innermost modules are compiled one by one."""
    kinetoscope.profile()
    whole, parts = Transformer(causal=True), Transformer(causal=True)
    for module in parts.modules():
        if not list(module.children()):
            module.compile()
    x = torch.randn(16, 256, WIDTH)
    found: list[Shares] = []
    for call in (torch.compile(whole), parts):

        def step(call: Callable[[torch.Tensor], torch.Tensor] = call) -> None:
            call(x).sum().backward()

        for _ in range(3):
            step()
        found.append(shares(step, 1 if options.quick else 9))
    together, apart = found
    leaves = [name for name, module in parts.named_modules() if not list(module.children())]
    differences = {
        (phase, leaf): together[phase, leaf] - apart[phase, leaf]
        for phase in ("forward", "backward")
        for leaf in leaves
    }
    worst = max(differences.values(), key=abs)
    notes = [
        f"{phase} {leaf}: {together[phase, leaf]:.1f} % compiled whole, {apart[phase, leaf]:.1f} % one by one"
        for phase, leaf in differences
    ]
    what = "shares of modules of a compiled block"
    target = f"within {MOST_POINTS} points of modules compiled one by one"
    return [Result(what, target, f"{abs(worst):.1f} points", abs(worst) <= MOST_POINTS, notes)]


def measure(options: Namespace) -> list[Result]:
    """Measure both."""
    return [*module_shares(options), *overheads(options)]


if __name__ == "__main__":
    run(measure)
