"""Matrix products: 2 operations for each multiply-add; the addition of a bias or of another matrix is left out.

The convention is that of LAPACK Working Note 41 (appendix C, 2 m n k for a product) and of `torch.profiler`, so the numbers of
`mm`, `addmm` and `bmm` are the same as there.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from kinetoscope.tables.costs.call import UNKNOWN, Cost, Rule, broadcast, moved, multiply_add, rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kinetoscope.tables.costs.call import Formula, OperatorCall, Shape


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


MATMUL_RULES = {
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


# Sparse matrices: the cost follows from how many numbers are stored, which a trace shows only sometimes.
#
# A product with a sparse matrix is recorded under the name of the dense one and with its full sizes. That it is sparse shows in what it asks
# of its operand inside (`crow_indices`, `_nnz` ...). For compressed rows or columns (CSR, CSC, BSR, BSC) the stored values are looked up
# there too, and the product costs the dense count times their share. Of coordinates (COO) a trace does not say how many there
# are: the cost is unknown. Half-structured (2:4) weights store half of their numbers, and those are counted.


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


SPARSE_RULES: dict[str, Rule] = rules(
    "matmul",
    {
        hidden_sizes: "sparse_sampled_addmm _sparse_mm_reduce_impl _sparse_mm_reduce_impl_backward _sparse_sparse_matmul hspmm"
        " sspaddmm _spsolve _cslt_sparse_mm",
        half_structured: "_sparse_semi_structured_mm",
        half_structured_add: "_sparse_semi_structured_addmm",
        half_structured_layer: "_sparse_semi_structured_linear",
    },
)


# Quantised numbers: a division, a rounding and a shift to quantise, a difference and a product back, both for imitations of it.
#
# Operators with packed weights (`quantized::conv2d` and its like) do not show the sizes of their weights, so their cost is not known; for
# `quantized::linear` it follows from the result that is made inside.


def _each(flops: int, dtype: str | None = None) -> Formula:
    """The formula with so many operations for each element of the first argument."""

    def formula(call: OperatorCall) -> Cost:
        count = call.numel(0)
        return Cost(flops * count, moved(call, (0,), count, 0, dtype=dtype))

    return formula


def packed(call: OperatorCall) -> Cost:
    """An operator with packed weights, whose sizes a trace does not show."""
    return UNKNOWN


QUANTIZED_RULES: dict[str, Rule] = rules(
    "quantized",
    {
        _each(3, "quint8"): "quantize_per_tensor quantize_per_channel",
        _each(5, "quint8"): "quantize_per_tensor_dynamic",
        _each(2, "float32"): "dequantize",
        _each(0, "uint8"): "int_repr",
        _each(5): "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask"
        " _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fake_quantize_learnable_per_tensor_affine"
        " _fake_quantize_learnable_per_channel_affine _fused_moving_avg_obs_fq_helper",
        packed: "quantized::linear quantized::linear_relu quantized::linear_dynamic quantized::linear_relu_dynamic quantized::conv1d"
        " quantized::conv2d quantized::conv3d quantized::conv1d_relu quantized::conv2d_relu quantized::conv3d_relu"
        " quantized::conv_transpose2d quantized::embedding_bag_byte quantized::embedding_bag_4bit",
        _each(6): "quantized::add quantized::add_relu quantized::mul quantized::mul_relu",
    },
)


# Scaled-dot-product attention: 2 operations for each multiply-add of its matrix products; the softmax between is left out.
#
# Forward: queries with keys and weights with values, 2 L S (E + Ev) for each head. Backward: the weights again, and the gradients
# of weights, values, queries and keys, 2 L S (3 E + 2 Ev). That is how the authors of FlashAttention count (4 L S E forward, 2.5
# times that backward, https://arxiv.org/abs/2307.08691, section 4.1), and `torch.utils.flop_counter`. Where attention is causal,
# L S becomes the number of pairs that are not masked, which is about half; `flop_counter` counts all pairs there.


class Layout(NamedTuple):
    """At which argument an operator takes what.

    Attributes:
        query: The queries; keys and values follow.
        causal: Whether it is causal; a truth value, or the number of a kind of mask, 0 for none.
        backward: Whether it is a backward function.
        heads_last: Whether heads come after the sequence.
        lengths: Where the ends of packed sequences are given, -1 where they cannot be.
    """

    query: int
    causal: int
    backward: bool = False
    heads_last: bool = False
    lengths: int = -1


_LAYOUTS: dict[Layout, str] = {
    Layout(0, 4): "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu",
    Layout(0, 6): "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    Layout(0, 5): "_scaled_dot_product_fused_attention_overrideable",
    Layout(1, 11, True, False, 6): "_scaled_dot_product_flash_attention_backward",
    Layout(1, 7, True): "_scaled_dot_product_flash_attention_for_cpu_backward",
    Layout(1, 11, True): "_scaled_dot_product_efficient_attention_backward",
    Layout(0, 10, False, False, 4): "_cudnn_attention_forward",
    Layout(1, 14, True, False, 9): "_scaled_dot_product_cudnn_attention_backward _cudnn_attention_backward",
    Layout(1, 13, True, False, 8): "_scaled_dot_product_fused_attention_overrideable_backward",
    Layout(0, 8, False, True, 3): "_flash_attention_forward",
    Layout(0, 9, False, True, 4): "_efficient_attention_forward",
    Layout(1, 11, True, True, 6): "_flash_attention_backward",
    Layout(1, 14, True, True, 6): "_efficient_attention_backward",
}


def pairs(queries: int, keys: int, causal: bool) -> int:
    """How many pairs of a query and a key meet: all, or those of a key no later than its query (the upper left aligned)."""
    if not causal:
        return queries * keys
    full = max(queries - keys, 0)
    rising = queries - full
    return rising * (rising + 1) // 2 + full * keys


def attention(call: OperatorCall, layout: Layout) -> Cost:
    """The cost of one call."""
    query, key, value = (call.shape(layout.query + place) for place in range(3))
    if layout.lengths >= 0 and call.has_tensor(layout.lengths) and call.numel(layout.lengths) > 0:
        # Sequences of different lengths lie one after the other; a trace does not say where they end.
        return UNKNOWN
    at = -3 if layout.heads_last else -2
    width, value_width = query[-1], value[-1]
    # With fewer heads for keys than for queries (grouped queries) each query still meets the keys of one head.
    heads = prod(query) // max(query[at] * width, 1)
    met = heads * pairs(query[at], key[at], bool(call.value(layout.causal, False)))
    per_pair = 3 * width + 2 * value_width if layout.backward else width + value_width
    if layout.backward:
        written = prod(query) + prod(key) + prod(value)
    else:
        written = prod(query) // max(width, 1) * value_width
    read = range(layout.query + 3)
    return Cost(2 * met * per_pair, moved(call, read, written, layout.query))


def multi_head(call: OperatorCall) -> Cost:
    """`_native_multi_head_attention(query, key, value, width, heads, qkv weight, its bias, out weight, ...)`."""
    batch, length, width = call.shape(0)
    weights = call.numel(5) + call.numel(7)
    flops = 2 * batch * length * weights + 4 * batch * length * call.shape(1)[1] * width
    return Cost(flops, moved(call, (0, 1, 2, 5, 6, 7, 8), batch * length * width, 0))


def _with(layout: Layout) -> Formula:
    """The formula of the operators with a layout."""
    return lambda call: attention(call, layout)


ATTENTION_RULES: dict[str, Rule] = {
    **{
        name: rule
        for layout, names in _LAYOUTS.items()
        for name, rule in rules("attention", {_with(layout): names}).items()
    },
    **rules(
        "attention",
        {_with(Layout(0, 5)): "scaled_dot_product_attention", multi_head: "_native_multi_head_attention"},
        deferred=True,
    ),
}


# Recurrent layers: the matrix products of every step, and the pointwise part of every cell; biases are left out.
#
# Every row of input meets all numbers of the weights once, so the products are 2 x steps x batch x elements of the weights. The
# pointwise part for each unit of a cell, with 4 operations for a sigmoid and 1 for a tanh:
#
# - LSTM 22: 4 gates' sums of two products, 3 sigmoids, a tanh, `c = f * c + i * g`, and `o * tanh(c)`;
# - GRU 17: 3 sums, 2 sigmoids, `tanh(. + r * .)`, and `(1 - z) * n + z * h`;
# - plain 2: a sum and the function.
#
# Backward, each product gives two (the gradients of input and weight), and the pointwise part is taken twice as well.

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


RECURRENT_RULES = {
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
