"""Exceptions and argument checks that several functions share.

PyG raises `AttributeError` or `RuntimeError` for wrong arguments; these are subclasses, so handlers written for PyG catch them.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from kinetoscope._errors import ArgumentError

__all__ = ["DeviceError", "NotAModuleError"]

R = TypeVar("R")
clock = time.perf_counter


def synchronize() -> None:
    """Wait until the accelerator has finished its work; return at once if there is none or it is unused.

    An unused device is not initialized, which would take device memory, and fail in a forked child.
    """
    if not torch.accelerator.is_available():
        return
    device = torch.accelerator.current_accelerator()
    module = getattr(torch, device.type, None)
    is_initialized = getattr(module, "is_initialized", None)
    if is_initialized is None or is_initialized():
        torch.accelerator.synchronize()


def timed(call: Callable[[], R]) -> tuple[R, float]:
    """Return a call's result and its duration in seconds, including the accelerator's work."""
    synchronize()
    start = clock()
    result = call()
    synchronize()
    return result, clock() - start


class NotAModuleError(ArgumentError, AttributeError, TypeError):
    """The model is not a `torch.nn.Module`."""


class DeviceError(ArgumentError, AttributeError, RuntimeError):
    """The device is unknown, not available, or not the one of the arguments."""


def checked_model(model: Any, whose: str) -> torch.nn.Module:
    """The model, if it is one."""
    if not isinstance(model, torch.nn.Module):
        # By its type: the texts of tensors are long.
        shown = "nothing" if model is None else f"of type {type(model).__name__}"
        raise NotAModuleError(f"{whose} is {shown}: need a torch.nn.Module.")
    return model


_RUN_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def checked_function(function: Any, decorator: str) -> None:
    """Reject objects that cannot be called, and functions that have not run when their call returns."""
    if not callable(function):
        raise ArgumentError(
            f"@{decorator} is applied to an object of type {type(function).__name__}, but it decorates functions only."
        )
    if any(runs_later(function) for runs_later in _RUN_LATER):
        raise ArgumentError(
            f"@{decorator} is applied to {function.__qualname__}, a coroutine or generator function, whose call returns "
            "before it has run. Decorate an ordinary function that runs it to completion."
        )


def checked_device(device: Any, need: str, kind: str | None = None) -> torch.device:
    """Convert a device such as `"cuda:1"` or a `torch.device`, and check its kind if one is passed."""
    try:
        checked = torch.device(device) if isinstance(device, str | torch.device) else None
    except RuntimeError:
        checked = None
    if checked is None or kind not in (None, checked.type):
        raise DeviceError(f"device={device!r} is not valid: need the number of a device, or {need}.")
    return checked


def device_number(device: Any, kind: str) -> int:
    """The number of a device: a number, `"cuda:1"`, or a `torch.device` of this kind."""
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    return checked_device(device, repr(kind), kind).index or 0


def need_xpu(who: str) -> None:
    """Raise unless torch can use an Intel GPU."""
    if not torch.xpu.is_available():
        raise DeviceError(
            f"{who} needs an Intel GPU that torch can use, and torch.xpu.is_available() is False. For the CPU "
            "use torch_profile() or profileit('cpu')."
        )


def name_of(function: Any) -> str:
    """The name of a function, or of the class of an object."""
    return str(getattr(function, "__name__", type(function).__name__))
