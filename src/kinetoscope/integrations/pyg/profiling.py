"""`profileit`: a function that returns, with each result, what its call cost."""

from __future__ import annotations

import functools
import math
import os
import re
import resource
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

import torch

from kinetoscope.collect import ProfilerActivity, _KinetoProfile
from kinetoscope.collect.session.base_session import ACTIVE_SESSIONS
from kinetoscope.collect.sources.nvml import NvmlError
from kinetoscope.integrations.pyg.checks import (
    DeviceError,
    checked_function,
    checked_model,
    need_xpu,
    synchronize,
)
from kinetoscope.integrations.pyg.memory import (
    byte_to_megabyte,
    get_gpu_memory_from_cuda,
    get_gpu_memory_from_ipex,
    peaks,
)
from kinetoscope.integrations.pyg.sizes import tensors_in
from kinetoscope.integrations.pyg.stats import CPUStats, CUDAStats, GPUStats
from kinetoscope.tables.memory.peak import peak

# The most memory that a call took on the host: of the process as the system counts it, and of torch's tensors.

_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_INTERVAL_S = 0.01


class ResidentPeak:
    """The largest resident set of the process during a block, in `bytes`.

    The system keeps the largest of the whole life of the process: where it rose, that is the answer. Where it did not,
    the set is read every 10 ms by a thread, and at both ends; resetting the system's mark instead would change what other
    tools read.
    """

    def __init__(
        self, now: Callable[[], int] | None = None, of_life: Callable[[], int] | None = None
    ) -> None:
        """Begin with nothing seen; `now` and `of_life` read the set and the system's mark, in bytes."""
        self.bytes = 0
        self._now = now or resident_bytes
        self._of_life = of_life or resident_peak_of_life
        self._mark = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kinetoscope-resident-set", daemon=True)

    def __enter__(self) -> Self:
        self._mark, self.bytes = self._of_life(), self._now()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.bytes = max(self.bytes, self._now())
        mark = self._of_life()
        if mark > self._mark:
            self.bytes = max(self.bytes, mark)

    def _watch(self) -> None:
        """Look until the end."""
        while not self._ended.wait(_INTERVAL_S):
            self.bytes = max(self.bytes, self._now())


class AllocatedPeak:
    """The most memory of the host that torch held during a block, in `bytes`, not a number where it is not known.

    Counted from a recording of all allocations, and of the tensors that were there before as far as the recording knows
    them. Where our recorder is in use already, torch's own collector records; where that is, too, nothing does.
    """

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.bytes = math.nan
        self._session: _KinetoProfile | None = None

    def __enter__(self) -> Self:
        try:
            session = _KinetoProfile(
                activities=[ProfilerActivity.CPU],
                profile_memory=True,
                engine="kineto" if ACTIVE_SESSIONS.is_taken("native") else "auto",
                oom_report=False,
            )
            session.start()
            self._session = session
        except Exception as error:  # noqa: BLE001  (the call goes on without this number, whatever stands in the way)
            _warn(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.stop()
            found = peak(session.trace) if error is None else None
            self.bytes = 0 if found is None else found.bytes
        except Exception as failure:  # noqa: BLE001  (the call has its result)
            _warn(failure)


def resident_bytes() -> int:
    """The memory that the process holds now; where the system does not tell, the most it ever held."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return resident_peak_of_life()


def resident_peak_of_life() -> int:
    """The most memory that the process ever held."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        found = None
    # Linux counts both in kibibytes.
    return 1024 * (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _warn(error: Exception) -> None:
    """Say once for each call site that the number will be missing."""
    warnings.warn(
        f"profileit('cpu') cannot tell how much memory torch allocated, max_allocated_cpu is not a number: {error}",
        stacklevel=4,
    )


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
