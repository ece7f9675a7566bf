"""Convolutions: 2 operations for each multiply-add of the direct algorithm, whatever algorithm ran; a bias is left out.

Each weight meets each place of the output once for every image; for a transposed convolution, each place of the input. So the
count is 2 x images x places x elements of the weight, which has groups and kernel in it. `torch.profiler` has the same for
`conv2d`.
"""

from __future__ import annotations

from math import ceil, gcd, prod
from typing import TYPE_CHECKING, NamedTuple

from kinetoscope.tables.costs.call import Cost, Rule, moved, multiply_add, per_dimension, rules

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import Formula, OperatorCall


class Layout(NamedTuple):
    """At which argument an operator takes what; -1 where it does not.

    Attributes:
        stride: The stride.
        padding: The padding.
        dilation: The dilation.
        transposed: Whether it is transposed; True or False where that is fixed.
        output_padding: The padding of a transposed one's output.
        groups: The number of groups.
        bias: The bias.
    """

    stride: int
    padding: int
    dilation: int = -1
    transposed: int | bool = False
    output_padding: int = -1
    groups: int = -1
    bias: int = 2


_PLAIN = Layout(3, 4, 5, False, -1, 6)
_TRANSPOSED = Layout(3, 4, 7, True, 5, 6)
_GENERAL = Layout(3, 4, 5, 6, 7, 8)
_PADDING_FIRST = Layout(4, 3, 5, False, -1, 6)
_LAYOUTS: dict[Layout, str] = {
    _PLAIN: "conv1d conv2d conv3d cudnn_convolution_relu _convolution_mode miopen_convolution_relu",
    _TRANSPOSED: "conv_transpose1d conv_transpose2d conv_transpose3d",
    _GENERAL: "convolution _convolution convolution_overrideable",
    _PADDING_FIRST: "mkldnn_convolution miopen_convolution miopen_depthwise_convolution"
    " _nnpack_spatial_convolution _mps_convolution",
    Layout(5, 6, 7, False, -1, 8, 4): "cudnn_convolution_add_relu miopen_convolution_add_relu",
    Layout(3, 2, 4, False, -1, 5, -1): "cudnn_convolution",
    Layout(4, 2, 5, True, 3, 6, -1): "cudnn_convolution_transpose",
    Layout(5, 3, 6, True, 4, 7): "miopen_convolution_transpose mkldnn::_convolution_transpose_pointwise",
    Layout(4, 5, -1, False, -1, -1, 3): "_slow_conv2d_forward slow_conv3d_forward slow_conv3d thnn_conv2d",
    Layout(
        4, 5, 6, False, -1, -1, 3
    ): "slow_conv_dilated2d slow_conv_dilated3d _conv_depthwise2d conv_depthwise3d",
    Layout(4, 5, 7, True, 6, -1, 3): "slow_conv_transpose2d slow_conv_transpose3d",
}


def output_places(call: OperatorCall, layout: Layout) -> tuple[list[int], list[int], bool]:
    """The spatial sizes of input and output, and whether the convolution is transposed."""
    weight, given = call.shape(1), call.shape(0)
    count = len(weight) - 2
    if count < 1 or len(given) not in (count + 1, count + 2):
        raise ValueError("the input does not fit the weight")
    sizes, kernel = list(given[-count:]), list(weight[2:])
    transposed = (
        layout.transposed if isinstance(layout.transposed, bool) else bool(call.value(layout.transposed))
    )
    stride = per_dimension(_setting(call, layout.stride, 1), count)
    dilation = per_dimension(_setting(call, layout.dilation, 1), count)
    padding = _setting(call, layout.padding, 0)
    reach = [step * (size - 1) + 1 for step, size in zip(dilation, kernel, strict=True)]
    if padding == "same":
        return sizes, sizes, transposed
    around = per_dimension(0 if padding == "valid" else padding, count)
    if transposed:
        extra = per_dimension(_setting(call, layout.output_padding, 0), count)
        places = [
            (size - 1) * stride[at] - 2 * around[at] + reach[at] + extra[at] for at, size in enumerate(sizes)
        ]
    else:
        places = [(size + 2 * around[at] - reach[at]) // stride[at] + 1 for at, size in enumerate(sizes)]
    if min(places) < 0:
        raise ValueError("the output would be smaller than nothing")
    return sizes, places, transposed


def forward(call: OperatorCall, layout: Layout) -> Cost:
    """The cost of a forward convolution."""
    sizes, places, transposed = output_places(call, layout)
    weight = call.shape(1)
    images = call.shape(0)[0] if len(call.shape(0)) == len(weight) else 1
    flops = multiply_add(call, 0) * images * prod(sizes if transposed else places) * prod(weight)
    channels = weight[1] * per_dimension(_setting(call, layout.groups, 1), 1)[0] if transposed else weight[0]
    written = images * channels * prod(places)
    return Cost(flops, moved(call, [place for place in (0, 1, layout.bias) if place >= 0], written, 0))


def backward(call: OperatorCall) -> Cost:
    """`convolution_backward(gradient, input, weight, bias sizes, ..., transposed, ..., mask)`.

    The gradient of the input and that of the weight cost as much as the forward each; that of the bias is left out.
    """
    weight, transposed = call.shape(2), bool(call.value(7, False))
    return _backward(call, 0, 1, 2, weight, transposed, call.value(10, [True, True, True]))


def slow_backward(call: OperatorCall) -> Cost:
    """`_slow_conv2d_backward(gradient, input, weight, kernel size, stride, padding, mask)`."""
    return _backward(call, 0, 1, 2, call.shape(2), False, call.value(6, [True, True, True]))


def _backward(
    call: OperatorCall,
    gradient: int,
    given: int,
    weights: int,
    weight: tuple[int, ...],
    transposed: bool,
    mask: list[bool],
) -> Cost:
    """The cost of the gradients that a mask asks for."""
    if len(weight) < 3:
        raise ValueError("the weight has too few dimensions")
    through = call.shape(given if transposed else gradient)
    images = through[0] if len(through) == len(weight) else 1
    places = prod(through[-(len(weight) - 2) :])
    wanted = bool(mask[0]) + bool(mask[1])
    flops = multiply_add(call, gradient) * images * places * prod(weight) * wanted
    written = call.numel(given) * bool(mask[0]) + call.numel(weights) * bool(mask[1])
    return Cost(flops, moved(call, (gradient, given, weights), written, gradient))


def fused(call: OperatorCall) -> Cost:
    """`mkldnn::_convolution_pointwise(input, weight, ...)`, or with a tensor to add before or after the input."""
    if call.has_tensor(2) and len(call.shape(2)) > 1:
        call = call.without(0 if call.name.endswith("_") else 1)
    return forward(call, _PADDING_FIRST)


def over_time(call: OperatorCall) -> Cost:
    """`conv_tbc(self, weight, bias, padding)`: times x images x channels with a weight of kernel x channels x outputs."""
    (times, images, _), (kernel, channels, outputs) = call.shape(0), call.shape(1)
    places = times + 2 * int(call.value(3, 0)) - kernel + 1
    flops = 2 * places * images * kernel * channels * outputs
    return Cost(flops, moved(call, (0, 1, 2), places * images * outputs, 0))


def _setting(call: OperatorCall, argument: int, default: int) -> object:
    """A setting of the convolution, or what holds where there is none."""
    found = call.value(argument, default) if argument >= 0 else default
    return default if found == [] else found


def _with(layout: Layout) -> Formula:
    """The formula of the operators with a layout."""
    return lambda call: forward(call, layout)


CONVOLUTION_RULES: dict[str, Rule] = {
    **{
        name: rule
        for layout, names in _LAYOUTS.items()
        for name, rule in rules("convolution", {_with(layout): names}).items()
    },
    **rules(
        "convolution",
        {
            backward: "convolution_backward convolution_backward_overrideable",
            slow_backward: "_slow_conv2d_backward",
            fused: "mkldnn::_convolution_pointwise mkldnn::_convolution_pointwise_",
            over_time: "conv_tbc",
        },
    ),
}


# Pooling: each result from its window, k - 1 comparisons for a maximum, k - 1 additions and a division for a mean.
#
# Windows that reach over the border count in full. Adaptive pooling counts the elements of its windows exactly, which may overlap.
# Backward, a maximum's gradient is one addition for each result, a mean's a division and k additions.

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


POOLING_RULES: dict[str, Rule] = rules(
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


# Interpolation: upsampling and `grid_sample`.
#
# A step between two values is 3 operations (two products and a sum); bilinear takes 3 such steps, trilinear 7, and bicubic 5 sums of 4
# products, 35. `grid_sample` has these for each channel, and for each place of the grid besides the coordinates (4 for each
# dimension) and the weights. Weights along an axis of upsampling are left out: they are found once for each row and column. Backward, each
# value's gradient goes to all its sources: a product and a sum for each.

_BILINEAR, _NEAREST = 0, 1
_TAPS = {"linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 4, "lanczos": 6}


def _results(call: OperatorCall) -> int:
    """The elements of the result of upsampling: to a given size, or by given factors."""
    shape = call.shape(0)
    if isinstance(call.value(1), list):
        sizes = call.whole_list(1)
    else:
        factors = [value for value in call.values[2:] if isinstance(value, list)][-1]
        sizes = [int(size * factor) for size, factor in zip(shape[-len(factors) :], factors, strict=True)]
    return prod(shape[: len(shape) - len(sizes)]) * prod(sizes)


def _upsample(each: int) -> Formula:
    """The formula of upsampling with `each` operations for each result."""

    def formula(call: OperatorCall) -> Cost:
        results = _results(call)
        return Cost(each * results, moved(call, (0,), results, 0))

    return formula


def _upsample_backward(each: int) -> Formula:
    """The formula of `upsample_..._backward(gradient, output size, input size, ...)`."""

    def formula(call: OperatorCall) -> Cost:
        return Cost(each * call.numel(0), moved(call, (0,), prod(call.whole_list(2)), 0))

    return formula


def antialiased(call: OperatorCall) -> Cost:
    """`_upsample_bilinear2d_aa(self, output size, ...)`: along each axis a sum of products over a window that grows as the image shrinks."""
    shape, sizes = call.shape(0), call.whole_list(1)
    reach = next(taps for name, taps in _TAPS.items() if f"_{name}2d" in call.name)
    high, wide = shape[-2:]
    taps = [
        ceil(reach * max(size / new, 1.0)) if new else 0
        for size, new in zip((high, wide), sizes, strict=True)
    ]
    images = prod(shape[:-2])
    flops = images * (high * sizes[1] * (2 * taps[1] - 1) + sizes[0] * sizes[1] * (2 * taps[0] - 1))
    return Cost(flops, moved(call, (0,), images * prod(sizes), 0))


def antialiased_backward(call: OperatorCall) -> Cost:
    """`_upsample_bilinear2d_aa_backward(gradient, output size, input size, ...)`: the same sums the other way."""
    (images, channels, high, wide), new = call.whole_list(2), call.whole_list(1)
    reach = next(taps for name, taps in _TAPS.items() if f"_{name}2d" in call.name)
    taps = [
        ceil(reach * max(size / part, 1.0)) if part else 0
        for size, part in zip((high, wide), new, strict=True)
    ]
    flops = images * channels * 2 * (new[0] * new[1] * taps[0] + high * new[1] * taps[1])
    return Cost(flops, moved(call, (0,), images * channels * high * wide, 0))


def _grid(dimensions: int, *, backward: bool) -> Formula:
    """The formula of `grid_sampler_2d(input, grid, mode, ...)` and its like, also of its gradient, where a gradient comes first."""
    corners = 2**dimensions

    def formula(call: OperatorCall) -> Cost:
        first = 1 if backward else 0
        given, grid = call.shape(first), call.shape(first + 1)
        mode = call.value(first + 2, _BILINEAR)
        places = prod(grid[:-1])
        results = places * given[1]
        at_place = 4 * dimensions
        if mode == _NEAREST:
            each, at_place = (1 if backward else 0), at_place + dimensions
        elif mode == _BILINEAR:
            # Distances to both sides in each dimension, then their products for each corner.
            at_place += dimensions + corners * (dimensions - 1)
            each = 2 * corners - 1 if not backward else 2 * corners + (2 * dimensions + 1) * corners
        else:
            at_place += 40
            each = 35 if not backward else 32 + 70
        written = prod(given) + prod(grid) if backward else results
        read = (0, 1, 2) if backward else (0, 1)
        return Cost(each * results + at_place * places, moved(call, read, written, first))

    return formula


def grid_places(call: OperatorCall) -> Cost:
    """`cudnn_affine_grid_generator(matrix, images, channels, height, width)`: 2 by 3 products and sums for each place."""
    places = int(call.value(1)) * int(call.value(3)) * int(call.value(4))
    return Cost(10 * places, moved(call, (0,), 2 * places, 0))


SAMPLING_RULES: dict[str, Rule] = rules(
    "sampling",
    {
        _upsample(
            0
        ): "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d"
        " _upsample_nearest_exact3d",
        _upsample(3): "upsample_linear1d",
        _upsample(9): "upsample_bilinear2d",
        _upsample(21): "upsample_trilinear3d",
        _upsample(35): "upsample_bicubic2d",
        antialiased: "_upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa",
        antialiased_backward: "_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward _upsample_lanczos2d_aa_backward",
        _upsample_backward(
            1
        ): "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward"
        " _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward",
        _upsample_backward(4): "upsample_linear1d_backward",
        _upsample_backward(8): "upsample_bilinear2d_backward",
        _upsample_backward(16): "upsample_trilinear3d_backward",
        _upsample_backward(32): "upsample_bicubic2d_backward",
        _grid(2, backward=False): "grid_sampler_2d _grid_sampler_2d_cpu_fallback cudnn_grid_sampler",
        _grid(3, backward=False): "grid_sampler_3d",
        _grid(2, backward=True): "grid_sampler_2d_backward _grid_sampler_2d_cpu_fallback_backward",
        _grid(3, backward=True): "grid_sampler_3d_backward",
        grid_places: "cudnn_affine_grid_generator",
    },
)
