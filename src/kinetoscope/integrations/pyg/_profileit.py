"""`profileit`: a function that returns, with each result, what its call cost."""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Literal, ParamSpec, TypeVar, overload

import torch

from kinetoscope.collect.sources.nvml import NvmlError
from kinetoscope.integrations.pyg._accelerator import synchronize
from kinetoscope.integrations.pyg._checks import DeviceError, checked_function, checked_model, need_xpu
from kinetoscope.integrations.pyg._host_peaks import AllocatedPeak, ResidentPeak
from kinetoscope.integrations.pyg._memory import (
    byte_to_megabyte,
    get_gpu_memory_from_cuda,
    get_gpu_memory_from_ipex,
    peaks,
)
from kinetoscope.integrations.pyg._sizes import tensors_in
from kinetoscope.integrations.pyg._stats import CPUStats, CUDAStats, GPUStats

P = ParamSpec("P")
R = TypeVar("R")

_clock: Callable[[], float] = time.perf_counter


@overload
def profileit(device: Literal["cuda"]) -> Callable[[Callable[P, R]], Callable[P, tuple[R, CUDAStats]]]: ...
@overload
def profileit(device: Literal["xpu"]) -> Callable[[Callable[P, R]], Callable[P, tuple[R, GPUStats]]]: ...
@overload
def profileit(device: Literal["cpu"]) -> Callable[[Callable[P, R]], Callable[P, tuple[R, CPUStats]]]: ...
@overload
def profileit(device: str) -> Callable[[Callable[P, R]], Callable[P, tuple[R, Any]]]: ...
def profileit(device: str) -> Callable[[Callable[P, R]], Callable[P, tuple[R, Any]]]:
    """Let a function return `(result, stats)`: what it returned, and what the call cost.

    The function's first argument must be a model. Which accelerator is meant follows from the tensors among the arguments,
    also those in graphs of PyG, mappings and sequences; where there are none, from the model's parameters. On an
    accelerator the time is that between two events of its current stream, and torch's counts of peak memory are reset
    before the call. With `"cpu"` the call is recorded with all its allocations, which takes part of the time.

    Args:
        device: `"cuda"` for `CUDAStats`, `"xpu"` for `GPUStats`, `"cpu"` for `CPUStats`.

    Returns:
        The decorator. The decorated function raises `NotAModuleError` where its first argument is no model, and
        `DeviceError` where no tensor lies on the device, both before the function runs.

    Raises:
        DeviceError: `device` is none of these.
        ArgumentError: What is decorated is no function, or one whose call returns before it has run.
    """
    if device not in ("cuda", "xpu", "cpu"):
        hint = " Write `@profileit('cpu')` with brackets." if callable(device) else ""
        raise DeviceError(f"device={device!r} is not valid: choose 'cuda', 'xpu' or 'cpu'.{hint}")

    def decorate(function: Callable[P, R]) -> Callable[P, tuple[R, Any]]:
        checked_function(function, f"profileit({device!r})")

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> tuple[R, Any]:
            given: list[Any] = [*args, *kwargs.values()]
            model = checked_model(given[0] if given else None, f"the first argument of {_name(function)}()")
            run = functools.partial(function, *args, **kwargs)
            if device == "cpu":
                return _on_the_host(run)
            return _on_an_accelerator(run, device, _number(device, given[1:], model))

        return call

    return decorate


def _on_the_host(run: Callable[[], R]) -> tuple[R, CPUStats]:
    """Call it, with the wall clock and both kinds of peaks around."""
    with AllocatedPeak() as allocated, ResidentPeak() as resident:
        synchronize()
        start = _clock()
        result = run()
        synchronize()
        seconds = _clock() - start
    return result, CPUStats(seconds, byte_to_megabyte(resident.bytes), byte_to_megabyte(allocated.bytes))


def _on_an_accelerator(run: Callable[[], R], kind: str, number: int) -> tuple[R, GPUStats]:
    """Call it between two events of the device."""
    if kind == "xpu":
        need_xpu("profileit('xpu')")
    else:
        # What is missing for it shall be known before the call, not after an epoch.
        get_gpu_memory_from_cuda(number)
    module: Any = getattr(torch, kind)
    module.reset_peak_memory_stats(number)
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record(module.current_stream(number))
    result = run()
    end.record(module.current_stream(number))
    end.synchronize()
    seconds = start.elapsed_time(end) / 1000
    if kind == "xpu":
        return result, GPUStats(seconds, *get_gpu_memory_from_ipex(number))
    try:
        free, used = get_gpu_memory_from_cuda(number)
    except NvmlError as error:
        warnings.warn(f"profileit('cuda') cannot tell the device's free memory: {error}", stacklevel=3)
        free = used = math.nan
    return result, CUDAStats(seconds, *peaks(module.memory_stats(number)), free, used)


def _number(kind: str, given: list[Any], model: torch.nn.Module) -> int:
    """The number of the device of this kind on which the first of the tensors lies that lies on one."""
    seen: set[str] = set()
    for tensor in _tensors(given, model):
        if tensor.device.type == kind:
            return tensor.device.index or 0
        seen.add(str(tensor.device))
    if not seen:
        raise DeviceError(
            f"profileit({kind!r}) finds the device by the tensors among the arguments, and there are none, nor has the model "
            "parameters: pass a tensor that lies on the device."
        )
    module: Any = getattr(torch, kind)
    there = "" if module.is_available() else f", and torch.{kind}.is_available() is False here"
    raise DeviceError(
        f"profileit({kind!r}): all tensors are on {', '.join(sorted(seen))}{there}. Move model and data to {kind!r}, or use "
        "profileit('cpu')."
    )


def _tensors(given: list[Any], model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The arguments that are tensors, then those inside other arguments, then the model's own."""
    yield from (one for one in given if isinstance(one, torch.Tensor))
    for one in given:
        yield from tensors_in(one)
    yield from chain(model.parameters(), model.buffers())


def _name(function: Callable[..., Any]) -> str:
    """What a function is called."""
    return str(getattr(function, "__name__", type(function).__name__))
