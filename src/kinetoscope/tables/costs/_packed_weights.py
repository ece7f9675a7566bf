"""Layers with packed weights, whose sizes a trace does not show, by the size of the result that they make inside."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.tables.costs._evaluate import Standing, parsed_inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

_LAYERS = frozenset(
    f"quantized::linear{kind}" for kind in ("", "_relu", "_dynamic", "_relu_dynamic", "_dynamic_fp16")
)
_MAKERS = frozenset({"aten::empty", "aten::_empty_affine_quantized"})


def settle_packed(trace: Trace, standing: NDArray[np.uint8], flops: NDArray[np.int64]) -> None:
    """Fill in, in place, the operations of layers with packed weights: every input meets every output once.

    Args:
        trace: The trace.
        standing: The standing of each span.
        flops: The operations of each span.
    """
    strings, spans = trace.strings, trace.columns("spans")
    layers = np.array([text in _LAYERS for text in strings], dtype=bool)
    if not layers.any():
        return
    makers = np.array([text in _MAKERS for text in strings], dtype=bool)
    lacking = layers[spans["name"]] & (standing == Standing.NO_INPUTS)
    parent = spans["parent"]
    known: dict[tuple[int, int], int | None] = {}
    for row in np.flatnonzero(makers[spans["name"]] & (parent >= 0) & lacking[parent]).tolist():
        layer = int(parent[row])
        key = (int(spans["shapes"][layer]), int(spans["shapes"][row]))
        if key not in known:
            known[key] = _products(trace, *key)
        found = known[key]
        if found is not None:
            standing[layer], flops[layer] = Standing.FIRM, found


def _products(trace: Trace, layer: int, made: int) -> int | None:
    """The operations of a layer with these inputs if the tensor made inside is its result, else None."""
    inputs, result = parsed_inputs(trace, layer), parsed_inputs(trace, made)
    if inputs is None or result is None or not inputs.shapes or not result.values:
        return None
    given, sizes = inputs.shapes[0], result.values[0]
    if (
        not isinstance(given, tuple)
        or not isinstance(sizes, list)
        or list(given[:-1]) != sizes[:-1]
        or not given
    ):
        return None
    flops = 2 * prod(given) * sizes[-1] if type(sizes[-1]) is int else -1
    return flops if 0 <= flops < 2**63 else None
