"""Attention, against loops over the pairs that meet and torch's own counter."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from kinetoscope.tables.costs import OperatorCall
from kinetoscope.tables.costs.evaluate import rule_of
from kinetoscope.tables.costs.formulas import pairs
from tests.support.counting import recorded

SIZE = st.integers(1, 7)


def meeting(queries, keys, causal):
    return sum(not causal or key <= query for query in range(queries) for key in range(keys))


@given(SIZE, SIZE, st.booleans())
def test_pairs_are_those_under_the_diagonal(queries, keys, causal):
    assert pairs(queries, keys, causal) == meeting(queries, keys, causal)


def tensors(batch=2, heads=3, queries=4, keys=5, width=6, value_width=6, **options):
    return (
        torch.ones(batch, heads, queries, width, **options),
        torch.ones(batch, heads, keys, width, **options),
        torch.ones(batch, heads, keys, value_width, **options),
    )


def test_forward_is_two_products_for_each_pair():
    query, key, value = tensors()
    found = recorded(lambda: functional.scaled_dot_product_attention(query, key, value))
    # It does not know the fused kernel of processors, only the operators of the written-out form.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        functional.scaled_dot_product_attention(query, key, value)
    assert found.flops == 2 * 6 * meeting(4, 5, False) * (6 + 6) == counter.get_total_flops()
    assert list(found.by_name) == ["_scaled_dot_product_flash_attention_for_cpu"]


def test_causal_counts_only_the_pairs_that_are_not_masked():
    query, key, value = tensors(queries=5)
    found = recorded(lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=True))
    assert found.flops == 2 * 6 * meeting(5, 5, True) * 12


def test_backward_is_five_products():
    query, key, value = tensors(requires_grad=True)
    out = functional.scaled_dot_product_attention(query, key, value)
    found = recorded(lambda: out.backward(torch.ones_like(out)))
    name = "_scaled_dot_product_flash_attention_for_cpu_backward"
    assert found.by_name[name] == 2 * 6 * meeting(4, 5, False) * 5 * 6
    # Written out, the products of backward are four: the weights need not be computed again.
    with sdpa_kernel(SDPBackend.MATH):
        out = functional.scaled_dot_product_attention(query, key, value)
    with FlopCounterMode(display=False) as counter:
        out.backward(torch.ones_like(out))
    assert found.by_name[name] * 4 == counter.get_total_flops() * 5


def test_written_out_attention_counts_its_own_operators():
    query, key, value = tensors()
    with sdpa_kernel(SDPBackend.MATH):
        found = recorded(lambda: functional.scaled_dot_product_attention(query, key, value))
    assert found.by_name["bmm"] == 2 * 6 * meeting(4, 5, False) * 12
    assert not any("attention" in name for name in found.by_name)


def test_fewer_heads_for_keys_do_not_lessen_the_work():
    query, key, value = torch.ones(2, 4, 5, 8), torch.ones(2, 2, 5, 8), torch.ones(2, 2, 5, 8)
    found = recorded(lambda: functional.scaled_dot_product_attention(query, key, value, enable_gqa=True))
    assert (
        sum(flops for name, flops in found.by_name.items() if "attention" in name or name == "bmm")
        == 2 * 8 * 25 * 16
    )


BHSD, BSHD = [(2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7)], [(2, 4, 3, 6), (2, 5, 3, 6), (2, 5, 3, 7)]


@pytest.mark.parametrize(
    ("name", "shapes", "values", "factor"),
    [
        ("_scaled_dot_product_flash_attention", BHSD, [None] * 3 + [0.0, False], 13),
        ("_scaled_dot_product_efficient_attention", BHSD, [None] * 4 + [True, 0.0, False], 13),
        ("_scaled_dot_product_cudnn_attention", BHSD, [None] * 4 + [True, 0.0, False], 13),
        ("_cudnn_attention_forward", BHSD, [None] * 6 + [4, 5, True, 0.0, False], 13),
        ("_flash_attention_forward", BSHD, [None] * 5 + [4, 5, 0.0, False], 13),
        ("_efficient_attention_forward", BSHD, [None] * 8 + [0.0, 0], 13),
        ("_scaled_dot_product_flash_attention_backward", [(1,), *BHSD], [None] * 10 + [0.0, False], 32),
        (
            "_scaled_dot_product_efficient_attention_backward",
            [(1,), *BHSD],
            [None] * 9 + [0.0, None, False],
            32,
        ),
        ("_scaled_dot_product_cudnn_attention_backward", [(1,), *BHSD], [None] * 13 + [0.0, False], 32),
        ("_flash_attention_backward", [(1,), *BSHD], [None] * 10 + [0.0, False], 32),
        ("_efficient_attention_backward", [(1,), *BSHD], [None] * 14 + [0], 32),
        ("scaled_dot_product_attention", BHSD, [None] * 4 + [0.0, False], 13),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_kernels_of_devices_by_their_own_order_of_arguments(name, shapes, values, factor, causal):
    values = [*values[:-1], type(values[-1])(causal)]
    shapes = shapes + [None] * (len(values) - len(shapes))
    call = OperatorCall(f"aten::{name}", shapes, ["bfloat16"] * len(shapes), values)
    cost = rule_of(call.name).formula(call)
    # 6 + 7 forward; 3 x 6 + 2 x 7 backward.
    assert cost.flops == 2 * 6 * meeting(4, 5, causal) * factor


def test_packed_sequences_are_unknown():
    shapes = [(9, 3, 6), (9, 3, 6), (9, 3, 6), (3,), (3,), None, None, None, None]
    call = OperatorCall("aten::_flash_attention_forward", shapes, ["bfloat16"] * 9, [None] * 9)
    assert rule_of(call.name).formula(call).flops is None


def test_a_fused_encoder_layer_counts_what_it_calls():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.ones(2, 5, 8)
    with torch.inference_mode():
        found = recorded(lambda: layer(x))
    linear = 2 * 10 * (8 * 24 + 8 * 8 + 2 * 8 * 16)
    attention = 4 * 2 * 25 * 8
    matrix = sum(
        flops
        for name, flops in found.by_name.items()
        if name
        in ("mm", "addmm", "bmm", "baddbmm", "linear", "_addmm_activation", "_native_multi_head_attention")
        or "dot_product" in name
    )
    assert matrix == linear + attention
