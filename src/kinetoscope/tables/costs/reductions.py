"""Reductions: n - o operations to bring n elements down to o by adding, multiplying or comparing, and what is done to each besides.

A mean divides o times; a variance is the mean, the deviations and their squares, their sum, and the division, 4 n; a norm is what is
done to each element, the sum, and the root. Cumulative operators combine each element but the first of a row with the one before.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import SCALAR_TYPES, Cost, Rule, rules
from kinetoscope.tables.costs.pointwise import pointwise
from kinetoscope.tables.costs.sizes import inputs_of, moved

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import Formula, OperatorCall

_INTEGERS = frozenset({"int64", "int32", "int16", "int8", "uint8", "bool"})


def reduced(call: OperatorCall, argument: int = 1) -> tuple[int, int]:
    """How many elements go in and how many come out; `argument` says along which dimensions."""
    shape = call.shape(0)
    dims = call.value(argument)
    # A single whole number is a dimension where `keepdim` follows it, and otherwise an element type.
    if isinstance(dims, int) and not isinstance(dims, bool) and len(call.shapes) > argument + 1:
        dims = [dims]
    if not isinstance(dims, list) or not dims:
        return prod(shape), 1
    gone = {dim % len(shape) if shape else 0 for dim in dims}
    return prod(shape), prod(size for place, size in enumerate(shape) if place not in gone)


def _result(call: OperatorCall, kind: str) -> str | None:
    """The element type of a reduction's result."""
    if kind:
        return kind
    dtype = call.dtypes[0]
    asked = call.value(len(call.values) - 1)
    if (
        call.name in ("aten::sum", "aten::prod", "aten::nansum", "aten::mean")
        and type(asked) is int
        and len(call.values) > 1
    ):
        return SCALAR_TYPES.get(asked)
    return "int64" if dtype in _INTEGERS and call.name in ("aten::sum", "aten::prod") else dtype


def _reduction(each: int, out: int, *, kind: str = "", argument: int = 1, outputs: int = 1) -> Formula:
    """A formula: combine all elements, and besides `each` operations for each of them and `out` for each result."""

    def formula(call: OperatorCall) -> Cost:
        count, left = reduced(call, argument)
        add = 2 if call.is_complex(0) else 1
        flops = add * max(count - left, 0) + each * count + out * left
        return Cost(flops, moved(call, (0,), outputs * left, 0, dtype=_result(call, kind)))

    return formula


def extreme(call: OperatorCall) -> Cost:
    """`max(self)`, `max(self, dim)`, or `max(self, other)`, which is pointwise."""
    places = inputs_of(call)
    if len(places) > 1 and call.has_tensor(1):
        return pointwise(call)
    count, left = reduced(call)
    return Cost(max(count - left, 0), moved(call, (0,), left, 0))


def variance(call: OperatorCall) -> Cost:
    """`var(self, dim, ...)`: mean, deviations, squares, their sum, division."""
    count, left = reduced(call)
    return Cost(4 * count, moved(call, (0,), left * (2 if "mean" in call.name else 1), 0))


def deviation(call: OperatorCall) -> Cost:
    """`std(self, dim, ...)`: the root of the variance."""
    count, left = reduced(call)
    return Cost(4 * count + left, moved(call, (0,), left * (2 if "mean" in call.name else 1), 0))


def norm(call: OperatorCall) -> Cost:
    """`linalg_vector_norm(self, order, dim, ...)` and `norm(self, p, dim, ...)`."""
    order = call.value(1, 2)
    count, left = reduced(call, 2)
    each, out = (1, 1) if order == 2 else (1, 0) if order in (0, 1, "inf", "-inf") else (2, 1)
    return Cost(max(count - left, 0) + each * count + out * left, moved(call, (0,), left, 0))


def distance(call: OperatorCall) -> Cost:
    """`dist(self, other, p)`: differences, powers, their sum, and the root."""
    count = call.numel(0)
    return Cost(3 * count, moved(call, (0, 1), 1, 0))


def cumulative(call: OperatorCall) -> Cost:
    """`cumsum(self, dim)` and its like."""
    return _cumulative(call, 1)


def cumulative_exponents(call: OperatorCall) -> Cost:
    """`logcumsumexp(self, dim)`: a step is the 7 operations of `logaddexp`."""
    return _cumulative(call, 7)


def _cumulative(call: OperatorCall, each: int) -> Cost:
    shape, count = call.shape(0), call.numel(0)
    length = shape[int(call.value(1, 0))] if shape else 1
    add = 2 if call.is_complex(0) else 1
    flops = each * add * (count - count // length) if length else 0
    size = moved(call, (0,), count, 0, dtype="int64" if call.dtypes[0] in _INTEGERS else None)
    return Cost(flops, size)


def trace_of_matrix(call: OperatorCall) -> Cost:
    """`trace(self)`: the sum of the diagonal."""
    size = min(call.shape(0))
    item = call.item_bytes(0)
    return Cost(max(size - 1, 0), None if item is None else item * (size + 1))


def close(call: OperatorCall) -> Cost:
    """`allclose(self, other)`: subtract, two absolute values, multiply, add, compare, and bring all together."""
    count = call.numel(0)
    return Cost(7 * count, moved(call, (0, 1), 0, 0))


_SUM = _reduction(0, 0)
RULES: dict[str, Rule] = rules(
    "reduction",
    {
        _SUM: "sum prod nansum amax amin _sparse_csr_sum",
        _reduction(0, 1): "mean nanmean",
        _reduction(0, 0, kind="bool"): "all any _is_all_true _is_any_true",
        _reduction(0, 0, kind="int64"): "argmax argmin",
        _reduction(1, 0, kind="int64"): "count_nonzero",
        _reduction(3, 1): "logsumexp",
        _reduction(1, 0, outputs=2): "aminmax _aminmax",
        extreme: "max min",
        variance: "var var_mean",
        deviation: "std std_mean",
        norm: "linalg_vector_norm norm native_norm linalg__powsum",
        distance: "dist",
        cumulative: "cumsum cumprod cummax cummin _cummax_helper _cummin_helper",
        cumulative_exponents: "logcumsumexp _logcumsumexp",
        trace_of_matrix: "trace",
        close: "allclose",
    },
)
