"""Convolutions: 2 operations for each multiply-add of the direct algorithm, whatever algorithm ran; a bias is left out.

Each weight meets each place of the output once for every image; for a transposed convolution, each place of the input. So the
count is 2 x images x places x elements of the weight, which has groups and kernel in it. `torch.profiler` has the same for
`conv2d`.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from kinetoscope.tables.costs.call import Cost, Rule, rules
from kinetoscope.tables.costs.sizes import moved, multiply_add, per_dimension

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import Formula, OperatorCall


class Layout(NamedTuple):
    """At which argument an operator takes what; -1 where it does not.

    Attributes:
        stride: The stride.
        padding: The padding.
        dilation: The dilation.
        transposed: Where it is told whether it is transposed, or True or False where that is fixed.
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


RULES: dict[str, Rule] = {
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
