"""What moves or makes data without computing with it: copies, fills, joins, random numbers. 0 operations, bytes as they are.

Random numbers take work that is no arithmetic on data, and counts as none.
"""

from __future__ import annotations

from math import prod

from kinetoscope.tables.costs.call import FREE, SCALAR_TYPES, Cost, OperatorCall


def copy_in(call: OperatorCall) -> Cost:
    """`copy_(self, source)`."""
    return Cost(0, call.moved((1,), call.numel(0), 0))


def fill(call: OperatorCall) -> Cost:
    """What only writes to its first argument."""
    return Cost(0, call.bytes(0))


def joined(call: OperatorCall) -> Cost:
    """`cat(tensors)` and its like: reads and writes all; traces do not show the element types of lists."""
    return FREE if not call.shape_list(0) else Cost(0, None)


def repeated(call: OperatorCall) -> Cost:
    """`repeat(self, times)`."""
    return Cost(0, call.moved((0,), call.numel(0) * prod(call.whole_list(1, [])), 0))


def padded(call: OperatorCall) -> Cost:
    """`constant_pad_nd(self, padding, value)` and its like: the padding is given from the last dimension, before and after."""
    shape, padding = list(call.shape(0)), call.whole_list(1, [])
    for place, size in enumerate(padding):
        shape[-1 - place // 2] += size
    return Cost(0, call.moved((0,), prod(shape), 0))


def padded_backward(call: OperatorCall) -> Cost:
    """`reflection_pad2d_backward(gradient, self, padding)` and its like: one addition for each element that was repeated."""
    return Cost(call.numel(0) - call.numel(1), call.moved((0,), call.numel(1), 1))


def into_zeros(call: OperatorCall) -> Cost:
    """`select_backward(gradient, sizes, ...)` and its like: zeros of the given sizes, and the gradient in its place."""
    return Cost(0, call.moved((0,), prod(call.whole_list(1)) + call.numel(0), 0))


def cast(call: OperatorCall) -> Cost:
    """`_to_copy(self, type, ...)` where no copy is recorded inside."""
    dtype = SCALAR_TYPES.get(call.value(1)) if type(call.value(1)) is int else None
    return Cost(0, call.moved((0,), call.numel(0), 0, dtype=dtype))


# Looking up, gathering and scattering: an addition where values meet, otherwise no operations; bytes of what is touched.
#
# A look-up reads its indices and the rows it takes and writes those; an update in place reads and writes the rows it changes. A table
# from which rows are taken is not counted in full. `index` and `index_put` take a list of indices that traces do not show, so the size of
# `index`'s result is not known.

_SUM, _MEAN = 0, 1


def embedding(call: OperatorCall) -> Cost:
    """`embedding(weight, indices, ...)`."""
    return Cost(0, call.moved((1,), 2 * call.numel(1) * call.shape(0)[-1], 0))


def embedding_backward(call: OperatorCall) -> Cost:
    """`embedding_dense_backward(gradient, indices, rows, ...)`: one addition for each element of the gradient."""
    written = int(call.value(2)) * call.shape(0)[-1]
    return Cost(call.numel(0), call.moved((0, 1), written, 0))


def bag(call: OperatorCall) -> Cost:
    """`_embedding_bag(weight, indices, offsets, by frequency, mode, sparse, sample weights, last included, ...)`."""
    width, count = call.shape(0)[1], call.numel(1)
    bags = call.numel(2) - bool(call.value(7, False)) if len(call.shape(1)) == 1 else call.shape(1)[0]
    bags = min(bags, count)
    steps = count - bags + count * call.has_tensor(6) + bags * (call.value(4, _SUM) == _MEAN)
    return Cost(steps * width, call.moved((1, 2), (count + bags) * width, 0))


def bag_backward(call: OperatorCall) -> Cost:
    """`_embedding_bag_dense_backward(gradient, indices, bags, sizes, largest, rows, by frequency, mode, sample weights)`."""
    width, count = call.shape(0)[1], call.numel(1)
    steps = 1 + (call.value(7, _SUM) == _MEAN) + call.has_tensor(8)
    return Cost(steps * count * width, call.moved((0, 1, 2), int(call.value(5)) * width, 0))


def take_rows(call: OperatorCall) -> Cost:
    """`index_select(self, dim, index)`."""
    sizes = list(call.shape(0)) or [1]
    sizes[int(call.value(1, 0))] = call.numel(2)
    return Cost(0, call.moved((2,), 2 * prod(sizes), 0))


def taken(call: OperatorCall) -> Cost:
    """`gather(self, dim, index)` and `take(self, index)`: one element for each of the index."""
    index = 2 if call.has_tensor(2) else 1
    return Cost(0, call.moved((index,), 2 * call.numel(index), 0))


def update(call: OperatorCall, *, flops: int, source: int) -> Cost:
    """The cost of `scatter_add(self, dim, index, source)` and its like: operations for each element of an argument, else of the index."""
    count = call.numel(source if call.has_tensor(source) else 2)
    copied = 0 if call.name.endswith("_") else 2 * call.numel(0)
    return Cost(flops * count, call.moved((2,), (2 + flops) * count + copied, 0))


def put(call: OperatorCall) -> Cost:
    """`_index_put_impl_(self, indices, values, accumulate)`: an addition for each value where they accumulate."""
    count, adds = call.numel(2), bool(call.value(3, False))
    return Cost(count * adds, call.moved((), (2 + adds) * count, 0))
