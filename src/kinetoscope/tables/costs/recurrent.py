"""Recurrent layers: the matrix products of every step, and the pointwise part of every cell; biases are left out.

Every row of input meets all numbers of the weights once, so the products are 2 x steps x batch x elements of the weights. The
pointwise part for each unit of a cell, with 4 operations for a sigmoid and 1 for a tanh:

- LSTM 22: 4 gates' sums of two products, 3 sigmoids, a tanh, `c = f * c + i * g`, and `o * tanh(c)`;
- GRU 17: 3 sums, 2 sigmoids, `tanh(. + r * .)`, and `(1 - z) * n + z * h`;
- plain 2: a sum and the function.

Backward, each product gives two (the gradients of input and weight), and the pointwise part is taken twice as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, rules
from kinetoscope.tables.costs.sizes import multiply_add

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kinetoscope.tables.costs.call import OperatorCall, Shape

LSTM_UNIT, GRU_UNIT, PLAIN_UNIT = 22, 17, 2
# The numbers of the kinds in cuDNN and oneDNN: plain with relu, plain with tanh, LSTM, GRU.
_UNITS = (PLAIN_UNIT, PLAIN_UNIT, LSTM_UNIT, GRU_UNIT)
_GATES = {LSTM_UNIT: 4, GRU_UNIT: 3, PLAIN_UNIT: 1}


def _cost(call: OperatorCall, weights: Iterable[Shape], unit: int, times: int = 1) -> Cost:
    """The cost of all steps of the layers whose weights are given.

    The weights of a layer and direction come in the order input, hidden (and projection, if the hidden state is projected).
    """
    matrices = [shape for shape in weights if len(shape) == 2]
    data = call.shape(0)
    if not matrices or not data or data[-1] == 0:
        raise ValueError("there are no weights or no input")
    rows = call.numel(0) // data[-1]
    # Of the matrices of a layer only one, that of the hidden state, has a row for each unit of each gate and is not
    # the first; a projection has fewer rows than the gates.
    tall = [shape for shape in matrices if shape[0] == matrices[0][0]]
    units = sum(shape[0] // _GATES[unit] for shape in tall) // 2
    numbers = sum(rows_ * columns for rows_, columns in matrices)
    item = call.item_bytes(0)
    written = rows * tall[-1][0] // _GATES[unit]
    moved = None if item is None else item * (call.numel(0) + numbers + written) * times
    return Cost(times * rows * (multiply_add(call, 0) * numbers + unit * units), moved)


def _layers(call: OperatorCall, unit: int) -> Cost:
    """`lstm(input, states, weights, ...)` and its like; for packed sequences the sizes of batches come second."""
    lists = [shape for shape in call.shapes if isinstance(shape, list)]
    return _cost(call, lists[-1], unit)


def lstm(call: OperatorCall) -> Cost:
    """All layers of an LSTM."""
    return _layers(call, LSTM_UNIT)


def gru(call: OperatorCall) -> Cost:
    """All layers of a GRU."""
    return _layers(call, GRU_UNIT)


def plain(call: OperatorCall) -> Cost:
    """All layers of a plain recurrent network."""
    return _layers(call, PLAIN_UNIT)


def cudnn(call: OperatorCall) -> Cost:
    """`_cudnn_rnn(input, weights, stride, buffer, state, cell state, kind, ...)`."""
    return _cost(call, call.shape_list(1), _UNITS[int(call.value(6))])


def cudnn_backward(call: OperatorCall) -> Cost:
    """`_cudnn_rnn_backward(input, weights, ...)`, whose eleventh argument is the kind."""
    return _cost(call, call.shape_list(1), _UNITS[int(call.value(10))], 2)


def miopen(call: OperatorCall) -> Cost:
    """`miopen_rnn(input, weights, stride, state, cell state, kind, ...)`."""
    return _cost(call, call.shape_list(1), _UNITS[int(call.value(5))])


def onednn(call: OperatorCall) -> Cost:
    """`mkldnn_rnn_layer(input, two weights, two biases, states, reverse, batch sizes, kind, ...)`: one layer and direction."""
    return _cost(call, (call.shape(1), call.shape(2)), _UNITS[int(call.value(9))])


def onednn_backward(call: OperatorCall) -> Cost:
    """`mkldnn_rnn_layer_backward(...)`, whose fifteenth argument is the kind."""
    return _cost(call, (call.shape(1), call.shape(2)), _UNITS[int(call.value(14))], 2)


def _cell(call: OperatorCall, state: int, unit: int) -> Cost:
    """The pointwise part of one cell, whose state has one number a unit."""
    size, item = call.numel(state), call.item_bytes(state)
    return Cost(unit * size, None if item is None else item * size * (2 * _GATES[unit] + 3))


def lstm_cell(call: OperatorCall) -> Cost:
    """`_thnn_fused_lstm_cell(gates of input, gates of state, cell state, ...)`."""
    return _cell(call, 2, LSTM_UNIT)


def gru_cell(call: OperatorCall) -> Cost:
    """`_thnn_fused_gru_cell(gates of input, gates of state, state, ...)`."""
    return _cell(call, 2, GRU_UNIT)


def lstm_cell_backward(call: OperatorCall) -> Cost:
    """`_thnn_fused_lstm_cell_backward_impl(gradients, cell states, ...)`."""
    return Cost(2 * LSTM_UNIT * call.numel(2), None)


def gru_cell_backward(call: OperatorCall) -> Cost:
    """`_thnn_fused_gru_cell_backward(gradient, ...)`."""
    return Cost(2 * GRU_UNIT * call.numel(0), None)


RULES = {
    **rules(
        "recurrent",
        {
            cudnn: "_cudnn_rnn",
            cudnn_backward: "_cudnn_rnn_backward miopen_rnn_backward",
            miopen: "miopen_rnn",
            onednn: "mkldnn_rnn_layer",
            onednn_backward: "mkldnn_rnn_layer_backward",
            lstm_cell: "_thnn_fused_lstm_cell",
            gru_cell: "_thnn_fused_gru_cell",
            lstm_cell_backward: "_thnn_fused_lstm_cell_backward_impl",
            gru_cell_backward: "_thnn_fused_gru_cell_backward",
        },
    ),
    **rules("recurrent", {lstm: "lstm", gru: "gru", plain: "rnn_tanh rnn_relu"}, deferred=True),
}
