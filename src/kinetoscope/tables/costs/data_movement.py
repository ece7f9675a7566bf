"""What moves or makes data without computing with it: copies, fills, joins, random numbers. 0 operations, bytes as they are.

Random numbers take work that is no arithmetic on data, and counts as none.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import FREE, SCALAR_TYPES, Cost, Rule, moved, rules

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import Formula, OperatorCall


def copy_in(call: OperatorCall) -> Cost:
    """`copy_(self, source)`."""
    return Cost(0, moved(call, (1,), call.numel(0), 0))


def same_size(call: OperatorCall) -> Cost:
    """A result of the input's size and type."""
    return Cost(0, moved(call, (0,), call.numel(0), 0))


def fill(call: OperatorCall) -> Cost:
    """What only writes to its first argument."""
    return Cost(0, call.bytes(0))


def part_of(call: OperatorCall) -> Cost:
    """A result with some of the input's elements, of which a trace does not say how many."""
    return Cost(0, None)


def joined(call: OperatorCall) -> Cost:
    """`cat(tensors)` and its like: reads and writes all; traces do not show the element types of lists."""
    return FREE if not call.shape_list(0) else Cost(0, None)


def repeated(call: OperatorCall) -> Cost:
    """`repeat(self, times)`."""
    times = call.whole_list(1, [])
    return Cost(0, moved(call, (0,), call.numel(0) * prod(times), 0))


def padded(call: OperatorCall) -> Cost:
    """`constant_pad_nd(self, padding, value)` and its like: the padding is given from the last dimension, before and after."""
    shape, padding = list(call.shape(0)), call.whole_list(1, [])
    for place in range(len(padding) // 2):
        shape[-1 - place] += padding[2 * place] + padding[2 * place + 1]
    return Cost(0, moved(call, (0,), prod(shape), 0))


def padded_backward(call: OperatorCall) -> Cost:
    """`reflection_pad2d_backward(gradient, self, padding)` and its like: one addition for each element that was repeated."""
    return Cost(call.numel(0) - call.numel(1), moved(call, (0,), call.numel(1), 1))


def into_zeros(call: OperatorCall) -> Cost:
    """`select_backward(gradient, sizes, ...)` and its like: zeros of the given sizes, and the gradient in its place."""
    return Cost(0, moved(call, (0,), prod(call.whole_list(1)) + call.numel(0), 0))


def into_copy(call: OperatorCall) -> Cost:
    """`slice_scatter(self, source, ...)` and its like: a copy, with the source in its place."""
    return Cost(0, moved(call, (0, 1), call.numel(0) + call.numel(1), 0))


def numbered(call: OperatorCall) -> Cost:
    """`arange(...)` and its like, where they write into a tensor given as `out`; else what they call does."""
    return Cost(0, None)


def columns_of_windows(call: OperatorCall) -> Cost:
    """`im2col(self, kernel, dilation, padding, stride)`: copies each window; the size depends on all of them."""
    return Cost(0, None)


def windows_to_image(call: OperatorCall) -> Cost:
    """`col2im(self, ...)`: one addition for each element of a window."""
    return Cost(call.numel(0), None)


def unfolded_backward(call: OperatorCall) -> Cost:
    """`unfold_backward(gradient, sizes, ...)`: one addition for each element of the gradient."""
    return Cost(call.numel(0), moved(call, (0,), prod(call.whole_list(1)), 0))


def made(call: OperatorCall) -> Cost:
    """`scalar_tensor`, `tril_indices` and their like: write numbers of a type that is given, into a size that is not shown."""
    return Cost(0, None)


def cast(call: OperatorCall) -> Cost:
    """`_to_copy(self, type, ...)` where no copy is recorded inside."""
    dtype = SCALAR_TYPES.get(call.value(1)) if type(call.value(1)) is int else None
    return Cost(0, moved(call, (0,), call.numel(0), 0, dtype=dtype))


COPYING_RULES: dict[str, Rule] = rules(
    "copying",
    {
        copy_in: "copy_ copy_sparse_to_sparse_ _copy_from _copy_from_and_resize set_data",
        same_size: "flip roll rot90 tril triu pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle lift_fresh_copy"
        " view_copy alias_copy expand_copy permute_copy transpose_copy t_copy detach_copy _reshape_copy"
        " view_as_real_copy view_as_complex_copy _mkldnn_transpose _mkldnn_reshape to_mkldnn mkldnn_reorder_conv2d_weight"
        " mkldnn_reorder_conv3d_weight _cudnn_rnn_flatten_weight _pin_memory as_strided_copy _reshape_alias_copy _conj_copy _neg_view_copy copy _lazy_clone max_unpool2d max_unpool3d"
        " masked_scatter masked_scatter_ _nested_from_padded_tensor to_padded_tensor diag_embed block_diag masked_scatter_backward",
        fill: "fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ fill zero"
        " resize_as_ _fill_mem_eff_dropout_mask_ fill_diagonal_ _sobol_engine_ff_",
        part_of: "select_copy slice_copy narrow_copy split_copy split_with_sizes_copy unbind_copy squeeze_copy unsqueeze_copy"
        " diagonal_copy unsafe_split unsafe_split_with_sizes unfold_copy _pack_padded_sequence tril_indices triu_indices"
        " bernoulli normal poisson binomial _standard_gamma _sample_dirichlet _sobol_engine_draw values_copy _values_copy"
        " indices_copy _indices_copy _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward _nested_get_values_copy"
        " _nested_view_from_buffer_copy _nested_view_from_jagged_copy _nested_from_padded crow_indices_copy col_indices_copy"
        " ccol_indices_copy row_indices_copy lu_unpack",
        joined: "cat stack _stack _chunk_cat",
        repeated: "repeat",
        padded: "constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d"
        " replication_pad3d",
        padded_backward: "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward"
        " replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward",
        into_zeros: "select_backward slice_backward diagonal_backward",
        into_copy: "slice_scatter select_scatter diagonal_scatter as_strided_scatter",
        columns_of_windows: "im2col",
        windows_to_image: "col2im",
        unfolded_backward: "unfold_backward",
    },
) | rules(
    "copying",
    {
        numbered: "arange range linspace logspace eye randperm hann_window hamming_window bartlett_window blackman_window"
        " kaiser_window randint randint_like",
        made: "scalar_tensor",
        cast: "_to_copy",
    },
    deferred=True,
)


# Looking up, gathering and scattering: an addition where values meet, otherwise no operations; bytes of what is touched.
#
# A look-up reads its indices and the rows it takes and writes those; an update in place reads and writes the rows it changes. A table
# from which rows are taken is not counted in full. `index` and `index_put` take a list of indices that traces do not show, so the size of
# `index`'s result is not known.

_SUM, _MEAN = 0, 1


def _touched(call: OperatorCall, like: int, elements: int, *indices: int) -> int | None:
    """Bytes of so many elements and of the indices that name them."""
    return moved(call, indices, elements, like)


def embedding(call: OperatorCall) -> Cost:
    """`embedding(weight, indices, ...)`."""
    rows = call.numel(1) * call.shape(0)[-1]
    return Cost(0, _touched(call, 0, 2 * rows, 1))


def embedding_backward(call: OperatorCall) -> Cost:
    """`embedding_dense_backward(gradient, indices, rows, ...)`: one addition for each element of the gradient."""
    written = int(call.value(2)) * call.shape(0)[-1]
    return Cost(call.numel(0), moved(call, (0, 1), written, 0))


def bag(call: OperatorCall) -> Cost:
    """`_embedding_bag(weight, indices, offsets, by frequency, mode, sparse, sample weights, last included, ...)`."""
    width, count = call.shape(0)[1], call.numel(1)
    bags = call.numel(2) - bool(call.value(7, False)) if len(call.shape(1)) == 1 else call.shape(1)[0]
    bags = min(bags, count)
    flops = (count - bags) * width
    flops += count * width if call.has_tensor(6) else 0
    flops += bags * width if call.value(4, _SUM) == _MEAN else 0
    return Cost(flops, _touched(call, 0, (count + bags) * width, 1, 2))


def bag_backward(call: OperatorCall) -> Cost:
    """`_embedding_bag_dense_backward(gradient, indices, bags, sizes, largest, rows, by frequency, mode, sample weights)`."""
    width, count = call.shape(0)[1], call.numel(1)
    each = 1 + (call.value(7, _SUM) == _MEAN) + call.has_tensor(8)
    return Cost(each * count * width, moved(call, (0, 1, 2), int(call.value(5)) * width, 0))


def bag_weights_backward(call: OperatorCall) -> Cost:
    """`_embedding_bag_per_sample_weights_backward(gradient, weight, indices, ...)`: a scalar product for each index."""
    count, width = call.numel(2), call.shape(0)[1]
    return Cost(count * max(2 * width - 1, 0), _touched(call, 0, 2 * count * width + count, 2))


def take_rows(call: OperatorCall) -> Cost:
    """`index_select(self, dim, index)`."""
    shape = call.shape(0)
    at = int(call.value(1, 0)) % max(len(shape), 1)
    taken = prod(size for place, size in enumerate(shape) if place != at) * call.numel(2)
    return Cost(0, _touched(call, 0, 2 * taken, 2))


def _by_index(index: int, *, flops: int, touches: int) -> Formula:
    """The formula of an operator with one index for each element it touches."""

    def formula(call: OperatorCall) -> Cost:
        count = call.numel(index)
        copied = 0 if call.name.endswith("_") or index == 1 or touches == 2 else 2 * call.numel(0)
        return Cost(flops * count, _touched(call, 0, touches * count + copied, index))

    return formula


def _by_source(source: int, index: int, *, flops: int) -> Formula:
    """The formula of an update whose source has the size of what changes."""

    def formula(call: OperatorCall) -> Cost:
        count = call.numel(source) if call.has_tensor(source) else call.numel(index)
        copied = 0 if call.name.endswith("_") else 2 * call.numel(0)
        return Cost(flops * count, _touched(call, 0, (2 + flops) * count + copied, index))

    return formula


def scatter_reduced(call: OperatorCall) -> Cost:
    """`scatter_reduce(self, dim, index, source, kind)`: one operation for each element of the index."""
    count = call.numel(2)
    copied = 0 if call.name.endswith("_") else 2 * call.numel(0)
    return Cost(count, _touched(call, 0, 3 * count + copied, 2))


def pick(call: OperatorCall) -> Cost:
    """`index(self, indices)`: the size of the result depends on indices that a trace does not show."""
    return Cost(0, None)


def put(call: OperatorCall) -> Cost:
    """`_index_put_impl_(self, indices, values, accumulate)`: an addition for each value where they accumulate."""
    count = call.numel(2)
    adds = bool(call.value(3, False))
    return Cost(count if adds else 0, _touched(call, 0, (2 + adds) * count))


def segments(call: OperatorCall) -> Cost:
    """`segment_reduce(data, kind, ...)`: one operation for each element."""
    return Cost(call.numel(0), None)


INDEXING_RULES: dict[str, Rule] = rules(
    "embedding",
    {
        embedding: "embedding",
        embedding_backward: "embedding_dense_backward",
        bag: "_embedding_bag _embedding_bag_forward_only",
        bag_backward: "_embedding_bag_dense_backward",
        bag_weights_backward: "_embedding_bag_per_sample_weights_backward",
    },
) | rules(
    "indexing",
    {
        take_rows: "index_select",
        _by_index(2, flops=0, touches=2): "gather",
        _by_index(1, flops=0, touches=2): "take put",
        _by_index(2, flops=0, touches=2): "scatter",
        _by_index(2, flops=1, touches=3): "scatter_add",
        scatter_reduced: "scatter_reduce",
        _by_source(3, 2, flops=1): "index_add index_reduce",
        _by_source(3, 2, flops=0): "index_copy index_fill",
        pick: "index _unsafe_index masked_select repeat_interleave _unsafe_masked_index",
        put: "_index_put_impl index_put _unsafe_index_put _unsafe_masked_index_put_accumulate",
        segments: "segment_reduce _segment_reduce_backward",
    },
)
