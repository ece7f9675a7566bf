"""The columns `spans.flops` and `spans.bytes_moved`, and what the tables of costs are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope import _core
from kinetoscope.tables.costs import _registry
from kinetoscope.tables.costs._evaluate import (
    SAVED_KEY,
    DistinctCalls,
    Standing,
    costs_to_save,
    distinct_calls,
)
from kinetoscope.tables.costs._once import Counted, Spans, count_once
from kinetoscope.tables.costs._packed_weights import settle_packed
from kinetoscope.tables.costs._sparse_products import settle_sparse
from kinetoscope.trace._schema import SpanKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

# A sum that leaves out more of its operators' own time than this is no sum: it is null.
MOST_UNCOVERED = 0.1
UNKNOWN_STANDINGS = (Standing.NO_FORMULA, Standing.NO_INPUTS)

# The ranges that torch puts around what a subclass of Tensor, or a mode, makes of an operator.
_PYTHON_DISPATCH = frozenset({"PythonSubclass", "PythonDispatchMode"})


@dataclass(frozen=True)
class Costs:
    """The costs of a trace.

    Attributes:
        calls: The distinct calls and the cost of each.
        counted: Which spans count.
        standing: The standing of each span.
        flops: The operations counted at each span, -1 where they are not known.
        bytes_moved: The bytes counted at each span, -1 where they are not known.
        unknown: The operator spans of which nothing is known and that are inside none that counts.
    """

    calls: DistinctCalls
    counted: Counted
    standing: NDArray[np.uint8]
    flops: NDArray[np.int64]
    bytes_moved: NDArray[np.int64]
    unknown: NDArray[np.bool_]


def costs_of(trace: Trace) -> Costs:
    """The costs of a trace, computed once for the formulas known now."""
    return trace.cached("flops and bytes_moved", lambda: _compute(trace))


def is_operator(trace: Trace) -> NDArray[np.bool_]:
    """Which spans are operators, those of backward functions included."""
    kind = trace.column("spans", "kind")
    found: NDArray[np.bool_] = (kind == SpanKind.OPERATOR) | (kind == SpanKind.BACKWARD)
    return found


@dataclass(frozen=True)
class Coverage:
    """For groups of spans, how much of their operators' own time has a known cost.

    Attributes:
        percent: The share in percent; null where no operator has time of its own.
        lacking: Whether too little is covered for a sum over the group to say anything.
    """

    percent: NDArray[np.float64]
    lacking: NDArray[np.bool_]


def coverage(
    operators_ns: NDArray[np.int64],
    unknown_ns: NDArray[np.int64],
    unknown: NDArray[np.int64],
    flops: NDArray[np.int64],
) -> Coverage:
    """How much of groups of spans is covered.

    Args:
        operators_ns: The own time of the operators of each group.
        unknown_ns: The part of it of those of unknown cost.
        unknown: How many are of unknown cost.
        flops: The operations that were counted.
    """
    percent = np.full(len(operators_ns), np.nan)
    some = operators_ns > 0
    percent[some] = 100.0 - unknown_ns[some] * 100.0 / operators_ns[some]
    lacking = (unknown > 0) & ((flops <= 0) | (unknown_ns > MOST_UNCOVERED * operators_ns))
    return Coverage(percent, lacking)


def group_coverage(trace: Trace, group_of: NDArray[np.int32], groups: int) -> Coverage:
    """The same for groups of all spans by number; those below 0 are in none."""
    costs, self_ns = costs_of(trace), trace.column("spans", "self_ns")

    def add(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return _core.group_sums(group_of, groups, values)

    return coverage(
        add(np.where(is_operator(trace) | costs.unknown, self_ns, 0)),
        add(np.where(costs.unknown, self_ns, 0)),
        add((costs.flops < 0).astype(np.int64)),
        add(np.maximum(costs.flops, 0)),
    )


def span_costs(trace: Trace) -> dict[str, NDArray[np.int64]]:
    """The columns `flops` and `bytes_moved` of `spans`."""
    costs = costs_of(trace)
    return {"flops": costs.flops, "bytes_moved": costs.bytes_moved}


def saved_info(trace: Trace) -> dict[str, object]:
    """What a file of this trace keeps in its metadata: the costs that formulas of programs gave, where there are any."""
    if not _registry.any_registered() and SAVED_KEY not in trace.info:
        return {}
    return {SAVED_KEY: costs_to_save(trace, costs_of(trace).calls)}


def _compute(trace: Trace) -> Costs:
    """Evaluate the distinct calls and count each operation once."""
    spans = trace.columns("spans")
    _registry.note_computed(trace)
    calls = distinct_calls(trace)
    standing = calls.standing[calls.of_span]
    flops, size = calls.flops[calls.of_span], calls.bytes[calls.of_span]
    settle_sparse(trace, calls, standing, flops, size)
    settle_packed(trace, standing, flops)
    _pass_through_subclasses(trace, standing, calls.by_user[calls.of_span])
    parts = Spans(
        spans["parent"], spans["depth"], spans["name"], standing, flops, calls.by_user[calls.of_span]
    )
    counted = _once_on_device(trace, count_once(parts))
    kind = spans["kind"]
    asked = (kind == SpanKind.OPERATOR) | (kind == SpanKind.BACKWARD) | calls.by_user[calls.of_span]
    unknown = np.isin(standing, UNKNOWN_STANDINGS) & ~counted.inside & asked
    flops, size = np.where(counted.counts, flops, 0), np.where(counted.counts, size, 0)
    flops[unknown] = size[unknown] = -1
    if len(trace.columns("shapes")) == 0 and not (flops > 0).any():
        # Without shapes a 0 would only tell views and ranges from the rest.
        flops[:] = size[:] = -1
    return Costs(calls, counted, standing, flops, size, unknown)


def _pass_through_subclasses(trace: Trace, standing: NDArray[np.uint8], by_user: NDArray[np.bool_]) -> None:
    """Let what Python's dispatch does count instead of the operator that went there, in place.

    The inputs of that operator are those of a tensor subclass: the whole of a tensor of which a rank holds a part, or nothing.
    """
    marks = np.array([text in _PYTHON_DISPATCH for text in trace.strings], dtype=bool)
    if marks.any():
        above = trace.column("spans", "parent")[marks[trace.column("spans", "name")]]
        above = above[above >= 0]
        standing[above[~by_user[above]]] = Standing.OTHERS


def _once_on_device(trace: Trace, counted: Counted) -> Counted:
    """Let kernels of a device with a formula of their own count only where no operator counts that launched them."""
    launches = trace.columns("launches")
    if len(launches) == 0 or not counted.counts.any():
        return counted
    host, device = launches["host"], launches["device"]
    linked = (host >= 0) & (device >= 0)
    host, device = host[linked], device[linked]
    counts, inside = counted
    inside[device[counts[host] | inside[host]]] = True
    counts &= ~inside
    return Counted(counts, inside)
