"""The columns `spans.flops` and `spans.bytes_moved`, and the costs behind all cost tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.columns import Columns
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import operator_spans, spans_named
from kinetoscope.model.nesting import by_level
from kinetoscope.model.rows import Mask, Rows, ShapesRow
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs import evaluate, registry
from kinetoscope.tables.costs.call import NO_INPUTS, Inputs, Shape
from kinetoscope.tables.costs.evaluate import DistinctCalls, Standing
from kinetoscope.tables.costs.operator_names import names
from kinetoscope.tables.deep_steps import shapes_of

# Count each operation once, however operators nest.
#
# The outermost operator with a firm formula counts; nothing inside it does. Three exceptions move the count inward:
#
# - If an operator calls itself with the same operations (autocast, `out` variants), the inner call counts: it has the element types of
#   the actual computation.
# - If the operators inside add up to at least twice what the outer inputs imply, the inputs stand for larger tensors (`vmap`, nested
#   tensors), and the inner operators count. A formula registered by the program always counts.
# - An operator with a deferred formula counts only if less than half of its operations are counted inside it.


class CountedSpans(NamedTuple):
    """The spans whose operations are counted.

    Attributes:
        counts: Whether a span's own cost counts.
        inside: Whether a span is inside one that counts.
    """

    counts: Mask
    inside: Mask


def count_once(
    spans: Mapping[str, NDArray[np.int32]] | Columns,
    standing: NDArray[np.uint8],
    flops: Rows,
    by_user: Mask,
) -> CountedSpans:
    """Decide which spans count.

    Args:
        spans: The columns `parent`, `depth` and `name`.
        standing: The `Standing` of each span.
        flops: The operations of each span by its formula, 0 without one.
        by_user: Whether the program registered the formula.
    """
    parent, depth, name = spans["parent"], spans["depth"], spans["name"]
    firm, deferred = standing == Standing.FIRM, standing == Standing.DEFERRED
    if not firm.any() and not deferred.any():
        return CountedSpans(firm, np.zeros(len(firm), dtype=bool))
    again = firm & (parent >= 0) & firm.take(parent)
    again &= (name == name.take(parent)) & (flops == flops.take(parent))
    counts = firm.copy()
    counts[parent[again & ~by_user[parent]]] = False
    # Resolve the exceptions that depend on inner counts, from the innermost spans outward.
    some = counts | deferred
    nearest = np.append(_core.nearest_marked(parent, depth, some), np.int32(-1))
    # Floats: sums of hostile sizes must not overflow.
    total = np.zeros(len(flops), dtype=np.float64)
    chosen = np.flatnonzero(some)
    for level_rows in reversed(by_level(depth[chosen])):
        rows = chosen[level_rows]
        lacking = rows[deferred[rows]]
        counts[lacking] = total[lacking] < flops[lacking] / 2
        counting = rows[counts[rows]]
        larger = counting[
            (total[counting] > 0) & (total[counting] >= 2.0 * flops[counting]) & ~by_user[counting]
        ]
        counts[larger] = False
        counting = counting[counts[counting]]
        total[counting] = flops[counting]
        above = nearest[parent[rows]]
        np.add.at(total, above[above >= 0], total[rows[above >= 0]])
    counting = np.append(_core.nearest_marked(parent, depth, counts), np.int32(-1))
    inside = counting.take(parent) >= 0
    counts &= ~inside
    return CountedSpans(counts, inside)


# Layers with packed weights: a trace has no shape of these, so it is derived from the result allocated inside.

_LAYERS = names(
    "quantized::linear quantized::linear_relu quantized::linear_dynamic quantized::linear_relu_dynamic"
    " quantized::linear_dynamic_fp16"
)
_MAKERS = names("aten::empty aten::_empty_affine_quantized")


def settle_packed(trace: TraceData, standing: NDArray[np.uint8], flops: Rows) -> None:
    """Fill in, in place, the operations of layers with packed weights: a multiply-add for each pair of input and output.

    Args:
        trace: The trace.
        standing: The standing of each span.
        flops: The operations of each span.
    """
    parent, layers, makers = trace.column("spans", "parent"), _named(trace, _LAYERS), _named(trace, _MAKERS)
    lacking = layers[standing[layers] == Standing.NO_INPUTS]
    for row in makers[np.isin(parent[makers], lacking)].tolist():
        layer = int(parent[row])
        products = _products(trace, layer, row)
        if products is not None:
            standing[layer], flops[layer] = Standing.FIRM, products


def _products(trace: TraceData, layer: int, made: int) -> int | None:
    """The operations of a layer if the tensor made inside is its result, else None."""
    input_sizes, sizes = _first_sizes(trace, layer), next(iter(_inputs(trace, made).values), None)
    if not input_sizes or not isinstance(sizes, list) or not sizes:
        return None
    if list(input_sizes[:-1]) != sizes[:-1] or type(sizes[-1]) is not int:
        return None
    flops = 2 * prod(input_sizes) * sizes[-1]
    return flops if 0 <= flops < 2**63 else None


def _inputs(trace: TraceData, span: int) -> Inputs:
    return evaluate.parsed_inputs(trace, ShapesRow(int(shapes_of(trace)[span]))) or NO_INPUTS


def _first_sizes(trace: TraceData, span: int) -> Shape | None:
    sizes = next(iter(_inputs(trace, span).shapes), None)
    return sizes if isinstance(sizes, tuple) else None


def _named(trace: TraceData, names: frozenset[str]) -> Rows:
    return np.flatnonzero(spans_named(trace, names.__contains__))


# Find products with sparse operands and correct their costs; see the products in `formulas`.

_MARKS = names(
    "aten::_nnz aten::_indices aten::_values aten::values aten::indices aten::crow_indices aten::col_indices"
    " aten::ccol_indices aten::row_indices"
)


def settle_sparse(
    trace: TraceData,
    calls: DistinctCalls,
    standing: NDArray[np.uint8],
    flops: Rows,
    bytes_: Rows,
) -> None:
    """Correct, in place, the costs of products whose operands turn out to be sparse.

    Args:
        trace: The trace.
        calls: Its distinct calls.
        standing: The standing of each span.
        flops: The operations of each span.
        bytes_: The bytes of each span.
    """
    marks = _named(trace, _MARKS)
    if len(marks) == 0:
        return
    spans = trace.columns("spans")
    is_product = np.array([family == "matmul" for family in calls.family], dtype=bool)[calls.of_span]
    is_product &= (standing == Standing.FIRM) | (standing == Standing.DEFERRED)
    shares = _shares(trace, marks)
    parent = spans["parent"]
    shares_of: dict[int, set[tuple[int, int] | None]] = {}
    for row, share in shares.items():
        above = int(parent[row])
        while above >= 0:
            if is_product[above]:
                shares_of.setdefault(above, set()).add(share)
            above = int(parent[above])
    for row, kinds in shares_of.items():
        known_shares = kinds - {None}
        bytes_[row] = -1
        if len(known_shares) == 1 and (share := known_shares.pop()) is not None and share[1] > 0:
            flops[row] = int(flops[row]) * share[0] // share[1]
        else:
            standing[row] = Standing.NO_INPUTS
            flops[row] = 0


def _shares(trace: TraceData, rows: Rows) -> dict[int, tuple[int, int] | None]:
    """For each mark the stored numbers of the sparse matrix and those of the dense one; None if the trace does not show them."""
    parent, aliases = trace.column("spans", "parent"), _named(trace, frozenset({"aten::alias"}))
    values = set(_named(trace, frozenset({"aten::values"})).tolist())
    share_of: dict[int, tuple[int, int] | None] = dict.fromkeys(rows.tolist())
    for alias in aliases[np.isin(parent[aliases], rows)].tolist():
        mark = int(parent[alias])
        stored, dense = _first_sizes(trace, alias), _first_sizes(trace, mark)
        if mark in values and stored is not None and dense is not None:
            share_of[mark] = prod(stored), prod(dense)
    return share_of


# An operator that only moves data reads as much as it writes. With recorded memory, the size of its result replaces the formula, which
# lacks the element types and shapes of tensor and index lists.

_COPIED = names(
    "aten::cat aten::stack aten::_stack aten::_chunk_cat aten::index aten::_unsafe_index aten::masked_select"
    " aten::repeat_interleave aten::_foreach_clone"
)


def settle_results(trace: TraceData, flops: Rows, bytes_: Rows) -> None:
    """Fill in, in place, the bytes of operators that only move data into a new tensor: twice what they allocated.

    Args:
        trace: The trace.
        flops: The operations of each span.
        bytes_: The bytes of each span, -1 if unknown.
    """
    if len(trace.columns("allocations")) == 0 or len(rows := _named(trace, _COPIED)) == 0:
        return
    allocated = trace.column("spans", "bytes")[rows]
    filled = (bytes_[rows] < 0) & (flops[rows] == 0) & (allocated > 0)
    bytes_[rows[filled]] = 2 * allocated[filled]


# A sum is null if operators of unknown cost take more than this fraction of the operators' self time.
MOST_UNCOVERED = 0.1
UNKNOWN_STANDINGS = (Standing.NO_FORMULA, Standing.NO_INPUTS)

# torch's ranges around the dispatch to a Tensor subclass or a mode.
_PYTHON_DISPATCH = frozenset({"PythonSubclass", "PythonDispatchMode"})


@dataclass(frozen=True)
class Costs:
    """The costs of a trace.

    Attributes:
        calls: The distinct calls with the cost of each.
        counted: The spans that count.
        standing: The standing of each span.
        flops: The operations counted at each span, -1 if unknown.
        bytes_moved: The bytes counted at each span, -1 if unknown.
        unknown: The operator spans of unknown cost that are not inside one that counts.
    """

    calls: DistinctCalls
    counted: CountedSpans
    standing: NDArray[np.uint8]
    flops: Rows
    bytes_moved: Rows
    unknown: Mask


@dataclass(frozen=True)
class Coverage:
    """For groups of spans, the share of their operators' self time with a known cost.

    Attributes:
        percent: The share in percent; null if no operator has self time.
        lacking: Whether the share is too small for a meaningful sum.
    """

    percent: NDArray[np.float64]
    lacking: Mask


def coverage(
    operators_ns: Rows,
    unknown_ns: Rows,
    unknown: Rows,
    flops: Rows,
) -> Coverage:
    """The coverage of groups of spans.

    Args:
        operators_ns: The self time of the operators in each group.
        unknown_ns: The self time of those with unknown cost.
        unknown: The number of operators with unknown cost.
        flops: The operations counted.
    """
    percent = 100.0 - unknown_ns * 100.0 / np.where(operators_ns > 0, operators_ns, np.nan)
    lacking = (unknown > 0) & ((flops <= 0) | (unknown_ns > MOST_UNCOVERED * operators_ns))
    return Coverage(percent, lacking)


def group_coverage(trace: TraceData, groups: Groups) -> Coverage:
    """The coverage of groups over all spans of a trace."""
    costs, self_ns = costs_of(trace), trace.column("spans", "self_ns")
    return coverage(
        groups.sums(np.where(operator_spans(trace).mask | costs.unknown, self_ns, 0)),
        groups.sums(np.where(costs.unknown, self_ns, 0)),
        groups.sums(costs.flops < 0),
        groups.sums(np.maximum(costs.flops, 0)),
    )


def span_costs(trace: TraceData) -> dict[str, Rows]:
    """The columns `flops` and `bytes_moved` of `spans`."""
    costs = costs_of(trace)
    return {"flops": costs.flops, "bytes_moved": costs.bytes_moved}


def saved_info(trace: TraceData) -> dict[str, object]:
    """The metadata that a saved file of this trace needs: the costs computed by registered formulas, if any."""
    if not registry.any_registered() and evaluate.SAVED_KEY not in trace.info:
        return {}
    return {evaluate.SAVED_KEY: evaluate.costs_to_save(trace, costs_of(trace).calls)}


@derived
def costs_of(trace: TraceData) -> Costs:
    """The costs of a trace, computed once with the formulas registered so far."""
    spans = trace.columns("spans")
    registry.note_computed(trace)
    calls = evaluate.distinct_calls(trace)
    standing, by_user = calls.standing.take(calls.of_span), calls.by_user.take(calls.of_span)
    flops, size = calls.flops.take(calls.of_span), calls.bytes.take(calls.of_span)
    settle_sparse(trace, calls, standing, flops, size)
    settle_packed(trace, standing, flops)
    settle_results(trace, flops, size)
    _pass_through_subclasses(trace, standing, by_user)
    _pass_through_graphs(trace, standing)
    counted = _once_on_device(trace, count_once(spans, standing, flops, by_user))
    expected = operator_spans(trace).mask | by_user
    unknown = np.isin(standing, UNKNOWN_STANDINGS) & ~counted.inside & expected
    flops, size = np.where(counted.counts, flops, 0), np.where(counted.counts, size, 0)
    flops[unknown] = -1
    # The bytes of a generated kernel may be known when its operations are not.
    size[unknown] = calls.bytes[calls.of_span[unknown]]
    if len(trace.columns("shapes")) == 0 and not (flops > 0).any() and len(trace.columns("origins")) == 0:
        # Without shapes, a 0 would only separate views and ranges from the rest.
        flops[:] = size[:] = -1
    return Costs(calls, counted, standing, flops, size, unknown)


def _pass_through_subclasses(trace: TraceData, standing: NDArray[np.uint8], by_user: Mask) -> None:
    """Count the operators inside a Python dispatch instead of the dispatched operator, in place.

    The inputs of the dispatched operator describe a tensor subclass: the full tensor of which a rank holds a shard, or nothing.
    """
    above = trace.column("spans", "parent")[_named(trace, _PYTHON_DISPATCH)]
    above = above[above >= 0]
    standing[above[~by_user[above]]] = Standing.OTHERS


def _pass_through_graphs(trace: TraceData, standing: NDArray[np.uint8]) -> None:
    """Count the kernels of a compiled graph, where recorded, instead of the calls of the graph, in place."""
    spans = trace.columns("spans")
    # Not `np.unique`, which imports `numpy.ma`.
    rows, around = spans["parent"][spans["origin"] >= 0], np.zeros(len(spans), dtype=bool)
    while len(rows := rows[(rows >= 0) & ~around[rows]]):
        around[rows] = True
        rows = spans["parent"][rows]
    standing[around & (standing == Standing.NO_FORMULA) & (spans["origin"] < 0)] = Standing.OTHERS


def _once_on_device(trace: TraceData, counted: CountedSpans) -> CountedSpans:
    """Count device kernels with their own formula only if no counted operator launched them."""
    launches = trace.columns("launches")
    host, device = launches["host"], launches["device"]
    linked = (host >= 0) & (device >= 0)
    host, device = host[linked], device[linked]
    counts, inside = counted
    inside[device[counts[host] | inside[host]]] = True
    counts &= ~inside
    return CountedSpans(counts, inside)
