"""What the categories of Kineto's events are: the kind of span, and whether it ran on a device.

The names are those of Kineto's activity types, of today and of torch 1.8. Counters and the marks of memory are no spans
and stand here only where a slice of that category has been seen.
"""

from __future__ import annotations

from kinetoscope.trace import SpanKind

HOST, DEVICE = False, True

CATEGORIES: dict[str, tuple[SpanKind, bool]] = {
    "cpu_op": (SpanKind.OPERATOR, HOST),
    "Operator": (SpanKind.OPERATOR, HOST),
    "user_annotation": (SpanKind.USER_ANNOTATION, HOST),
    "python_function": (SpanKind.PYTHON, HOST),
    "cpu_instant_event": (SpanKind.USER_ANNOTATION, HOST),
    "external_correlation": (SpanKind.USER_ANNOTATION, HOST),
    "overhead": (SpanKind.OVERHEAD, HOST),
    "cuda_runtime": (SpanKind.RUNTIME, HOST),
    "Runtime": (SpanKind.RUNTIME, HOST),
    "xpu_runtime": (SpanKind.RUNTIME, HOST),
    "mtia_runtime": (SpanKind.RUNTIME, HOST),
    "glow_runtime": (SpanKind.RUNTIME, HOST),
    "privateuse1_runtime": (SpanKind.RUNTIME, HOST),
    "cuda_driver": (SpanKind.DRIVER, HOST),
    "Driver": (SpanKind.DRIVER, HOST),
    "xpu_driver": (SpanKind.DRIVER, HOST),
    "privateuse1_driver": (SpanKind.DRIVER, HOST),
    "kernel": (SpanKind.KERNEL, DEVICE),
    "Kernel": (SpanKind.KERNEL, DEVICE),
    "concurrent_kernel": (SpanKind.KERNEL, DEVICE),
    "hpu_op": (SpanKind.KERNEL, DEVICE),
    "mtia_ccp_events": (SpanKind.KERNEL, DEVICE),
    "gpu_memcpy": (SpanKind.MEMCPY, DEVICE),
    "Memcpy": (SpanKind.MEMCPY, DEVICE),
    "gpu_memset": (SpanKind.MEMSET, DEVICE),
    "Memset": (SpanKind.MEMSET, DEVICE),
    "cuda_sync": (SpanKind.SYNC, DEVICE),
    "cuda_event": (SpanKind.SYNC, DEVICE),
    "collective_comm": (SpanKind.COLLECTIVE, DEVICE),
    # Ranges and measurements around what ran on the device: never work of their own.
    "gpu_user_annotation": (SpanKind.USER_ANNOTATION, DEVICE),
    "cuda_profiler_range": (SpanKind.USER_ANNOTATION, DEVICE),
    "xpu_scope_profiler": (SpanKind.USER_ANNOTATION, DEVICE),
    "mtia_insight": (SpanKind.USER_ANNOTATION, DEVICE),
    "mtia_counters": (SpanKind.USER_ANNOTATION, DEVICE),
}
"""Category -> kind, and whether its events are on a device."""

OPERATORS = frozenset(("cpu_op", "Operator"))
CALLS_OF_RUNTIMES = (SpanKind.RUNTIME, SpanKind.DRIVER)
DEVICE_WORK = (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET, SpanKind.COLLECTIVE)
"""Kinds of spans on a device that something on the host launched."""

CUDA, XPU, HPU, MTIA, PRIVATE_USE_1 = 1, 12, 15, 19, 20
"""torch's device types; AMD's devices are CUDA, as in torch."""
HIP = 6

DEVICE_TYPES: dict[str, int] = {
    "cuda": CUDA,
    "xpu": XPU,
    "hpu": HPU,
    "mtia": MTIA,
    "privateuse1": PRIVATE_USE_1,
}
"""What categories begin with that only one type of device has, and what torch calls that type."""
