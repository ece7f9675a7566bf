"""The installed package in which work of a line is: which of its functions the line calls, which does most of it, and what to call instead."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.stacks import installed_package, is_library_file, project_frames

MOSTLY = 0.5
"""A package is named from this part of the time on."""
# What any layer, any call and any backward pass goes through says nothing.
_PASSING_ON = (
    "torch/nn/modules/", "torch/nn/functional.py", "torch/nn/parallel/", "torch/utils/_contextlib.py",
    "torch/utils/data/", "torch/_ops.py", "torch/serialization.py", "torch/_tensor.py", "torch/_jit_internal.py",
    "torch/autograd/__init__.py", "torch/autograd/graph.py", "torch/autograd/profiler.py", "torch/optim/",
    "torch/_dynamo/",
)  # fmt: skip
# Functions that do more than most callers need: what to call instead and, where it is known, which part of their time that saves.
_CALLS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("library_calls.json").read_text("utf-8")
)


@dataclass(frozen=True)
class CalledPackage:
    """Functions of an installed package.

    Attributes:
        name: The package, of torch with its part.
        calls: The function that a line of the program calls.
        does: The innermost one in which most of the time is.
    """

    name: str
    calls: str
    does: str

    def __str__(self) -> str:
        """The package and its functions: `torchmetrics: Metric.forward > _binary_clf_curve`."""
        return f"{self.name}: {self.calls}" + (f" > {self.does}" if self.does != self.calls else "")

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
        return _CALLS.get(self.does) or _CALLS.get(self.calls, {})


def called_package(trace: TraceData, rows: Rows) -> CalledPackage | None:
    """The package in which most of some spans ran below the program's own lines; None where that is in none."""
    spans, stacks = trace.columns("spans"), trace.columns("stacks")
    by_stack = Groups(spans["stack"][rows], len(stacks)).sums(spans["duration_ns"][rows])
    parent, frame = stacks["parent"].tolist(), stacks["frame"].tolist()
    is_project, frames = project_frames(trace).tolist(), trace.columns("frames")
    file, function = frames["file"].tolist(), frames["function"].tolist()
    time_ns: Counter[tuple[str, str, str]] = Counter()
    for row in by_stack.nonzero()[0].tolist():
        below: list[tuple[str, str]] = []
        stack = row
        while stack >= 0 and frame[stack] >= 0 and not is_project[frame[stack]]:
            if package := _package(trace.strings[file[frame[stack]]]):
                below.append((package, trace.strings[function[frame[stack]]]))
            stack = parent[stack]
        if below and stack >= 0:
            package, calls = below[-1]
            does = next(name for inner, name in below if inner == package)
            time_ns[package, calls, does] += int(by_stack[row])
    of_package: Counter[str] = Counter()
    for (package, _, _), amount_ns in time_ns.items():
        of_package[package] += amount_ns
    package, most_ns = next(iter(of_package.most_common(1)), ("", 0))
    if not package or most_ns < MOSTLY * by_stack.sum():
        return None
    _, calls, does = max((key for key in time_ns if key[0] == package), key=time_ns.__getitem__)
    return CalledPackage(package, calls, does)


def _package(file: str) -> str:
    """The name of the installed package that a file is in, of torch with the part of it; empty for the program's files and for what only passes calls on."""
    path = file.replace("\\", "/")
    package = installed_package(path)
    if not package or any(f"/{part}" in path for part in _PASSING_ON):
        return ""
    if package != "torch":
        return "" if is_library_file(path) else package
    part = path.rpartition("/torch/")[2].partition("/")[0]
    return f"torch.{part.removesuffix('.py').lstrip('_')}"
