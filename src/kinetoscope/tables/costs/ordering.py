"""Sorting and searching: comparisons, by the number that a good algorithm needs, rounded up to whole binary logarithms.

n log2 n to sort n elements, n log2 k for the k largest, n to select one, log2 n to find a place among n sorted ones.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, rules
from kinetoscope.tables.costs.sizes import moved

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import OperatorCall


def log2(count: int) -> int:
    """The binary logarithm of a whole number, rounded up; 0 for less than 2."""
    return max(count - 1, 0).bit_length()


def _length(call: OperatorCall, argument: int) -> int:
    """The size of the dimension that an argument names."""
    shape = call.shape(0)
    return shape[int(call.value(argument, -1))] if shape else 1


def sort(call: OperatorCall) -> Cost:
    """`sort(self, dim, descending)` or `sort(self, stable, dim, descending)`: values and their places."""
    stable_first = isinstance(call.value(1), bool) or len(call.values) == 4
    length, count = _length(call, 2 if stable_first else 1), call.numel(0)
    size = moved(call, (0,), count, 0)
    return Cost(count * log2(length), None if size is None else size + 8 * count)


def unique(call: OperatorCall) -> Cost:
    """`_unique2(self, ...)` and its like: sorts; how many are left is not known."""
    count = call.numel(0)
    return Cost(count * log2(count), None)


def unique_neighbours(call: OperatorCall) -> Cost:
    """`unique_consecutive(self, ...)`: compares each element with the one before."""
    return Cost(max(call.numel(0) - 1, 0), None)


def largest(call: OperatorCall) -> Cost:
    """`topk(self, k, dim, ...)`."""
    count, wanted = call.numel(0), int(call.value(1, 1))
    length = _length(call, 2)
    left = count // length * wanted if length else 0
    size = moved(call, (0,), left, 0)
    return Cost(count * max(log2(wanted), 1), None if size is None else size + 8 * left)


def selection(call: OperatorCall) -> Cost:
    """`kthvalue(self, k, dim)`, `median(self, dim)`, `mode(self, dim)`: one comparison for each element."""
    return Cost(call.numel(0), moved(call, (0,), 0, 0))


def places_of(call: OperatorCall) -> Cost:
    """`searchsorted(sorted, values)`: a binary search for each value."""
    row, values = call.shape(0), call.numel(1) if call.has_tensor(1) else 1
    return Cost(values * log2(row[-1] + 1), moved(call, (0, 1), values, 0, dtype="int64"))


def buckets_of(call: OperatorCall) -> Cost:
    """`bucketize(values, boundaries)`: a binary search for each value."""
    values = call.numel(0) if call.has_tensor(0) else 1
    return Cost(values * log2(call.numel(1) + 1), moved(call, (0, 1), values, 1, dtype="int64"))


def membership(call: OperatorCall) -> Cost:
    """`isin(elements, among)`: a search for each element among sorted ones, and sorting them."""
    elements = call.numel(0) if call.has_tensor(0) else 1
    among = call.numel(1) if call.has_tensor(1) else 1
    return Cost((elements + among) * log2(among), moved(call, (0, 1), elements, 0, dtype="bool"))


def nonzero(call: OperatorCall) -> Cost:
    """`nonzero(self)`: one comparison for each element; how many are found is not known."""
    return Cost(call.numel(0), None)


def histogram(call: OperatorCall) -> Cost:
    """`histc(self, bins, ...)`: subtract, multiply, divide and count for each element."""
    return Cost(4 * call.numel(0), None)


def counting(call: OperatorCall) -> Cost:
    """`bincount(self, weights)`: one addition for each element."""
    return Cost(call.numel(0), None)


def draw(call: OperatorCall) -> Cost:
    """`multinomial(self, samples, ...)`: cumulative probabilities, then a binary search for each sample."""
    shape, samples = call.shape(0), int(call.value(1, 1))
    rows = prod(shape[:-1])
    return Cost(
        call.numel(0) + rows * samples * log2(shape[-1]), moved(call, (0,), rows * samples, 0, dtype="int64")
    )


RULES = rules(
    "ordering",
    {
        sort: "sort",
        unique: "_unique _unique2 unique_dim",
        unique_neighbours: "unique_consecutive unique_dim_consecutive",
        largest: "topk",
        selection: "kthvalue median nanmedian mode",
        places_of: "searchsorted",
        buckets_of: "bucketize",
        membership: "isin",
        nonzero: "nonzero nonzero_static argwhere",
        histogram: "histc histogram _histogramdd_from_bin_cts _histogramdd_from_bin_tensors",
        counting: "bincount",
        draw: "multinomial",
    },
)
