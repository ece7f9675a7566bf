"""Pooling: each result from its window, k - 1 comparisons for a maximum, k - 1 additions and a division for a mean.

Windows that reach over the border count in full. Adaptive pooling counts the elements of its windows exactly, which may overlap.
Backward, a maximum's gradient is one addition for each result, a mean's a division and k additions.
"""

from __future__ import annotations

from math import gcd, prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, Rule, rules
from kinetoscope.tables.costs.sizes import moved, per_dimension

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import Formula, OperatorCall

_INDEX_BYTES = 8


def _windows(call: OperatorCall, count: int, given: int, dilated: int) -> tuple[int, int]:
    """How many results there are, and how many elements a window has; settings start behind argument `given`."""
    shape = call.shape(given)
    kernel = per_dimension(call.value(given + 1), count)
    stride = per_dimension(call.value(given + 2) or kernel, count)
    padding = per_dimension(call.value(given + 3, 0), count)
    dilation = per_dimension(call.value(dilated, 1), count) if dilated >= 0 else [1] * count
    up = bool(call.value(dilated + 1 if dilated >= 0 else given + 4, False))
    places = []
    for at in range(count):
        free = shape[at - count] + 2 * padding[at] - dilation[at] * (kernel[at] - 1) - 1
        size = (free + (stride[at] - 1 if up else 0)) // stride[at] + 1
        # A window that would begin in the padding behind the input is left out.
        late = up and (size - 1) * stride[at] >= shape[at - count] + padding[at]
        places.append(size - late)
    return prod(shape[:-count]) * prod(places), prod(kernel)


def _largest(count: int, *, indices: bool) -> Formula:
    """The formula of a maximum in windows."""

    def formula(call: OperatorCall) -> Cost:
        results, size = _windows(call, count, 0, 4)
        read = moved(call, (0,), results, 0)
        return Cost(results * (size - 1), None if read is None else read + results * _INDEX_BYTES * indices)

    return formula


def _mean(count: int) -> Formula:
    """The formula of a mean in windows."""

    def formula(call: OperatorCall) -> Cost:
        results, size = _windows(call, count, 0, -1)
        return Cost(results * size, moved(call, (0,), results, 0))

    return formula


def largest_backward(call: OperatorCall) -> Cost:
    """`max_pool2d_with_indices_backward(gradient, self, ..., indices)` and its like."""
    return Cost(call.numel(0), moved(call, (0, call.tensors()[-1]), call.numel(1), 1))


def _mean_backward(count: int) -> Formula:
    """The formula of the gradient of a mean in windows."""

    def formula(call: OperatorCall) -> Cost:
        size = prod(per_dimension(call.value(2), count))
        return Cost(call.numel(0) * (1 + size), moved(call, (0,), call.numel(1), 1))

    return formula


def _spans(size: int, parts: int) -> int:
    """The elements of all windows together when `size` elements are cut into `parts`, from `i * size // parts` on.

    Each window ends where the next begins, or one element later where the cut is within an element: all but gcd(size, parts).
    """
    return size + parts - gcd(size, parts) if parts else 0


def _adaptive(count: int, *, largest: bool) -> Formula:
    """The formula of pooling to a given size."""

    def formula(call: OperatorCall) -> Cost:
        shape = call.shape(0)
        sizes = per_dimension(call.value(1), count)
        rows = prod(shape[:-count])
        within = rows * prod(_spans(shape[at - count], sizes[at]) for at in range(count))
        results = rows * prod(sizes)
        read = moved(call, (0,), results, 0)
        extra = results * _INDEX_BYTES * largest
        return Cost(within - results if largest else within, None if read is None else read + extra)

    return formula


def _adaptive_backward(count: int) -> Formula:
    """The formula of the gradient of a mean of given size: a division for each result and an addition for each element."""

    def formula(call: OperatorCall) -> Cost:
        gradient, shape = call.shape(0), call.shape(1)
        windows = prod(_spans(shape[at - count], gradient[at - count]) for at in range(count))
        return Cost(call.numel(0) + prod(shape[:-count]) * windows, moved(call, (0,), call.numel(1), 1))

    return formula


def fractional(call: OperatorCall) -> Cost:
    """`fractional_max_pool2d(self, kernel, output size, samples)`."""
    sizes = call.whole_list(2)
    count = len(sizes)
    results = prod(call.shape(0)[:-count]) * prod(sizes)
    size = prod(per_dimension(call.value(1), count))
    return Cost(results * (size - 1), moved(call, (0,), results, 0))


RULES: dict[str, Rule] = rules(
    "pooling",
    {
        _largest(1, indices=True): "max_pool1d_with_indices",
        _largest(2, indices=True): "max_pool2d_with_indices",
        _largest(3, indices=True): "max_pool3d_with_indices",
        _largest(2, indices=False): "mkldnn_max_pool2d quantized_max_pool2d",
        _largest(3, indices=False): "mkldnn_max_pool3d quantized_max_pool3d",
        _mean(2): "avg_pool2d",
        _mean(3): "avg_pool3d",
        largest_backward: "max_pool2d_with_indices_backward max_pool3d_with_indices_backward max_pool2d_backward"
        " mkldnn_max_pool2d_backward mkldnn_max_pool3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward"
        " fractional_max_pool2d_backward fractional_max_pool3d_backward",
        _mean_backward(2): "avg_pool2d_backward",
        _mean_backward(3): "avg_pool3d_backward",
        _adaptive(2, largest=False): "_adaptive_avg_pool2d mkldnn_adaptive_avg_pool2d",
        _adaptive(3, largest=False): "_adaptive_avg_pool3d",
        _adaptive(2, largest=True): "adaptive_max_pool2d",
        _adaptive(3, largest=True): "adaptive_max_pool3d",
        _adaptive_backward(2): "_adaptive_avg_pool2d_backward mkldnn_adaptive_avg_pool2d_backward",
        _adaptive_backward(3): "_adaptive_avg_pool3d_backward adaptive_avg_pool3d_backward",
        fractional: "fractional_max_pool2d fractional_max_pool3d",
    },
) | rules(
    "pooling",
    {
        _largest(1, indices=False): "max_pool1d quantized_max_pool1d",
        _largest(2, indices=False): "max_pool2d",
        _largest(3, indices=False): "max_pool3d",
        _mean(1): "avg_pool1d",
    },
    deferred=True,
)
