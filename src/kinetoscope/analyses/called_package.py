"""The package in which work of a line is: which of its functions the line calls, which does most of it, and what to call instead."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.stacks import installed_package, is_library_file, project_frames, standard_module

MOSTLY = 0.5
"""A package is named from this part of the time on."""
# What any layer, any call and any backward pass goes through says nothing.
_PASSING_ON = (
    "torch/nn/modules/", "torch/nn/functional.py", "torch/nn/parallel/", "torch/utils/_contextlib.py",
    "torch/utils/data/", "torch/_ops.py", "torch/serialization.py", "torch/_tensor.py", "torch/_jit_internal.py",
    "torch/autograd/__init__.py", "torch/autograd/graph.py", "torch/autograd/profiler.py", "torch/optim/",
    "torch/_dynamo/",
    "contextlib.py", "functools.py", "runpy.py", "threading.py",
)  # fmt: skip
# Functions that do more than most callers need: what to call instead and, where it is known, which part of their time that saves.
_CALLS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("library_calls.json").read_text("utf-8")
)


@dataclass(frozen=True)
class CalledPackage:
    """Functions of an installed package, or of a module of the standard library.

    Attributes:
        name: The package, of torch with its part.
        functions: The one that a line of the program calls, the one that this one spends most of the time in, and so on.
    """

    name: str
    functions: tuple[str, ...]

    def __str__(self) -> str:
        """The package with the first and the last function: `torchmetrics: Metric.forward > _binary_clf_curve`."""
        return f"{self.name}: {' > '.join(dict.fromkeys((self.functions[0], self.functions[-1])))}"

    @property
    def advice(self) -> str:
        """What to call instead; empty where that is not known."""
        return str(self._facts.get("advice", ""))

    @property
    def saves(self) -> float:
        """Which part of the time that saves; 0 where that is not known."""
        return float(self._facts.get("saves", 0.0))

    @property
    def _facts(self) -> dict[str, Any]:
        return next((_CALLS[name] for name in reversed(self.functions) if name in _CALLS), {})


def called_package(trace: TraceData, rows: Rows) -> CalledPackage | None:
    """The installed package in which most of some spans ran below the program's own lines; None where that is in none."""
    spans, stacks = trace.columns("spans"), trace.columns("stacks")
    time_ns = Groups(spans["stack"][rows], len(stacks)).sums(spans["duration_ns"][rows])
    return package_below(trace, dict(zip(time_ns.nonzero()[0].tolist(), time_ns[time_ns > 0], strict=True)))


def package_below(
    trace: TraceData, time_ns: Mapping[int, float], *, with_standard_library: bool = False
) -> CalledPackage | None:
    """The package in which most of the time of some stacks is below the program's own lines; None where that is in none."""
    stacks, frames = trace.columns("stacks"), trace.columns("frames")
    is_project = project_frames(trace)
    paths: Counter[tuple[tuple[str, str], ...]] = Counter()
    for row, amount_ns in time_ns.items():
        path: list[tuple[str, str]] = []
        stack = row
        while stack >= 0 and (frame := stacks["frame"][stack]) >= 0 and not is_project[frame]:
            if package := _package(trace.strings[frames["file"][frame]], with_standard_library):
                path.append((package, trace.strings[frames["function"][frame]]))
            stack = stacks["parent"][stack]
        # A thread of the standard library has no line of the program.
        if path and (stack >= 0 or with_standard_library):
            package = path[-1][0]
            paths[tuple(step for step in reversed(path) if step[0] == package)] += int(amount_ns)
    least_ns = MOSTLY * sum(time_ns.values())
    by_package = _sums(paths, lambda path: path[0][0])
    package = max(by_package, key=by_package.__getitem__, default="")
    if not package or by_package[package] < least_ns:
        return None
    paths = Counter({path: amount_ns for path, amount_ns in paths.items() if path[0][0] == package})
    by_call = _sums(paths, lambda path: path[0][1])
    functions = [max(by_call, key=by_call.__getitem__)]
    while True:
        inside = _sums(paths, lambda path: _next_function(path, functions))
        inside.pop("", None)
        function = max(inside, key=inside.__getitem__, default="")
        if not function or inside[function] < least_ns:
            return CalledPackage(package, tuple(functions))
        functions.append(function)


def _sums(paths: Counter[Any], key: Callable[[Any], str]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for path, amount_ns in paths.items():
        sums[key(path)] += amount_ns
    return sums


def _next_function(path: tuple[tuple[str, str], ...], functions: list[str]) -> str:
    """What a path calls after some functions; empty where it calls others, or nothing more that has a name."""
    names = [name for _, name in path if not name.endswith(">")]
    is_longer = len(names) > len(functions) and names[: len(functions)] == functions
    return names[len(functions)] if is_longer else ""


def _package(file: str, with_standard_library: bool) -> str:
    """The name of the package that a file is in, of torch with the part of it; empty for the program's files and for what only passes calls on."""
    path = file.replace("\\", "/")
    package = installed_package(path) or (standard_module(path) if with_standard_library else "")
    if not package or any(f"/{part}" in path for part in _PASSING_ON):
        return ""
    if package != "torch":
        return "" if is_library_file(path) else package
    part = path.rpartition("/torch/")[2].partition("/")[0]
    return f"torch.{part.removesuffix('.py').lstrip('_')}"
