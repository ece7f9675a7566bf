"""The cost of each distinct call of a trace, evaluated once per name and inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.groups import Groups
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.names import COMPILED_GRAPH, COMPILED_REGION
from kinetoscope.model.rows import Mask, Rows, ShapesRow
from kinetoscope.model.schema import ColumnCode, SpanKind
from kinetoscope.model.strings import parsed_json
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs import formulas, registry
from kinetoscope.tables.costs.call import (
    FREE,
    NO_INPUTS,
    UNKNOWN,
    Cost,
    CostRule,
    Inputs,
    OperatorCall,
    parse_inputs,
)
from kinetoscope.tables.costs.operator_names import TableLine, names, table
from kinetoscope.tables.deep_steps import shapes_of

# Ranges, collectives and marks of torch's machinery.
_MACHINERY = tuple(
    names("autograd:: torch::autograd:: torch_dynamo c10d:: _c10d_functional:: profiler:: rpc::")
)
_MARKS = frozenset({"detach", "record_param_comms", "[memory]", "[OutOfMemory]"})
# The family of compiler-generated kernels, which cost what the nodes of their graph cost.
FUSED_FAMILY = "fused"
# Operators that only compilers call, to convert, index or draw random numbers.
_WITHOUT_ARITHMETIC = tuple(
    names("prims::convert_element_type prims::iota prims::inductor_ prims::_inductor_ prims::device_put")
)
# Kernels by Inductor and Triton, and calls that run such kernels unrecorded: their names do not say what they compute.
_GENERATED = ("triton_", "cpp_fused_", "CompiledFunction", COMPILED_REGION, COMPILED_GRAPH)
# The section of operators without formulas of their own.
_CALLS_OTHERS = "made of others"


@cache
def _lines() -> list[TableLine]:
    """The lines of both tables; later lines override earlier ones."""
    return [*table("operator_tags.txt"), *table("formulas.txt")]


@cache
def built_in() -> dict[str, CostRule]:
    """The built-in rules by full name."""
    rules: dict[str, CostRule] = {}
    for section, title, operators in _lines():
        if section == _CALLS_OTHERS:
            continue
        family, _, deferred = section.partition(", ")
        name, *settings = title.split()
        values = {key: json.loads(text) for key, _, text in (part.partition("=") for part in settings)}
        rule = CostRule(partial(getattr(formulas, name), **values), family, bool(deferred))
        rules |= {f"aten::{operator}" if "::" not in operator else operator: rule for operator in operators}
        if name == "pointwise":
            rule = CostRule(partial(formulas.of_lists, **values), "optimizer")
            rules |= {f"aten::_foreach_{operator}": rule for operator in operators}
    return rules


@cache
def names_calling_others(title: str = "names") -> frozenset[str]:
    """The names of ATen operators that only call others, or with `prefixes` the beginnings of such names."""
    lines = [line for line in _lines() if (line.section, line.title) == (_CALLS_OTHERS, title)]
    return frozenset(name for line in lines for name in line.names)


def rule_of(name: str) -> CostRule | None:
    """The built-in rule of an operator; in-place variants share that of the plain operator."""
    return built_in().get(name) or built_in().get(name.removesuffix("_"))


def is_made_of_others(name: str) -> bool:
    """Whether an operator only calls other operators, which are recorded too."""
    space, _, base = name.rpartition("::")
    if space == "aten":
        names = (base, base.removesuffix("_"))
        prefixes = tuple(names_calling_others("prefixes"))
        return not names_calling_others().isdisjoint(names) or base.startswith(prefixes)
    return name in _MARKS or name.startswith(_MACHINERY)


def is_generated(name: str) -> bool:
    """Whether a span runs compiler-generated kernels whose operators are not recorded."""
    return name.startswith(_GENERATED)


def is_range(name: str) -> bool:
    """Whether a span recorded as an operator only marks a range, such as a TorchScript function."""
    return "::" not in name and not is_generated(name)


# Marks the arguments of a launch that hold the compiler's facts about its kernel.
_LAUNCH = '"kernel_backend"'
_LARGEST = 2**63 - 1
# The metadata key for the costs computed by registered formulas.
SAVED_KEY = "registered_costs"
_parse = lru_cache(maxsize=1 << 16)(parse_inputs)


class Standing(ColumnCode):
    """The status of the cost of a call.

    `FIRM`: a formula that counts. `DEFERRED`: a formula that counts only if the operators inside do not account for it.
    `OTHERS`: an operator that calls others, which are recorded and count themselves. `RANGE`: not an operator, such as a
    marked range. `NO_FORMULA`, `NO_INPUTS`: unknown, because the formula or its inputs are missing.
    """

    FIRM = 0
    DEFERRED = 1
    OTHERS = 2
    RANGE = 3
    NO_FORMULA = 4
    NO_INPUTS = 5


class Evaluated(NamedTuple):
    """The cost of one call: one row of `DistinctCalls`."""

    standing: Standing
    flops: int = 0
    bytes: int = -1
    family: str = ""
    dtype: str = ""
    by_user: bool = False


@dataclass(frozen=True)
class DistinctCalls:
    """The distinct calls of a trace.

    Attributes:
        of_span: For each span its row here.
        first: For each row its first span.
        standing: The `Standing` of its cost.
        flops: The operations of one call, 0 if unknown.
        bytes: The bytes moved by one call, -1 if unknown.
        family: The family of its formula, empty without one.
        dtype: The element type of the computation, empty if unknown.
        by_user: Whether the program registered the formula.
    """

    of_span: NDArray[np.int32]
    first: NDArray[np.int32]
    standing: NDArray[np.uint8]
    flops: Rows
    bytes: Rows
    family: list[str]
    dtype: list[str]
    by_user: Mask


def input_texts(trace: TraceData, shapes: ShapesRow) -> tuple[str, str, str]:
    """The three texts of a row of `shapes`; empty if there is no such row."""
    dims, types, concrete = _input_columns(trace)
    return (dims[shapes], types[shapes], concrete[shapes]) if 0 <= shapes < len(dims) else ("", "", "")


@derived
def _input_columns(trace: TraceData) -> tuple[list[str], list[str], list[str]]:
    columns = trace.columns("shapes")
    return columns["dims"], columns["types"], columns["concrete"]


def parsed_inputs(trace: TraceData, shapes: ShapesRow) -> Inputs | None:
    """The inputs in a row of `shapes`; None if malformed."""
    return _parse(*input_texts(trace, shapes))


def saved_costs(saved: object) -> dict[tuple[str, str, str, str], Cost]:
    """The costs that registered formulas computed when the file was written, by name and inputs; malformed entries are skipped."""
    costs = {}
    for entry in saved if isinstance(saved, list) else []:
        if isinstance(entry, list) and len(entry) == 6 and all(isinstance(text, str) for text in entry[:4]):
            flops, size = entry[4:]
            if type(flops) is int and type(size) is int:
                costs[entry[0], entry[1], entry[2], entry[3]] = Cost(flops, None if size < 0 else size)
    return costs


def costs_to_save(trace: TraceData, calls: DistinctCalls) -> list[list[object]]:
    """The costs that registered formulas computed for the distinct calls, in the form that `saved_costs` reads."""
    spans = trace.columns("spans")
    rows: list[list[object]] = []
    shapes = shapes_of(trace)
    for row in np.flatnonzero(calls.by_user & (calls.standing == Standing.FIRM)).tolist():
        first = calls.first[row]
        texts = input_texts(trace, ShapesRow(int(shapes[first])))
        rows.append(
            [trace.strings[spans["name"][first]], *texts, int(calls.flops[row]), int(calls.bytes[row])]
        )
    return rows


def distinct_calls(trace: TraceData) -> DistinctCalls:
    """Evaluate the cost of every distinct call of a trace."""
    spans = trace.columns("spans")
    parts = [spans["name"], shapes_of(trace), spans["overload"], spans["kind"]]
    if len(trace.columns("origins")):
        # Kernels of different graphs can share a name.
        parts.append(np.where(_is_of_graph(trace), spans["origin"], np.int32(-1)))
    if generated_launches(trace):
        parts.append(np.where(is_generated_launch(trace), spans["arguments"], np.int32(-1)))
    groups = Groups.by(parts)
    first = groups.first
    saved = saved_costs(trace.info.get(SAVED_KEY))
    of_graph, launches = _costs_by_graph(trace, first), generated_launches(trace)
    columns = [spans[part] for part in ("name", "overload", "kind", "arguments", "origin")]
    parts = [column[first].tolist() for column in (*columns, shapes_of(trace))]
    dtypes = trace.column("origins", "dtype")
    evaluated: list[Evaluated] = []
    for row, (name, overload, kind, arguments, origin, shapes) in enumerate(zip(*parts, strict=True)):
        call = OperatorCall(
            trace.strings[name], *(parsed_inputs(trace, shapes) or NO_INPUTS), trace.strings[overload]
        )
        saved_cost = saved.get((call.name, *input_texts(trace, shapes))) if saved else None
        cost = of_graph.get(row) or launches.get(arguments)
        if cost is None or saved_cost is not None or registry.registered(call.name) is not None:
            evaluated.append(evaluate(call, kind, saved_cost))
            continue
        rule = rule_of(call.name) if row in of_graph else None
        # For launches, compilers report operations of matrix products only.
        family = FUSED_FAMILY if row in of_graph or cost.flops is None else "matmul"
        entry = _known(call, cost, family) if rule is None else _known(call, cost, rule.family, rule.deferred)
        dtype = trace.strings[dtypes[origin]] if row in of_graph else entry.dtype
        evaluated.append(entry._replace(bytes=-1 if cost.bytes is None else cost.bytes, dtype=dtype))
    return DistinctCalls(
        groups.of_row,
        first,
        np.array([entry.standing for entry in evaluated], np.uint8),
        np.array([entry.flops for entry in evaluated], np.int64),
        np.array([entry.bytes for entry in evaluated], np.int64),
        [entry.family for entry in evaluated],
        [entry.dtype for entry in evaluated],
        np.array([entry.by_user for entry in evaluated], bool),
    )


def _costs_by_graph(trace: TraceData, first: NDArray[np.int32]) -> dict[int, Cost]:
    """The costs of the kernels and operators that compiled graphs call, by distinct call: sums over the nodes that each computes."""
    spans, origins = trace.columns("spans"), trace.columns("origins")
    rows = np.flatnonzero(_is_of_graph(trace)[first])
    origin = spans["origin"][first[rows]]
    nodes = Groups(origins["first"], len(origins))
    lacking = nodes.sums(origins["flops"] < 0)[origin] > 0
    flops = nodes.sums(np.maximum(origins["flops"], 0))[origin]
    size = origins["bytes"][origin]
    columns = (column.tolist() for column in (rows, lacking, flops, size))
    return {
        row: Cost(None if unknown else node_flops, None if moved < 0 else moved)
        for row, unknown, node_flops, moved in zip(*columns, strict=True)
    }


def _is_of_graph(trace: TraceData) -> Mask:
    """Mark the fused kernels of compiled graphs, and the operators that these call, if their inputs were not recorded."""
    spans, origins = trace.columns("spans"), trace.columns("origins")
    of_graph: Mask = (spans["kind"] == SpanKind.FUSED_KERNEL) & (spans["origin"] >= 0)
    if len(origins):
        row_of = {text: row for row, text in enumerate(trace.strings)}
        called = np.full(len(trace.strings), -1, np.int64)
        for node in np.unique(origins["operator"]).tolist():
            called[node] = row_of.get(recorded_names(trace.strings[node])[0], -1)
        # Operators that such an operator calls have the same origin.
        is_node = np.append(called[origins["operator"]], -1)[spans["origin"]] == spans["name"]
        of_graph |= is_node & (shapes_of(trace) < 0) & is_operator(spans["kind"])
    return of_graph


def recorded_names(target: str) -> tuple[str, str]:
    """The recorded name and overload of an operator spelled as in graphs, such as `aten.add.Tensor`; empty if it is none."""
    space, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    return (f"{space}::{name}", "" if overload == "default" else overload) if name else ("", "")


@derived
def generated_launches(trace: TraceData) -> dict[int, Cost]:
    """The costs that the compiler reports for launches of its generated kernels, by row of `arguments`."""
    texts = trace.columns("arguments")["json"]
    return {row: _stated(text) for row, text in enumerate(texts) if _LAUNCH in text}


def is_generated_launch(trace: TraceData) -> Mask:
    """Mark the host spans that launch a compiler-generated device kernel."""
    spans = trace.columns("spans")
    rows = list(generated_launches(trace))
    return np.asarray(np.isin(spans["arguments"], rows) & is_operator(spans["kind"]))


def _stated(text: str) -> Cost:
    """Parse the cost from the arguments of a launch, which give bytes in units of 10^9."""
    arguments = parsed_json(text)
    stated = arguments if isinstance(arguments, dict) else {}
    amounts: list[Any] = [stated.get("kernel_flop"), stated.get("kernel_num_gb")]
    flops, gigabytes = (
        value if type(value) in (int, float) and 0 < value < _LARGEST else None for value in amounts
    )
    return Cost(
        None if flops is None else round(flops), None if gigabytes is None else round(gigabytes * 1e9)
    )


def cost_of(name: str, overload: str, inputs: tuple[str, str, str]) -> Cost:
    """The cost of one call of an operator that calls no others.

    Args:
        name: The operator, such as `aten::mul`.
        overload: The overload of its schema; empty for the default one.
        inputs: The three texts of a row of `shapes`.

    Returns:
        The cost; its fields are None if unknown.
    """
    result = evaluate(OperatorCall(name, *(_parse(*inputs) or NO_INPUTS), overload), SpanKind.OPERATOR)
    if result.standing == Standing.OTHERS or name.startswith(_WITHOUT_ARITHMETIC):
        return FREE
    is_known = result.standing in (Standing.FIRM, Standing.DEFERRED)
    return Cost(result.flops if is_known else None, None if result.bytes < 0 else result.bytes)


def dtype_of(inputs: tuple[str, str, str]) -> str:
    """The element type of the first tensor in the texts of a row of `shapes`; empty if unknown."""
    return _first_dtype((_parse(*inputs) or NO_INPUTS).dtypes)


def _first_dtype(dtypes: Sequence[str | None]) -> str:
    return next((dtype for dtype in dtypes if dtype is not None), "")


def evaluate(call: OperatorCall, kind: int, saved: Cost | None = None) -> Evaluated:
    """Evaluate a call: by a registered formula, the cost saved with the file, or a built-in formula, in this order."""
    user = registry.registered(call.name)
    cost = saved if user is None else user(call)
    if cost is not None:
        return _known(call, cost, "registered")._replace(by_user=True)
    if kind == SpanKind.BACKWARD:
        return Evaluated(Standing.NO_FORMULA if is_generated(call.name) else Standing.OTHERS)
    if kind != SpanKind.OPERATOR:
        return Evaluated(Standing.RANGE)
    rule = rule_of(call.name)
    if rule is not None:
        return _known(call, _applied(rule, call), rule.family, rule.deferred)
    if is_made_of_others(call.name):
        return Evaluated(Standing.OTHERS)
    return Evaluated(Standing.RANGE if is_range(call.name) else Standing.NO_FORMULA)


def _applied(rule: CostRule, call: OperatorCall) -> Cost:
    """Apply a built-in formula to a call; `UNKNOWN` if it cannot handle the inputs."""
    try:
        cost = rule.formula(call)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # Unexpected inputs: from another release, damaged, or written by hand.
        cost = UNKNOWN
    if not call.has_sizes():
        # Without recorded tensors, formulas compute a scalar's cost or nothing: not a real cost.
        cost = Cost(0, None) if cost.flops == 0 else UNKNOWN
    return cost


def _known(call: OperatorCall, cost: Cost, family: str, deferred: bool = False) -> Evaluated:
    """Wrap the cost from a formula; `NO_INPUTS` if it is unknown or out of range."""
    flops, size = cost
    # Damaged traces can contain scalars of any type, and so can the results of formulas.
    if type(flops) is not int or not 0 <= flops <= _LARGEST:
        return Evaluated(Standing.NO_INPUTS, family=family)
    standing = Standing.DEFERRED if deferred else Standing.FIRM
    size = size if type(size) is int and 0 <= size <= _LARGEST else -1
    return Evaluated(standing, flops, size, family, _first_dtype(call.dtypes))
