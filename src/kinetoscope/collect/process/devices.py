"""Metadata of the processor and devices, and of torch's settings for them."""

from __future__ import annotations

import json
import platform
from functools import cache
from pathlib import Path

import torch
import torch.distributed

_CPU_INFO = Path("/proc/cpuinfo")


def described_devices() -> dict[str, str]:
    """Return the names of processor and devices, torch's number of threads and its matmul precision, as JSON texts by key."""
    devices: list[dict[str, object]] = [{"type": "cpu", "index": -1, "name": processor_name()}]
    # A device without a context was not used; do not create one just to read its name.
    if torch.cuda.is_initialized():
        devices += [
            {"type": "cuda", "index": index, "name": _cuda_name(index)}
            for index in range(torch.cuda.device_count())
        ]
    found = {"devices": json.dumps(devices), "torch_threads": json.dumps(torch.get_num_threads())}
    try:
        found["float32_matmul_precision"] = json.dumps(torch.get_float32_matmul_precision())
    except RuntimeError:
        # torch raises this if the program has set precisions through both of its interfaces.
        return found
    return found


@cache
def processor_name() -> str:
    """Return the name of the processor, or its architecture if the system does not tell the name."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _cuda_name(index: int) -> str:
    """Return the name of a CUDA device; empty if the driver does not report one."""
    try:
        return str(torch.cuda.get_device_name(index))
    except (RuntimeError, AssertionError):
        return ""
