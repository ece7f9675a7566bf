"""Reductions: n - o operations to bring n elements down to o by adding, multiplying or comparing, and what is done to each besides.

A mean divides o times; a variance is the mean, the deviations and their squares, their sum, and the division, 4 n; a norm is what is
done to each element, the sum, and the root. Cumulative operators combine each element but the first of a row with the one before.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import SCALAR_TYPES, Cost, Rule, broadcast, inputs_of, moved, rules
from kinetoscope.tables.costs.pointwise import pointwise

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
    requested = call.value(len(call.values) - 1)
    if (
        call.name in ("aten::sum", "aten::prod", "aten::nansum", "aten::mean")
        and type(requested) is int
        and len(call.values) > 1
    ):
        return SCALAR_TYPES.get(requested)
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
REDUCTIONS_RULES: dict[str, Rule] = rules(
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


# Sorting and searching: comparisons, by the number that a good algorithm needs, rounded up to whole binary logarithms.
#
# n log2 n to sort n elements, n log2 k for the k largest, n to select one, log2 n to find a place among n sorted ones.


def log2(count: int) -> int:
    """The binary logarithm of a whole number, rounded up; 0 for less than 2."""
    return max(count - 1, 0).bit_length()


def _length(call: OperatorCall, argument: int) -> int:
    """The size of the dimension that an argument names."""
    shape = call.shape(0)
    return shape[int(call.value(argument, -1))] if shape else 1


def sort(call: OperatorCall) -> Cost:
    """`sort(self, dim, descending)` or `sort(self, stable, dim, descending)`: values and their places."""
    stable_first = isinstance(call.value(1), bool) or len(call.values) == 4
    length, count = _length(call, 2 if stable_first else 1), call.numel(0)
    size = moved(call, (0,), count, 0)
    return Cost(count * log2(length), None if size is None else size + 8 * count)


def unique(call: OperatorCall) -> Cost:
    """`_unique2(self, ...)` and its like: sorts; how many are left is not known."""
    count = call.numel(0)
    return Cost(count * log2(count), None)


def unique_neighbours(call: OperatorCall) -> Cost:
    """`unique_consecutive(self, ...)`: compares each element with the one before."""
    return Cost(max(call.numel(0) - 1, 0), None)


def largest(call: OperatorCall) -> Cost:
    """`topk(self, k, dim, ...)`."""
    count, wanted = call.numel(0), int(call.value(1, 1))
    length = _length(call, 2)
    left = count // length * wanted if length else 0
    size = moved(call, (0,), left, 0)
    return Cost(count * max(log2(wanted), 1), None if size is None else size + 8 * left)


def selection(call: OperatorCall) -> Cost:
    """`kthvalue(self, k, dim)`, `median(self, dim)`, `mode(self, dim)`: one comparison for each element."""
    return Cost(call.numel(0), moved(call, (0,), 0, 0))


def places_of(call: OperatorCall) -> Cost:
    """`searchsorted(sorted, values)`: a binary search for each value."""
    row, values = call.shape(0), call.numel(1) if call.has_tensor(1) else 1
    return Cost(values * log2(row[-1] + 1), moved(call, (0, 1), values, 0, dtype="int64"))


def buckets_of(call: OperatorCall) -> Cost:
    """`bucketize(values, boundaries)`: a binary search for each value."""
    values = call.numel(0) if call.has_tensor(0) else 1
    return Cost(values * log2(call.numel(1) + 1), moved(call, (0, 1), values, 1, dtype="int64"))


def membership(call: OperatorCall) -> Cost:
    """`isin(elements, among)`: a search for each element among sorted ones, and sorting them."""
    elements = call.numel(0) if call.has_tensor(0) else 1
    among = call.numel(1) if call.has_tensor(1) else 1
    return Cost((elements + among) * log2(among), moved(call, (0, 1), elements, 0, dtype="bool"))


def nonzero(call: OperatorCall) -> Cost:
    """`nonzero(self)`: one comparison for each element; how many are found is not known."""
    return Cost(call.numel(0), None)


def histogram(call: OperatorCall) -> Cost:
    """`histc(self, bins, ...)`: subtract, multiply, divide and count for each element."""
    return Cost(4 * call.numel(0), None)


def counting(call: OperatorCall) -> Cost:
    """`bincount(self, weights)`: one addition for each element."""
    return Cost(call.numel(0), None)


def draw(call: OperatorCall) -> Cost:
    """`multinomial(self, samples, ...)`: cumulative probabilities, then a binary search for each sample."""
    shape, samples = call.shape(0), int(call.value(1, 1))
    rows = prod(shape[:-1])
    return Cost(
        call.numel(0) + rows * samples * log2(shape[-1]), moved(call, (0,), rows * samples, 0, dtype="int64")
    )


ORDERING_RULES = rules(
    "ordering",
    {
        sort: "sort",
        unique: "_unique _unique2 unique_dim",
        unique_neighbours: "unique_consecutive unique_dim_consecutive",
        largest: "topk",
        selection: "kthvalue median nanmedian mode",
        places_of: "searchsorted",
        buckets_of: "bucketize",
        membership: "isin",
        nonzero: "nonzero nonzero_static argwhere",
        histogram: "histc histogram _histogramdd_from_bin_cts _histogramdd_from_bin_tensors",
        counting: "bincount",
        draw: "multinomial",
    },
)


# Normalisation: layer, batch, group and RMS norm and weight norm.
#
# Forward, for n elements in r groups that share their statistics: mean n, deviations n, squares n, their sum and division n, then a small
# number added and the reciprocal root 2 r, and the deviations multiplied by it n: 5 n + 2 r. A weight and a bias add n each.
# Backward with the usual formula, x' being the normalised input and g the gradient (times the weight where there is one, n):
# x' itself 2 n, the sums of g and g x' 3 n - 2 r, their means 2 r, `rstd * (g - mean(g) - x' * mean(g x'))` 4 n; for the weight's
# gradient 2 n - p and for the bias's n - p, with p elements in each.


def _forward(call: OperatorCall, groups: int, weight: int, bias: int) -> Cost:
    """The cost with statistics of the input."""
    count = call.numel(0)
    flops = 5 * count + 2 * groups + count * (call.has_tensor(weight) + call.has_tensor(bias))
    size = moved(call, (0, weight, bias), count + 2 * groups, 0)
    return Cost(flops, size)


def _backward(
    call: OperatorCall, gradient: int, given: int, weight: int, groups: int, parameters: int, mask: list[bool]
) -> Cost:
    """The cost of the gradients that a mask asks for: of input, weight and bias."""
    count = call.numel(given)
    flops = 2 * count if mask[0] or mask[1] else 0
    if mask[0]:
        flops += 7 * count + (count if call.has_tensor(weight) else 0)
    flops += (2 * count - parameters if mask[1] else 0) + (count - parameters if mask[2] else 0)
    written = (count if mask[0] else 0) + parameters * (bool(mask[1]) + bool(mask[2]))
    return Cost(flops, moved(call, (gradient, given, weight), written, given))


def layer_norm(call: OperatorCall) -> Cost:
    """`native_layer_norm(input, normalized sizes, weight, bias, eps)`."""
    size = prod(call.whole_list(1))
    return _forward(call, call.numel(0) // size if size else 0, 2, 3)


def layer_norm_backward(call: OperatorCall) -> Cost:
    """`native_layer_norm_backward(gradient, input, normalized sizes, mean, rstd, weight, bias, mask)`."""
    size = prod(call.whole_list(2))
    mask = call.value(7, [True, call.has_tensor(5), call.has_tensor(6)])
    return _backward(call, 0, 1, 5, call.numel(1) // max(size, 1), size, mask)


def group_norm(call: OperatorCall) -> Cost:
    """`native_group_norm(input, weight, bias, images, channels, places, groups, eps)`."""
    return _forward(call, int(call.value(3)) * int(call.value(6)), 1, 2)


def group_norm_backward(call: OperatorCall) -> Cost:
    """`native_group_norm_backward(gradient, input, mean, rstd, weight, images, channels, places, groups, mask)`."""
    groups, channels = int(call.value(5)) * int(call.value(8)), int(call.value(6))
    return _backward(call, 0, 1, 4, groups, channels, call.value(9, [True, True, True]))


def _channels(call: OperatorCall, argument: int) -> int:
    """The number of channels of an input."""
    shape = call.shape(argument)
    return shape[1] if len(shape) > 1 else 1


def _batch_norm(training: int | bool, running: int) -> Formula:
    """The formula where argument `training` says whether statistics are those of the input, or where that is fixed."""

    def formula(call: OperatorCall) -> Cost:
        channels, count = _channels(call, 0), call.numel(0)
        if training if isinstance(training, bool) else call.value(training):
            cost = _forward(call, channels, 1, 2)
            # Each running statistic: two multiplications and an addition.
            kept = 6 * channels if running >= 0 and call.has_tensor(running) else 0
            return Cost((cost.flops or 0) + kept, cost.bytes)
        each = 2 + call.has_tensor(2)
        flops = each * count + (2 + call.has_tensor(1)) * channels
        return Cost(flops, moved(call, (0, 1, 2, 3, 4), count, 0))

    return formula


def _batch_norm_backward(gradient: int, given: int, training: int, mask: int) -> Formula:
    """The formula of a backward function with weight at 2."""

    def formula(call: OperatorCall) -> Cost:
        channels, count = _channels(call, given), call.numel(given)
        wanted = call.value(mask, [True, True, True]) if mask >= 0 else [True, True, True]
        if training >= 0 and call.value(training) is False:
            # The statistics are constants: the gradient is only scaled.
            flops = (count + channels if wanted[0] else 0) + (4 * count - channels if wanted[1] else 0)
            flops += count - channels if wanted[2] else 0
            written = (count if wanted[0] else 0) + channels * (bool(wanted[1]) + bool(wanted[2]))
            return Cost(flops, moved(call, (gradient, given, 2), written, given))
        return _backward(call, gradient, given, 2, channels, channels, wanted)

    return formula


def rms_norm(call: OperatorCall) -> Cost:
    """`_fused_rms_norm(input, normalized sizes, weight, eps)`: squares, mean, root, multiply."""
    count, size = call.numel(0), prod(call.whole_list(1))
    groups = count // size if size else 0
    flops = 3 * count + 2 * groups + (count if call.has_tensor(2) else 0)
    return Cost(flops, moved(call, (0, 2), count + groups, 0))


def rms_norm_backward(call: OperatorCall) -> Cost:
    """`_fused_rms_norm_backward(gradient, input, normalized sizes, rstd, weight, mask)`: one mean less than layer norm's."""
    count, size = call.numel(1), prod(call.whole_list(2))
    mask = call.value(5, [True, True])
    flops = count + (5 * count + (count if call.has_tensor(4) else 0) if mask[0] else 0)
    flops += 2 * count - size if mask[1] else 0
    written = (count if mask[0] else 0) + (size if mask[1] else 0)
    return Cost(flops, moved(call, (0, 1, 3, 4), written, 1))


def statistics(call: OperatorCall) -> Cost:
    """`batch_norm_stats(input, eps)`: mean and variance of each channel, and 2 for the reciprocal root."""
    channels = _channels(call, 0)
    return Cost(4 * call.numel(0) + 2 * channels, moved(call, (0,), 2 * channels, 0))


def apply_statistics(call: OperatorCall) -> Cost:
    """`batch_norm_elemt(input, weight, bias, mean, invstd, eps)`."""
    count = call.numel(0)
    flops = (2 + call.has_tensor(1) + call.has_tensor(2)) * count
    return Cost(flops, moved(call, (0, 1, 2, 3, 4), count, 0))


def backward_sums(call: OperatorCall) -> Cost:
    """`batch_norm_backward_reduce(gradient, input, ...)`: the sums of the gradient, and of it times the deviations."""
    count, channels = call.numel(0), _channels(call, 0)
    return Cost(4 * count - 2 * channels, moved(call, (0, 1), 4 * channels, 0))


def backward_elements(call: OperatorCall) -> Cost:
    """`batch_norm_backward_elemt(gradient, input, mean, invstd, weight, sums, ...)`."""
    return Cost(6 * call.numel(0), moved(call, (0, 1), call.numel(0), 0))


def weight_norm(call: OperatorCall) -> Cost:
    """`_weight_norm_interface(v, g, dim)`: the norms 2 n, one division for each, and a multiplication for each element."""
    count, norms = call.numel(0), call.numel(1)
    return Cost(3 * count + norms, moved(call, (0, 1), count + norms, 0))


def weight_norm_backward(call: OperatorCall) -> Cost:
    """`_weight_norm_interface_backward(gradient, v, g, norms, dim)`: a sum of products, then three operations an element."""
    count, norms = call.numel(1), call.numel(2)
    return Cost(5 * count + 3 * norms, moved(call, (0, 1, 2, 3), count + norms, 1))


def renorm(call: OperatorCall) -> Cost:
    """`renorm(self, p, dim, largest)`: the norm of each part, and a multiplication."""
    return Cost(3 * call.numel(0), moved(call, (0,), call.numel(0), 0))


NORMALISATION_RULES: dict[str, Rule] = rules(
    "normalisation",
    {
        layer_norm: "native_layer_norm",
        layer_norm_backward: "native_layer_norm_backward",
        group_norm: "native_group_norm",
        group_norm_backward: "native_group_norm_backward",
        _batch_norm(5, 3): "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit",
        _batch_norm(True, 3): "_batch_norm_with_update _batch_norm_with_update_functional",
        _batch_norm(
            False, 3
        ): "_native_batch_norm_legit_no_training _batch_norm_no_update quantized_batch_norm",
        _batch_norm_backward(0, 1, 7, 9): "native_batch_norm_backward batch_norm_backward",
        _batch_norm_backward(1, 0, -1, -1): "cudnn_batch_norm_backward miopen_batch_norm_backward",
        rms_norm: "_fused_rms_norm",
        rms_norm_backward: "_fused_rms_norm_backward",
        statistics: "batch_norm_stats batch_norm_update_stats",
        apply_statistics: "batch_norm_elemt",
        backward_sums: "batch_norm_backward_reduce",
        backward_elements: "batch_norm_backward_elemt",
        weight_norm: "_weight_norm_interface",
        weight_norm_backward: "_weight_norm_interface_backward",
        renorm: "renorm",
    },
)


# Softmax and losses.
#
# Softmax of n elements in r rows: the largest n - r, differences n, exponentials n, their sum n - r, division n: 5 n - 2 r. Its logarithm:
# the same without the division, a logarithm for each row and another difference, 5 n - r. Backward: 4 n - r for both.
# A loss with reduction adds n - 1 for the sum, and 1 for the mean.

_NONE, _MEAN, _SUM_REDUCTION = 0, 1, 2
# Operations of a step of the forward algorithm: three terms added as logarithms, and the symbol's own.
_CTC_STEP = 13


def _rows(call: OperatorCall, argument: int) -> int:
    """How many rows the dimension named by an argument has."""
    shape = call.shape(0)
    length = shape[int(call.value(argument, -1))] if shape else 1
    return call.numel(0) // length if length else 0


def _softmax(rows: int) -> Formula:
    """The formula of softmax (`rows` 2) or of its logarithm (`rows` 1)."""

    def formula(call: OperatorCall) -> Cost:
        count = call.numel(0)
        return Cost(5 * count - rows * _rows(call, 1), moved(call, (0,), count, 0))

    return formula


def softmax_backward(call: OperatorCall) -> Cost:
    """`_softmax_backward_data(gradient, output, dim, type)` and that of the logarithm."""
    count = call.numel(0)
    return Cost(4 * count - _rows(call, 2), moved(call, (0, 1), count, 0))


def masked_softmax(call: OperatorCall) -> Cost:
    """`_masked_softmax(self, mask, dim, kind)`."""
    count = call.numel(0)
    return Cost(5 * count - 2 * _rows(call, 2), moved(call, (0, 1), count, 0))


def masked_softmax_backward(call: OperatorCall) -> Cost:
    """`_masked_softmax_backward(gradient, output, mask, dim)`."""
    count = call.numel(0)
    return Cost(4 * count - _rows(call, 3), moved(call, (0, 1, 2), count, 0))


def _reduced_loss(kind: object, count: int) -> int:
    """What the reduction of a loss adds."""
    return {_MEAN: count, _SUM_REDUCTION: max(count - 1, 0)}.get(kind if isinstance(kind, int) else _MEAN, 0)


def _loss(each: int, reduction: int = 2, weight: int = -1) -> Formula:
    """The formula of a loss with `each` operations for each pair of input and target."""

    def formula(call: OperatorCall) -> Cost:
        count = prod(broadcast(call.shape(0), call.shape(1)))
        kind = call.value(reduction, _MEAN)
        per_pair = each + (weight >= 0 and call.has_tensor(weight))
        size = moved(call, (0, 1, weight) if weight >= 0 else (0, 1), count if kind == _NONE else 1, 0)
        return Cost(per_pair * count + _reduced_loss(kind, count), size)

    return formula


def _loss_backward(each: int, weight: int = -1) -> Formula:
    """The formula of `..._backward(gradient, input, target, ...)`."""

    def formula(call: OperatorCall) -> Cost:
        count = prod(broadcast(call.shape(1), call.shape(2)))
        per_pair = each + (weight >= 0 and call.has_tensor(weight))
        return Cost(per_pair * count, moved(call, (0, 1, 2), call.numel(1), 1))

    return formula


def nll(call: OperatorCall) -> Cost:
    """`nll_loss_forward(logarithms, target, weight, reduction, ...)`: picks one of each row, negates it and weighs it."""
    count, kind = call.numel(1), call.value(3, _MEAN)
    flops = count + (count if call.has_tensor(2) else 0) + _reduced_loss(kind, count)
    # Of the logarithms only one a row is read.
    read, item = call.bytes(1), call.item_bytes(0)
    written = count if kind == _NONE else 2
    return Cost(flops, None if read is None or item is None else read + item * (count + written))


def nll_backward(call: OperatorCall) -> Cost:
    """`nll_loss_backward(gradient, logarithms, target, weight, ...)`: fills with 0, and one negation for each target."""
    count = call.numel(2)
    return Cost(count * (1 + call.has_tensor(3)), moved(call, (0, 2), call.numel(1), 1))


def ctc(call: OperatorCall) -> Cost:
    """`_ctc_loss(logarithms, targets, ...)`: the forward algorithm over times and twice the target's symbols plus one."""
    times, batch = call.shape(0)[0], call.shape(0)[1] if len(call.shape(0)) > 2 else 1
    symbols = call.numel(1)
    states = 2 * symbols + batch
    return Cost(_CTC_STEP * times * states, moved(call, (0, 1), times * states, 0))


def ctc_backward(call: OperatorCall) -> Cost:
    """`_ctc_loss_backward(gradient, logarithms, targets, ...)`: the backward algorithm, and 4 for each gradient."""
    times, batch = call.shape(1)[0], call.shape(1)[1] if len(call.shape(1)) > 2 else 1
    states = 2 * call.numel(2) + batch
    return Cost(_CTC_STEP * times * states + 4 * call.numel(1), moved(call, (1, 2), call.numel(1), 1))


def margins(call: OperatorCall) -> Cost:
    """`multi_margin_loss(self, target, ...)`: subtract, add, compare and add up for each class."""
    return Cost(4 * call.numel(0), moved(call, (0, 1), 1, 0))


def margins_backward(call: OperatorCall) -> Cost:
    """`multi_margin_loss_backward(gradient, self, target, ...)`."""
    return Cost(4 * call.numel(1), moved(call, (0, 1, 2), call.numel(1), 1))


LOSSES_RULES: dict[str, Rule] = rules(
    "loss",
    {
        _loss(2): "mse_loss",
        _loss_backward(3): "mse_loss_backward",
        _loss(6): "smooth_l1_loss",
        _loss_backward(4): "smooth_l1_loss_backward huber_loss_backward",
        _loss(5): "huber_loss",
        _loss(8, 3, 2): "binary_cross_entropy",
        _loss_backward(5, 3): "binary_cross_entropy_backward",
        _loss(4): "soft_margin_loss",
        _loss_backward(6): "soft_margin_loss_backward",
        nll: "nll_loss_forward nll_loss2d_forward",
        nll_backward: "nll_loss_backward nll_loss2d_backward",
        ctc: "_ctc_loss _cudnn_ctc_loss miopen_ctc_loss",
        ctc_backward: "_ctc_loss_backward",
        margins: "multi_margin_loss multilabel_margin_loss_forward",
        margins_backward: "multi_margin_loss_backward multilabel_margin_loss_backward",
    },
) | rules(
    "softmax",
    {
        _softmax(2): "_softmax",
        _softmax(1): "_log_softmax",
        softmax_backward: "_softmax_backward_data _log_softmax_backward_data",
        masked_softmax: "_masked_softmax",
        masked_softmax_backward: "_masked_softmax_backward",
    },
)
