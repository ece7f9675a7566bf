"""What the kinds of spans have in common: each group of kinds has its one definition here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.schema import SpanKind

Kinds = NDArray[np.uint8]
Mask = NDArray[np.bool_]


KINETO_CATEGORIES: dict[SpanKind, str] = {
    SpanKind.OPERATOR: "cpu_op",
    SpanKind.BACKWARD: "cpu_op",
    SpanKind.USER_ANNOTATION: "user_annotation",
    SpanKind.STEP: "user_annotation",
    SpanKind.PYTHON: "python_function",
    SpanKind.MODULE: "python_function",
    SpanKind.KERNEL: "kernel",
    SpanKind.MEMCPY: "gpu_memcpy",
    SpanKind.MEMSET: "gpu_memset",
    SpanKind.RUNTIME: "cuda_runtime",
    SpanKind.DRIVER: "cuda_driver",
    SpanKind.SYNC: "cuda_sync",
    SpanKind.OVERHEAD: "overhead",
    SpanKind.COLLECTIVE: "user_annotation",
    SpanKind.FUSED_KERNEL: "cpu_op",
}
"""Kineto's name of the category of each kind of span of the host, and of devices where theirs is no other."""


def is_operator(kind: Kinds) -> Mask:
    """Mark operators, backward functions and fused kernels among kinds."""
    # One comparison for the first two: they have the two lowest numbers.
    return np.asarray((kind <= SpanKind.BACKWARD) | (kind == SpanKind.FUSED_KERNEL))


def is_range(kind: Kinds) -> Mask:
    """Mark ranges that the program marked, and steps, among kinds."""
    return np.asarray((kind | 1) == SpanKind.STEP)


def is_call(kind: Kinds) -> Mask:
    """Mark calls of Python and C functions and of modules among kinds."""
    # One comparison for both, here as for ranges: their numbers differ in the last bit only.
    return np.asarray((kind | 1) == SpanKind.MODULE)


def is_device_work(kind: Kinds) -> Mask:
    """Mark kernels, copies and fills among kinds."""
    # One comparison for the three: their numbers follow each other.
    return np.asarray(kind - np.uint8(SpanKind.KERNEL) <= SpanKind.MEMSET - SpanKind.KERNEL)


def is_copy(kind: Kinds) -> Mask:
    """Mark copies between memories and fills of memory among kinds."""
    return np.asarray((kind == SpanKind.MEMCPY) | (kind == SpanKind.MEMSET))


def is_runtime_call(kind: Kinds) -> Mask:
    """Mark calls of a device's runtime or driver among kinds."""
    return np.asarray((kind == SpanKind.RUNTIME) | (kind == SpanKind.DRIVER))
