"""Normalisation: layer, batch, group and RMS norm and weight norm.

Forward, for n elements in r groups that share their statistics: mean n, deviations n, squares n, their sum and division n, then a small
number added and the reciprocal root 2 r, and the deviations multiplied by it n: 5 n + 2 r. A weight and a bias add n each.
Backward with the usual formula, x' being the normalised input and g the gradient (times the weight where there is one, n):
x' itself 2 n, the sums of g and g x' 3 n - 2 r, their means 2 r, `rstd * (g - mean(g) - x' * mean(g x'))` 4 n; for the weight's
gradient 2 n - p and for the bias's n - p, with p elements in each.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, Rule, rules
from kinetoscope.tables.costs.sizes import moved

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import Formula, OperatorCall


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


RULES: dict[str, Rule] = rules(
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
