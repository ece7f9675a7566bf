"""Waiting for whatever accelerator torch uses."""

from __future__ import annotations

import torch


def synchronize() -> None:
    """Wait until the accelerator has done what it was given; at once where there is none or nobody has used it yet.

    A device that was not used is not woken up for this: that would take memory of it, and fail in a forked child.
    """
    if not torch.accelerator.is_available():
        return
    device = torch.accelerator.current_accelerator()
    module = getattr(torch, device.type, None)
    is_initialized = getattr(module, "is_initialized", None)
    if is_initialized is None or is_initialized():
        torch.accelerator.synchronize()
