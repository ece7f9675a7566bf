"""The memory of a device: allocated anew in every step, spread over too many segments, or nearly used up.

Sources and thresholds: torchtitan (any retry of an allocation), TraceML (reserved memory of twice the allocated), PyTorch's former
TensorBoard plugin (90 % of the device's memory).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import CannotTell, Finding, Signal
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.display.sentence import sentence
from kinetoscope.model.kinds import is_runtime_call
from kinetoscope.tables.memory.timeline import AllocatorPeak, allocator_peak

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_CHURN_STEPS = 4
LEAST_CHURN = 0.5
"""Steps without a warm-up of their own allocate at first; steady allocations come in this part of the others."""
LEAST_CHURN_PERCENT = 1.0
FRAGMENTED = 2.0
LEAST_FRAGMENTED = 0.1
"""Unused reserved memory counts from this part of the device's memory on."""
NEAR_LIMIT_PERCENT = 90.0
_CALLS = frozenset(
    {
        "cudaMalloc",
        "cudaFree",
        "hipMalloc",
        "hipFree",
        "cuMemCreate",
        "cuMemRelease",
        "cuMemMap",
        "cuMemUnmap",
    }
)


def allocator_churn(loop: Loop) -> Finding | None:
    """Find steps that allocate memory from the driver after the first, which waits for all of the device's work."""
    if loop.device is None or loop.step_count < LEAST_CHURN_STEPS:
        return None
    spans, strings = loop.trace.columns("spans"), loop.trace.strings
    rows = np.flatnonzero(is_runtime_call(spans["kind"]) & (spans["stream"] < 0))
    known = [one for one in np.unique(spans["name"][rows]).tolist() if strings[one] in _CALLS]
    rows = rows[np.isin(spans["name"][rows], known)]
    step = loop.step_of(rows)
    rows, step = rows[step > 0], step[step > 0]
    if len(np.unique(step)) < LEAST_CHURN * (loop.step_count - 1):
        return None
    idle_ns = loop.cost_ns(rows, with_device=False)
    share = loop.share(idle_ns)
    if share < LEAST_CHURN_PERCENT:
        return None
    calls = loop.called_by(rows)
    place = loop.by_place(calls)[0][0]
    return Finding(
        "allocator-churn",
        sentence(
            f"The allocator calls the driver {loop.counted(len(rows), 'time')}{f', most at {place}' if place else ''}, and {loop.device.name} is idle "
            f"meanwhile for {{}} of {loop.unit.time}",
            (share, "%"),
        ),
        "Set PYTORCH_ALLOC_CONF=expandable_segments:True, keep sizes of batches equal, and do not call torch.cuda.empty_cache().",
        share,
        idle_ns,
        place,
        spans=tuple(rows[:MOST_ROWS].tolist()),
    )


def fragmentation(loop: Loop) -> Finding | CannotTell | None:
    """Find reserved memory that the program does not use, because no free piece of it is large enough."""
    if loop.device is None:
        return None
    if (peak := _peak(loop)) is None:
        return CannotTell("fragmentation", Signal.MEMORY)
    size = _device_bytes(loop)
    unused = peak.reserved_bytes - peak.allocated_bytes
    if (
        peak.reserved_bytes < FRAGMENTED * peak.allocated_bytes
        or size <= 0
        or unused < LEAST_FRAGMENTED * size
    ):
        return None
    return Finding(
        "fragmentation",
        sentence(
            f"{loop.device.name} has {{}} reserved and uses at most {{}} of it",
            (peak.reserved_bytes, "bytes"),
            (peak.allocated_bytes, "bytes"),
        ),
        "Set PYTORCH_ALLOC_CONF=expandable_segments:True, and keep the sizes of batches equal.",
        0.0,
        None,
    )


def memory_near_limit(loop: Loop) -> Finding | CannotTell | None:
    """Find a device whose memory is nearly used up, so that a slightly larger batch fails."""
    if loop.device is None:
        return None
    if (peak := _peak(loop)) is None:
        return CannotTell("memory-near-limit", Signal.MEMORY)
    size = _device_bytes(loop)
    if size <= 0 or 100.0 * peak.allocated_bytes < NEAR_LIMIT_PERCENT * size:
        return None
    return Finding(
        "memory-near-limit",
        sentence(
            f"{loop.device.name} uses {{}} of its {{}}: {{}}",
            (peak.allocated_bytes, "bytes"),
            (size, "bytes"),
            (100.0 * peak.allocated_bytes / size, "%"),
        ),
        "Lower the peak: activation checkpointing, smaller types, gradient accumulation with smaller batches; see the table memory_peak.",
        0.0,
        None,
    )


def _peak(loop: Loop) -> AllocatorPeak | None:
    """What the allocator of the loop's device counted at its peak; None if that was not recorded."""
    if loop.device is None:
        return None
    device = loop.device.identity
    processes: NDArray[np.int64] | None = None if loop.process < 0 else np.array([loop.process])
    peak = allocator_peak(loop.trace, device.type, device.index, processes)
    return peak if peak.allocated_bytes >= 0 and peak.reserved_bytes >= 0 else None


def _device_bytes(loop: Loop) -> int:
    """The memory of the loop's device; -1 if unknown."""
    properties = loop.device and loop.device.properties
    return -1 if not properties or properties.total_bytes is None else properties.total_bytes
