"""Convolutions, against the direct algorithm and torch's own counter."""

import itertools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from kinetoscope.tables.costs import OperatorCall
from kinetoscope.tables.costs.evaluate import rule_of
from tests.support.counting import recorded
from tests.support.effort import examples

CONVOLVE = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSE = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def direct(images, channels, outputs, places, kernel, groups):
    """Counts the multiply-adds of the direct algorithm by running through its loops."""
    count = 0
    for _ in itertools.product(range(images), range(outputs), *map(range, places)):
        for _ in itertools.product(range(channels // groups), *map(range, kernel)):
            count += 2
    return count


@st.composite
def convolutions(draw):
    dimensions, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    each = st.integers(1, 3)
    return {
        "dimensions": dimensions, "groups": groups, "images": draw(st.integers(1, 2)),
        "channels": groups * draw(st.integers(1, 2)), "outputs": groups * draw(st.integers(1, 2)),
        "sizes": draw(st.lists(st.integers(3, 5), min_size=dimensions, max_size=dimensions)),
        "kernel": draw(st.lists(each, min_size=dimensions, max_size=dimensions)),
        "stride": draw(st.integers(1, 2)), "padding": draw(st.integers(0, 1)), "dilation": draw(st.integers(1, 2)),
    }  # fmt: skip


@settings(max_examples=examples(25))
@given(convolutions())
def test_forward_is_the_direct_algorithm(case):
    reach = [case["dilation"] * (size - 1) + 1 for size in case["kernel"]]
    assume(all(size + 2 * case["padding"] >= far for size, far in zip(case["sizes"], reach, strict=True)))
    x = torch.ones(case["images"], case["channels"], *case["sizes"])
    weight = torch.ones(case["outputs"], case["channels"] // case["groups"], *case["kernel"])
    settings_ = {name: case[name] for name in ("stride", "padding", "dilation", "groups")}
    out = CONVOLVE[case["dimensions"]](x, weight, **settings_)
    found = recorded(lambda: CONVOLVE[case["dimensions"]](x, weight, **settings_))
    expected = direct(
        case["images"], case["channels"], case["outputs"], out.shape[2:], case["kernel"], case["groups"]
    )
    name = f"conv{case['dimensions']}d"
    assert found.by_name == {name: expected}
    assert found.bytes == {name: 4 * (x.numel() + weight.numel() + out.numel())}


@settings(max_examples=examples(25))
@given(convolutions())
def test_transposed_scatters_each_input_through_the_weight(case):
    x = torch.ones(case["images"], case["channels"], *case["sizes"])
    weight = torch.ones(case["channels"], case["outputs"] // case["groups"], *case["kernel"])
    settings_ = {"stride": case["stride"], "groups": case["groups"], "dilation": case["dilation"]}
    out = TRANSPOSE[case["dimensions"]](x, weight, **settings_)
    found = recorded(lambda: TRANSPOSE[case["dimensions"]](x, weight, **settings_))
    # As the direct algorithm the other way: each input meets all outputs of its group at all places of the kernel.
    expected = direct(
        case["images"], case["outputs"], case["channels"], x.shape[2:], case["kernel"], case["groups"]
    )
    name = f"conv_transpose{case['dimensions']}d"
    assert found.by_name == {name: expected}
    assert found.bytes == {name: 4 * (x.numel() + weight.numel() + out.numel())}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("groups", [1, 2])
def test_backward_costs_the_forward_for_each_gradient(transposed, wanted, groups):
    x = torch.ones(2, 4, 6, 6, requires_grad=wanted[0])
    weight = torch.ones(4, 4 // groups, 3, 3, requires_grad=wanted[1])
    run = (TRANSPOSE if transposed else CONVOLVE)[2]
    out = run(x, weight, groups=groups)
    forward = recorded(lambda: run(x, weight, groups=groups)).flops
    found = recorded(lambda: out.backward(torch.ones_like(out)))
    assert found.by_name["convolution_backward"] == forward * sum(wanted)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_name(padding):
    x, weight = torch.ones(2, 3, 7, 7), torch.ones(4, 3, 3, 3)
    places = (7, 7) if padding == "same" else (5, 5)
    found = recorded(lambda: functional.conv2d(x, weight, padding=padding))
    assert found.by_name == {"conv2d": direct(2, 3, 4, places, (3, 3), 1)}


def test_an_image_without_a_batch():
    found = recorded(lambda: functional.conv2d(torch.ones(3, 7, 7), torch.ones(4, 3, 3, 3)))
    assert found.by_name == {"conv2d": direct(1, 3, 4, (5, 5), (3, 3), 1)}


def test_a_net_has_what_flop_counter_says():
    # Without groups: of a grouped convolution's weight `flop_counter` counts the gradient as if there were none.
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 8, 3, stride=2),
        torch.nn.ConvTranspose2d(8, 2, 2, stride=2),
    )  # fmt: skip
    x = torch.ones(2, 3, 9, 9, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        net(x).sum().backward()
    found = recorded(lambda: net(x).sum().backward())
    mine = sum(flops for name, flops in found.by_name.items() if name.startswith("conv"))
    assert mine == counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "shapes", "values"),
    [
        ("aten::cudnn_convolution", [(2, 3, 7, 7), (4, 3, 3, 3)], [None, None, [0, 0], [2, 2], [1, 1], 1]),
        (
            "aten::mkldnn_convolution",
            [(2, 3, 7, 7), (4, 3, 3, 3), None],
            [None, None, None, [0, 0], [2, 2], [1, 1], 1],
        ),
        (
            "aten::miopen_convolution",
            [(2, 3, 7, 7), (4, 3, 3, 3), (4,)],
            [None, None, None, [0, 0], [2, 2], [1, 1], 1],
        ),
        (
            "aten::cudnn_convolution_relu",
            [(2, 3, 7, 7), (4, 3, 3, 3), (4,)],
            [None] * 3 + [[2, 2], [0, 0], [1, 1], 1],
        ),
        (
            "mkldnn::_convolution_pointwise",
            [(2, 3, 7, 7), (4, 3, 3, 3), None],
            [None, None, None, [0, 0], [2, 2], [1, 1], 1, "none"],
        ),
        (
            "mkldnn::_convolution_pointwise",
            [(2, 3, 7, 7), (2, 4, 3, 3), (4, 3, 3, 3), None],
            [None, None, None, None, [0, 0], [2, 2], [1, 1], 1, "add"],
        ),
        (
            "mkldnn::_convolution_pointwise_",
            [(2, 4, 3, 3), (2, 3, 7, 7), (4, 3, 3, 3), None],
            [None, None, None, None, [0, 0], [2, 2], [1, 1], 1, "add"],
        ),
    ],
)
def test_kernels_of_libraries_by_their_own_order_of_arguments(name, shapes, values):
    shapes = shapes + [None] * (len(values) - len(shapes))
    call = OperatorCall(name, shapes, ["float32" if shape else None for shape in shapes], values)
    assert rule_of(name).formula(call).flops == direct(2, 3, 4, (3, 3), (3, 3), 1)


@pytest.mark.parametrize(("mode", "reach"), [("bilinear", 2), ("bicubic", 4)])
def test_an_antialiased_image_is_a_sum_over_a_window_along_each_axis(mode, reach):
    image = torch.ones(2, 3, 12, 8)
    found = recorded(lambda: torch.nn.functional.interpolate(image, (4, 4), mode=mode, antialias=True))
    high, wide = 3 * reach, 2 * reach
    # First each of the 12 rows gets 4 columns, then each of these gets 4 rows.
    of_image = 12 * 4 * (2 * wide - 1) + 4 * 4 * (2 * high - 1)
    assert found.by_name[f"_upsample_{mode}2d_aa"] == 2 * 3 * of_image


def test_transposed_kernels_of_libraries():
    values = [None, None, [0, 0], [0, 0], [2, 2], [1, 1], 1]
    call = OperatorCall(
        "aten::cudnn_convolution_transpose",
        [(2, 4, 3, 3), (4, 3, 3, 3)] + [None] * 5,
        ["float32"] * 7,
        values,
    )
    cost = rule_of(call.name).formula(call)
    assert cost.flops == direct(2, 3, 4, (3, 3), (3, 3), 1)
    assert cost.bytes == 4 * (2 * 4 * 9 + 4 * 27 + 2 * 3 * 49)


@pytest.mark.parametrize(
    ("shapes", "values"),
    [
        ([(2, 3, 2, 2), (4, 3, 9, 9), None], [None, None, None, [1, 1], [0, 0], [1, 1], 1]),
        ([(2, 3), (4, 3, 3, 3), None], [None, None, None, [1, 1], [0, 0], [1, 1], 1]),
        ([(2, 3, 7, 7), (4, 3, 3, 3), None], [None, None, None, [0, 0], [0, 0], [1, 1], 1]),
        ([(2, 3, 7, 7), (4, 3, 3, 3), None], [None, None, None, [1, 1, 1], [0, 0], [1, 1], 1]),
        ([(2, 3, 7, 7)], [None]),
    ],
)
def test_what_cannot_be_convolved_is_refused(shapes, values):
    call = OperatorCall("aten::conv2d", shapes, ["float32"] * len(shapes), values)
    with pytest.raises((ArithmeticError, LookupError, TypeError, ValueError)):
        rule_of("aten::conv2d").formula(call)
