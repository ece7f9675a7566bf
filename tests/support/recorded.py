"""What the recorder's tests ask of a trace."""

from __future__ import annotations

from typing import Any

import kinetoscope
from kinetoscope import ProfilerActivity, Trace

CPU = [ProfilerActivity.CPU]


def profile(**options: Any) -> kinetoscope.profile:
    return kinetoscope.profile(activities=CPU, engine="native", **options)


def named(trace: Trace, name: str) -> list[int]:
    """Rows of the spans with this name."""
    wanted = trace.strings.index(name)
    return [row for row, text in enumerate(trace.column("spans", "name").tolist()) if text == wanted]


def modules_of(trace: Trace, name: str) -> list[str | None]:
    """Module paths of the spans with this name."""
    paths = trace.column("modules", "path")
    modules = trace.column("spans", "module")
    return [paths[modules[row]] if modules[row] >= 0 else None for row in named(trace, name)]


def functions_of(trace: Trace, row: int) -> list[str]:
    """Function names of a span's stack, innermost first."""
    found = []
    stack = int(trace.column("spans", "stack")[row])
    while stack >= 0:
        frame = trace.column("stacks", "frame")[stack]
        found.append(trace.strings[trace.column("frames", "function")[frame]])
        stack = int(trace.column("stacks", "parent")[stack])
    return found
