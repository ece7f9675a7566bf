"""Softmax and losses.

Softmax of n elements in r rows: the largest n - r, differences n, exponentials n, their sum n - r, division n: 5 n - 2 r. Its logarithm:
the same without the division, a logarithm for each row and another difference, 5 n - r. Backward: 4 n - r for both.
A loss with reduction adds n - 1 for the sum, and 1 for the mean.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, Rule, rules
from kinetoscope.tables.costs.sizes import broadcast, moved

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import Formula, OperatorCall

_NONE, _MEAN, _SUM = 0, 1, 2
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


def _reduction(kind: object, count: int) -> int:
    """What the reduction of a loss adds."""
    return {_MEAN: count, _SUM: max(count - 1, 0)}.get(kind if isinstance(kind, int) else _MEAN, 0)


def _loss(each: int, reduction: int = 2, weight: int = -1) -> Formula:
    """The formula of a loss with `each` operations for each pair of input and target."""

    def formula(call: OperatorCall) -> Cost:
        count = prod(broadcast(call.shape(0), call.shape(1)))
        kind = call.value(reduction, _MEAN)
        per_pair = each + (weight >= 0 and call.has_tensor(weight))
        size = moved(call, (0, 1, weight) if weight >= 0 else (0, 1), count if kind == _NONE else 1, 0)
        return Cost(per_pair * count + _reduction(kind, count), size)

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
    flops = count + (count if call.has_tensor(2) else 0) + _reduction(kind, count)
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


RULES: dict[str, Rule] = rules(
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
