"""The package in which work of a line is: which of its functions the line calls, which does most of it, and what to call instead."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

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
    took_time = time_ns.nonzero()[0]
    return package_below(trace, took_time, time_ns[took_time])


def package_below(
    trace: TraceData, stack_rows: Rows, time_ns: NDArray[Any], *, with_standard_library: bool = False
) -> CalledPackage | None:
    """The package in which most of the time of some stacks is below the program's own lines; None where that is in none."""
    frame, parent = (trace.column("stacks", name) for name in ("frame", "parent"))
    file, function = (trace.column("frames", name) for name in ("file", "function"))
    is_project = project_frames(trace)
    # For each package the functions of it that the program's line calls, the outermost first, with their time.
    paths_of: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for row, amount_ns in zip(stack_rows.tolist(), time_ns.tolist(), strict=True):
        calls: list[tuple[str, str]] = []
        stack = row
        while stack >= 0 and frame[stack] >= 0 and not is_project[frame[stack]]:
            if package := _package(trace.strings[file[frame[stack]]], with_standard_library):
                calls.append((package, trace.strings[function[frame[stack]]]))
            stack = parent[stack]
        # A thread of the standard library has no line of the program.
        if calls and (stack >= 0 or with_standard_library):
            package, outermost = calls.pop()
            # What has no name of its own is a part of the function around it.
            inner = (name for inside, name in reversed(calls) if inside == package and not name.endswith(">"))
            path = (outermost,) if outermost.endswith(">") else (outermost, *inner)
            paths_of[package][path] += int(amount_ns)
    least_ns = MOSTLY * time_ns.sum()
    package = max(paths_of, key=lambda name: paths_of[name].total(), default="")
    if not package or paths_of[package].total() < least_ns:
        return None
    functions: tuple[str, ...] = ()
    while True:
        inside_ns: Counter[str] = Counter()
        for path, amount_ns in paths_of[package].items():
            if len(path) > len(functions) and path[: len(functions)] == functions:
                inside_ns[path[len(functions)]] += amount_ns
        innermost = max(inside_ns, key=inside_ns.__getitem__, default="")
        if functions and (not innermost or inside_ns[innermost] < least_ns):
            return CalledPackage(package, functions)
        functions += (innermost,)


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
