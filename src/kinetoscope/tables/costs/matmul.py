"""Matrix products, what is made of them, and decompositions.

A multiply-add is 2 operations; the addition of a bias or of another matrix is left out.
The convention is that of LAPACK Working Note 41 (appendix C, 2 m n k for a product) and of `torch.profiler`, so the numbers of
`mm`, `addmm` and `bmm` are the same as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import log2, prod

from kinetoscope.tables.costs.call import UNKNOWN, Cost, OperatorCall, Shape, broadcast


def matmul_sizes(left: Shape, right: Shape) -> tuple[Shape, int]:
    """The sizes of `left @ right` as `torch.matmul` defines them, and the length of the sums.

    Raises:
        ValueError: They cannot be multiplied.
    """
    if not left or not right or left[-1] != (right[-2] if len(right) > 1 else right[0]):
        raise ValueError(f"{left} and {right} cannot be multiplied")
    columns = right[-1:] if len(right) > 1 else ()
    return (*broadcast(left[:-2], right[:-2]), *left[-2:-1], *columns), left[-1]


def product(call: OperatorCall, *, left: int, dtype: str | None = None) -> Cost:
    """The cost of `mm(self, other)` and its like, in any number of dimensions, whose factors begin at an argument; what is before is added."""
    out, inner = matmul_sizes(call.shape(left), call.shape(left + 1))
    flops = call.multiply_add(left) * prod(out) * inner
    return Cost(flops, call.moved(range(left + 2), prod(out), left, dtype=dtype))


def layer(call: OperatorCall, *, weight: int) -> Cost:
    """The cost of `linear(input, weight, bias)` and its like: every row of the input with each of the weight's numbers."""
    features = call.shape(0)[-1]
    if features == 0:
        return Cost(0, 0)
    # Through the number of elements: weights may have been packed into other sizes.
    rows, outputs = call.numel(0) // features, call.numel(weight) // features
    flops = call.multiply_add(0) * rows * call.numel(weight)
    return Cost(flops, call.moved((0, weight, weight + 1), rows * outputs, 0))


def fused_layer(call: OperatorCall) -> Cost:
    """`mkldnn::_linear_pointwise(input, weight, bias, ...)`, or with a tensor to add after the input."""
    return layer(call, weight=2 if call.has_tensor(2) and len(call.shape(2)) > 1 else 1)


def grouped(call: OperatorCall) -> Cost:
    """`_grouped_mm(self, other, offsets, bias)`: the groups lie one after the other in the dimension that both lack or share."""
    left, right = call.shape(0), call.shape(1)
    if len(left) == 3 and len(right) == 3:
        return product(call, left=0)
    if left[-1] != right[-2]:
        raise ValueError("the groups cannot be multiplied")
    rows, inner, columns = left[-2], left[-1], right[-1]
    # Both with two dimensions: the sums are cut into groups, each of which gives a matrix of its own.
    groups = call.numel(2) if len(left) == len(right) and call.has_tensor(2) else 1
    flops = call.multiply_add(0) * rows * inner * columns
    dtype = "bfloat16" if (call.item_bytes(0) or 2) < 2 else None
    return Cost(flops, call.moved((0, 1), groups * rows * columns, 0, dtype=dtype))


def packed(call: OperatorCall) -> Cost:
    """`_weight_int8pack_mm(self, weight, ...)` and its like: a row of the weight for each output, or one for each tile of 8 outputs."""
    (rows, inner), weight = call.shape(0), call.shape(1)
    columns = weight[0] * (8 if len(weight) == 4 else 1)
    return Cost(2 * rows * inner * columns, call.moved(call.inputs(), rows * columns, 0))


def distances(call: OperatorCall) -> Cost:
    """`_cdist_forward(first, second, p, mode)`: subtract, raise and add for each pair and coordinate."""
    left, right = call.shape(0), call.shape(1)
    pairs = prod(broadcast(left[:-2], right[:-2])) * left[-2] * right[-2]
    return Cost(3 * pairs * left[-1], call.moved((0, 1), pairs, 0))


def distances_backward(call: OperatorCall) -> Cost:
    """`_cdist_backward(gradient, first, second, p, distances)`: subtract, raise, multiply and add."""
    return Cost(4 * call.numel(0) * call.shape(1)[-1], call.moved((0, 1, 2, 4), call.numel(1), 1))


# Sparse matrices: the cost follows from how many numbers are stored, which a trace shows only sometimes.
#
# A product with a sparse matrix is recorded under the name of the dense one and with its full sizes. That it is sparse shows in what it asks
# of its operand inside (`crow_indices`, `_nnz` ...). For compressed rows or columns (CSR, CSC, BSR, BSC) the stored values are looked up
# there too, and the product costs the dense count times their share. Of coordinates (COO) a trace does not say how many there
# are: the cost is unknown. Half-structured (2:4) weights store half of their numbers, and those are counted.
#
# Operators with packed weights (`quantized::conv2d` and its like) do not show the sizes of their weights, so their cost is not known; for
# `quantized::linear` it follows from the result that is made inside.


def half_structured(call: OperatorCall, *, stored: int) -> Cost:
    """The cost of `_sparse_semi_structured_mm(stored half, which, other)`, or with a bias before: every stored number meets every column."""
    return Cost(2 * call.numel(stored) * call.shape(stored + 2)[-1], None)


def half_structured_layer(call: OperatorCall) -> Cost:
    """`_sparse_semi_structured_linear(input, stored half, which)`."""
    return Cost(2 * prod(call.shape(0)[:-1]) * call.numel(1), None)


# Decompositions and solvers: the leading terms of the usual algorithms, 4 times as many for complex matrices.
#
# Sources: LAPACK Working Note 41, appendix C (Cholesky n^3/3, LU m n^2 - n^3/3, QR 2 m n^2 - 2 n^3/3, inverse 2 n^3, triangular and general
# solves), and Golub and Van Loan, Matrix Computations (fourth edition): symmetric eigenvalues 4 n^3/3 and with vectors 9 n^3 (8.3),
# singular values 4 m n^2 - 4 n^3/3 and with vectors 4 m^2 n + 22 n^3, or 6 m n^2 + 20 n^3 for the thin form (8.6). m is the longer side.
# How many numbers are written depends on options, so bytes are not known.


def _columns(call: OperatorCall, right: int) -> int:
    """How many right sides of n numbers a solver has for each matrix."""
    return call.numel(right) // max(prod(call.shape(0)[:-1]), 1)


def _qr(call: OperatorCall, m: int, n: int) -> float:
    """`linalg_qr(self, mode)`: the factors, and for all but mode `r` the first columns of Q, which cost as much again."""
    return (2 * m * n**2 - 2 * n**3 / 3) * (1 if call.value(1, "reduced") == "r" else 2)


def _svd(call: OperatorCall, m: int, n: int) -> float:
    """`_linalg_svd(self, full matrices, compute them, ...)`."""
    if call.value(2, True) is False:
        return 4 * m * n**2 - 4 * n**3 / 3
    return 4 * m**2 * n + 22 * n**3 if call.value(1, False) else 6 * m * n**2 + 20 * n**3


# Operations for one matrix of m by n, m >= n.
_TERMS: dict[str, Callable[[OperatorCall, int, int], float]] = {
    "cholesky": lambda call, m, n: n**3 / 3,
    "inverse": lambda call, m, n: 2 * n**3,
    "solve": lambda call, m, n: 2 * n**3 / 3 + 2 * n**2 * _columns(call, 1),
    "solve-triangular": lambda call, m, n: n**2 * _columns(call, 1),
    "solve-by-lu": lambda call, m, n: 2 * n**2 * _columns(call, 2),
    "lu": lambda call, m, n: m * n**2 - n**3 / 3,
    "qr": _qr,
    "svd": _svd,
    # `_linalg_eigh(self, which half, vectors)`.
    "symmetric-eigen": lambda call, m, n: 4 * n**3 / 3 if call.value(2, True) is False else 9 * n**3,
}


def matrices(call: OperatorCall, *, terms: str) -> Cost:
    """The cost of an operator on the matrices of its first argument."""
    shape = call.shape(0)
    flops = _TERMS[terms](call, max(shape[-2:]), min(shape[-2:]))
    return Cost(round(flops * prod(shape[:-2])) * (4 if call.is_complex(0) else 1), None)


# Fourier transforms: 5 N log2 N for N complex numbers, half of it where input or output is real.
#
# That is the usual convention (http://www.fftw.org/speed/method.html); N is the product of the transformed sizes.


def transform(call: OperatorCall) -> Cost:
    """`_fft_c2c(self, dim, ...)`, `_fft_r2c(self, dim, ...)` and `_fft_c2r(self, dim, normalization, size of the last dimension)`."""
    sizes, dims = list(call.shape(0)), [dim % len(call.shape(0)) for dim in call.whole_list(1)]
    if call.name.endswith("c2r"):
        sizes[dims[-1]] = call.whole_list(3)[0]
    size, is_complex = prod(sizes[dim] for dim in dims), call.name.endswith("c2c")
    flops = (5.0 if is_complex else 2.5) * prod(sizes) * log2(max(size, 1))
    return Cost(round(flops), call.moved((0,), call.numel(0), 0) if is_complex else None)


# Scaled-dot-product attention: 2 operations for each multiply-add of its matrix products; the softmax between is left out.
#
# Forward: queries with keys and weights with values, 2 L S (E + Ev) for each head. Backward: the weights again, and the gradients
# of weights, values, queries and keys, 2 L S (3 E + 2 Ev). That is how the authors of FlashAttention count (4 L S E forward, 2.5
# times that backward, https://arxiv.org/abs/2307.08691, section 4.1), and `torch.utils.flop_counter`. Where attention is causal,
# L S becomes the number of pairs that are not masked, which is about half; `flop_counter` counts all pairs there.


def pairs(queries: int, keys: int, causal: bool) -> int:
    """How many pairs of a query and a key meet: all, or those of a key no later than its query (the upper left aligned)."""
    if not causal:
        return queries * keys
    full = max(queries - keys, 0)
    rising = queries - full
    return rising * (rising + 1) // 2 + full * keys


def attention(call: OperatorCall, *, causal: int, heads_last: bool = False, lengths: int = -1) -> Cost:
    """The cost of one kernel.

    Args:
        call: The call.
        causal: The argument that says whether it is causal: a truth value, or the number of a kind of mask, 0 for none.
        heads_last: Whether heads come after the sequence.
        lengths: The argument with the ends of packed sequences, -1 where there cannot be any.
    """
    if lengths >= 0 and call.has_tensor(lengths) and call.numel(lengths) > 0:
        # Sequences of different lengths lie one after the other; a trace does not say where they end.
        return UNKNOWN
    backward = call.name.endswith("_backward")
    query, key, value = (call.shape(backward + place) for place in range(3))
    at, width, value_width = -3 if heads_last else -2, query[-1], value[-1]
    # With fewer heads for keys than for queries (grouped queries) each query still meets the keys of one head.
    heads = prod(query) // max(query[at] * width, 1)
    met = heads * pairs(query[at], key[at], bool(call.value(causal, False)))
    if backward:
        per_pair, written = 3 * width + 2 * value_width, prod(query) + prod(key) + prod(value)
    else:
        per_pair, written = width + value_width, prod(query) // max(width, 1) * value_width
    return Cost(2 * met * per_pair, call.moved(range(backward + 3), written, int(backward)))


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

# Operations for each unit and how many gates it has, by the numbers of the kinds in cuDNN and oneDNN.
_CELLS = {"lstm": (22, 4), "gru": (17, 3), "plain": (2, 1)}
_KINDS = ("plain", "plain", "lstm", "gru")


def _network(call: OperatorCall, weights: Iterable[Shape], cell: str) -> Cost:
    """The cost of all steps of the layers whose weights are given.

    The weights of a layer and direction come in the order input, hidden (and projection, if the hidden state is projected).
    """
    (unit, gates), times = _CELLS[cell], 2 if call.name.endswith("_backward") else 1
    matrices = [shape for shape in weights if len(shape) == 2]
    rows = call.numel(0) // call.shape(0)[-1]
    # Of the matrices of a layer only one, that of the hidden state, has a row for each unit of each gate and is not
    # the first; a projection has fewer rows than the gates.
    tall = [shape for shape in matrices if shape[0] == matrices[0][0]]
    units = sum(shape[0] // gates for shape in tall) // 2
    numbers, written = sum(map(prod, matrices)), rows * tall[-1][0] // gates
    item = call.item_bytes(0)
    moved = None if item is None else item * (call.numel(0) + numbers + written) * times
    return Cost(times * rows * (call.multiply_add(0) * numbers + unit * units), moved)


def layers(call: OperatorCall, *, cell: str) -> Cost:
    """The cost of `lstm(input, states, weights, ...)` and its like; for packed sequences the sizes of batches come second."""
    return _network(call, [shape for shape in call.shapes if isinstance(shape, list)][-1], cell)


def fused_layers(call: OperatorCall, *, kind: int) -> Cost:
    """The cost of `_cudnn_rnn(input, weights, ...)` or `mkldnn_rnn_layer(input, two weights, ...)`, with the argument for the kind."""
    weights = (call.shape(1), call.shape(2)) if call.has_tensor(1) else call.shape_list(1)
    return _network(call, weights, _KINDS[int(call.value(kind))])


def fused_cell(call: OperatorCall, *, cell: str, state: int = 2) -> Cost:
    """The cost of the pointwise part of one cell, whose state has one number a unit: `_thnn_fused_lstm_cell(..., cell state, ...)`."""
    (unit, gates), size, item = _CELLS[cell], call.numel(state), call.item_bytes(state)
    if "_backward" in call.name:
        return Cost(2 * unit * size, None)
    return Cost(unit * size, None if item is None else item * size * (2 * gates + 3))
