"""Peak FLOP/s of devices for dense matrix products, by element type, from the vendors' data sheets.

The numbers assume matrix units where a device has them, no sparsity, and 32-bit accumulation. `tf32` is the rate for `float32` inputs that may
be rounded to TF32. A device that is not in the table has no peak: nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.costs.columns import Costs
from kinetoscope.tables.costs.operator_names import table

TERA = 10**12
CUDA = 1


@cache
def hardware_peaks() -> dict[str, dict[str, float]]:
    """TFLOP/s by element type, for regular expressions that match full device names."""
    lines = table("peaks.txt")
    return {
        line.title: {dtype: float(tera) for dtype, _, tera in (name.partition("=") for name in line.names)}
        for line in lines
    }


_registered: dict[str, dict[str, float]] = {}


def register_peak_flops(device: str, peaks: float | Mapping[str, float]) -> None:
    """Register the peak FLOP/s of a device, for the columns that compare with it (`mfu`, `peak_percent`).

    It overrides the built-in table. Use it for CPUs, for devices that the table does not contain, and for devices that run
    below their nominal clock.

    Args:
        device: The name of the device as in `trace.info["devices"]`, or `cpu` for the host.
        peaks: FLOP/s: one number for all element types, or one for each by torch's name (`float32`, `bfloat16`).

    Raises:
        ArgumentError: The name is empty, or a number is not above 0.
    """
    known: object = device
    if not isinstance(known, str) or not known:
        raise ArgumentError(
            f"register_peak_flops(device={device!r}): pass the name of a device as in trace.info['devices'], or 'cpu'"
        )
    _registered[device] = checked_peaks(peaks)


def checked_peaks(peaks: object) -> dict[str, float]:
    """A user's peaks by element type, with `*` for all other types.

    Raises:
        ArgumentError: A peak is not a number above 0.
    """
    named: dict[object, object] = dict(peaks) if isinstance(peaks, Mapping) else {"*": peaks}
    peak_of: dict[str, float] = {}
    for dtype, value in named.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise ArgumentError(
                f"the peak {value!r} FLOP/s for {dtype!r} is not a number above 0; pass one such as 312e12, or a "
                "mapping such as {'bfloat16': 312e12, 'float32': 19.5e12}"
            )
        peak_of[str(dtype)] = float(value)
    return peak_of


def known_peaks(device: str) -> dict[str, float] | None:
    """The peaks of a device by name, registered or built in; None if unknown."""
    if device in _registered:
        return _registered[device]
    for names, peaks in hardware_peaks().items():
        if re.fullmatch(names, device) and "MIG" not in device:
            return {dtype: tera * TERA for dtype, tera in peaks.items()}
    return None


def peak_for(peaks: Mapping[str, float], dtype: str, *, shortened: bool) -> float | None:
    """The peak FLOP/s for an element type; a complex type has the peak of its parts.

    Args:
        peaks: The peaks of a device.
        dtype: The element type.
        shortened: Whether `float32` inputs may be rounded to TF32.

    Returns:
        The peak; None if unknown.
    """
    kind = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    if kind == "float32" and shortened and "tf32" in peaks:
        return peaks["tf32"]
    short = "float8" if kind.startswith("float8") else kind
    return peaks.get(kind, peaks.get(short, peaks.get("*")))


def trace_peaks(trace: TraceData, given: object = None) -> list[dict[str, float]] | None:
    """The peaks of all devices that a trace used; None if any is unknown.

    Args:
        trace: The trace.
        given: The peak of each device as the user gives it, in the forms of `register_peak_flops`; None for the table.

    Raises:
        ArgumentError: `given` is not a number above 0 or a mapping to such numbers.
    """
    model_of = {(device.type, device.index): device.name for device in trace.run_info.devices}
    streams = trace.columns("streams")
    used = set(zip(streams["device_type"].tolist(), streams["device_index"].tolist(), strict=True))
    if given is not None:
        return [checked_peaks(given)] * max(len(used), 1)
    # A device without a known name has no peak.
    models = [model_of.get(("cuda", index), "") if kind == CUDA else "" for kind, index in sorted(used)]
    if not used:
        cpu = model_of.get(("cpu", -1), "cpu")
        models = [cpu if cpu in _registered else "cpu"]
    peaks = [peaks for model in models if (peaks := known_peaks(model)) is not None]
    return peaks if len(peaks) == len(models) else None


# Families whose operations run on matrix units.
MATRIX = frozenset({"matmul", "convolution", "attention", "recurrent", "registered"})


def working_ns(trace: TraceData) -> Rows:
    """The device time of each span that launched device work, and the duration of any other."""
    spans = trace.columns("spans")
    on_device: Rows = spans["device_ns"]
    return np.where(on_device > 0, on_device, spans["duration_ns"])


def _quotient(part: NDArray[Any], whole: Rows, known: Mask) -> NDArray[np.float64]:
    quotient = np.full(len(part), np.nan)
    quotient[known] = part[known] / whole[known]
    return quotient


def per_second(flops: Rows, time_ns: Rows) -> NDArray[np.float64]:
    """FLOP/s; null without time or counted operations."""
    return _quotient(flops * 1e9, time_ns, (flops > 0) & (time_ns > 0))


def per_byte(flops: Rows, moved: Rows) -> NDArray[np.float64]:
    """FLOPs per byte; null if the bytes are unknown."""
    return _quotient(flops, moved, (flops >= 0) & (moved > 0))


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
    shortened = trace.run_info.float32_matmul_precision in ("high", "medium")
    seconds = np.zeros(len(calls.first))
    for row, (family, dtype) in enumerate(zip(calls.family, calls.dtype, strict=True)):
        if family not in MATRIX or calls.flops[row] == 0:
            continue
        # cuDNN shortens the factors of convolutions unless configured otherwise.
        short = shortened or family == "convolution"
        speeds = [peak_for(device, dtype, shortened=short) for device in peaks]
        known_speeds = [speed for speed in speeds if speed is not None]
        seconds[row] = 1.0 / sum(known_speeds) if len(known_speeds) == len(speeds) else np.nan
    return seconds * calls.flops


def at_peak(trace: TraceData, costs: Costs, given: object = None) -> NDArray[np.float64] | None:
    """For each span the seconds that what is counted at it takes at the peak, or None where no peak is known."""
    seconds = least_seconds(trace, costs, given)
    if seconds is None:
        return None
    ideal_s = np.zeros(len(costs.flops))
    rows = np.flatnonzero(costs.counted.counts & (seconds != 0)[costs.calls.of_span])
    call = costs.calls.of_span[rows]
    call_flops = costs.calls.flops[call]
    # Sparse products count less than their distinct call says.
    ideal_s[rows] = seconds[call] * np.where(
        call_flops > 0, costs.flops[rows] / np.maximum(call_flops, 1), 1.0
    )
    return ideal_s


def share_of_peak(ideal_s: NDArray[np.float64], time_ns: Rows) -> NDArray[np.float64]:
    """The time at the peak in percent of the time it took; null where there is no time or no work for matrix units."""
    return _quotient(ideal_s * 1e11, time_ns, (time_ns > 0) & (ideal_s > 0))
