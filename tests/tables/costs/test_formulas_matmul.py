"""Matrix products, against the three loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from kinetoscope.tables.costs import OperatorCall
from kinetoscope.tables.costs.evaluate import rule_of
from tests.support.counting import Counting, recorded

SIZE = st.integers(1, 6)


def loops(rows, inner, columns):
    """Counts a product of matrices, the first product of each sum added to nothing as hardware does it."""
    counting = Counting()
    left, right = counting.array(rows, inner), counting.array(inner, columns)
    for row in range(rows):
        for column in range(columns):
            total = counting.number(0)
            for place in range(inner):
                total = total + left[row, place] * right[place, column]
    return counting.count


@given(SIZE, SIZE, SIZE)
def test_a_product_has_the_operations_of_three_loops(rows, inner, columns):
    call = OperatorCall("aten::mm", [(rows, inner), (inner, columns)], ["float32", "float32"], [None, None])
    cost = rule_of("aten::mm").formula(call)
    assert cost.flops == loops(rows, inner, columns)
    assert cost.bytes == 4 * (rows * inner + inner * columns + rows * columns)


MATRIX, COLUMNS, BATCH = torch.ones(3, 4), torch.ones(4, 5), torch.ones(2, 3, 4)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: torch.mm(MATRIX, COLUMNS), {"mm": loops(3, 4, 5)}),
        (lambda: torch.addmm(torch.ones(5), MATRIX, COLUMNS), {"addmm": loops(3, 4, 5)}),
        (lambda: torch.bmm(BATCH, torch.ones(2, 4, 5)), {"bmm": 2 * loops(3, 4, 5)}),
        (lambda: torch.baddbmm(torch.ones(2, 3, 5), BATCH, torch.ones(2, 4, 5)), {"baddbmm": 2 * loops(3, 4, 5)}),
        (lambda: torch.addbmm(torch.ones(3, 5), BATCH, torch.ones(2, 4, 5)), {"addmm_": 2 * loops(3, 4, 5)}),
        (lambda: torch.mv(MATRIX, torch.ones(4)), {"mv": loops(3, 4, 1)}),
        (lambda: torch.addmv(torch.ones(3), MATRIX, torch.ones(4)), {"addmv": loops(3, 4, 1)}),
        (lambda: torch.dot(torch.ones(7), torch.ones(7)), {"dot": loops(1, 7, 1)}),
        (lambda: torch.vdot(torch.ones(7), torch.ones(7)), {"vdot": loops(1, 7, 1)}),
        (lambda: torch.outer(torch.ones(3), torch.ones(5)), {"mul": 15}),
        (lambda: functional.linear(BATCH, torch.ones(5, 4)), {"mm": loops(6, 4, 5)}),
        (lambda: functional.linear(BATCH, torch.ones(5, 4), torch.ones(5)), {"addmm": loops(6, 4, 5)}),
        (lambda: torch.matmul(BATCH, COLUMNS), {"mm": loops(6, 4, 5)}),
        (lambda: torch.matmul(torch.ones(4), COLUMNS), {"mm": loops(1, 4, 5)}),
        (lambda: torch.einsum("bij,bjk->bik", BATCH, torch.ones(2, 4, 5)), {"bmm": 2 * loops(3, 4, 5)}),
        (lambda: torch.einsum("ij,jk,kl->il", MATRIX, COLUMNS, torch.ones(5, 2)), {"bmm": loops(3, 4, 5) + loops(3, 5, 2)}),
        (lambda: torch.tensordot(BATCH, COLUMNS, 1), {"mm": loops(6, 4, 5)}),
        (lambda: torch._int_mm(torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)),
         {"_int_mm": loops(32, 16, 8)}),
        (lambda: torch.linalg.multi_dot([MATRIX, COLUMNS, torch.ones(5, 2)]),
         {"mm": min(loops(3, 4, 5) + loops(3, 5, 2), loops(4, 5, 2) + loops(3, 4, 2))}),
    ],
)  # fmt: skip
def test_what_is_recorded_is_counted_once(run, expected):
    found = recorded(run)
    products = {name: flops for name, flops in found.by_name.items() if name != "fill_"}
    assert products == expected
    assert found.unknown == set()


def test_complex_products_have_four_times_the_operations():
    found = recorded(lambda: torch.mm(MATRIX.to(torch.complex64), COLUMNS.to(torch.complex64)))
    # A product of complex numbers is 4 products and 2 sums, and adding it is 2 more.
    assert found.by_name["mm"] == 3 * 4 * 5 * 8


@given(st.lists(SIZE, min_size=4, max_size=4))
def test_linear_is_what_flop_counter_says(sizes):
    batch, rows, inner, columns = sizes
    layer = torch.nn.Linear(inner, columns)
    x = torch.ones(batch, rows, inner, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(x).backward(torch.ones(batch, rows, columns))
    found = recorded(lambda: layer(x).backward(torch.ones(batch, rows, columns)))
    products = sum(found.by_name.get(name, 0) for name in ("mm", "addmm", "bmm"))
    assert products == counter.get_total_flops()


@pytest.mark.parametrize(
    ("left", "right", "offsets", "expected"),
    [
        ((10, 4), (3, 4, 5), (3,), loops(10, 4, 5)),
        ((3, 6, 4), (4, 10), (3,), loops(6, 4, 10)),
        ((6, 10), (10, 5), (3,), loops(6, 10, 5)),
        ((3, 6, 4), (3, 4, 5), None, 3 * loops(6, 4, 5)),
    ],
)
def test_groups_share_or_cut_a_dimension(left, right, offsets, expected):
    call = OperatorCall(
        "aten::_grouped_mm", [left, right, offsets], ["bfloat16", "bfloat16", "int32"], [None] * 3
    )
    assert rule_of("aten::_grouped_mm").formula(call).flops == expected


@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        ("aten::_scaled_mm", [(16, 32), (32, 48)], loops(16, 32, 48)),
        ("aten::_weight_int8pack_mm", [(6, 8), (5, 8), (5,)], loops(6, 8, 5)),
        ("aten::_weight_int4pack_mm", [(6, 32), (2, 2, 32, 4), None, (1, 16, 2)], loops(6, 32, 16)),
        ("aten::mkldnn_linear", [(2, 3, 4), (5, 4), (5,)], loops(6, 4, 5)),
        ("mkldnn::_linear_pointwise", [(6, 4), (5, 4), None, None, None, None], loops(6, 4, 5)),
        ("mkldnn::_linear_pointwise", [(6, 4), (6, 5), (5, 4), None, None], loops(6, 4, 5)),
        ("mkl::_mkl_linear", [(6, 4), (99,), (5, 4), None, None], loops(6, 4, 5)),
        ("onednn::qlinear_pointwise", [(6, 4), (), (), (4, 5), (5,), (5,)], loops(6, 4, 5)),
    ],
)
def test_products_that_no_processor_here_records(name, shapes, expected):
    call = OperatorCall(
        name, shapes, ["bfloat16" if shape else None for shape in shapes], [None] * len(shapes)
    )
    assert rule_of(name).formula(call).flops == expected


def test_distances_take_three_operations_for_each_coordinate():
    found = recorded(lambda: torch.cdist(torch.ones(3, 4), torch.ones(5, 4), p=1.0))
    counting = Counting()
    left, right = counting.array(3, 4), counting.array(5, 4)
    for i in range(3):
        for j in range(5):
            total = counting.number(0)
            for place in range(4):
                total = total + counting.abs(left[i, place] - right[j, place])
    assert found.by_name["_cdist_forward"] == counting.count


def test_a_bilinear_layer_counts_the_products_that_it_calls():
    layer = torch.nn.Bilinear(3, 4, 5, bias=False)
    found = recorded(lambda: layer(torch.ones(2, 3), torch.ones(2, 4)))
    assert "_trilinear" not in found.by_name
    assert found.by_name["bmm"] >= 2 * 2 * 3 * 4 * 5
    assert found.unknown == set()
