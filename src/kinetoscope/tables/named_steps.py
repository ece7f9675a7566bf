"""Steps that the program named: the iterations of an engine, such as prefill and decode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.marks import parse_step_mark
from kinetoscope.model.trace_data import TraceData, derived


@dataclass(frozen=True, eq=False)
class NamedSteps:
    """What steps are called.

    Attributes:
        names: The different names.
        name: For each row of `steps` a place in `names`; -1 of one without a name.
        arguments: For each row of `steps` its arguments, as JSON text; None without arguments.
    """

    names: list[str]
    name: NDArray[np.int32]
    arguments: list[str | None]


@derived
def named_steps(trace: TraceData) -> NamedSteps:
    """Find the names of the steps of a trace, once; of several in one step, the first counts."""
    spans, count = trace.columns("spans"), len(trace.columns("steps"))
    marks = {row: mark for row, text in enumerate(trace.strings) if (mark := parse_step_mark(text))}
    steps = NamedSteps([], np.full(count, -1, np.int32), [None] * count)
    if not marks or not count:
        return steps
    rows = np.flatnonzero(np.isin(spans["name"], list(marks)) & (spans["step"] >= 0))
    rows = rows[np.argsort(spans["start_ns"][rows], kind="stable")]
    name_ids: dict[str, int] = {}
    for step, name in zip(spans["step"][rows].tolist(), spans["name"][rows].tolist(), strict=True):
        if steps.name[step] < 0:
            mark = marks[name]
            steps.name[step] = name_ids.setdefault(mark.name, len(name_ids))
            steps.arguments[step] = mark.arguments or None
    steps.names.extend(name_ids)
    return steps
