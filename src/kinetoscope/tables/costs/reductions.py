"""Reductions: n - o operations to bring n elements down to o by adding, multiplying or comparing, and what is done to each besides.

A mean divides o times; a variance is the mean, the deviations and their squares, their sum, and the division, 4 n; a norm is what is
done to each element, the sum, and the root. Cumulative operators combine each element but the first of a row with the one before.
"""

from __future__ import annotations

from math import prod

from kinetoscope.tables.costs.call import SCALAR_TYPES, Cost, OperatorCall, broadcast, each
from kinetoscope.tables.costs.operator_names import names
from kinetoscope.tables.costs.pointwise import norm_steps, pointwise

_INTEGERS = names("int64 int32 int16 int8 uint8 bool")
_TYPED = names("aten::sum aten::prod aten::nansum aten::mean")


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


def _sum_dtype(call: OperatorCall) -> str | None:
    """The element type of a reduction's result: the requested one, or int64 for a sum of integers."""
    requested = call.value(len(call.values) - 1)
    if call.name in _TYPED and type(requested) is int and len(call.values) > 1:
        return SCALAR_TYPES.get(requested)
    return "int64" if call.dtypes[0] in _INTEGERS and call.name in _TYPED else call.dtypes[0]


def reduction(call: OperatorCall, *, steps: int = 0, out: int = 0, dtype: str = "", outputs: int = 1) -> Cost:
    """A formula: combine all elements, and besides `steps` operations for each of them and `out` for each result."""
    count, left = reduced(call)
    combine = (2 if call.is_complex(0) else 1) * max(count - left, 0)
    size = call.moved((0,), outputs * left, 0, dtype=dtype or _sum_dtype(call))
    return Cost(combine + steps * count + out * left, size)


def extreme(call: OperatorCall) -> Cost:
    """`max(self)`, `max(self, dim)`, or `max(self, other)`, which is pointwise."""
    if len(call.inputs()) > 1 and call.has_tensor(1):
        return pointwise(call)
    return reduction(call)


def norm(call: OperatorCall) -> Cost:
    """`linalg_vector_norm(self, order, dim, ...)` and `norm(self, p, dim, ...)`."""
    count, left = reduced(call, 2)
    add, out = norm_steps(call.value(1, 2))
    return Cost(max(count - left, 0) + add * count + out * left, call.moved((0,), left, 0))


def trace(call: OperatorCall) -> Cost:
    """`trace(self)`: the sum of a diagonal."""
    return Cost(max(min(call.shape(0)) - 1, 0), None)


def cumulative(call: OperatorCall, *, step: int) -> Cost:
    """The cost of `cumsum(self, dim)` and its like, with so many operations for a step."""
    count, steps = call.numel(0), step * (2 if call.is_complex(0) else 1)
    dtype = "int64" if call.dtypes[0] in _INTEGERS else None
    return Cost(steps * (count - _rows(call, 1)), call.moved((0,), count, 0, dtype=dtype))


def _rows(call: OperatorCall, argument: int, default: int = 0) -> int:
    """How many rows the dimension named by an argument has."""
    shape = call.shape(0)
    length = shape[int(call.value(argument, default))] if shape else 1
    return call.numel(0) // length if length else 0


# Sorting and searching: comparisons, by the number that a good algorithm needs, rounded up to whole binary logarithms.
#
# n log2 n to sort n elements, n log2 k for the k largest, n to select one, log2 n to find a place among n sorted ones.


def log2(count: int) -> int:
    """The binary logarithm of a whole number, rounded up; 0 for less than 2."""
    return max(count - 1, 0).bit_length()


def sort(call: OperatorCall) -> Cost:
    """`sort(self, dim, descending)` or `sort(self, stable, dim, descending)`: values and their places."""
    stable_first = isinstance(call.value(1), bool) or len(call.values) == 4
    count, rows = call.numel(0), _rows(call, 2 if stable_first else 1, -1)
    return Cost(count * log2(count // max(rows, 1)), call.moved((0,), count, 0, more=8 * count))


def largest(call: OperatorCall) -> Cost:
    """`topk(self, k, dim, ...)`."""
    count, wanted = call.numel(0), int(call.value(1, 1))
    left = _rows(call, 2, -1) * wanted
    return Cost(count * max(log2(wanted), 1), call.moved((0,), left, 0, more=8 * left))


def unique(call: OperatorCall) -> Cost:
    """`_unique2(self, ...)` and its like: sorts; how many are left is not known."""
    count = call.numel(0)
    return Cost(count * log2(count), None)


def search(call: OperatorCall, *, among: int, values: int) -> Cost:
    """The cost of `searchsorted(sorted, values)` and `bucketize(values, boundaries)`: a binary search for each value."""
    length, count = call.shape(among)[-1], call.numel(values) if call.has_tensor(values) else 1
    return Cost(count * log2(length + 1), call.moved((0, 1), count, among, dtype="int64"))


def membership(call: OperatorCall) -> Cost:
    """`isin(elements, among)`: a search for each element among sorted ones, and sorting them."""
    elements, among = (call.numel(place) if call.has_tensor(place) else 1 for place in (0, 1))
    return Cost((elements + among) * log2(among), call.moved((0, 1), elements, 0, dtype="bool"))


def draw(call: OperatorCall) -> Cost:
    """`multinomial(self, samples, ...)`: cumulative probabilities, then a binary search for each sample."""
    shape, drawn = call.shape(0), prod(call.shape(0)[:-1]) * int(call.value(1, 1))
    return Cost(call.numel(0) + drawn * log2(shape[-1]), call.moved((0,), drawn, 0, dtype="int64"))


# Normalization: layer, batch, group and RMS norm and weight norm.
#
# Forward, for n elements in r groups that share their statistics: mean n, deviations n, squares n, their sum and division n, then a small
# number added and the reciprocal root 2 r, and the deviations multiplied by it n: 5 n + 2 r. A weight and a bias add n each.
# Backward with the usual formula, x' being the normalized input and g the gradient (times the weight where there is one, n):
# x' itself 2 n, the sums of g and g x' 3 n - 2 r, their means 2 r, `rstd * (g - mean(g) - x' * mean(g x'))` 4 n; for the weight's
# gradient 2 n - p and for the bias's n - p, with p elements in each.


def _forward(call: OperatorCall, groups: int, weight: int, bias: int) -> Cost:
    """The cost with statistics of the input."""
    count = call.numel(0)
    flops = 5 * count + 2 * groups + count * (call.has_tensor(weight) + call.has_tensor(bias))
    return Cost(flops, call.moved((0, weight, bias), count + 2 * groups, 0))


def _backward(
    call: OperatorCall, operand: int, weight: int, parameters: int, mask: list[bool], *, means: int = 2
) -> Cost:
    """The cost of the gradients of input, weight and bias that a mask asks for; the gradient and the input are the first two arguments."""
    count = call.numel(operand)
    of_input, of_weight, of_bias = (*map(bool, mask), False)[:3]
    flops = of_input * count * (3 + 2 * means + call.has_tensor(weight))
    flops += (of_input or of_weight) * means * count
    flops += of_weight * (2 * count - parameters) + of_bias * (count - parameters)
    written = of_input * count + (of_weight + of_bias) * parameters
    return Cost(flops, call.moved((0, 1, weight), written, operand))


def layer_norm(call: OperatorCall) -> Cost:
    """`native_layer_norm(input, normalized sizes, weight, bias, eps)`."""
    return _forward(call, call.numel(0) // max(prod(call.whole_list(1)), 1), 2, 3)


def layer_norm_backward(call: OperatorCall) -> Cost:
    """`native_layer_norm_backward(gradient, input, normalized sizes, mean, rstd, weight, bias, mask)`."""
    mask = call.value(7, [True, call.has_tensor(5), call.has_tensor(6)])
    return _backward(call, 1, 5, prod(call.whole_list(2)), mask)


def group_norm(call: OperatorCall) -> Cost:
    """`native_group_norm(input, weight, bias, images, channels, places, groups, eps)`."""
    return _forward(call, int(call.value(3)) * int(call.value(6)), 1, 2)


def group_norm_backward(call: OperatorCall) -> Cost:
    """`native_group_norm_backward(gradient, input, mean, rstd, weight, images, channels, places, groups, mask)`."""
    return _backward(call, 1, 4, int(call.value(6)), call.value(9, [True, True, True]))


def rms_norm(call: OperatorCall) -> Cost:
    """`_fused_rms_norm(input, normalized sizes, weight, eps)`: squares, mean, root, multiply."""
    count = call.numel(0)
    groups = count // max(prod(call.whole_list(1)), 1)
    return Cost((3 + call.has_tensor(2)) * count + 2 * groups, call.moved((0, 2), count + groups, 0))


def rms_norm_backward(call: OperatorCall) -> Cost:
    """`_fused_rms_norm_backward(gradient, input, normalized sizes, rstd, weight, mask)`: one mean less than layer norm's."""
    return _backward(call, 1, 4, prod(call.whole_list(2)), call.value(5, [True, True]), means=1)


def _channels(call: OperatorCall) -> int:
    shape = call.shape(0)
    return shape[1] if len(shape) > 1 else 1


def batch_norm(call: OperatorCall, *, training: int | bool) -> Cost:
    """The formula where argument `training` says whether statistics are those of the input, or where that is fixed."""
    channels, count = _channels(call), call.numel(0)
    if training if isinstance(training, bool) else call.value(training):
        cost = _forward(call, channels, 1, 2)
        # Each running statistic: two multiplications and an addition.
        return Cost((cost.flops or 0) + 6 * channels * call.has_tensor(3), cost.bytes)
    flops = (2 + call.has_tensor(2)) * count + (2 + call.has_tensor(1)) * channels
    return Cost(flops, call.moved((0, 1, 2, 3, 4), count, 0))


def batch_norm_backward(call: OperatorCall, *, operand: int, training: int, mask: int) -> Cost:
    """The cost of a backward function with weight at 2."""
    channels, count = _channels(call), call.numel(operand)
    wanted = call.value(mask, [True, True, True])
    cost = _backward(call, operand, 2, channels, wanted)
    if call.value(training) is False:
        # The statistics are constants: the gradient is only scaled.
        flops = bool(wanted[0]) * (count + channels) + bool(wanted[1]) * (4 * count - channels)
        return Cost(flops + bool(wanted[2]) * (count - channels), cost.bytes)
    return cost


def channel_sums(call: OperatorCall, *, more: int, outputs: int) -> Cost:
    """Sums over each channel: `batch_norm_stats` with mean, variance and the reciprocal root, or two sums for the gradient."""
    channels = _channels(call)
    return Cost(4 * call.numel(0) + more * channels, call.moved(call.inputs()[:2], outputs * channels, 0))


def weight_norm(call: OperatorCall, *, of: int, steps: int, more: int) -> Cost:
    """`_weight_norm_interface(v, g, dim)`: the norms 2 n, one division for each, and a multiplication for each element.

    Its gradient (gradient, v, g, norms, dim) has a sum of products, then three operations an element.
    """
    count, parts = call.numel(of), call.numel(of + 1)
    return Cost(steps * count + more * parts, call.moved(call.inputs(), count + parts, of))


def apply_statistics(call: OperatorCall) -> Cost:
    """`batch_norm_elemt(input, weight, bias, mean, invstd, eps)`."""
    return each(call, flops=2 + call.has_tensor(1) + call.has_tensor(2))


# Softmax and losses.
#
# Softmax of n elements in r rows: the largest n - r, differences n, exponentials n, their sum n - r, division n: 5 n - 2 r. Its logarithm:
# the same without the division, a logarithm for each row and another difference, 5 n - r. Backward: 4 n - r for both.
# A loss with reduction adds n - 1 for the sum, and 1 for the mean.

_NONE, _MEAN, _SUM = 0, 1, 2


def softmax(call: OperatorCall, *, steps: int, less: int, dim: int) -> Cost:
    """The cost of softmax or its gradient: operations for each element, and how many less for each row along a dimension."""
    count = call.numel(0)
    return Cost(steps * count - less * _rows(call, dim, -1), call.moved(range(dim), count, 0))


def _reduced_loss(kind: object, count: int) -> int:
    return {_NONE: 0, _SUM: max(count - 1, 0)}.get(kind if isinstance(kind, int) else _MEAN, count)


def loss(call: OperatorCall, *, steps: int, reduction: int = 2) -> Cost:
    """The cost of a loss with so many operations for each pair of input and target; `binary_cross_entropy` takes weights before."""
    count = prod(broadcast(call.shape(0), call.shape(1)))
    kind = call.value(reduction, _MEAN)
    size = call.moved(call.inputs(), count if kind == _NONE else 1, 0)
    weights = reduction > 2 and call.has_tensor(2)
    return Cost((steps + weights) * count + _reduced_loss(kind, count), size)


def loss_backward(call: OperatorCall, *, steps: int, weights: int = -1) -> Cost:
    """The cost of `..._backward(gradient, input, target, ...)`."""
    count = prod(broadcast(call.shape(1), call.shape(2)))
    more = weights >= 0 and call.has_tensor(weights)
    return Cost((steps + more) * count, call.moved((0, 1, 2), call.numel(1), 1))


def nll(call: OperatorCall) -> Cost:
    """`nll_loss_forward(logarithms, target, weight, reduction, ...)`: picks one of each row, negates it and weighs it."""
    count, kind = call.numel(1), call.value(3, _MEAN)
    flops = count * (1 + call.has_tensor(2)) + _reduced_loss(kind, count)
    # Of the logarithms only one a row is read.
    return Cost(flops, call.moved((1,), count + (count if kind == _NONE else 2), 0))


def nll_backward(call: OperatorCall) -> Cost:
    """`nll_loss_backward(gradient, logarithms, target, weight, ...)`: fills with 0, and one negation for each target."""
    return Cost(call.numel(2) * (1 + call.has_tensor(3)), call.moved((0, 2), call.numel(1), 1))


def ctc(call: OperatorCall) -> Cost:
    """`_ctc_loss(logarithms, targets, ...)`, or its gradient with a gradient first and 4 operations for each result.

    The algorithm goes over times and twice the target's symbols plus one; a step has three terms added as logarithms, and the symbol's own: 13.
    """
    first = int("backward" in call.name)
    shape, symbols = call.shape(first), call.numel(first + 1)
    states = 2 * symbols + (shape[1] if len(shape) > 2 else 1)
    written = call.numel(first) if first else shape[0] * states
    return Cost(13 * shape[0] * states + first * 4 * written, call.moved((first, first + 1), written, first))
