"""The names of the devices, as JSON texts."""

from __future__ import annotations

import json
import platform
from functools import cache
from pathlib import Path

import torch
import torch.distributed

_CPU_INFO = Path("/proc/cpuinfo")


def described_devices() -> dict[str, str]:
    """The names of the processor and of the devices in use, and how torch computes on them, as JSON texts."""
    devices: list[dict[str, object]] = [{"type": "cpu", "index": -1, "name": processor_name()}]
    # A context of the device is not made for this: what has none was not used.
    if torch.cuda.is_initialized():
        devices += [
            {"type": "cuda", "index": index, "name": _cuda_name(index)}
            for index in range(torch.cuda.device_count())
        ]
    found = {"devices": json.dumps(devices), "torch_threads": json.dumps(torch.get_num_threads())}
    try:
        found["float32_matmul_precision"] = json.dumps(torch.get_float32_matmul_precision())
    except RuntimeError:
        # The program set precisions through both of torch's interfaces, which torch then refuses to put in one word.
        return found
    return found


@cache
def processor_name() -> str:
    """The name of the processor, or its architecture if the system has no name for it."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _cuda_name(index: int) -> str:
    """The name of a device; empty if its driver does not report one."""
    try:
        return str(torch.cuda.get_device_name(index))
    except (RuntimeError, AssertionError):
        return ""
