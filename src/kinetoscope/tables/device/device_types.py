"""torch's device types, without torch."""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import Any


class DeviceType(IntEnum):
    """Where something ran; the numbers are torch's own."""

    CPU = 0
    CUDA = 1
    MKLDNN = 2
    OPENGL = 3
    OPENCL = 4
    IDEEP = 5
    HIP = 6
    FPGA = 7
    MAIA = 8
    XLA = 9
    Vulkan = 10
    Metal = 11
    XPU = 12
    MPS = 13
    Meta = 14
    HPU = 15
    VE = 16
    Lazy = 17
    IPU = 18
    MTIA = 19
    PrivateUse1 = 20


def device_type(number: int) -> Any:
    """Return torch's own enum value if the program uses torch, so that comparing with it works; else ours."""
    # Looked up and not imported: reading a trace must neither need nor load torch.
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "autograd"):
        return torch.autograd.DeviceType(number)
    return DeviceType(number)
