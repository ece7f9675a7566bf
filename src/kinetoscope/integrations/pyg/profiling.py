"""`profileit`, which returns the cost of each call with its result; its statistics; and `timeit`."""

from __future__ import annotations

import functools
import math
import os
import resource
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

import torch

from kinetoscope._errors import ArgumentError
from kinetoscope.collect import NvmlError, ProfilerActivity, _KinetoProfile, warn_user
from kinetoscope.integrations.pyg.checks import (
    DeviceError,
    checked_function,
    checked_model,
    name_of,
    need_xpu,
    timed,
)
from kinetoscope.integrations.pyg.memory import (
    byte_to_megabyte,
    get_gpu_memory_from_ipex,
    get_gpu_memory_from_nvidia_smi,
    peaks,
    tensors_in,
)
from kinetoscope.tables.memory.peak import peak


@dataclass
class CPUStats:
    """A call on the processor.

    Attributes:
        time: How long it took, in seconds.
        max_rss_cpu: The largest resident set of the process while it ran, in megabytes.
        max_allocated_cpu: The most memory of the host that torch held while it ran, in megabytes; not a number where it
            could not be recorded.
    """

    time: float
    max_rss_cpu: float
    max_allocated_cpu: float


@dataclass
class GPUStats:
    """A call on an accelerator.

    Attributes:
        time: How long it took on the device, in seconds.
        max_allocated_gpu: The most memory that tensors held while it ran, in megabytes.
        max_reserved_gpu: The most memory that torch's allocator held, in megabytes.
        max_active_gpu: The most memory in blocks that were in use or could not yet be used again, in megabytes.
    """

    time: float
    max_allocated_gpu: float
    max_reserved_gpu: float
    max_active_gpu: float


@dataclass
class CUDAStats(GPUStats):
    """A call on an NVIDIA device.

    Attributes:
        nvidia_smi_free_cuda: The device's free memory after it, in megabytes, whichever process uses the rest.
        nvidia_smi_used_cuda: The device's used memory after it, in megabytes.
    """

    nvidia_smi_free_cuda: float
    nvidia_smi_used_cuda: float


@dataclass
class CPUStatsSummary:
    """Calls on the processor: mean and sample standard deviation of their seconds, the largest of their megabytes."""

    time_mean: float
    time_std: float
    max_rss_cpu: float
    max_allocated_cpu: float


@dataclass
class GPUStatsSummary:
    """Calls on an accelerator: mean and sample standard deviation of their seconds, the largest of their megabytes."""

    time_mean: float
    time_std: float
    max_allocated_gpu: float
    max_reserved_gpu: float
    max_active_gpu: float


@dataclass
class CUDAStatsSummary(GPUStatsSummary):
    """Calls on an NVIDIA device: the same, and the least of the free and the most of the used megabytes."""

    min_nvidia_smi_free_cuda: float
    max_nvidia_smi_used_cuda: float


@overload
def get_stats_summary(stats_list: Sequence[CUDAStats]) -> CUDAStatsSummary: ...
@overload
def get_stats_summary(stats_list: Sequence[GPUStats]) -> GPUStatsSummary: ...
@overload
def get_stats_summary(stats_list: Sequence[CPUStats]) -> CPUStatsSummary: ...
def get_stats_summary(stats_list: Sequence[Any]) -> Any:
    """Summarize the costs of several calls.

    Args:
        stats_list: What `profileit` returned with each call; all of one kind.

    Returns:
        A `CUDAStatsSummary`, `GPUStatsSummary` or `CPUStatsSummary`: mean and sample standard deviation of the seconds
        (not a number for a single call), the largest megabytes, the least free ones.

    Raises:
        ArgumentError: The list is empty, holds different kinds, or something that is none of them.
    """
    stats = list(stats_list)
    if not stats:
        raise ArgumentError(
            "stats_list is empty: pass the statistics of at least one call of a profiled function."
        )
    kinds = {type(stat) for stat in stats}
    summary = _SUMMARIES.get(type(stats[0]))
    if len(kinds) > 1 or summary is None:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ArgumentError(
            f"stats_list holds {names}: need statistics of one kind, CPUStats, GPUStats or CUDAStats."
        )
    times = [float(stat.time) for stat in stats]
    # One value has no deviation.
    deviation = statistics.stdev(times) if len(times) > 1 else math.nan
    numbers = {"time_mean": statistics.fmean(times), "time_std": deviation}
    for name in (field.name for field in fields(summary)[2:]):
        # `max_nvidia_smi_used_cuda` is the largest `nvidia_smi_used_cuda`, `max_reserved_gpu` the largest of itself.
        source = name if hasattr(stats[0], name) else name[4:]
        values = [value for stat in stats if not math.isnan(value := getattr(stat, source))]
        pick = min if name.startswith("min_") else max
        numbers[name] = pick(values, default=math.nan)
    return summary(**numbers)


_SUMMARIES: dict[type, type] = {
    CPUStats: CPUStatsSummary,
    GPUStats: GPUStatsSummary,
    CUDAStats: CUDAStatsSummary,
}


_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_INTERVAL_S = 0.01


class ResidentPeak:
    """The largest resident set of the process during a block, in `bytes`.

    The system keeps the largest of the whole life of the process: where it rose, that is the answer. Where it did not,
    the set is read every 10 ms by a thread, and at both ends; resetting the system's mark instead would change what other
    tools read.
    """

    def __init__(self) -> None:
        """Start without a result."""
        self.bytes = 0
        self._mark = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kinetoscope-resident-set", daemon=True)

    def __enter__(self) -> Self:
        self._mark, self.bytes = resident_peak_of_life(), resident_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()
        mark = resident_peak_of_life()
        self.bytes = max(self.bytes, resident_bytes(), mark if mark > self._mark else 0)

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            self.bytes = max(self.bytes, resident_bytes())


class AllocatedPeak:
    """The peak host memory that torch held during a block, in `bytes`; NaN if unknown.

    Counted from a recording of all allocations, and of the tensors that were there before as far as the recording knows
    them. Where our recorder is in use already, torch's own collector records; where that is, too, nothing does.
    """

    def __init__(self) -> None:
        """Start without a result."""
        self.bytes = math.nan
        self._session: _KinetoProfile | None = None

    def __enter__(self) -> Self:
        try:
            session = _KinetoProfile(activities=[ProfilerActivity.CPU], profile_memory=True, oom_report=False)
            session.start()
            self._session = session
        except Exception as error:  # noqa: BLE001  (the call continues without this number after any failure)
            _warn(error)
        return self

    def __exit__(self, *_error: object) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.stop()
            memory_peak = peak(session.trace)
            self.bytes = 0 if memory_peak is None else memory_peak.bytes
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
    # Linux counts in kibibytes.
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _warn(error: Exception) -> None:
    """Warn once for each call site that the number will be missing."""
    warn_user(
        f"profileit('cpu') cannot measure how much memory torch allocated, so max_allocated_cpu is NaN: {error}"
    )


P = ParamSpec("P")
R = TypeVar("R")


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
            values: list[Any] = [*args, *kwargs.values()]
            model = checked_model(
                values[0] if values else None, f"the first argument of {name_of(function)}()"
            )
            run = functools.partial(function, *args, **kwargs)
            if device == "cpu":
                # The wall clock, and both kinds of peaks around it.
                with AllocatedPeak() as allocated, ResidentPeak() as resident:
                    result, seconds = timed(run)
                sizes = (byte_to_megabyte(measured.bytes) for measured in (resident, allocated))
                return result, CPUStats(seconds, *sizes)
            return _on_an_accelerator(run, device, _number(device, values[1:], model))

        return call

    return decorate


def _on_an_accelerator(run: Callable[[], R], kind: str, number: int) -> tuple[R, GPUStats]:
    """Call it between two events of the device."""
    if kind == "xpu":
        need_xpu("profileit('xpu')")
    else:
        # Missing requirements are reported before the call, not after an epoch.
        get_gpu_memory_from_nvidia_smi(torch.device("cuda", number))
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
        free, used = get_gpu_memory_from_nvidia_smi(torch.device("cuda", number))
    except NvmlError as error:
        warn_user(f"profileit('cuda') cannot read the device's free memory: {error}")
        free = used = math.nan
    return result, CUDAStats(seconds, *peaks(module.memory_stats(number)), free, used)


def _number(kind: str, arguments: list[Any], model: torch.nn.Module) -> int:
    """The number of the device of this kind on which the first of the tensors lies that lies on one."""
    devices: set[str] = set()
    for tensor in _tensors(arguments, model):
        if tensor.device.type == kind:
            return tensor.device.index or 0
        devices.add(str(tensor.device))
    if not devices:
        raise DeviceError(
            f"profileit({kind!r}) finds the device from tensor arguments or model parameters, and there are "
            "neither: pass a tensor on the device."
        )
    module: Any = getattr(torch, kind)
    there = "" if module.is_available() else f", and torch.{kind}.is_available() is False here"
    raise DeviceError(
        f"profileit({kind!r}): all tensors are on {', '.join(sorted(devices))}{there}. Move model and data to {kind!r}, or use "
        "profileit('cpu')."
    )


def _tensors(arguments: list[Any], model: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from (argument for argument in arguments if isinstance(argument, torch.Tensor))
    for argument in arguments:
        yield from tensors_in(argument)
    yield from chain(model.parameters(), model.buffers())
