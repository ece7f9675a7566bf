"""Products with matrices whose sizes are not recorded: sparse ones, and packed weights."""

import warnings

import pytest
import torch

from kinetoscope.tables.costs import OperatorCall
from kinetoscope.tables.costs.evaluate import rule_of
from tests.support.counting import costs_in, recorded
from tests.support.trace_builder import TraceBuilder

DENSE = torch.eye(6) + torch.diag(torch.ones(4), 2)
OTHER = torch.ones(6, 5)


def compressed():
    with warnings.catch_warnings():
        # torch says once that these are in beta state.
        warnings.simplefilter("ignore", UserWarning)
        return DENSE.to_sparse_csr()


def test_compressed_rows_cost_their_stored_numbers():
    matrix = compressed()
    found = recorded(lambda: matrix @ OTHER)
    assert found.flops == 2 * 10 * 5
    assert found.unknown == set()


def test_a_sum_with_compressed_rows():
    matrix = compressed()
    found = recorded(lambda: torch.addmm(torch.ones(6, 5), matrix, OTHER))
    assert found.flops == 2 * 10 * 5


def test_coordinates_do_not_say_how_many_there_are():
    matrix = DENSE.to_sparse()
    found = recorded(lambda: torch.sparse.mm(matrix, OTHER))
    assert found.unknown == {"addmm"}
    rows = {row["name"]: row for row in found.trace.table("flops_coverage").to_pylist()}
    assert (rows["aten::addmm"]["why"], rows["aten::addmm"]["covered_calls"]) == ("inputs", 0)


def test_dense_products_beside_them_stay_as_they_are():
    matrix = compressed()
    found = recorded(lambda: (matrix @ OTHER, DENSE @ OTHER))
    assert found.flops == 2 * 10 * 5 + 2 * 6 * 6 * 5


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("_sparse_semi_structured_mm", [(16, 8), (16, 1), (16, 4)]),
        ("_sparse_semi_structured_addmm", [(16,), (16, 8), (16, 1), (16, 4)]),
        ("_sparse_semi_structured_linear", [(4, 16), (16, 8), (16, 1)]),
    ],
)
def test_half_structured_weights_cost_the_half_that_is_stored(name, shapes):
    call = OperatorCall(f"aten::{name}", shapes, ["float16"] * len(shapes), [None] * len(shapes))
    assert rule_of(call.name).formula(call).flops == 2 * 16 * 16 * 4 // 2


@pytest.mark.parametrize("made", ["aten::empty", "aten::_empty_affine_quantized"])
def test_packed_weights_by_the_result_that_is_made_inside(made):
    builder = TraceBuilder()
    given = builder.shapes([[3, 8], [], []], ["float", "", "Scalar"], ["", "", "True"])
    result = builder.shapes([[], []], ["ScalarList", "Scalar"], ["[3, 5]", "6"])
    other = builder.shapes([[], []], ["ScalarList", "Scalar"], ["[7]", "6"])
    builder.span("quantized::linear_dynamic", 0, 100, shapes=given).span(made, 10, 5, shapes=other).span(
        made, 20, 5, shapes=result
    )
    builder.span("quantized::linear_dynamic", 200, 100, shapes=given).span(made, 210, 5, shapes=other)
    found = costs_in(builder.build())
    assert found.by_name == {"quantized::linear_dynamic": 2 * 3 * 8 * 5}
    assert found.unknown == {"quantized::linear_dynamic"}


def test_a_quantised_layer_that_runs():
    with warnings.catch_warnings():
        # torch means to drop quantised tensors; programs that use them are still out there.
        warnings.simplefilter("ignore")
        weight = torch.quantize_per_tensor(torch.ones(5, 8), 0.1, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weight, None)
    found = recorded(lambda: torch.ops.quantized.linear_dynamic(torch.ones(3, 8), packed))
    assert found.by_name["quantized::linear_dynamic"] == 2 * 3 * 8 * 5
