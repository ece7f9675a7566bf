"""Recurrent layers, against loops over steps, gates and units."""

import itertools

import pytest
import torch

from kinetoscope.tables.costs import OperatorCall
from kinetoscope.tables.costs.evaluate import rule_of
from tests.support.counting import Counting, recorded


def sigmoid(counting, x):
    return 1 / (1 + counting.exp(-x))


def lstm_unit(counting, sums):
    """The pointwise part of one unit: `sums` gives for each gate the two products that are added."""
    i, f, g, o = (left + right for left, right in sums)
    c = sigmoid(counting, f) * counting.number() + sigmoid(counting, i) * counting.tanh(g)
    return sigmoid(counting, o) * counting.tanh(c)


def gru_unit(counting, sums):
    (r, z), (left, right) = (tuple(a + b for a, b in sums[:2])), sums[2]
    r, z = sigmoid(counting, r), sigmoid(counting, z)
    n = counting.tanh(left + r * right)
    return (1 - z) * n + z * counting.number()


def plain_unit(counting, sums):
    ((left, right),) = sums
    return counting.tanh(left + right)


CELLS = {"lstm": (4, lstm_unit), "gru": (3, gru_unit), "rnn_tanh": (1, plain_unit)}


def by_hand(kind, steps, batch, inputs, hidden, layers, directions):
    """Counts a whole network."""
    gates, unit = CELLS[kind]
    counting = Counting()
    for layer, _, _, _, _ in itertools.product(
        range(layers), range(directions), range(steps), range(batch), range(hidden)
    ):
        width = inputs if layer == 0 else directions * hidden
        sums = []
        for _ in range(gates):
            parts = []
            for size in (width, hidden):
                total = counting.number(0)
                for _ in range(size):
                    total = total + counting.number() * counting.number()
                parts.append(total)
            sums.append(parts)
        unit(counting, sums)
    return counting.count


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (2, 1), (2, 2)])
def test_a_network_is_its_products_and_cells(kind, layers, directions):
    steps, batch, inputs, hidden = 2, 3, 4, 5
    make = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN}[kind]
    network = make(inputs, hidden, layers, bidirectional=directions == 2)
    weights = [tuple(weight.shape) for weight in network.parameters()]
    expected = by_hand(kind, steps, batch, inputs, hidden, layers, directions)
    call = OperatorCall(
        f"aten::{kind}",
        [(steps, batch, inputs), [(1, batch, hidden)], weights],
        ["float32", None, None],
        [None] * 3,
    )
    assert rule_of(call.name).formula(call).flops == expected


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_what_runs_here_is_counted_once(kind):
    make = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind]
    network = make(4, 5, 2)
    found = recorded(lambda: network(torch.ones(2, 3, 4)))
    products = 2 * 2 * 3 * sum(weight.numel() for weight in network.parameters() if weight.dim() == 2)
    kernels = {"mkldnn_rnn_layer", "mm", "addmm", "linear"} & set(found.by_name)
    counted = sum(found.by_name[name] for name in kernels)
    if "mkldnn_rnn_layer" in kernels:
        assert counted == by_hand(kind, 2, 3, 4, 5, 2, 1)
    else:
        assert counted == products
    assert kind not in found.by_name
    assert found.unknown == set()


def test_backward_is_twice_forward():
    network = torch.nn.LSTM(4, 5)
    forward = recorded(lambda: network(torch.ones(2, 3, 4))).by_name["mkldnn_rnn_layer"]
    out = network(torch.ones(2, 3, 4, requires_grad=True))[0]
    found = recorded(lambda: out.sum().backward())
    assert found.by_name["mkldnn_rnn_layer_backward"] == 2 * forward


def test_packed_sequences_count_their_steps():
    weights = [(20, 4), (20, 5), (20,), (20,)]
    shapes = [(7, 4), (3,), [(1, 3, 5), (1, 3, 5)], weights]
    call = OperatorCall("aten::lstm", shapes, ["float32", "int64", None, None], [None] * 4)
    assert rule_of(call.name).formula(call).flops == 7 * (2 * (20 * 4 + 20 * 5) + 22 * 5)


def test_a_projection_is_one_more_product():
    network = torch.nn.LSTM(4, 5, proj_size=2)
    weights = [tuple(weight.shape) for weight in network.parameters()]
    call = OperatorCall(
        "aten::lstm", [(2, 3, 4), [(1, 3, 2), (1, 3, 5)], weights], ["float32", None, None], [None] * 3
    )
    assert rule_of(call.name).formula(call).flops == 6 * (2 * (20 * 4 + 20 * 2 + 2 * 5) + 22 * 5)


@pytest.mark.parametrize(("kind", "name"), [(2, "lstm"), (3, "gru"), (1, "rnn_tanh")])
@pytest.mark.parametrize("backward", [False, True])
def test_cudnn_counts_the_same(kind, name, backward):
    gates = {"lstm": 4, "gru": 3, "rnn_tanh": 1}[name]
    weights = [(gates * 5, 4), (gates * 5, 5), (gates * 5,), (gates * 5,)]
    values = [None] * (10 if backward else 6) + [kind]
    shapes = [(2, 3, 4), weights] + [None] * (len(values) - 2)
    call = OperatorCall(
        f"aten::_cudnn_rnn{'_backward' * backward}", shapes, ["float32"] * len(shapes), values
    )
    assert rule_of(call.name).formula(call).flops == (1 + backward) * by_hand(name, 2, 3, 4, 5, 1, 1)


@pytest.mark.parametrize(
    ("name", "kind"), [("_thnn_fused_lstm_cell", "lstm"), ("_thnn_fused_gru_cell", "gru")]
)
def test_a_fused_cell_is_its_pointwise_part(name, kind):
    gates, unit = CELLS[kind]
    counting = Counting()
    for _ in range(3 * 5):
        unit(counting, [[counting.number(), counting.number()] for _ in range(gates)])
    shapes = [(3, gates * 5), (3, gates * 5), (3, 5), None, None]
    call = OperatorCall(f"aten::{name}", shapes, ["float32"] * 5, [None] * 5)
    assert rule_of(call.name).formula(call).flops == counting.count


def test_cells_of_modules_count_what_they_call():
    cell = torch.nn.LSTMCell(4, 5)
    found = recorded(lambda: cell(torch.ones(3, 4)))
    products = 2 * 3 * (20 * 4 + 20 * 5)
    assert sum(found.by_name.get(name, 0) for name in ("mm", "addmm", "linear")) == products
    assert found.unknown == set()
