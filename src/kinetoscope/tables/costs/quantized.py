"""Quantised numbers: a division, a rounding and a shift to quantise, a difference and a product back, both for imitations of it.

Operators with packed weights (`quantized::conv2d` and its like) do not show the sizes of their weights, so their cost is not known; for
`quantized::linear` it follows from the result that is made inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope.tables.costs.call import UNKNOWN, Cost, Rule, rules
from kinetoscope.tables.costs.sizes import moved

if TYPE_CHECKING:
    from kinetoscope.tables.costs.call import Formula, OperatorCall


def _each(flops: int, dtype: str | None = None) -> Formula:
    """The formula with so many operations for each element of the first argument."""

    def formula(call: OperatorCall) -> Cost:
        count = call.numel(0)
        return Cost(flops * count, moved(call, (0,), count, 0, dtype=dtype))

    return formula


def packed(call: OperatorCall) -> Cost:
    """An operator with packed weights, whose sizes a trace does not show."""
    return UNKNOWN


RULES: dict[str, Rule] = rules(
    "quantized",
    {
        _each(3, "quint8"): "quantize_per_tensor quantize_per_channel",
        _each(5, "quint8"): "quantize_per_tensor_dynamic",
        _each(2, "float32"): "dequantize",
        _each(0, "uint8"): "int_repr",
        _each(5): "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask"
        " _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fake_quantize_learnable_per_tensor_affine"
        " _fake_quantize_learnable_per_channel_affine _fused_moving_avg_obs_fq_helper",
        packed: "quantized::linear quantized::linear_relu quantized::linear_dynamic quantized::linear_relu_dynamic quantized::conv1d"
        " quantized::conv2d quantized::conv3d quantized::conv1d_relu quantized::conv2d_relu quantized::conv3d_relu"
        " quantized::conv_transpose2d quantized::embedding_bag_byte quantized::embedding_bag_4bit",
        _each(6): "quantized::add quantized::add_relu quantized::mul quantized::mul_relu",
    },
)
