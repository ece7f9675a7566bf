"""What the kinds of spans have in common: each group of kinds has its one definition here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.model.schema import SpanKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Kinds = NDArray[np.uint8]
    Mask = NDArray[np.bool_]


def is_operator(kind: Kinds) -> Mask:
    """Mark operators, backward functions and fused kernels among kinds."""
    # One comparison for the first two: they have the two lowest numbers.
    marked: Mask = (kind <= SpanKind.BACKWARD) | (kind == SpanKind.FUSED_KERNEL)
    return marked


def is_range(kind: Kinds) -> Mask:
    """Mark ranges that the program marked, and steps, among kinds."""
    marked: Mask = (kind | 1) == SpanKind.STEP
    return marked


def is_call(kind: Kinds) -> Mask:
    """Mark calls of Python and C functions and of modules among kinds."""
    # One comparison for both, here as for ranges: their numbers differ in the last bit only.
    marked: Mask = (kind | 1) == SpanKind.MODULE
    return marked


def is_device_work(kind: Kinds) -> Mask:
    """Mark kernels, copies and fills among kinds."""
    # One comparison for the three: their numbers follow each other.
    marked: Mask = kind - np.uint8(SpanKind.KERNEL) <= SpanKind.MEMSET - SpanKind.KERNEL
    return marked


def is_copy(kind: Kinds) -> Mask:
    """Mark copies between memories and fills of memory among kinds."""
    marked: Mask = (kind == SpanKind.MEMCPY) | (kind == SpanKind.MEMSET)
    return marked


def is_runtime_call(kind: Kinds) -> Mask:
    """Mark calls of a device's runtime or driver among kinds."""
    marked: Mask = (kind == SpanKind.RUNTIME) | (kind == SpanKind.DRIVER)
    return marked
