"""Convolutions: 2 operations for each multiply-add of the direct algorithm, whatever algorithm ran; a bias is left out.

Each weight meets each place of the output once for every image; for a transposed convolution, each place of the input. So the
count is 2 x images x places x elements of the weight, which has groups and kernel in it. `torch.profiler` has the same for
`conv2d`.
"""

from __future__ import annotations

from math import ceil, gcd, prod

from kinetoscope.tables.costs.call import Cost, OperatorCall, each, per_dimension


def convolution(
    call: OperatorCall,
    *,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    transposed: int | bool = False,
    extra: int = -1,
    operands: tuple[int, int] = (0, 1),
) -> Cost:
    """The cost of an operator on input and weight by where its settings are.

    Args:
        call: The call.
        stride: The argument with the stride.
        padding: That with the padding.
        dilation: That with the dilation.
        groups: That with the number of groups.
        transposed: That which says whether it is transposed; True or False where that is fixed.
        extra: That with the padding of a transposed one's output.
        operands: Those with the input and the weight.
    """
    image, weight = map(call.shape, operands)
    count = len(weight) - 2
    if count < 1 or len(image) not in (count + 1, count + 2):
        raise ValueError("the input does not fit the weight")
    is_transposed = transposed if isinstance(transposed, bool) else bool(call.value(transposed))
    step, wide = (per_dimension(call.value(place) or 1, count) for place in (stride, dilation))
    reach = [wide[axis] * (weight[2 + axis] - 1) + 1 for axis in range(count)]
    sizes, out_sizes = list(image[-count:]), list(image[-count:])
    if call.value(padding) != "same":
        around = per_dimension(0 if call.value(padding) == "valid" else call.value(padding) or 0, count)
        more = per_dimension((call.value(extra) if extra >= 0 else 0) or 0, count)
        for axis, size in enumerate(sizes):
            if is_transposed:
                out_sizes[axis] = (size - 1) * step[axis] - 2 * around[axis] + reach[axis] + more[axis]
            else:
                out_sizes[axis] = (size + 2 * around[axis] - reach[axis]) // step[axis] + 1
    if min(out_sizes) < 0:
        raise ValueError("the output would be smaller than nothing")
    images = image[0] if len(image) == len(weight) else 1
    channels = weight[1] * per_dimension(call.value(groups, 1), 1)[0] if is_transposed else weight[0]
    flops = call.multiply_add(0) * images * prod(sizes if is_transposed else out_sizes) * prod(weight)
    return Cost(flops, call.moved(call.inputs(), images * channels * prod(out_sizes), 0))


def fused_convolution(call: OperatorCall) -> Cost:
    """`mkldnn_convolution(input, weight, bias, padding, stride, ...)`; fused ones may have a tensor to add before or after the input."""
    if call.has_tensor(2) and len(call.shape(2)) > 1:
        operands = (int(call.name.endswith("_")), 2)
        return convolution(call, stride=5, padding=4, dilation=6, groups=7, operands=operands)
    return convolution(call, stride=4, padding=3, dilation=5, groups=6)


def convolution_backward(call: OperatorCall) -> Cost:
    """`convolution_backward(gradient, input, weight, bias sizes, ..., transposed, ..., mask)`.

    The gradient of the input and that of the weight cost as much as the forward each; that of the bias is left out.
    """
    weight, mask = call.shape(2), call.value(10, [True, True, True])
    if len(weight) < 3:
        raise ValueError("the weight has too few dimensions")
    through = call.shape(1 if call.value(7, False) else 0)
    images = through[0] if len(through) == len(weight) else 1
    positions, of_input, of_weight = prod(through[2 - len(weight) :]), bool(mask[0]), bool(mask[1])
    flops = call.multiply_add(0) * images * positions * prod(weight) * (of_input + of_weight)
    written = call.numel(1) * of_input + call.numel(2) * of_weight
    return Cost(flops, call.moved((0, 1, 2), written, 0))


# Pooling: each result from its window, k - 1 comparisons for a maximum, k - 1 additions and a division for a mean.
#
# Windows that reach over the border count in full. Adaptive pooling counts the elements of its windows exactly, which may overlap.
# Backward, a maximum's gradient is one addition for each result, a mean's a division and k additions.

_INDEX_BYTES = 8


def _dimensions(call: OperatorCall) -> int:
    """For how many dimensions an operator is, by its name."""
    return next(count for count in (1, 2, 3) if f"{count}d" in call.name)


def pool(call: OperatorCall, *, largest: bool, indices: bool = False) -> Cost:
    """The cost of a maximum or a mean in windows: `max_pool2d(self, kernel, stride, padding, dilation, ceil)`; a mean has no dilation."""
    count, shape = _dimensions(call), call.shape(0)
    kernel = per_dimension(call.value(1), count)
    stride = per_dimension(call.value(2) or kernel, count)
    padding = per_dimension(call.value(3, 0), count)
    dilation = per_dimension(call.value(4, 1) if largest else 1, count)
    up = bool(call.value(5 if largest else 4, False))
    results = prod(shape[:-count])
    for axis, size in enumerate(shape[-count:]):
        free = size + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1
        windows = (free + (stride[axis] - 1 if up else 0)) // stride[axis] + 1
        # A window that would begin in the padding behind the input is left out.
        results *= windows - (up and (windows - 1) * stride[axis] >= size + padding[axis])
    moved = call.moved((0,), results, 0, more=results * _INDEX_BYTES * indices)
    return Cost(results * (prod(kernel) - largest), moved)


def mean_backward(call: OperatorCall) -> Cost:
    """`avg_pool2d_backward(gradient, self, kernel, ...)` and its like."""
    window = prod(per_dimension(call.value(2), _dimensions(call)))
    return each(call, flops=1 + window, like=1, unread=1)


def _in_windows(shape: tuple[int, ...], parts: list[int]) -> int:
    """The elements of all windows together when the last dimensions are cut into so many parts each.

    A window ends where the next begins, or one element later where the cut is within an element: all but gcd(size, parts).
    """
    elements = prod(shape[: len(shape) - len(parts)])
    for size, count in zip(shape[-len(parts) :], parts, strict=True):
        elements *= size + count - gcd(size, count) if count else 0
    return elements


def adaptive(call: OperatorCall, *, largest: bool) -> Cost:
    """The cost of pooling to a given size."""
    sizes = per_dimension(call.value(1), _dimensions(call))
    results = prod(call.shape(0)[: -len(sizes)]) * prod(sizes)
    flops = _in_windows(call.shape(0), sizes) - results * largest
    return Cost(flops, call.moved((0,), results, 0, more=results * _INDEX_BYTES * largest))


def adaptive_mean_backward(call: OperatorCall) -> Cost:
    """`_adaptive_avg_pool2d_backward(gradient, self)`: a division for each result and an addition for each element of a window."""
    windows = _in_windows(call.shape(1), list(call.shape(0)[-_dimensions(call) :]))
    return Cost(call.numel(0) + windows, call.moved((0,), call.numel(1), 1))


# Interpolation: upsampling and `grid_sample`.
#
# A step between two values is 3 operations (two products and a sum); bilinear takes 3 such steps, trilinear 7, and bicubic 5 sums of 4
# products, 35. `grid_sample` has these for each channel, and for each place of the grid besides the coordinates (4 for each
# dimension) and the weights. Weights along an axis of upsampling are left out: they are found once for each row and column. Backward, each
# value's gradient goes to all its sources: a product and a sum for each.

_BILINEAR, _NEAREST = 0, 1


def upsample(call: OperatorCall, *, steps: int) -> Cost:
    """The cost of upsampling with so many operations for each result, to a given size or by given factors."""
    shape, sizes = call.shape(0), call.value(1)
    if not isinstance(sizes, list):
        factors = [value for value in call.values[2:] if isinstance(value, list)][-1]
        sizes = [int(size * by) for size, by in zip(shape[-len(factors) :], factors, strict=True)]
    results = prod(shape[: len(shape) - len(sizes)]) * prod(sizes)
    return Cost(steps * results, call.moved((0,), results, 0))


def upsample_backward(call: OperatorCall, *, steps: int) -> Cost:
    """The cost of `upsample_..._backward(gradient, output size, input size, ...)`."""
    return Cost(steps * call.numel(0), call.moved((0,), prod(call.whole_list(2)), 0))


# Samples of the input for each result along an axis, where the image does not shrink.
_TAPS = {"bilinear": 2, "bicubic": 4}


def antialiased(call: OperatorCall) -> Cost:
    """`_upsample_bilinear2d_aa(self, output size, ...)`: along each axis a sum of products over a window that grows as the image shrinks."""
    shape, new = call.shape(0), call.whole_list(1)
    reach = next(taps for name, taps in _TAPS.items() if f"_{name}2d" in call.name)
    high, wide = (
        ceil(reach * max(size / part, 1.0)) if part else 0 for size, part in zip(shape[-2:], new, strict=True)
    )
    flops = new[1] * (shape[-2] * (2 * wide - 1) + new[0] * (2 * high - 1))
    images = prod(shape[:-2])
    return Cost(images * flops, call.moved((0,), images * prod(new), 0))


def grid(call: OperatorCall) -> Cost:
    """`grid_sampler_2d(input, grid, mode, ...)` and its like, also of its gradient, where a gradient comes first."""
    first = int(call.name.endswith("_backward"))
    image, dimensions = call.shape(first), len(call.shape(first)) - 2
    points, corners = prod(call.shape(first + 1)[:-1]), 2**dimensions
    mode, at_place = call.value(first + 2, _BILINEAR), 5 * dimensions
    if mode == _NEAREST:
        steps = first
    elif mode == _BILINEAR:
        # Distances to both sides in each dimension, then their products for each corner.
        at_place += corners * (dimensions - 1)
        steps = (2 * dimensions + 3) * corners if first else 2 * corners - 1
    else:
        raise ValueError("bicubic sampling has no formula")
    results = points * image[1]
    written = prod(image) + call.numel(first + 1) if first else results
    return Cost(steps * results + at_place * points, call.moved(call.inputs(), written, first))
