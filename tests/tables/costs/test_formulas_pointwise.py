"""Pointwise operators, against their formulas computed with numbers that count."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from kinetoscope.tables.costs import OperatorCall
from kinetoscope.tables.costs.evaluate import rule_of
from kinetoscope.tables.costs.operator_names import table
from tests.support.counting import Counting, recorded

A, B, C = torch.full((3, 4), 0.5), torch.full((3, 4), 0.25), torch.full((3, 4), 0.75)


def sigmoid(m, x):
    return 1 / (1 + m.exp(-x))


def softplus(m, x):
    scaled = x * 2
    return m.log1p(m.exp(scaled)) / 2 if scaled > -99 else x


def gelu(m, x):
    return x * (0.5 * (1 + m.erf(x * 0.7)))


def gelu_tanh(m, x):
    cube = x * x * x
    return 0.5 * x * (1 + m.tanh(0.8 * (x + 0.04 * cube)))


def gelu_backward(m, g, x):
    below = 0.5 * (1 + m.erf(x * 0.7))
    density = 0.4 * m.exp(x * x * -0.5)
    return g * (below + x * density)


def gelu_tanh_backward(m, g, x):
    square = x * x
    inner = 0.8 * (x + 0.04 * (square * x))
    t = m.tanh(inner)
    slope = 0.8 * (1 + 0.13 * square)
    left, right = 0.5 * (1 + t), 0.5 * x * (1 - t * t) * slope
    return g * (left + right)


def silu_backward(m, g, x):
    s = sigmoid(m, x)
    return g * (s * (1 + x * (1 - s)))


FORMULAS = {
    "add": (lambda: A + B, lambda m, a, b: a + b),
    "sub": (lambda: A - B, lambda m, a, b: a - b),
    "mul": (lambda: A * B, lambda m, a, b: a * b),
    "div": (lambda: A / B, lambda m, a, b: a / b),
    "neg": (lambda: -A, lambda m, a: -a),
    "exp": (A.exp, lambda m, a: m.exp(a)),
    "tanh": (A.tanh, lambda m, a: m.tanh(a)),
    "relu": (A.relu, lambda m, a: m.max(a, 0)),
    "gt": (lambda: A > B, lambda m, a, b: a > b),
    "sigmoid": (A.sigmoid, sigmoid),
    "silu": (lambda: functional.silu(A), lambda m, x: x * sigmoid(m, x)),
    "mish": (lambda: functional.mish(A), lambda m, x: x * m.tanh(m.log1p(m.exp(x)))),
    "gelu": (lambda: functional.gelu(A), gelu),
    "hardtanh": (lambda: functional.hardtanh(A), lambda m, x: m.min(m.max(x, -1), 1)),
    "hardsigmoid": (lambda: functional.hardsigmoid(A), lambda m, x: m.min(m.max(x + 3, 0), 6) / 6),
    "hardswish": (lambda: functional.hardswish(A), lambda m, x: x * m.min(m.max(x + 3, 0), 6) / 6),
    "lerp": (lambda: torch.lerp(A, B, 0.5), lambda m, a, b: a + 0.5 * (b - a)),
    "addcmul": (lambda: torch.addcmul(A, B, C, value=2), lambda m, a, b, c: a + 2 * b * c),
    "addcdiv": (lambda: torch.addcdiv(A, B, C, value=2), lambda m, a, b, c: a + 2 * b / c),
    "logit": (lambda: torch.logit(A), lambda m, x: m.log(x / (1 - x))),
    "softplus": (lambda: functional.softplus(A), softplus),
    "elu": (lambda: functional.elu(A), lambda m, x: m.expm1(x) * 1.5 if x > 0 else x),
    "leaky_relu": (lambda: functional.leaky_relu(A), lambda m, x: x * 0.1 if x > 0 else x),
    "logaddexp": (lambda: torch.logaddexp(A, B), lambda m, a, b: m.max(a, b) + m.log1p(m.exp(-m.abs(a - b)))),
    "clamp": (lambda: A.clamp(0, 1), lambda m, x: m.min(m.max(x, 0), 1)),
    "square": (A.square, lambda m, x: x * x),
    "where": (lambda: torch.where(A > 9, A, B), lambda m, a, b: a),
    "sigmoid_backward": (lambda: torch.ops.aten.sigmoid_backward(A, B), lambda m, g, y: g * ((1 - y) * y)),
    "tanh_backward": (lambda: torch.ops.aten.tanh_backward(A, B), lambda m, g, y: g * (1 - y * y)),
    "silu_backward": (lambda: torch.ops.aten.silu_backward(A, B), silu_backward),
    "gelu_backward": (lambda: torch.ops.aten.gelu_backward(A, B), gelu_backward),
    "threshold_backward": (lambda: torch.ops.aten.threshold_backward(A, B, 0), lambda m, g, x: g if x > 0 else 0),
    "native_dropout_backward": (
        lambda: torch.ops.aten.native_dropout_backward(A, A > 0, 2.0), lambda m, g, k: g * k * 2.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_the_count_is_that_of_the_formula(name):
    run, formula = FORMULAS[name]
    counting = Counting()
    arguments = [counting.number(0.4 + place / 8) for place in range(formula.__code__.co_argcount - 1)]
    formula(counting, *arguments)
    found = recorded(run)
    assert found.by_name.get(name, 0) == counting.count * A.numel()
    assert found.unknown == set()


def test_gelu_by_tanh():
    counting = Counting()
    gelu_tanh(counting, counting.number())
    assert recorded(lambda: functional.gelu(A, approximate="tanh")).by_name == {"gelu": counting.count * 12}
    counting = Counting()
    gelu_tanh_backward(counting, counting.number(), counting.number())
    found = recorded(lambda: torch.ops.aten.gelu_backward(A, B, approximate="tanh"))
    assert found.by_name == {"gelu_backward": counting.count * 12}


SHAPE = st.lists(st.integers(1, 4), max_size=3)


@given(SHAPE, SHAPE)
def test_the_result_has_the_sizes_of_both_inputs_together(left, right):
    a, b = torch.ones(left), torch.ones(right)
    try:
        out = a * b
    except RuntimeError:
        call = OperatorCall("aten::mul", [tuple(left), tuple(right)], ["float32"] * 2, [None] * 2)
        with pytest.raises(ValueError, match="cannot be broadcast"):
            rule_of("aten::mul").formula(call)
        return
    found = recorded(lambda: a * b)
    assert found.by_name == {"mul": out.numel()}
    sized = [tensor.numel() for tensor in (a, b) if tensor.dim()] if out.dim() else [1, 1]
    assert found.bytes == {"mul": 4 * (sum(sized) + out.numel())}


@pytest.mark.parametrize(
    ("run", "size"),
    [
        (lambda: A + 1, 2 * 48),
        (lambda: A.add_(B), 3 * 48),
        (lambda: A > B, 2 * 48 + 12),
        (lambda: A + B.double(), 48 + 96 + 96),
        (lambda: A * torch.ones(3, 4, dtype=torch.int64), 48 + 96 + 48),
        (lambda: torch.ones(3, 4, dtype=torch.int32) / 2, 48 + 48),
        (lambda: torch.add(A, B, out=torch.empty(3, 4)), 3 * 48),
        (lambda: torch.add(A, B, out=torch.empty(0)), 3 * 48),
        (lambda: A.half() * torch.tensor(2.0), 24 + 24),
    ],
    ids=range(9),
)
def test_bytes_are_those_of_inputs_and_result(run, size):
    found = recorded(run)
    name = next(name for name in found.bytes if name.rstrip("_") in ("add", "mul", "gt", "div"))
    assert found.bytes[name] == size


def test_in_place_and_out_count_as_the_plain_one():
    assert recorded(lambda: A.clone().mul_(B)).by_name == {"mul_": 12}
    assert recorded(lambda: torch.mul(A, B, out=torch.empty(0))).by_name == {"mul": 12}


def test_complex_numbers_multiply_in_six():
    z = torch.ones(3, 4, dtype=torch.complex64)
    assert recorded(lambda: z * z).by_name["mul"] == 6 * 12
    assert recorded(lambda: z + z).by_name["add"] == 2 * 12
    assert recorded(lambda: z / z).by_name["div"] == 11 * 12
    assert recorded(z.abs).by_name["abs"] == 4 * 12


def test_one_bound_is_one_comparison():
    assert recorded(lambda: A.clamp(min=0)).flops == 12
    assert recorded(lambda: A.clamp(torch.zeros(3, 4), torch.ones(3, 4))).by_name["clamp"] == 24


def test_gated_units_work_on_half():
    counting = Counting()
    x, gate = counting.number(), counting.number()
    x * sigmoid(counting, gate)
    assert recorded(lambda: functional.glu(A)).by_name == {"glu": counting.count * 6}


def test_dropout_multiplies_with_mask_and_scale():
    found = recorded(lambda: torch.native_dropout(A, 0.5, True))
    assert found.flops == 2 * 12
    assert math.prod(A.shape) == 12


@pytest.mark.parametrize("name", ["__xor__", "__lshift__", "__rshift__", "__ixor__", "__ilshift__"])
def test_operators_of_python_on_bits_count_no_operations(name):
    call = OperatorCall(f"aten::{name}", [(3, 4), (3, 4)], ["int64", "int64"], [None, None])
    assert rule_of(call.name).formula(call) == (0, 3 * 12 * 8)


def test_the_table_of_formulas_names_each_operator_once():
    operators = [operator for line in table("formulas.txt") for operator in line.names]
    twice = {operator for operator in operators if operators.count(operator) > 1}
    assert twice == set()
