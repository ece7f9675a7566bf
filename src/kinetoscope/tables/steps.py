"""The steps of the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.tables._visible import host_spans
from kinetoscope.trace import Column, Phase, SpanKind, Table
from kinetoscope.trace._arrow import Labels, to_arrow
from kinetoscope.trace._schema import STEP_SOURCES
from kinetoscope.trace._shown import memory_recorded
from kinetoscope.trace._steps import step_at

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

STEPS_SCHEMA = Table(
    "steps",
    "One step of the training loop, in order of time.",
    (
        Column("number", "int64", "", "The number in `ProfilerStep#N`, or counted from 0.", 0),
        Column("start_ns", "int64", "ns", "When it began.", 0),
        Column("duration_ns", "int64", "ns", "How long it took.", 0),
        Column("operators", "int64", "", "Operators and backward functions that began in it."),
        Column("forward_ns", "int64", "ns", "Time of operators and ranges outside backward and the optimizer, on all threads."),
        Column("backward_ns", "int64", "ns", "Time of operators in backward, on all threads."),
        Column("optimizer_ns", "int64", "ns", "Time of the optimizer's step and what it runs, on all threads."),
        Column("peak_bytes", "int64", "bytes", "The most host memory live at once in it, of what the trace saw allocated; null if not recorded."),
        Column("span", "int32", "row of spans", "The span that marks it, or the optimizer range that ends it."),
        Column("source", "category", "", "`marked` by the program, or found from its `optimizer`."),
    ),
)  # fmt: skip


def steps(trace: Trace) -> pyarrow.Table:
    """Return the `steps` table.

    The three phases are sums of self times, the step marks themselves left out. What is missing to `duration_ns` is time in
    Python outside all operators and ranges, or waiting; several busy threads can also add up to more.

    Args:
        trace: The trace.

    Returns:
        The table; the meaning of its columns is in `STEPS_SCHEMA`.
    """
    spans, own = trace.columns("spans"), trace.columns("steps")
    step, kind, phase = spans["step"], spans["kind"], spans["phase"]
    self_ns = spans["self_ns"]
    work = (step >= 0) & (kind != SpanKind.STEP) & host_spans(trace)
    columns: dict[str, Any] = {name: own[name] for name in ("number", "start_ns", "duration_ns", "span")}
    columns["operators"] = np.bincount(
        step[work & ((kind == SpanKind.OPERATOR) | (kind == SpanKind.BACKWARD))], minlength=len(own)
    )
    for part in Phase:
        rows = np.flatnonzero(work & (phase == part))
        sums = np.zeros(len(own), dtype=np.int64)
        np.add.at(sums, step[rows], self_ns[rows])
        columns[f"{part.name.lower()}_ns"] = sums
    columns["source"] = Labels(own["source"], STEP_SOURCES)
    columns["peak_bytes"] = _peaks(trace) if memory_recorded(trace) else None
    return to_arrow(STEPS_SCHEMA, columns)


def _peaks(trace: Trace) -> NDArray[np.int64]:
    """The most live host bytes within each step; what was live when it began counts too."""
    own, blocks = trace.columns("steps"), trace.columns("allocations")
    host = np.flatnonzero(blocks["device_type"] == 0)
    time_ns, total = blocks["time_ns"][host], blocks["total_bytes"][host]
    peaks = np.append(total, 0)[np.searchsorted(time_ns, own["start_ns"], side="left") - 1]
    at = step_at(time_ns, own["start_ns"], own["duration_ns"])
    np.maximum.at(peaks, at[at >= 0], total[at >= 0])
    found: NDArray[np.int64] = peaks
    return found
