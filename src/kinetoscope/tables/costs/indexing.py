"""Looking up, gathering and scattering: an addition where values meet, otherwise no operations; bytes of what is touched.

A look-up reads its indices and the rows it takes and writes those; an update in place reads and writes the rows it changes. A table
from which rows are taken is not counted in full. `index` and `index_put` take a list of indices that traces do not show, so the size of
`index`'s result is not known.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, Rule, rules
from kinetoscope.tables.costs.sizes import moved

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import Formula, OperatorCall

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


RULES: dict[str, Rule] = rules(
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
