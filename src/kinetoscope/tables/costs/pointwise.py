"""Pointwise operators: so many operations for each element of the result, whose sizes are those of the inputs together.

Each addition, multiplication, division, negation, comparison and each value of a function such as `exp`, `tanh` or `sqrt` is one
operation; selections, logic on bits, casts and copies are none. What an operator costs is counted in its formula as it is usually
written: `sigmoid(x) = 1 / (1 + exp(-x))` is 4. Where branches differ, the longest counts. As in `torch.profiler`, `add` and
`sub` are 1 also with a factor (`alpha`). Complex numbers: 2 to add, 6 to multiply, 11 to divide, 3 for the square of an absolute value,
4 for the absolute value; other functions count twice what they count for real numbers.

The names come from `operator_names`, which a tool makes from torch's own tags, and from the table below.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, broadcast, each, result_dtype, rules, unsized
from kinetoscope.tables.costs.operator_names import POINTWISE, names

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import OperatorCall


# Operations for each element, where it is not 1.
_WEIGHTS = {
    0: "where masked_fill positive clone copysign signbit bitwise_and bitwise_or bitwise_xor bitwise_not"
    " bitwise_left_shift bitwise_right_shift logical_and logical_or logical_xor logical_not __xor__ __lshift__"
    " __rshift__ __ixor__ __ilshift__ conj_physical _conj_physical ldexp",
    2: "hardtanh relu6 leaky_relu hardshrink frac xlogy prelu _prelu_kernel hypot rrelu"
    " hardshrink_backward hardtanh_backward leaky_relu_backward softshrink_backward native_dropout_backward"
    " rrelu_with_noise_backward _masked_scale",
    3: "logit lerp addcmul addcdiv softshrink elu sinc nan_to_num logit_backward sigmoid_backward tanh_backward"
    " elu_backward hardsigmoid_backward _prelu_kernel_backward linalg_cross",
    4: "sigmoid selu celu hardsigmoid mish isclose",
    5: "silu hardswish softplus hardswish_backward",
    6: "log_sigmoid_forward softplus_backward log_sigmoid_backward",
    7: "logaddexp logaddexp2",
    9: "silu_backward",
    11: "mish_backward",
}
_WEIGHT = {name: weight for weight, text in _WEIGHTS.items() for name in text.split()}
# For complex elements, where it is not twice the count for real ones.
_COMPLEX = {
    "mul": 6, "square": 6, "div": 11, "true_divide": 11, "reciprocal": 6, "abs": 4, "pow": 6, "lerp": 10,
    "addcmul": 14, "addcdiv": 19, "sqrt": 6, "exp": 5, "angle": 1, "sgn": 6, "linalg_cross": 14,
}  # fmt: skip
_GELU = {("gelu", False): 5, ("gelu", True): 9, ("gelu_backward", False): 11, ("gelu_backward", True): 18}
_TRUTH = names(
    "eq ne lt le gt ge isnan isinf isfinite isposinf isneginf logical_and logical_or logical_xor logical_not"
    " signbit isclose"
)
_INTEGERS = names("int64 int32 int16 int8 uint8 bool")
# These hold the tags of pointwise operators in torch, and are reductions, or both.
_NOT_POINTWISE = frozenset({"equal", "max", "min"})
# Without torch's tag.
_ALSO = names(
    "elu_backward floor_divide hardshrink_backward hardsigmoid_backward hardswish hardswish_backward hardtanh_backward"
    " leaky_relu_backward linalg_cross log_sigmoid_forward log_sigmoid_backward rrelu_with_noise"
    " rrelu_with_noise_backward softplus_backward softshrink_backward _prelu_kernel _prelu_kernel_backward complex polar"
    " _add_relu _masked_scale isclose mish_backward prelu"
)
_NAMES = (POINTWISE | _ALSO) - _NOT_POINTWISE


def base_name(name: str) -> str:
    """A name without what marks variants: the namespace, `_` for in place, `_foreach_`."""
    return name.removeprefix("aten::").removeprefix("_foreach_").removesuffix("_")


def weight_of(call: OperatorCall) -> int:
    """Operations for each element of the result."""
    name = base_name(call.name)
    if name.startswith("gelu"):
        return _GELU[name, "tanh" in call.values]
    if name in ("clamp", "clip"):
        # One bound, two, or by name also as numbers; a bound that is not given is neither tensor nor value.
        return sum(call.has_tensor(place) or call.value(place) is not None for place in (1, 2))
    if name == "div" and any(mode in call.values for mode in ("floor", "trunc")):
        return 2
    weight = _WEIGHT.get(name, 1)
    if any(call.is_complex(place) for place in range(len(call.dtypes))):
        return _COMPLEX.get(name, 2 * weight)
    return weight


def pointwise(call: OperatorCall) -> Cost:
    """Any pointwise operator."""
    places, in_place = call.inputs(), call.name.endswith("_")
    out = call.shape(0) if in_place else broadcast(*(call.shape(place) for place in places))
    if not out and call.shapes[0] is None and call.value(0) is None:
        raise TypeError(f"the sizes of the first argument of {call.name} were not recorded")
    name, count = base_name(call.name), prod(out)
    dtype = call.dtypes[0] if in_place else result_dtype(call, places)
    if name in _TRUTH:
        dtype = "bool"
    elif dtype in _INTEGERS and name in ("div", "true_divide", "sigmoid", "exp"):
        dtype = "float32"
    # What has no dimensions is mostly a number of the program, which no memory traffic is for.
    read = [place for place in places if call.shape(place)] if out else places
    return Cost(weight_of(call) * count, call.moved(read, count, 0, dtype=dtype) if dtype else None)


def gated(call: OperatorCall) -> Cost:
    """`glu(self)`: one half of the input times the sigmoid of the other."""
    count = call.numel(0) // 2
    return Cost(5 * count, call.moved((0,), count, 0))


def dropout(call: OperatorCall) -> Cost:
    """`native_dropout(input, p, train)`: multiply with the mask and the scale; the mask has a byte for each element."""
    count, drops = call.numel(0), call.value(2) is not False
    size = call.moved((0,), count, 0)
    return Cost(2 * count * drops, None if size is None else size + count * drops)


def rescale(call: OperatorCall) -> Cost:
    """`_transform_bias_rescale_qkv(qkv, bias, heads)`: add the bias, and scale the queries, a third."""
    count = call.numel(0)
    return Cost(count + count // 3, call.moved((0, 1), count, 0))


# Operators on lists of tensors: `_foreach_...`, fused optimizers, and the scaling of gradients.
#
# A `_foreach_` operator costs for each tensor of its first list what the pointwise operator costs. The fused optimizers cost for each element
# what their update rule says, as it is usually written, with what is the same for all elements left out; a setting that is 0 is
# left out too. Traces do not show the element types of lists, so bytes moved are not known.


def _sizes(call: OperatorCall) -> list[int]:
    """The elements of each tensor of the first list; torch calls these operators with no empty one.

    Raises:
        LookupError: Its sizes were not recorded.
    """
    shapes = call.shape_list(0)
    if not shapes:
        raise LookupError(f"the sizes of the tensors of {call.name} were not recorded")
    return [prod(shape) for shape in shapes]


def of_lists(call: OperatorCall) -> Cost:
    """A pointwise operator for each tensor of a list."""
    return Cost(weight_of(call) * sum(_sizes(call)), None)


def norm_steps(order: object) -> tuple[int, int]:
    """Operations of a norm for each element and for each result, besides bringing the elements together."""
    return (1, 1) if order == 2 else (1, 0) if order in (0, 1, "inf", "-inf") else (2, 1)


def norms(call: OperatorCall) -> Cost:
    """`_foreach_norm(self, order, ...)`: a norm of each tensor; `_foreach_max(self)`: the largest element of each."""
    add, out = (0, 0) if "max" in call.name else norm_steps(call.value(1, 2))
    return Cost(sum(max(size - 1, 0) + add * size + out for size in _sizes(call)), None)


def unscale(call: OperatorCall) -> Cost:
    """`_amp_foreach_non_finite_check_and_unscale_(self, found, scale)`: a check and a multiplication for each element."""
    return Cost(2 * sum(_sizes(call)), None)


def fused(call: OperatorCall, *, steps: int, settings: dict[int, int]) -> Cost:
    """The cost of a fused optimizer: operations for each element, and those that arguments add unless they are 0, False or not given."""
    added = (more for place, more in settings.items() if call.has_tensor(place) or bool(call.value(place)))
    return Cost((steps + sum(added)) * sum(_sizes(call)), None)


RULES = rules(
    {
        "pointwise": {
            pointwise: " ".join(sorted(_NAMES)),
            gated: "glu",
            # For each element of the gradient both halves' gradients, around one sigmoid.
            partial(each, flops=9, of=0, like=1): "glu_backward",
            dropout: "native_dropout _fused_dropout",
            partial(each, flops=1, written=0): "equal",
            rescale: "_transform_bias_rescale_qkv",
        },
        "optimizer": {
            of_lists: " ".join(f"_foreach_{name}" for name in sorted(_NAMES)),
            unsized: "_foreach_copy _foreach_zero _foreach_clone",
            norms: "_foreach_norm _foreach_powsum _foreach_max",
            unscale: "_amp_foreach_non_finite_check_and_unscale",
            # A multiplication and a comparison of single numbers.
            partial(each, flops=2): "_amp_update_scale",
            # First average 3 (a step towards the gradient), second 4, its root, division and `eps` 3, the update 3. Weight decay is 2, or 1
            # where it is decoupled; `amsgrad`, `maximize` and a scaled gradient are 1 each.
            partial(fused, steps=13, settings={9: 2, 11: 1, 12: 1, 13: 1}): "_fused_adam",
            partial(fused, steps=13, settings={9: 1, 11: 1, 12: 1, 13: 1}): "_fused_adamw",
            # The update 2; weight decay 2, momentum 3 (a factor, a factor, a sum), Nesterov 2, `maximize` and a scaled gradient 1 each.
            partial(fused, steps=2, settings={3: 2, 4: 3, 7: 2, 8: 1, 10: 1}): "_fused_sgd",
            # The sum of squares 2, its root and `eps` 2, the update 3; weight decay 2, `maximize` and a scaled gradient 1 each.
            partial(fused, steps=7, settings={6: 2, 8: 1, 9: 1}): "_fused_adagrad",
        },
        "quantized": {
            # A division, a rounding and a shift to quantize, a difference and a product back, both for imitations of it.
            partial(each, flops=3, dtype="quint8"): "quantize_per_tensor quantize_per_channel",
            partial(each, flops=5, dtype="quint8"): "quantize_per_tensor_dynamic",
            partial(each, flops=2, dtype="float32"): "dequantize",
            partial(each, flops=0, dtype="uint8"): "int_repr",
            partial(
                each, flops=5
            ): "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask"
            " _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fused_moving_avg_obs_fq_helper",
        },
    }
)
