"""The FLOPs tables: operations by operator and inputs, and the share of time without known operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kinetoscope.model import units
from kinetoscope.model.arrow import ArrowTable, Labels, labels, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import operator_spans
from kinetoscope.model.rows import Rows
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.costs.columns import MOST_UNCOVERED, costs_of, group_coverage
from kinetoscope.tables.costs.evaluate import Standing
from kinetoscope.tables.costs.peaks import at_peak, per_byte, per_second, share_of_peak, working_ns
from kinetoscope.tables.deep_steps import shapes_of

_REASONS = ("no formula", "inputs")
_LACKS = {"no formula": "no formula", "inputs": "no shapes"}


def flops(trace: TraceData, peak_flops: Any = None) -> ArrowTable:
    """Return the `flops` table: one row per operator and combination of inputs.

    Args:
        trace: The trace.
        peak_flops: The peak FLOP/s of each device in use: a number, or a mapping from element types to numbers.
            None: the built-in table and `register_peak_flops`.

    Returns:
        The table; `docs/tables.md` describes its columns.

    Raises:
        ArgumentError: `peak_flops` is not a number above 0 or a mapping to such numbers.
    """
    costs, spans = costs_of(trace), trace.columns("spans")
    calls, counts = costs.calls, costs.counted.counts
    expected = operator_spans(trace).mask | calls.by_user[calls.of_span]
    of_calls = Groups(calls.of_span, len(calls.first))
    ideal = at_peak(trace, costs, peak_flops)
    count = of_calls.sizes()
    total, moved = (of_calls.sums(np.maximum(part, 0)) for part in (costs.flops, costs.bytes_moved))
    time = of_calls.sums(np.where(counts, working_ns(trace), 0))
    unknown = of_calls.sums(costs.unknown)
    bytes_unknown = of_calls.sums(costs.bytes_moved < 0) > 0
    rows = np.flatnonzero(expected[calls.first])
    shapes, texts = shapes_of(trace)[calls.first], trace.columns("shapes")
    overload = spans["overload"][calls.first]
    total[unknown == count] = -1
    moved[bytes_unknown] = -1
    columns: dict[str, Any] = {
        "name": Labels(spans["name"][calls.first], trace.strings),
        "overload": Labels(np.where(overload > 0, overload, -1), trace.strings),
        "shapes": Labels(shapes, texts["dims"]),
        "types": Labels(shapes, texts["types"]),
        "inputs": Labels(shapes, texts["concrete"]),
        "family": labels(family or None for family in calls.family),
        "calls": count,
        "counted": of_calls.sums(counts),
        "flops": total,
        "bytes_moved": moved,
        "time_ns": time,
        "flops_per_s": per_second(total, time),
        "arithmetic_intensity": per_byte(total, moved),
        "peak_percent": None if ideal is None else share_of_peak(of_calls.sums(ideal), time),
        "covered": unknown == 0,
    }
    return to_arrow("flops", columns, rows[np.lexsort((-time[rows], -total[rows]))])


def flops_coverage(trace: TraceData) -> ArrowTable:
    """Return the `flops_coverage` table: how much of each operator's time has a known cost.

    Args:
        trace: The trace.

    Returns:
        The table; `docs/tables.md` describes its columns.
    """
    costs, spans = costs_of(trace), trace.columns("spans")
    operators = Groups.by([spans["name"]], operator_spans(trace).mask)
    self_ns, unknown = spans["self_ns"], costs.unknown
    operator_ns, uncovered_ns, uncovered_device_ns = (
        operators.sums(part)
        for part in (self_ns, np.where(unknown, self_ns, 0), np.where(unknown, spans["device_self_ns"], 0))
    )
    all_ns = int(operator_ns.sum())
    count, uncovered_calls = operators.sizes(), operators.sums(unknown)
    without_formula = operators.sums(unknown & (costs.standing == Standing.NO_FORMULA)) > 0
    columns: dict[str, Any] = {
        "name": [trace.strings[name] for name in spans["name"][operators.first].tolist()],
        "calls": count,
        "covered_calls": count - uncovered_calls,
        "self_ns": operator_ns,
        "covered_ns": operator_ns - uncovered_ns,
        "uncovered_ns": uncovered_ns,
        "uncovered_device_ns": uncovered_device_ns,
        "uncovered_percent": uncovered_ns * (100.0 / all_ns if all_ns else np.nan),
        "why": Labels(np.where(uncovered_calls == 0, -1, np.where(without_formula, 0, 1)), _REASONS),
    }
    return to_arrow("flops_coverage", columns, np.lexsort((-operator_ns, -uncovered_calls, -uncovered_ns)))


def covered_percent(trace: TraceData) -> float | None:
    """The percentage of the operators' self time with known operations; None without operators."""
    unknown, operators = costs_of(trace).unknown, operator_spans(trace)
    unknown_ns = int(operators.self_ns[operators.mask & unknown].sum())
    return 100.0 - 100.0 * unknown_ns / operators.total_self_ns if operators.total_self_ns else None


NO_SHAPES = "FLOPs need the shapes of inputs: record with record_shapes=True, or kinetoscope run"
_MOST_NAMES = 3


@dataclass(frozen=True)
class CountedFlops:
    """The operations of a trace.

    Attributes:
        flops: The operations counted; None if too few are known.
        covered_percent: The percentage of the operators' self time with known operations.
        why: A sentence that explains why `flops` is None; else empty.
    """

    flops: int | None
    covered_percent: float | None
    why: str = ""


def counted_flops(trace: TraceData) -> CountedFlops:
    """The operations of a trace, or why they are unknown: operators of unknown cost may take at most a tenth of the time."""
    flops = int(trace.column("spans", "flops").clip(0).sum())
    if len(trace.columns("shapes")) == 0 and flops == 0:
        return CountedFlops(None, None, NO_SHAPES)
    covered = covered_percent(trace)
    if covered is None or covered >= 100.0 * (1.0 - MOST_UNCOVERED):
        return CountedFlops(flops, covered)
    table = flops_coverage(trace).select(["name", "why", "uncovered_ns"])
    uncovered = [row for row in table.to_pylist() if row["uncovered_ns"] > 0]
    lacking = [f"{row['name']} ({_LACKS[row['why']]})" for row in uncovered[:_MOST_NAMES]]
    stated = f"FLOPs are known for only {units.percent(covered)} of the operators' time"
    return CountedFlops(
        None, covered, f"{stated}; not for {', '.join(lacking)}: see the table flops_coverage"
    )


def step_work(trace: TraceData, duration: Rows, peak_flops: Any = None) -> dict[str, Any]:
    """The FLOPs columns of `steps`: operations, rate, and share of the peak, for the given step durations."""
    costs, steps = costs_of(trace), Groups(trace.column("spans", "step"), len(trace.columns("steps")))
    flops = steps.sums(np.where(costs.counted.counts, costs.flops, 0))
    ideal = at_peak(trace, costs, peak_flops)
    mfu = None if ideal is None else share_of_peak(steps.sums(ideal), duration) / 100
    covered = group_coverage(trace, steps)
    flops[covered.lacking] = -1
    if mfu is not None:
        mfu[covered.lacking] = np.nan
    return {
        "flops": flops,
        "flops_covered_percent": covered.percent,
        "flops_per_s": per_second(flops, duration),
        "mfu": mfu,
    }
