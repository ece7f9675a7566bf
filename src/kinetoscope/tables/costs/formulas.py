"""The formulas of built-in operators: the cost of a call by its arguments. `formulas.txt` maps operators to formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from math import ceil, gcd, prod
from typing import Any

from numpy import broadcast_shapes

from kinetoscope.tables.costs.call import (
    FREE,
    SCALAR_TYPES,
    UNKNOWN,
    Cost,
    OperatorCall,
    Shape,
    per_dimension,
    result_dtype,
)
from kinetoscope.tables.costs.operator_names import names


def hidden(call: OperatorCall) -> Cost:
    """Unknown cost: it depends on what a trace does not show, such as a packed weight or the stored numbers of a sparse matrix."""
    return UNKNOWN


def unsized(call: OperatorCall) -> Cost:
    """No operations; unknown bytes, because a trace does not show the size or type of the result."""
    return Cost(0, None)


def work(call: OperatorCall, *, flops: int, of: int = 0) -> Cost:
    """A fixed number of operations per element of an argument; unknown bytes, because a trace does not show the size of the result."""
    return Cost(flops * call.numel(of), None)


def each(
    call: OperatorCall,
    *,
    flops: int,
    of: int = 0,
    like: int = -1,
    unread: int = -1,
    written: int = -1,
    dtype: str = "",
) -> Cost:
    """A fixed number of operations per element of an argument; every tensor is read.

    Args:
        call: The call.
        flops: The operations per element.
        of: The argument.
        like: The argument with the size and type of the result, if not `of`.
        unread: An argument that is not read because only its size matters.
        written: The number of elements of the result, if fixed.
        dtype: The type of the result, if it differs.
    """
    like = like if like >= 0 else of
    read = [place for place in call.inputs() if place != unread]
    size = call.moved(read, written if written >= 0 else call.numel(like), like, dtype=dtype or None)
    return Cost(flops * call.numel(of), size)


# Pointwise operators: a number of operations for each element of the result, which has the broadcast shape of the
# inputs.
# Each addition, multiplication, division, negation, comparison and each value of a function such as `exp`, `tanh` or
# `sqrt` is one operation; selections, logic on bits, casts and copies are none. What an operator costs is counted in
# its formula as it is usually written: `sigmoid(x) = 1 / (1 + exp(-x))` is 4. Where branches differ, the longest
# counts. As in `torch.profiler`, `add` and `sub` are 1 also with a factor (`alpha`). Complex numbers: 2 to add, 6 to
# multiply, 11 to divide, 3 for the square of an absolute value, 4 for the absolute value; other functions count twice
# what they count for real numbers.

_INTEGERS = names("int64 int32 int16 int8 uint8 bool")


def _operations(call: OperatorCall, settings: Mapping[str, Any]) -> int:
    """The operations per element of the result, by the settings in `formulas.txt`."""
    for text, flops in settings.get("by_text", {}).items():
        if text in call.values:
            return int(flops)
    flops = settings.get("flops", 1)
    if any(call.is_complex(place) for place in range(len(call.dtypes))):
        flops = settings.get("complex_flops", 2 * flops)
    # A bound that is not passed is neither tensor nor value.
    bounds = settings.get("bounds", ())
    return int(flops) + sum(call.has_tensor(bound) or call.value(bound) is not None for bound in bounds)


def pointwise(call: OperatorCall, **settings: Any) -> Cost:
    """The cost of any pointwise operator."""
    places, in_place = call.inputs(), call.name.endswith("_")
    out = call.shape(0) if in_place else broadcast_shapes(*(call.shape(place) for place in places))
    if not out and call.shapes[0] is None and call.value(0) is None:
        raise TypeError(f"the sizes of the first argument of {call.name} were not recorded")
    count = prod(out)
    dtype = settings.get("dtype") or (call.dtypes[0] if in_place else result_dtype(call, places))
    if settings.get("real") and dtype in _INTEGERS:
        dtype = "float32"
    # A tensor without dimensions is usually a wrapped scalar, which causes no memory traffic.
    read = [place for place in places if call.shape(place)] if out else places
    size = call.moved(read, count, 0, dtype=dtype) if dtype else None
    return Cost(_operations(call, settings) * count, size)


def gated(call: OperatorCall) -> Cost:
    """`glu(self)`: one half of the input times the sigmoid of the other."""
    count = call.numel(0) // 2
    return Cost(5 * count, call.moved((0,), count, 0))


def dropout(call: OperatorCall) -> Cost:
    """`native_dropout(input, p, train)`: multiply with the mask and the scale; the mask has a byte for each element."""
    count, drops = call.numel(0), call.value(2) is not False
    return Cost(2 * count * drops, call.moved((0,), count, 0, more=count * drops))


def rescale(call: OperatorCall) -> Cost:
    """`_transform_bias_rescale_qkv(qkv, bias, heads)`: add the bias, and scale the queries, a third."""
    count = call.numel(0)
    return Cost(count + count // 3, call.moved((0, 1), count, 0))


# Operators on lists of tensors: `_foreach_...`, fused optimizers, and the scaling of gradients.
#
# For each tensor of its first list, a `_foreach_` operator costs what the pointwise operator costs. For each element, a fused optimizer costs
# its update rule as usually written, without terms that are the same for all elements or whose setting is 0. Traces do not show the
# element types of lists, so the bytes moved are unknown.


def _sizes(call: OperatorCall) -> list[int]:
    """The element count of each tensor in the first list, which is never empty.

    Raises:
        LookupError: Its sizes were not recorded.
    """
    shapes = call.shape_list(0)
    if not shapes:
        raise LookupError(f"the sizes of the tensors of {call.name} were not recorded")
    return [prod(shape) for shape in shapes]


def of_lists(call: OperatorCall, **settings: Any) -> Cost:
    """A pointwise operator for each tensor of a list."""
    return Cost(_operations(call, settings) * sum(_sizes(call)), None)


def norm_steps(order: object) -> tuple[int, int]:
    """The operations of a norm per element and per result, in addition to those that combine the elements."""
    return (1, 1) if order == 2 else (1, 0) if order in (0, 1, "inf", "-inf") else (2, 1)


def norms(call: OperatorCall) -> Cost:
    """`_foreach_norm(self, order, ...)`: a norm of each tensor; `_foreach_max(self)`: the largest element of each."""
    add, out = (0, 0) if "max" in call.name else norm_steps(call.value(1, 2))
    return Cost(sum(max(size - 1, 0) + add * size + out for size in _sizes(call)), None)


def optimizer(call: OperatorCall, *, steps: int, added: list[tuple[int, int]]) -> Cost:
    """The cost of a fused optimizer: operations per element, plus those of arguments that are set and not 0 or False."""
    more = (flops for place, flops in added if call.has_tensor(place) or bool(call.value(place)))
    return Cost((steps + sum(more)) * sum(_sizes(call)), None)


# Reductions: n - o operations (additions, multiplications or comparisons) to combine n elements into o, plus the work
# on each element or result.
# A mean divides o times; a variance is the mean, the deviations and their squares, their sum, and the division, 4 n;
# a norm is what is done to each element, the sum, and the root. Cumulative operators combine each element but the
# first of a row with the one before.

_TYPED = names("aten::sum aten::prod aten::nansum aten::mean")


def reduced(call: OperatorCall, argument: int = 1) -> tuple[int, int]:
    """The element counts of input and result; `argument` holds the reduced dimensions."""
    shape = call.shape(0)
    dims = call.value(argument)
    # A single integer is a dimension if `keepdim` follows it, else an element type.
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
    """The cost to combine all elements, plus `steps` operations per element and `out` per result."""
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
    """The cost of `cumsum(self, dim)` and similar operators, with `step` operations per element after the first."""
    count, steps = call.numel(0), step * (2 if call.is_complex(0) else 1)
    dtype = "int64" if call.dtypes[0] in _INTEGERS else None
    return Cost(steps * (count - _rows(call, 1)), call.moved((0,), count, 0, dtype=dtype))


def _rows(call: OperatorCall, argument: int, default: int = 0) -> int:
    """The number of rows along the dimension that an argument names."""
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
    """`_unique2(self, ...)` and similar operators: a sort; the size of the result is unknown."""
    count = call.numel(0)
    return Cost(count * log2(count), None)


def search(call: OperatorCall, *, among: int, values: int) -> Cost:
    """The cost of `searchsorted(sorted, values)` and `bucketize(values, boundaries)`: a binary search for each value."""
    length, count = call.shape(among)[-1], call.numel(values) if call.has_tensor(values) else 1
    return Cost(count * log2(length + 1), call.moved((0, 1), count, among, dtype="int64"))


def membership(call: OperatorCall) -> Cost:
    """`isin(elements, among)`: sort `among`, then a binary search for each element."""
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
    """The forward cost, including the statistics of the input."""
    count = call.numel(0)
    flops = 5 * count + 2 * groups + count * (call.has_tensor(weight) + call.has_tensor(bias))
    return Cost(flops, call.moved((0, weight, bias), count + 2 * groups, 0))


def _backward(
    call: OperatorCall, operand: int, weight: int, parameters: int, mask: list[bool], *, means: int = 2
) -> Cost:
    """The cost of the gradients of input, weight and bias that the mask selects; the first two arguments are the gradient and the input."""
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
    """The cost of batch norm; `training` is the position of the argument that enables batch statistics, or a fixed bool."""
    channels, count = _channels(call), call.numel(0)
    if training if isinstance(training, bool) else call.value(training):
        cost = _forward(call, channels, 1, 2)
        # Each running statistic: two multiplications and an addition.
        return Cost((cost.flops or 0) + 6 * channels * call.has_tensor(3), cost.bytes)
    flops = (2 + call.has_tensor(2)) * count + (2 + call.has_tensor(1)) * channels
    return Cost(flops, call.moved((0, 1, 2, 3, 4), count, 0))


def batch_norm_backward(call: OperatorCall, *, operand: int, training: int, mask: int) -> Cost:
    """The cost of a batch norm's backward; the weight is argument 2."""
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
    """The cost of softmax or its gradient: `steps` operations per element minus `less` per row along `dim`."""
    count = call.numel(0)
    return Cost(steps * count - less * _rows(call, dim, -1), call.moved(range(dim), count, 0))


def _reduced_loss(kind: object, count: int) -> int:
    return {_NONE: 0, _SUM: max(count - 1, 0)}.get(kind if isinstance(kind, int) else _MEAN, count)


def loss(call: OperatorCall, *, steps: int, reduction: int = 2) -> Cost:
    """The cost of a loss with `steps` operations per pair of input and target; `binary_cross_entropy` has weights before `reduction`."""
    count = prod(broadcast_shapes(call.shape(0), call.shape(1)))
    kind = call.value(reduction, _MEAN)
    size = call.moved(call.inputs(), count if kind == _NONE else 1, 0)
    weights = reduction > 2 and call.has_tensor(2)
    return Cost((steps + weights) * count + _reduced_loss(kind, count), size)


def loss_backward(call: OperatorCall, *, steps: int, weights: int = -1) -> Cost:
    """The cost of `..._backward(gradient, input, target, ...)`."""
    count = prod(broadcast_shapes(call.shape(1), call.shape(2)))
    more = weights >= 0 and call.has_tensor(weights)
    return Cost((steps + more) * count, call.moved((0, 1, 2), call.numel(1), 1))


def nll(call: OperatorCall) -> Cost:
    """`nll_loss_forward(logarithms, target, weight, reduction, ...)`: picks one value per row, negates and weights it."""
    count, kind = call.numel(1), call.value(3, _MEAN)
    flops = count * (1 + call.has_tensor(2)) + _reduced_loss(kind, count)
    # Only one logarithm per row is read.
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


# Convolutions: 2 operations for each multiply-add of the direct algorithm, whatever algorithm ran; a bias is left
# out.
# Each weight meets each place of the output once for every image; for a transposed convolution, each place of the
# input. So the count is 2 x images x places x elements of the weight, which has groups and kernel in it.
# `torch.profiler` has the same for `conv2d`.


def convolution(
    call: OperatorCall,
    *,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    transposed: int | bool = False,
    extra: int = -1,
    operands: tuple[int, int] = (0, 1),
) -> Cost:
    """The cost of a convolution, with the positions of its arguments.

    Args:
        call: The call.
        stride: The position of the stride.
        padding: The position of the padding.
        dilation: The position of the dilation.
        groups: The position of the number of groups.
        transposed: The position of the flag for a transposed convolution, or a fixed bool.
        extra: The position of the output padding of a transposed convolution.
        operands: The positions of the input and the weight.
    """
    image, weight = map(call.shape, operands)
    count = len(weight) - 2
    if count < 1 or len(image) not in (count + 1, count + 2):
        raise ValueError("the input does not fit the weight")
    is_transposed = transposed if isinstance(transposed, bool) else bool(call.value(transposed))
    step, wide = (per_dimension(call.value(place) or 1, count) for place in (stride, dilation))
    reach = [wide[axis] * (weight[2 + axis] - 1) + 1 for axis in range(count)]
    sizes, out_sizes = list(image[-count:]), list(image[-count:])
    if call.value(padding) != "same":
        around = per_dimension(0 if call.value(padding) == "valid" else call.value(padding) or 0, count)
        more = per_dimension((call.value(extra) if extra >= 0 else 0) or 0, count)
        for axis, size in enumerate(sizes):
            if is_transposed:
                out_sizes[axis] = (size - 1) * step[axis] - 2 * around[axis] + reach[axis] + more[axis]
            else:
                out_sizes[axis] = (size + 2 * around[axis] - reach[axis]) // step[axis] + 1
    if min(out_sizes) < 0:
        raise ValueError("the output would be smaller than nothing")
    images = image[0] if len(image) == len(weight) else 1
    channels = weight[1] * per_dimension(call.value(groups, 1), 1)[0] if is_transposed else weight[0]
    flops = call.multiply_add(0) * images * prod(sizes if is_transposed else out_sizes) * prod(weight)
    return Cost(flops, call.moved(call.inputs(), images * channels * prod(out_sizes), 0))


def fused_convolution(call: OperatorCall) -> Cost:
    """`mkldnn_convolution(input, weight, bias, padding, stride, ...)`; fused variants may have a tensor to add before or after the input."""
    if call.has_tensor(2) and len(call.shape(2)) > 1:
        operands = (int(call.name.endswith("_")), 2)
        return convolution(call, stride=5, padding=4, dilation=6, groups=7, operands=operands)
    return convolution(call, stride=4, padding=3, dilation=5, groups=6)


def convolution_backward(call: OperatorCall) -> Cost:
    """`convolution_backward(gradient, input, weight, bias sizes, ..., transposed, ..., mask)`.

    The gradient of the input and that of the weight cost as much as the forward each; that of the bias is left out.
    """
    weight, mask = call.shape(2), call.value(10, [True, True, True])
    if len(weight) < 3:
        raise ValueError("the weight has too few dimensions")
    through = call.shape(1 if call.value(7, False) else 0)
    images = through[0] if len(through) == len(weight) else 1
    positions, of_input, of_weight = prod(through[2 - len(weight) :]), bool(mask[0]), bool(mask[1])
    flops = call.multiply_add(0) * images * positions * prod(weight) * (of_input + of_weight)
    written = call.numel(1) * of_input + call.numel(2) * of_weight
    return Cost(flops, call.moved((0, 1, 2), written, 0))


# Pooling: each result from its window, k - 1 comparisons for a maximum, k - 1 additions and a division for a mean.
#
# Windows that reach over the border count in full. Adaptive pooling counts the elements of its windows exactly, which may overlap.
# Backward, a maximum's gradient is one addition for each result, a mean's a division and k additions.

_INDEX_BYTES = 8


def _dimensions(call: OperatorCall) -> int:
    """The number of spatial dimensions in an operator's name."""
    return next(count for count in (1, 2, 3) if f"{count}d" in call.name)


def pool(call: OperatorCall, *, largest: bool, indices: bool = False) -> Cost:
    """The cost of a maximum or a mean in windows: `max_pool2d(self, kernel, stride, padding, dilation, ceil)`; a mean has no dilation."""
    count, shape = _dimensions(call), call.shape(0)
    kernel = per_dimension(call.value(1), count)
    stride = per_dimension(call.value(2) or kernel, count)
    padding = per_dimension(call.value(3, 0), count)
    dilation = per_dimension(call.value(4, 1) if largest else 1, count)
    up = bool(call.value(5 if largest else 4, False))
    results = prod(shape[:-count])
    for axis, size in enumerate(shape[-count:]):
        free = size + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1
        windows = (free + (stride[axis] - 1 if up else 0)) // stride[axis] + 1
        # A window that would start in the padding after the input is dropped.
        results *= windows - (up and (windows - 1) * stride[axis] >= size + padding[axis])
    moved = call.moved((0,), results, 0, more=results * _INDEX_BYTES * indices)
    return Cost(results * (prod(kernel) - largest), moved)


def mean_backward(call: OperatorCall) -> Cost:
    """`avg_pool2d_backward(gradient, self, kernel, ...)` and its like."""
    window = prod(per_dimension(call.value(2), _dimensions(call)))
    return each(call, flops=1 + window, like=1, unread=1)


def _in_windows(shape: tuple[int, ...], parts: list[int]) -> int:
    """The total element count of all windows when each of the last dimensions is cut into a number of parts.

    A window ends where the next begins, or one element later where the cut is within an element: all but gcd(size, parts).
    """
    elements = prod(shape[: len(shape) - len(parts)])
    for size, count in zip(shape[-len(parts) :], parts, strict=True):
        elements *= size + count - gcd(size, count) if count else 0
    return elements


def adaptive(call: OperatorCall, *, largest: bool) -> Cost:
    """The cost of pooling to a given size."""
    sizes = per_dimension(call.value(1), _dimensions(call))
    results = prod(call.shape(0)[: -len(sizes)]) * prod(sizes)
    flops = _in_windows(call.shape(0), sizes) - results * largest
    return Cost(flops, call.moved((0,), results, 0, more=results * _INDEX_BYTES * largest))


def adaptive_mean_backward(call: OperatorCall) -> Cost:
    """`_adaptive_avg_pool2d_backward(gradient, self)`: a division for each result and an addition for each element of a window."""
    windows = _in_windows(call.shape(1), list(call.shape(0)[-_dimensions(call) :]))
    return Cost(call.numel(0) + windows, call.moved((0,), call.numel(1), 1))


# Interpolation: upsampling and `grid_sample`.
#
# A step between two values is 3 operations (two products and a sum); bilinear takes 3 such steps, trilinear 7, and bicubic 5 sums of 4
# products, 35. `grid_sample` has these for each channel, and for each place of the grid besides the coordinates (4 for each
# dimension) and the weights. Weights along an axis of upsampling are left out: they are found once for each row and column. Backward, each
# value's gradient goes to all its sources: a product and a sum for each.

_BILINEAR, _NEAREST = 0, 1


def upsample(call: OperatorCall, *, steps: int) -> Cost:
    """The cost of upsampling with so many operations for each result, to a given size or by given factors."""
    shape, sizes = call.shape(0), call.value(1)
    if not isinstance(sizes, list):
        factors = [value for value in call.values[2:] if isinstance(value, list)][-1]
        sizes = [int(size * by) for size, by in zip(shape[-len(factors) :], factors, strict=True)]
    results = prod(shape[: len(shape) - len(sizes)]) * prod(sizes)
    return Cost(steps * results, call.moved((0,), results, 0))


def upsample_backward(call: OperatorCall, *, steps: int) -> Cost:
    """The cost of `upsample_..._backward(gradient, output size, input size, ...)`."""
    return Cost(steps * call.numel(0), call.moved((0,), prod(call.whole_list(2)), 0))


# Samples of the input for each result along an axis, where the image does not shrink.
_TAPS = {"bilinear": 2, "bicubic": 4}


def antialiased(call: OperatorCall) -> Cost:
    """`_upsample_bilinear2d_aa(self, output size, ...)`: along each axis a sum of products over a window that grows as the image shrinks."""
    shape, new = call.shape(0), call.whole_list(1)
    reach = next(taps for name, taps in _TAPS.items() if f"_{name}2d" in call.name)
    high, wide = (
        ceil(reach * max(size / part, 1.0)) if part else 0 for size, part in zip(shape[-2:], new, strict=True)
    )
    flops = new[1] * (shape[-2] * (2 * wide - 1) + new[0] * (2 * high - 1))
    images = prod(shape[:-2])
    return Cost(images * flops, call.moved((0,), images * prod(new), 0))


def grid(call: OperatorCall) -> Cost:
    """`grid_sampler_2d(input, grid, mode, ...)` and its like, also of its gradient, where a gradient comes first."""
    first = int(call.name.endswith("_backward"))
    image, dimensions = call.shape(first), len(call.shape(first)) - 2
    points, corners = prod(call.shape(first + 1)[:-1]), 2**dimensions
    mode, at_place = call.value(first + 2, _BILINEAR), 5 * dimensions
    if mode == _NEAREST:
        steps = first
    elif mode == _BILINEAR:
        # Distances to both sides in each dimension, then their products for each corner.
        at_place += corners * (dimensions - 1)
        steps = (2 * dimensions + 3) * corners if first else 2 * corners - 1
    else:
        raise ValueError("bicubic sampling has no formula")
    results = points * image[1]
    written = prod(image) + call.numel(first + 1) if first else results
    return Cost(steps * results + at_place * points, call.moved(call.inputs(), written, first))


# What moves or makes data without computing with it: copies, fills, joins, random numbers. 0 operations, bytes as
# they are.
# Random numbers take work that is no arithmetic on data, and counts as none.


def fill(call: OperatorCall) -> Cost:
    """The cost of an operator that only writes to its first argument."""
    return Cost(0, call.bytes(0))


def joined(call: OperatorCall) -> Cost:
    """`cat(tensors)` and similar operators; traces do not show the element types of lists, so the bytes are unknown."""
    return FREE if not call.shape_list(0) else Cost(0, None)


def repeated(call: OperatorCall) -> Cost:
    """`repeat(self, times)`."""
    return Cost(0, call.moved((0,), call.numel(0) * prod(call.whole_list(1, [])), 0))


def padded(call: OperatorCall) -> Cost:
    """`constant_pad_nd(self, padding, value)` and similar operators: padding pairs (before, after) start at the last dimension."""
    shape, padding = list(call.shape(0)), call.whole_list(1, [])
    for place, size in enumerate(padding):
        shape[-1 - place // 2] += size
    return Cost(0, call.moved((0,), prod(shape), 0))


def padded_backward(call: OperatorCall) -> Cost:
    """`reflection_pad2d_backward(gradient, self, padding)` and its like: one addition for each element that was repeated."""
    return Cost(call.numel(0) - call.numel(1), call.moved((0,), call.numel(1), 1))


def into_zeros(call: OperatorCall) -> Cost:
    """`select_backward(gradient, sizes, ...)` and its like: zeros of the given sizes, and the gradient in its place."""
    return Cost(0, call.moved((0,), prod(call.whole_list(1)) + call.numel(0), 0))


def cast(call: OperatorCall) -> Cost:
    """`_to_copy(self, type, ...)` where no copy is recorded inside."""
    dtype = SCALAR_TYPES.get(call.value(1)) if type(call.value(1)) is int else None
    return Cost(0, call.moved((0,), call.numel(0), 0, dtype=dtype))


# Looking up, gathering and scattering: an addition where values meet, otherwise no operations; bytes of what is touched.
#
# A look-up reads its indices and the rows it takes and writes those; an update in place reads and writes the rows it changes. A table
# from which rows are taken is not counted in full. `index` and `index_put` take a list of indices that traces do not show, so the size of
# `index`'s result is not known.

_BAG_SUM, _BAG_MEAN = 0, 1


def embedding(call: OperatorCall) -> Cost:
    """`embedding(weight, indices, ...)`."""
    return Cost(0, call.moved((1,), 2 * call.numel(1) * call.shape(0)[-1], 0))


def embedding_backward(call: OperatorCall) -> Cost:
    """`embedding_dense_backward(gradient, indices, rows, ...)`: one addition for each element of the gradient."""
    written = int(call.value(2)) * call.shape(0)[-1]
    return Cost(call.numel(0), call.moved((0, 1), written, 0))


def bag(call: OperatorCall) -> Cost:
    """`_embedding_bag(weight, indices, offsets, by frequency, mode, sparse, sample weights, last included, ...)`."""
    width, count = call.shape(0)[1], call.numel(1)
    bags = call.numel(2) - bool(call.value(7, False)) if len(call.shape(1)) == 1 else call.shape(1)[0]
    bags = min(bags, count)
    steps = count - bags + count * call.has_tensor(6) + bags * (call.value(4, _BAG_SUM) == _BAG_MEAN)
    return Cost(steps * width, call.moved((1, 2), (count + bags) * width, 0))


def bag_backward(call: OperatorCall) -> Cost:
    """`_embedding_bag_dense_backward(gradient, indices, bags, sizes, largest, rows, by frequency, mode, sample weights)`."""
    width, count = call.shape(0)[1], call.numel(1)
    steps = 1 + (call.value(7, _BAG_SUM) == _BAG_MEAN) + call.has_tensor(8)
    return Cost(steps * count * width, call.moved((0, 1, 2), int(call.value(5)) * width, 0))


def take_rows(call: OperatorCall) -> Cost:
    """`index_select(self, dim, index)`."""
    sizes = list(call.shape(0)) or [1]
    sizes[int(call.value(1, 0))] = call.numel(2)
    return Cost(0, call.moved((2,), 2 * prod(sizes), 0))


def taken(call: OperatorCall) -> Cost:
    """`gather(self, dim, index)` and `take(self, index)`: one element for each of the index."""
    index = 2 if call.has_tensor(2) else 1
    return Cost(0, call.moved((index,), 2 * call.numel(index), 0))


def update(call: OperatorCall, *, flops: int, source: int) -> Cost:
    """The cost of `scatter_add(self, dim, index, source)` and its like: operations for each element of an argument, else of the index."""
    count = call.numel(source if call.has_tensor(source) else 2)
    copied = 0 if call.name.endswith("_") else 2 * call.numel(0)
    return Cost(flops * count, call.moved((2,), (2 + flops) * count + copied, 0))


def put(call: OperatorCall) -> Cost:
    """`_index_put_impl_(self, indices, values, accumulate)`: an addition for each value where they accumulate."""
    count, adds = call.numel(2), bool(call.value(3, False))
    return Cost(count * adds, call.moved((), (2 + adds) * count, 0))


# Matrix products, what is made of them, and decompositions.
# A multiply-add is 2 operations; the addition of a bias or of another matrix is left out. The convention is that of
# LAPACK Working Note 41 (appendix C, 2 m n k for a product) and of `torch.profiler`, so the numbers of `mm`, `addmm`
# and `bmm` are the same as there.


def matmul_sizes(left: Shape, right: Shape) -> tuple[Shape, int]:
    """The sizes of `left @ right` as `torch.matmul` defines them, and the length of the sums.

    Raises:
        ValueError: They cannot be multiplied.
    """
    if not left or not right or left[-1] != (right[-2] if len(right) > 1 else right[0]):
        raise ValueError(f"{left} and {right} cannot be multiplied")
    columns = right[-1:] if len(right) > 1 else ()
    return (*broadcast_shapes(left[:-2], right[:-2]), *left[-2:-1], *columns), left[-1]


def product(call: OperatorCall, *, left: int, dtype: str | None = None) -> Cost:
    """The cost of `mm(self, other)` and its like, in any number of dimensions, whose factors begin at an argument; what is before is added."""
    out, inner = matmul_sizes(call.shape(left), call.shape(left + 1))
    flops = call.multiply_add(left) * prod(out) * inner
    return Cost(flops, call.moved(range(left + 2), prod(out), left, dtype=dtype))


def layer(call: OperatorCall, *, weight: int) -> Cost:
    """The cost of `linear(input, weight, bias)` and its like: every row of the input with each of the weight's numbers."""
    features = call.shape(0)[-1]
    if features == 0:
        return Cost(0, 0)
    # Through the number of elements: weights may have been packed into other sizes.
    rows, outputs = call.numel(0) // features, call.numel(weight) // features
    flops = call.multiply_add(0) * rows * call.numel(weight)
    return Cost(flops, call.moved((0, weight, weight + 1), rows * outputs, 0))


def fused_layer(call: OperatorCall) -> Cost:
    """`mkldnn::_linear_pointwise(input, weight, bias, ...)`, or with a tensor to add after the input."""
    return layer(call, weight=2 if call.has_tensor(2) and len(call.shape(2)) > 1 else 1)


def grouped(call: OperatorCall) -> Cost:
    """`_grouped_mm(self, other, offsets, bias)`: the groups lie one after the other in the dimension that both lack or share."""
    left, right = call.shape(0), call.shape(1)
    if len(left) == 3 and len(right) == 3:
        return product(call, left=0)
    if left[-1] != right[-2]:
        raise ValueError("the groups cannot be multiplied")
    rows, inner, columns = left[-2], left[-1], right[-1]
    # Both with two dimensions: the sums are cut into groups, each of which gives a matrix of its own.
    groups = call.numel(2) if len(left) == len(right) and call.has_tensor(2) else 1
    flops = call.multiply_add(0) * rows * inner * columns
    dtype = "bfloat16" if (call.item_bytes(0) or 2) < 2 else None
    return Cost(flops, call.moved((0, 1), groups * rows * columns, 0, dtype=dtype))


def packed(call: OperatorCall) -> Cost:
    """`_weight_int8pack_mm(self, weight, ...)` and its like: a row of the weight for each output, or one for each tile of 8 outputs."""
    (rows, inner), weight = call.shape(0), call.shape(1)
    columns = weight[0] * (8 if len(weight) == 4 else 1)
    return Cost(2 * rows * inner * columns, call.moved(call.inputs(), rows * columns, 0))


def distances(call: OperatorCall) -> Cost:
    """`_cdist_forward(first, second, p, mode)`: subtract, raise and add for each pair and coordinate."""
    left, right = call.shape(0), call.shape(1)
    pairs = prod(broadcast_shapes(left[:-2], right[:-2])) * left[-2] * right[-2]
    return Cost(3 * pairs * left[-1], call.moved((0, 1), pairs, 0))


def distances_backward(call: OperatorCall) -> Cost:
    """`_cdist_backward(gradient, first, second, p, distances)`: subtract, raise, multiply and add."""
    return Cost(4 * call.numel(0) * call.shape(1)[-1], call.moved((0, 1, 2, 4), call.numel(1), 1))


# Sparse matrices: the cost follows from how many numbers are stored, which a trace shows only sometimes.
#
# A product with a sparse matrix is recorded under the name of the dense one and with its full sizes. That it is sparse shows in what it asks
# of its operand inside (`crow_indices`, `_nnz` ...). For compressed rows or columns (CSR, CSC, BSR, BSC) the stored values are looked up
# there too, and the product costs the dense count times their share. Of coordinates (COO) a trace does not say how many there
# are: the cost is unknown. Half-structured (2:4) weights store half of their numbers, and those are counted.
#
# Operators with packed weights (`quantized::conv2d` and its like) do not show the sizes of their weights, so their cost is not known; for
# `quantized::linear` it follows from the result that is made inside.


def half_structured(call: OperatorCall, *, stored: int) -> Cost:
    """The cost of `_sparse_semi_structured_mm(stored half, which, other)`, or with a bias before: every stored number meets every column."""
    return Cost(2 * call.numel(stored) * call.shape(stored + 2)[-1], None)


def half_structured_layer(call: OperatorCall) -> Cost:
    """`_sparse_semi_structured_linear(input, stored half, which)`."""
    return Cost(2 * prod(call.shape(0)[:-1]) * call.numel(1), None)


# Decompositions and solvers: the leading terms of the usual algorithms, 4 times as many for complex matrices.
#
# Sources: LAPACK Working Note 41, appendix C (Cholesky n^3/3, LU m n^2 - n^3/3, QR 2 m n^2 - 2 n^3/3, inverse 2 n^3, triangular and general
# solves), and Golub and Van Loan, Matrix Computations (fourth edition): symmetric eigenvalues 4 n^3/3 and with vectors 9 n^3 (8.3),
# singular values 4 m n^2 - 4 n^3/3 and with vectors 4 m^2 n + 22 n^3, or 6 m n^2 + 20 n^3 for the thin form (8.6). m is the longer side.
# How many numbers are written depends on options, so bytes are not known.


def _columns(call: OperatorCall, right: int) -> int:
    """How many right sides of n numbers a solver has for each matrix."""
    return call.numel(right) // max(prod(call.shape(0)[:-1]), 1)


def _qr(call: OperatorCall, m: int, n: int) -> float:
    """`linalg_qr(self, mode)`: the factors, and for all but mode `r` the first columns of Q, which cost as much again."""
    return (2 * m * n**2 - 2 * n**3 / 3) * (1 if call.value(1, "reduced") == "r" else 2)


def _svd(call: OperatorCall, m: int, n: int) -> float:
    """`_linalg_svd(self, full matrices, compute them, ...)`."""
    if call.value(2, True) is False:
        return 4 * m * n**2 - 4 * n**3 / 3
    return 4 * m**2 * n + 22 * n**3 if call.value(1, False) else 6 * m * n**2 + 20 * n**3


# Operations for one matrix of m by n, m >= n.
_TERMS: dict[str, Callable[[OperatorCall, int, int], float]] = {
    "cholesky": lambda call, m, n: n**3 / 3,
    "inverse": lambda call, m, n: 2 * n**3,
    "solve": lambda call, m, n: 2 * n**3 / 3 + 2 * n**2 * _columns(call, 1),
    "solve-triangular": lambda call, m, n: n**2 * _columns(call, 1),
    "solve-by-lu": lambda call, m, n: 2 * n**2 * _columns(call, 2),
    "lu": lambda call, m, n: m * n**2 - n**3 / 3,
    "qr": _qr,
    "svd": _svd,
    # `_linalg_eigh(self, which half, vectors)`.
    "symmetric-eigen": lambda call, m, n: 4 * n**3 / 3 if call.value(2, True) is False else 9 * n**3,
}


def matrices(call: OperatorCall, *, terms: str) -> Cost:
    """The cost of an operator on the matrices of its first argument."""
    shape = call.shape(0)
    flops = _TERMS[terms](call, max(shape[-2:]), min(shape[-2:]))
    return Cost(round(flops * prod(shape[:-2])) * (4 if call.is_complex(0) else 1), None)


# Fourier transforms: 5 N log2 N for N complex numbers, half of it where input or output is real.
#
# That is the usual convention (http://www.fftw.org/speed/method.html); N is the product of the transformed sizes.


def transform(call: OperatorCall) -> Cost:
    """`_fft_c2c(self, dim, ...)`, `_fft_r2c(self, dim, ...)` and `_fft_c2r(self, dim, normalization, size of the last dimension)`."""
    sizes, dims = list(call.shape(0)), [dim % len(call.shape(0)) for dim in call.whole_list(1)]
    if call.name.endswith("c2r"):
        sizes[dims[-1]] = call.whole_list(3)[0]
    size, is_complex = prod(sizes[dim] for dim in dims), call.name.endswith("c2c")
    flops = (5.0 if is_complex else 2.5) * prod(sizes) * math.log2(max(size, 1))
    return Cost(round(flops), call.moved((0,), call.numel(0), 0) if is_complex else None)


# Scaled-dot-product attention: 2 operations for each multiply-add of its matrix products; the softmax between is left out.
#
# Forward: queries with keys and weights with values, 2 L S (E + Ev) for each head. Backward: the weights again, and the gradients
# of weights, values, queries and keys, 2 L S (3 E + 2 Ev). That is how the authors of FlashAttention count (4 L S E forward, 2.5
# times that backward, https://arxiv.org/abs/2307.08691, section 4.1), and `torch.utils.flop_counter`. Where attention is causal,
# L S becomes the number of pairs that are not masked, which is about half; `flop_counter` counts all pairs there.


def pairs(queries: int, keys: int, causal: bool) -> int:
    """How many pairs of a query and a key meet: all, or those of a key no later than its query (the upper left aligned)."""
    if not causal:
        return queries * keys
    full = max(queries - keys, 0)
    rising = queries - full
    return rising * (rising + 1) // 2 + full * keys


def attention(call: OperatorCall, *, causal: int, heads_last: bool = False, lengths: int = -1) -> Cost:
    """The cost of one kernel.

    Args:
        call: The call.
        causal: The argument that says whether it is causal: a truth value, or the number of a kind of mask, 0 for none.
        heads_last: Whether heads come after the sequence.
        lengths: The argument with the ends of packed sequences, -1 where there cannot be any.
    """
    if lengths >= 0 and call.has_tensor(lengths) and call.numel(lengths) > 0:
        # Sequences of different lengths lie one after the other; a trace does not say where they end.
        return UNKNOWN
    backward = call.name.endswith("_backward")
    query, key, value = (call.shape(backward + place) for place in range(3))
    at, width, value_width = -3 if heads_last else -2, query[-1], value[-1]
    # With fewer heads for keys than for queries (grouped queries) each query still meets the keys of one head.
    heads = prod(query) // max(query[at] * width, 1)
    met = heads * pairs(query[at], key[at], bool(call.value(causal, False)))
    if backward:
        per_pair, written = 3 * width + 2 * value_width, prod(query) + prod(key) + prod(value)
    else:
        per_pair, written = width + value_width, prod(query) // max(width, 1) * value_width
    return Cost(2 * met * per_pair, call.moved(range(backward + 3), written, int(backward)))


# Recurrent layers: the matrix products of every step, and the pointwise part of every cell; biases are left out.
#
# Every row of input meets all numbers of the weights once, so the products are 2 x steps x batch x elements of the weights. The
# pointwise part for each unit of a cell, with 4 operations for a sigmoid and 1 for a tanh:
#
# - LSTM 22: 4 gates' sums of two products, 3 sigmoids, a tanh, `c = f * c + i * g`, and `o * tanh(c)`;
# - GRU 17: 3 sums, 2 sigmoids, `tanh(. + r * .)`, and `(1 - z) * n + z * h`;
# - plain 2: a sum and the function.
#
# Backward, each product gives two (the gradients of input and weight), and the pointwise part is taken twice as well.

# Operations for each unit and how many gates it has, by the numbers of the kinds in cuDNN and oneDNN.
_CELLS = {"lstm": (22, 4), "gru": (17, 3), "plain": (2, 1)}
_KINDS = ("plain", "plain", "lstm", "gru")


def _network(call: OperatorCall, weights: Iterable[Shape], cell: str) -> Cost:
    """The cost of all steps of the layers whose weights are given.

    The weights of a layer and direction come in the order input, hidden (and projection, if the hidden state is projected).
    """
    (unit, gates), times = _CELLS[cell], 2 if call.name.endswith("_backward") else 1
    matrices = [shape for shape in weights if len(shape) == 2]
    rows = call.numel(0) // call.shape(0)[-1]
    # Of the matrices of a layer only one, that of the hidden state, has a row for each unit of each gate and is not
    # the first; a projection has fewer rows than the gates.
    tall = [shape for shape in matrices if shape[0] == matrices[0][0]]
    units = sum(shape[0] // gates for shape in tall) // 2
    numbers, written = sum(map(prod, matrices)), rows * tall[-1][0] // gates
    item = call.item_bytes(0)
    moved = None if item is None else item * (call.numel(0) + numbers + written) * times
    return Cost(times * rows * (call.multiply_add(0) * numbers + unit * units), moved)


def layers(call: OperatorCall, *, cell: str) -> Cost:
    """The cost of `lstm(input, states, weights, ...)` and its like; for packed sequences the sizes of batches come second."""
    return _network(call, [shape for shape in call.shapes if isinstance(shape, list)][-1], cell)


def fused_layers(call: OperatorCall, *, kind: int) -> Cost:
    """The cost of `_cudnn_rnn(input, weights, ...)` or `mkldnn_rnn_layer(input, two weights, ...)`, with the argument for the kind."""
    weights = (call.shape(1), call.shape(2)) if call.has_tensor(1) else call.shape_list(1)
    return _network(call, weights, _KINDS[int(call.value(kind))])


def fused_cell(call: OperatorCall, *, cell: str, state: int = 2) -> Cost:
    """The cost of the pointwise part of one cell, whose state has one number a unit: `_thnn_fused_lstm_cell(..., cell state, ...)`."""
    (unit, gates), size, item = _CELLS[cell], call.numel(state), call.item_bytes(state)
    if "_backward" in call.name:
        return Cost(2 * unit * size, None)
    return Cost(unit * size, None if item is None else item * size * (2 * gates + 3))
