"""Operators on lists of tensors: `_foreach_...`, fused optimizers, and the scaling of gradients.

A `_foreach_` operator costs for each tensor of its first list what the pointwise operator costs. The fused optimizers cost for each element
what their update rule says, as it is usually written, with what is the same for all elements left out; a setting that is 0 is
left out too. Traces do not show the element types of lists, so bytes moved are not known.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, Rule, rules
from kinetoscope.tables.costs.operator_names import FOREACH
from kinetoscope.tables.costs.pointwise import weight_of

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import OperatorCall


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
RULES: dict[str, Rule] = rules(
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
