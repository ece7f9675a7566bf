"""What a profiled call costs, and many of them in short. Seconds and megabytes (of 1024 * 1024 bytes)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

from kinetoscope._errors import ArgumentError


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
        nvidia_smi_free_cuda: The device's free memory after it, in megabytes, whoever uses the rest.
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
    """Put the costs of several calls in short.

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
    kinds = {type(one) for one in stats}
    summary = next((made for kind, made in _SUMMARIES if all(issubclass(it, kind) for it in kinds)), None)
    if len(kinds) > 1 or summary is None:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ArgumentError(
            f"stats_list holds {names}: need statistics of one kind, CPUStats, GPUStats or CUDAStats."
        )
    times = [float(one.time) for one in stats]
    numbers = {"time_mean": statistics.fmean(times), "time_std": _deviation(times)}
    for name in (field.name for field in fields(summary)[2:]):
        # `max_nvidia_smi_used_cuda` is the largest `nvidia_smi_used_cuda`, `max_reserved_gpu` the largest of itself.
        source = name if hasattr(stats[0], name) else name[4:]
        values = [getattr(one, source) for one in stats]
        numbers[name] = _known(min if name.startswith("min_") else max, values)
    return summary(**numbers)


def _deviation(times: list[float]) -> float:
    """The sample standard deviation, which one value does not have."""
    return statistics.stdev(times) if len(times) > 1 else math.nan


def _known(pick: Callable[[list[float]], float], values: list[float]) -> float:
    """The largest or smallest of the values that are numbers."""
    numbers = [value for value in values if not math.isnan(value)]
    return pick(numbers) if numbers else math.nan


# The kinds of statistics before what they derive from.
_SUMMARIES: tuple[tuple[type, type], ...] = (
    (CUDAStats, CUDAStatsSummary),
    (GPUStats, GPUStatsSummary),
    (CPUStats, CPUStatsSummary),
)
