"""Matrix products: 2 operations for each multiply-add; the addition of a bias or of another matrix is left out.

The convention is that of LAPACK Working Note 41 (appendix C, 2 m n k for a product) and of `torch.profiler`, so the numbers of
`mm`, `addmm` and `bmm` are the same as there.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, rules
from kinetoscope.tables.costs.sizes import broadcast, moved, multiply_add

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import OperatorCall, Shape


def matmul_sizes(left: Shape, right: Shape) -> tuple[Shape, int]:
    """The sizes of `left @ right` as `torch.matmul` defines them, and the length of the sums.

    Raises:
        ValueError: They cannot be multiplied.
    """
    if not left or not right or left[-1] != (right[-2] if len(right) > 1 else right[0]):
        raise ValueError(f"{left} and {right} cannot be multiplied")
    rows = left[-2:-1]
    columns = right[-1:] if len(right) > 1 else ()
    return (*broadcast(left[:-2], right[:-2]), *rows, *columns), left[-1]


def product(call: OperatorCall, left: int, right: int, *also: int, dtype: str | None = None) -> Cost:
    """The cost of `left @ right` in any number of dimensions; `also` are further inputs that are read."""
    out, inner = matmul_sizes(call.shape(left), call.shape(right))
    flops = multiply_add(call, left) * prod(out) * inner
    return Cost(flops, moved(call, (left, right, *also), prod(out), left, dtype=dtype))


def two(call: OperatorCall) -> Cost:
    """`mm(self, other)` and its like."""
    return product(call, 0, 1)


def three(call: OperatorCall) -> Cost:
    """`addmm(self, first, second)` and its like, whose first argument is added."""
    return product(call, 1, 2, 0)


def sum_of_products(call: OperatorCall) -> Cost:
    """`addbmm(self, first, second)`: products of a batch, added up."""
    (_, rows, inner), (batch, again, columns) = call.shape(1), call.shape(2)
    if again != inner:
        raise ValueError("the matrices cannot be multiplied")
    flops = multiply_add(call, 1) * batch * rows * inner * columns
    return Cost(flops, moved(call, (0, 1, 2), rows * columns, 1))


def outer(call: OperatorCall) -> Cost:
    """`ger(self, other)`: one multiplication for each element."""
    size = call.numel(0) * call.numel(1)
    return Cost((6 if call.is_complex(0) else 1) * size, moved(call, (0, 1), size, 0))


def add_outer(call: OperatorCall) -> Cost:
    """`addr(self, first, second)`: a multiply-add for each element."""
    size = call.numel(1) * call.numel(2)
    return Cost(multiply_add(call, 1) * size, moved(call, (0, 1, 2), size, 1))


def dense_layer(call: OperatorCall, weight: int = 1) -> Cost:
    """`linear(input, weight, bias)`: every row of the input with each of the weight's numbers."""
    features = call.shape(0)[-1]
    if features == 0:
        return Cost(0, 0)
    # Through the number of elements: weights may have been packed into other sizes.
    rows, outputs = call.numel(0) // features, call.numel(weight) // features
    flops = multiply_add(call, 0) * rows * call.numel(weight)
    return Cost(flops, moved(call, (0, weight, weight + 1), rows * outputs, 0))


def fused_layer(call: OperatorCall) -> Cost:
    """`mkldnn::_linear_pointwise(input, weight, bias, ...)`, or with a tensor to add after the input."""
    return dense_layer(call, 2 if call.has_tensor(2) and len(call.shape(2)) > 1 else 1)


def mkl_linear(call: OperatorCall) -> Cost:
    """`mkl::_mkl_linear(input, packed weight, weight, bias, batch)`."""
    return dense_layer(call, 2)


def onednn_linear(call: OperatorCall) -> Cost:
    """`onednn::qlinear_pointwise(input, its scale and zero point, weight, ...)`."""
    return dense_layer(call, 3)


def dense_layer_backward(call: OperatorCall) -> Cost:
    """`linear_backward(input, gradient, weight, mask)`: one product for the input's gradient, one for the weight's."""
    mask = call.value(3, [True, True, False])
    flops = multiply_add(call, 0) * call.numel(1) * call.shape(2)[1] * (bool(mask[0]) + bool(mask[1]))
    written = call.numel(0) * bool(mask[0]) + call.numel(2) * bool(mask[1])
    return Cost(flops, moved(call, (0, 1, 2), written, 0))


def gradient_of_input(call: OperatorCall) -> Cost:
    """`mkldnn_linear_backward_input(sizes, gradient, weight)`."""
    return product(call, 1, 2)


def gradient_of_weight(call: OperatorCall) -> Cost:
    """`mkldnn_linear_backward_weights(gradient, input, weight, bias defined)`."""
    flops = multiply_add(call, 0) * call.numel(0) * call.shape(1)[-1]
    return Cost(flops, moved(call, (0, 1), call.numel(2), 0))


def scaled(call: OperatorCall) -> Cost:
    """`_scaled_mm(self, other, ...)` with 8-bit or smaller elements; the result is taken to be of 16 bits."""
    return product(call, 0, 1, dtype="bfloat16")


def int_product(call: OperatorCall) -> Cost:
    """`_int_mm(self, other)`: 8-bit integers into 32-bit ones."""
    return product(call, 0, 1, dtype="int32")


def grouped(call: OperatorCall) -> Cost:
    """`_grouped_mm(self, other, offsets, bias)`: the groups lie one after the other in the dimension that both lack or share."""
    left, right = call.shape(0), call.shape(1)
    if len(left) == 3 and len(right) == 3:
        return product(call, 0, 1)
    if left[-1] != right[-2]:
        raise ValueError("the groups cannot be multiplied")
    rows, inner, columns = left[-2], left[-1], right[-1]
    # Both with two dimensions: the sums are cut into groups, each of which gives a matrix of its own.
    groups = call.numel(2) if len(left) == len(right) and call.has_tensor(2) else 1
    flops = multiply_add(call, 0) * rows * inner * columns
    size = "bfloat16" if (call.item_bytes(0) or 2) < 2 else None
    return Cost(flops, moved(call, (0, 1), groups * rows * columns, 0, dtype=size))


def packed_8_bit(call: OperatorCall) -> Cost:
    """`_weight_int8pack_mm(self, weight, scales)`: the weight has one row for each output."""
    (rows, inner), columns = call.shape(0), call.shape(1)[0]
    return Cost(2 * rows * inner * columns, moved(call, (0, 1, 2), rows * columns, 0))


def packed_4_bit(call: OperatorCall) -> Cost:
    """`_weight_int4pack_mm(self, weight, group size, scales)`: the weight is packed in tiles of 8 outputs."""
    (rows, inner), tiles = call.shape(0), call.shape(1)
    columns = tiles[0] * 8 if len(tiles) == 4 else tiles[0]
    return Cost(2 * rows * inner * columns, moved(call, (0, 1, 3), rows * columns, 0))


def einsum(call: OperatorCall) -> Cost:
    """`einsum(equation, operands, path)`, two operands at a time from the left: the product of the sizes of all their indices.

    An index that occurs in no later operand and not in the result is summed away as soon as it can be.
    """
    equation, shapes = str(call.value(0)).replace(" ", ""), call.shape_list(1)
    terms, _, result = equation.partition("->")
    names = terms.split(",")
    if "." in equation or len(names) != len(shapes) or "->" not in equation:
        raise ValueError(f"the equation {equation!r} cannot be read here")
    size: dict[str, int] = {}
    for name, shape in zip(names, shapes, strict=True):
        size.update(zip(name, shape, strict=True))
    flops, have = 0, set(names[0])
    for place, name in enumerate(names[1:], 1):
        have |= set(name)
        work = prod(size[index] for index in have)
        have &= set("".join(names[place + 1 :])) | set(result)
        flops += work * (2 if prod(size[index] for index in have) < work else 1)
    return Cost(flops, None)


def trilinear(call: OperatorCall) -> Cost:
    """`_trilinear(first, second, third, dimensions to add to each, dimensions to sum)`: two products and a sum."""
    whole = [_expanded(call.shape(place), call.whole_list(place + 3, [])) for place in range(3)]
    out = broadcast(*whole)
    kept = prod(size for place, size in enumerate(out) if place not in call.whole_list(6, []))
    return Cost(3 * prod(out), moved(call, (0, 1, 2), kept, 0))


def _expanded(shape: Shape, added: list[int]) -> Shape:
    """A shape with dimensions of size 1 put in."""
    sizes = list(shape)
    for place in added:
        sizes.insert(place, 1)
    return tuple(sizes)


def distances(call: OperatorCall) -> Cost:
    """`_cdist_forward(first, second, p, mode)`: subtract, raise and add for each pair and coordinate."""
    left, right = call.shape(0), call.shape(1)
    pairs = prod(broadcast(left[:-2], right[:-2])) * left[-2] * right[-2]
    return Cost(3 * pairs * left[-1], moved(call, (0, 1), pairs, 0))


def own_distances(call: OperatorCall) -> Cost:
    """`_pdist_forward(self, p)`: the same among the rows of one matrix."""
    rows, width = call.shape(0)
    pairs = rows * (rows - 1) // 2
    return Cost(3 * pairs * width, moved(call, (0,), pairs, 0))


def distances_backward(call: OperatorCall) -> Cost:
    """`_cdist_backward(gradient, first, second, p, distances)`: subtract, raise, multiply and add."""
    return Cost(4 * call.numel(0) * call.shape(1)[-1], moved(call, (0, 1, 2, 4), call.numel(1), 1))


RULES = {
    **rules(
        "matmul",
        {
            two: "mm bmm mv dot vdot",
            three: "addmm addmm_ baddbmm baddbmm_ addmv addmv_ _addmm_activation",
            int_product: "_int_mm",
            sum_of_products: "addbmm addbmm_",
            outer: "ger",
            add_outer: "addr addr_",
            scaled: "_scaled_mm _scaled_mm_v2",
            grouped: "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2",
            dense_layer: "mkldnn_linear _mixed_dtypes_linear",
            fused_layer: "mkldnn::_linear_pointwise",
            mkl_linear: "mkl::_mkl_linear",
            onednn_linear: "onednn::qlinear_pointwise",
            dense_layer_backward: "linear_backward",
            gradient_of_input: "mkldnn_linear_backward_input",
            gradient_of_weight: "mkldnn_linear_backward_weights",
            packed_8_bit: "_weight_int8pack_mm",
            packed_4_bit: "_weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros",
            trilinear: "_trilinear",
            distances: "_cdist_forward",
            own_distances: "_pdist_forward",
            distances_backward: "_cdist_backward",
        },
    ),
    **rules(
        "matmul", {two: "matmul inner linalg_matmul", dense_layer: "linear", einsum: "einsum"}, deferred=True
    ),
}
