"""Pointwise operators: so many operations for each element of the result, whose sizes are those of the inputs together.

Each addition, multiplication, division, negation, comparison and each value of a function such as `exp`, `tanh` or `sqrt` is one
operation; selections, logic on bits, casts and copies are none. What an operator costs is counted in its formula as it is usually
written: `sigmoid(x) = 1 / (1 + exp(-x))` is 4. Where branches differ, the longest counts. As in `torch.profiler`, `add` and
`sub` are 1 also with a factor (`alpha`). Complex numbers: 2 to add, 6 to multiply, 11 to divide, 3 for the square of an absolute value,
4 for the absolute value; other functions count twice what they count for real numbers.

The names come from `operator_names`, which a tool makes from torch's own tags, and from the table below.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, Rule, broadcast, inputs_of, moved, result_dtype, rules
from kinetoscope.tables.costs.operator_names import FOREACH, POINTWISE

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import OperatorCall


# Operations for each element, where it is not 1.
_WEIGHTS = {
    0: "where masked_fill positive clone copysign signbit real imag bitwise_and bitwise_or bitwise_xor bitwise_not"
    " bitwise_left_shift bitwise_right_shift logical_and logical_or logical_xor logical_not __and__ __or__ __xor__ __lshift__"
    " __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__ conj_physical _conj_physical ldexp",
    2: "hardtanh relu6 leaky_relu hardshrink frac xlogy prelu _prelu_kernel hypot rrelu"
    " hardshrink_backward hardtanh_backward leaky_relu_backward softshrink_backward native_dropout_backward rrelu_with_noise_backward"
    " _masked_scale",
    3: "logit lerp addcmul addcdiv softshrink elu sinc nan_to_num logit_backward sigmoid_backward tanh_backward elu_backward"
    " hardsigmoid_backward special_xlog1py special_entr _prelu_kernel_backward",
    4: "sigmoid selu celu hardsigmoid mish isclose",
    5: "silu hardswish softplus hardswish_backward glu",
    6: "log_sigmoid_forward softplus_backward log_sigmoid_backward",
    7: "logaddexp logaddexp2",
    9: "silu_backward",
    11: "mish_backward",
}  # fmt: skip
_WEIGHT = {name: weight for weight, names in _WEIGHTS.items() for name in names.split()}
# For complex elements, where it is not twice the count for real ones.
_COMPLEX = {
    "mul": 6, "square": 6, "div": 11, "true_divide": 11, "reciprocal": 6, "abs": 4, "eq": 2, "ne": 2, "pow": 6,
    "lerp": 10, "addcmul": 14, "addcdiv": 19, "sqrt": 6, "exp": 5, "angle": 1, "neg": 2, "sgn": 6,
}  # fmt: skip
_GELU = {("gelu", False): 5, ("gelu", True): 9, ("gelu_backward", False): 11, ("gelu_backward", True): 18}
_TRUTH = frozenset(
    [
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "isnan",
        "isinf",
        "isfinite",
        "isposinf",
        "isneginf",
        "logical_and",
        "logical_or",
        "logical_xor",
        "logical_not",
        "signbit",
        "isclose",
    ]
)
# These hold the tags of pointwise operators in torch, and are reductions, or both.
_NOT_POINTWISE = frozenset({"equal", "max", "min"})
# Without torch's tag, or in variants only.
_ALSO = (
    "abs_ copysign_ elu_backward eq_ floor_divide gcd_ ge_ gt_ hardshrink_backward hardsigmoid_backward hardswish hardswish_backward"
    " hardtanh_backward heaviside lcm leaky_relu_backward le_ log_sigmoid_forward log_sigmoid_backward lt_ ne_ masked_fill_"
    " rrelu_with_noise rrelu_with_noise_backward softplus_backward softshrink_backward threshold_ _prelu_kernel _prelu_kernel_backward"
    " special_expm1 special_exp2 special_log1p special_expit complex polar _add_relu _masked_scale isclose mish_backward prelu"
)


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
    places = inputs_of(call)
    out = call.shape(0) if call.name.endswith("_") else broadcast(*(call.shape(place) for place in places))
    if not out and call.shapes[0] is None and call.value(0) is None:
        raise TypeError(f"the sizes of the first argument of {call.name} were not recorded")
    count = prod(out)
    name = base_name(call.name)
    dtype = (
        "bool"
        if name in _TRUTH
        else call.dtypes[0]
        if call.name.endswith("_")
        else result_dtype(call, places)
    )
    if dtype in ("int64", "int32", "int16", "int8", "uint8", "bool") and name in (
        "div",
        "true_divide",
        "sigmoid",
        "exp",
    ):
        dtype = "float32"
    # What has no dimensions is mostly a number of the program, which no memory traffic is for.
    read = [place for place in places if call.shape(place)] if out else places
    size = moved(call, read, count, 0, dtype=dtype) if dtype else None
    return Cost(weight_of(call) * count, size)


def gated(call: OperatorCall) -> Cost:
    """`glu(self)` and its like: one half of the input times the sigmoid of the other."""
    count = call.numel(0) // 2
    return Cost(_WEIGHT["glu"] * count, moved(call, (0,), count, 0))


def gated_backward(call: OperatorCall) -> Cost:
    """`glu_backward(gradient, self)`: for each element of the gradient both halves' gradients, around one sigmoid."""
    return Cost(9 * call.numel(0), moved(call, (0, 1), call.numel(1), 0))


def dropout(call: OperatorCall) -> Cost:
    """`native_dropout(input, p, train)`: multiply with the mask and the scale."""
    count = call.numel(0)
    if call.value(2) is False:
        return Cost(0, moved(call, (0,), count, 0))
    size = moved(call, (0,), count, 0)
    return Cost(2 * count, None if size is None else size + count)


def equal(call: OperatorCall) -> Cost:
    """`equal(self, other)`: one comparison for each element."""
    return Cost(call.numel(0), moved(call, (0, 1), 0, 0))


def _names() -> str:
    """All names but those of variants, which are looked up under the same."""
    return " ".join(sorted({*POINTWISE, *_ALSO.split()} - _NOT_POINTWISE))


def rescale(call: OperatorCall) -> Cost:
    """`_transform_bias_rescale_qkv(qkv, bias, heads)`: add the bias, and scale the queries, a third."""
    count = call.numel(0)
    return Cost(count + count // 3, moved(call, (0, 1), count, 0))


POINTWISE_RULES: dict[str, Rule] = rules(
    "pointwise",
    {
        pointwise: _names(),
        gated: "glu",
        gated_backward: "glu_backward",
        dropout: "native_dropout _fused_dropout",
        equal: "equal",
        rescale: "_transform_bias_rescale_qkv",
    },
)


# Operators on lists of tensors: `_foreach_...`, fused optimizers, and the scaling of gradients.
#
# A `_foreach_` operator costs for each tensor of its first list what the pointwise operator costs. The fused optimizers cost for each element
# what their update rule says, as it is usually written, with what is the same for all elements left out; a setting that is 0 is
# left out too. Traces do not show the element types of lists, so bytes moved are not known.


def _sizes(call: OperatorCall, argument: int = 0) -> list[int]:
    """The elements of each tensor of a list; torch calls these operators with no empty one.

    Raises:
        LookupError: Its sizes were not recorded.
    """
    shapes = call.shape_list(argument)
    if not shapes:
        raise LookupError(f"the sizes of argument {argument} of {call.name} were not recorded")
    return [prod(shape) for shape in shapes]


def _elements(call: OperatorCall, argument: int = 0) -> int:
    """The elements of all tensors of a list."""
    return sum(_sizes(call, argument))


def each(call: OperatorCall) -> Cost:
    """A pointwise operator for each tensor of a list."""
    return Cost(weight_of(call) * _elements(call), None)


def copies(call: OperatorCall) -> Cost:
    """Copies and fills of each tensor of a list."""
    call.shape_list(0)
    return Cost(0, None)


def norms(call: OperatorCall) -> Cost:
    """`_foreach_norm(self, order, ...)`: a norm of each tensor."""
    sizes = _sizes(call)
    order = call.value(1, 2)
    add, out = (1, 1) if order == 2 else (1, 0) if order in (0, 1, "inf", "-inf") else (2, 1)
    return Cost(sum(max(size - 1, 0) + add * size + out for size in sizes), None)


def largest(call: OperatorCall) -> Cost:
    """`_foreach_max(self)`: the largest element of each tensor."""
    return Cost(sum(max(size - 1, 0) for size in _sizes(call)), None)


def products(call: OperatorCall) -> Cost:
    """`_foreach_mm(self, other)`: a matrix product for each pair."""
    _sizes(call)
    pairs = zip(call.shape_list(0), call.shape_list(1), strict=True)
    return Cost(sum(2 * left[0] * left[1] * right[1] for left, right in pairs), None)


def unscale(call: OperatorCall) -> Cost:
    """`_amp_foreach_non_finite_check_and_unscale_(self, found, scale)`: a check and a multiplication for each element."""
    return Cost(2 * _elements(call), None)


def update_scale(call: OperatorCall) -> Cost:
    """`_amp_update_scale_(scale, ...)`: a multiplication and a comparison of single numbers."""
    return Cost(2, None)


def adam(call: OperatorCall) -> Cost:
    """`_fused_adam_` and `_fused_adamw_(self, gradients, averages, averages of squares, largest, steps, lr, betas, ...)`.

    First average 3 (a step towards the gradient), second 4, its root, division and `eps` 3, the update 3: 13. Weight decay is 2, or 1 where it is
    decoupled; `amsgrad`, `maximize` and a scaled gradient are 1 each.
    """
    decay = call.value(9, 0)
    per_element = 13 + (0 if not decay else 1 if "adamw" in call.name else 2)
    per_element += bool(call.value(11, False)) + bool(call.value(12, False)) + call.has_tensor(13)
    return Cost(per_element * _elements(call), None)


def sgd(call: OperatorCall) -> Cost:
    """`_fused_sgd_(self, gradients, buffers, weight decay, momentum, lr, dampening, nesterov, maximize, first, scale, ...)`.

    The update 2, weight decay 2, momentum 3 (a factor, a factor, a sum), Nesterov 2, `maximize` and a scaled gradient 1 each.
    """
    per_element = 2 + 2 * bool(call.value(3, 0)) + 3 * bool(call.value(4, 0))
    per_element += 2 * bool(call.value(7, False)) + bool(call.value(8, False)) + call.has_tensor(10)
    return Cost(per_element * _elements(call), None)


def adagrad(call: OperatorCall) -> Cost:
    """`_fused_adagrad_(self, gradients, sums, steps, lr, lr decay, weight decay, eps, maximize, scale, ...)`.

    The sum of squares 2, its root and `eps` 2, the update 3, weight decay 2, `maximize` and a scaled gradient 1 each.
    """
    per_element = 7 + 2 * bool(call.value(6, 0)) + bool(call.value(8, False)) + call.has_tensor(9)
    return Cost(per_element * _elements(call), None)


_OTHER = frozenset(["norm", "powsum", "max", "mm", "copy", "zero", "clone"])
OPTIMIZERS_RULES: dict[str, Rule] = rules(
    "optimizer",
    {
        each: " ".join(f"_foreach_{name}" for name in sorted(FOREACH - _OTHER)),
        copies: "_foreach_copy _foreach_zero _foreach_clone",
        norms: "_foreach_norm _foreach_powsum",
        largest: "_foreach_max",
        products: "_foreach_mm",
        unscale: "_amp_foreach_non_finite_check_and_unscale",
        update_scale: "_amp_update_scale",
        adam: "_fused_adam _fused_adamw",
        sgd: "_fused_sgd",
        adagrad: "_fused_adagrad",
    },
)
