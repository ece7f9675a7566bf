"""torch's device types, without torch."""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import Any


class DeviceType(IntEnum):
    """Where something ran; the numbers are torch's own."""

    CPU = 0
    CUDA = 1
    XPU = 12
    MTIA = 19
    HPU = 15
    PrivateUse1 = 20


def device_type(number: int) -> Any:
    """Return torch's own enum value if the program uses torch, so that comparing with it works; else ours."""
    # Looked up and not imported: reading a trace must neither need nor load torch.
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "autograd"):
        return torch.autograd.DeviceType(number)
    return DeviceType(number)
