"""Sparse matrices: the cost follows from how many numbers are stored, which a trace shows only sometimes.

A product with a sparse matrix is recorded under the name of the dense one and with its full sizes. That it is sparse shows in what it asks
of its operand inside (`crow_indices`, `_nnz` ...). For compressed rows or columns (CSR, CSC, BSR, BSC) the stored values are looked up
there too, and the product costs the dense count times their share. Of coordinates (COO) a trace does not say how many there
are: the cost is unknown. Half-structured (2:4) weights store half of their numbers, and those are counted.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import UNKNOWN, Cost, Rule, rules

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import OperatorCall


def hidden_sizes(call: OperatorCall) -> Cost:
    """An operator on sparse tensors whose stored numbers a trace does not show."""
    return UNKNOWN


def half_structured(call: OperatorCall) -> Cost:
    """`_sparse_semi_structured_mm(stored half, which, other)`: every stored number meets every column."""
    return Cost(2 * call.numel(0) * call.shape(2)[-1], None)


def half_structured_add(call: OperatorCall) -> Cost:
    """`_sparse_semi_structured_addmm(input, stored half, which, other)`."""
    return Cost(2 * call.numel(1) * call.shape(3)[-1], None)


def half_structured_layer(call: OperatorCall) -> Cost:
    """`_sparse_semi_structured_linear(input, stored half, which)`."""
    shape = call.shape(0)
    return Cost(2 * prod(shape[:-1]) * call.numel(1), None)


RULES: dict[str, Rule] = rules(
    "matmul",
    {
        hidden_sizes: "sparse_sampled_addmm _sparse_mm_reduce_impl _sparse_mm_reduce_impl_backward _sparse_sparse_matmul hspmm"
        " sspaddmm _spsolve _cslt_sparse_mm",
        half_structured: "_sparse_semi_structured_mm",
        half_structured_add: "_sparse_semi_structured_addmm",
        half_structured_layer: "_sparse_semi_structured_linear",
    },
)
