"""Pointwise operators: so many operations for each element of the result, whose sizes are those of the inputs together.

Each addition, multiplication, division, negation, comparison and each value of a function such as `exp`, `tanh` or `sqrt` is one
operation; selections, logic on bits, casts and copies are none. What an operator costs is counted in its formula as it is usually
written: `sigmoid(x) = 1 / (1 + exp(-x))` is 4. Where branches differ, the longest counts. As in `torch.profiler`, `add` and
`sub` are 1 also with a factor (`alpha`). Complex numbers: 2 to add, 6 to multiply, 11 to divide, 3 for the square of an absolute value,
4 for the absolute value; other functions count twice what they count for real numbers.

Which operators these are, `formulas.txt` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from kinetoscope.tables.costs.call import Cost, OperatorCall, broadcast, result_dtype
from kinetoscope.tables.costs.operator_names import names

_INTEGERS = names("int64 int32 int16 int8 uint8 bool")


def _operations(call: OperatorCall, settings: Mapping[str, Any]) -> int:
    """Operations for each element of the result, by the settings in `formulas.txt`."""
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
    """Any pointwise operator."""
    places, in_place = call.inputs(), call.name.endswith("_")
    out = call.shape(0) if in_place else broadcast(*(call.shape(place) for place in places))
    if not out and call.shapes[0] is None and call.value(0) is None:
        raise TypeError(f"the sizes of the first argument of {call.name} were not recorded")
    count = prod(out)
    dtype = settings.get("dtype") or (call.dtypes[0] if in_place else result_dtype(call, places))
    if settings.get("real") and dtype in _INTEGERS:
        dtype = "float32"
    # What has no dimensions is mostly a number of the program, which no memory traffic is for.
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


def of_lists(call: OperatorCall, **settings: Any) -> Cost:
    """A pointwise operator for each tensor of a list."""
    return Cost(_operations(call, settings) * sum(_sizes(call)), None)


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


def optimizer(call: OperatorCall, *, steps: int, added: list[tuple[int, int]]) -> Cost:
    """The cost of a fused optimizer: operations for each element, and those that arguments add unless they are 0, False or not given."""
    more = (flops for place, flops in added if call.has_tensor(place) or bool(call.value(place)))
    return Cost((steps + sum(more)) * sum(_sizes(call)), None)
