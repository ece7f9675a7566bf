"""Format times, sizes and shares as the tables of torch.profiler do."""

from __future__ import annotations

import math
import sys

TIME_UNITS = {"s": 1_000_000.0, "ms": 1000.0, "us": 1.0}
FLOPS_UNITS = ("FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs")


def time_text(time_us: float, unit: str | None = None) -> str:
    """Return a time with three decimals in `unit`, or in the largest unit that leaves at least 1."""
    if unit is None:
        unit = next((name for name, size in TIME_UNITS.items() if time_us >= size), "us")
    return f"{time_us / TIME_UNITS[unit]:.3f}{unit}"


def size_text(size_bytes: int) -> str:
    """Return a size in the largest binary unit that leaves at least 1; below 1 KB in bytes.

    Releases of torch differ in the letters of the units; a program that uses torch gets those of its torch.
    """
    # Looked up and not imported: reading a trace must neither need nor load torch.
    theirs = getattr(sys.modules.get("torch.autograd.profiler_util"), "_format_memory", None)
    if theirs is not None:
        return str(theirs(size_bytes))
    for power, unit in ((3, "GB"), (2, "MB"), (1, "KB")):
        if abs(size_bytes) >= 1024**power:
            return f"{size_bytes / 1024**power:.2f} {unit}"
    return f"{size_bytes} B"


def share_text(part: float, whole: float) -> str:
    """Return `part` in percent of `whole`; `NaN` if `whole` is 0."""
    return f"{part * 100 / whole:.2f}%" if whole else "NaN"


def flops_scale(smallest: int) -> tuple[str, float]:
    """Return the largest decimal unit of FLOPs that leaves at least 1 for `smallest`, and its size in FLOPs."""
    power = max(0, min(math.floor(math.log10(smallest) / 3), len(FLOPS_UNITS) - 1))
    return FLOPS_UNITS[power], 1000.0**power
