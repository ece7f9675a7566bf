"""Interpolation: upsampling and `grid_sample`.

A step between two values is 3 operations (two products and a sum); bilinear takes 3 such steps, trilinear 7, and bicubic 5 sums of 4
products, 35. `grid_sample` has these for each channel, and for each place of the grid besides the coordinates (4 for each
dimension) and the weights. Weights along an axis of upsampling are left out: they are found once for each row and column. Backward, each
value's gradient goes to all its sources: a product and a sum for each.
"""

from __future__ import annotations

from math import ceil, prod
from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import Cost, Rule, rules
from kinetoscope.tables.costs.sizes import moved

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import Formula, OperatorCall

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


RULES: dict[str, Rule] = rules(
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
