"""How fast: operations a second, operations a byte, and how near to the peak of the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.tables.costs.peaks import peak_for, trace_peaks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData
    from kinetoscope.tables.costs.columns import Costs

# Families whose operations count for the use of the matrix units.
MATRIX = frozenset({"matmul", "convolution", "attention", "recurrent", "registered"})


def working_ns(trace: TraceData) -> NDArray[np.int64]:
    """How long each span worked: on the device where it launched something there, else its duration."""
    spans = trace.columns("spans")
    on_device: NDArray[np.int64] = spans["device_ns"]
    return np.where(on_device > 0, on_device, spans["duration_ns"])


def per_second(flops: NDArray[np.int64], time_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Operations a second; null where there is no time or nothing was counted."""
    found = np.full(len(flops), np.nan)
    known = (flops > 0) & (time_ns > 0)
    found[known] = flops[known] * 1e9 / time_ns[known]
    return found


def per_byte(flops: NDArray[np.int64], moved: NDArray[np.int64]) -> NDArray[np.float64]:
    """Operations a byte; null where the bytes are not known."""
    found = np.full(len(flops), np.nan)
    known = (flops >= 0) & (moved > 0)
    found[known] = flops[known] / moved[known]
    return found


def least_seconds(trace: TraceData, costs: Costs, given: object = None) -> NDArray[np.float64] | None:
    """For each distinct call how long one takes at the peak of its devices, 0 for what is no work for matrix units.

    Args:
        trace: The trace.
        costs: Its costs.
        given: The peak as the user gives it, or None for the table's.

    Returns:
        Seconds, null where the peak for an element type is not known; None where no peak is known at all.

    Raises:
        ArgumentError: `given` cannot be used.
    """
    peaks = trace_peaks(trace, given)
    if peaks is None:
        return None
    calls = costs.calls
    shortened = trace.info.get("float32_matmul_precision") in ("high", "medium")
    seconds = np.zeros(len(calls.first))
    for row, (family, dtype) in enumerate(zip(calls.family, calls.dtype, strict=True)):
        if family not in MATRIX or calls.flops[row] == 0:
            continue
        # cuDNN shortens the factors of convolutions unless told not to.
        short = shortened or family == "convolution"
        speeds = [peak_for(one, dtype, shortened=short) for one in peaks]
        known = [speed for speed in speeds if speed is not None]
        seconds[row] = 1.0 / sum(known) if len(known) == len(speeds) else np.nan
    return seconds * calls.flops


def at_peak(trace: TraceData, costs: Costs, given: object = None) -> NDArray[np.float64] | None:
    """For each span the seconds that what is counted at it takes at the peak, or None where no peak is known."""
    seconds = least_seconds(trace, costs, given)
    if seconds is None:
        return None
    counted: NDArray[np.float64] = np.where(costs.counted.counts, seconds[costs.calls.of_span], 0.0)
    # Sparse products count less than their distinct call says.
    whole = costs.calls.flops[costs.calls.of_span]
    return np.where(whole > 0, counted * costs.flops / np.maximum(whole, 1), counted)


def share_of_peak(ideal_s: NDArray[np.float64], time_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """The time at the peak in percent of the time it took; null where there is no time or no work for matrix units."""
    found = np.full(len(ideal_s), np.nan)
    known = (time_ns > 0) & (ideal_s > 0)
    found[known] = ideal_s[known] * 1e11 / time_ns[known]
    return found
