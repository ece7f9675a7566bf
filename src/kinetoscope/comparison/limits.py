"""What a run may be limited to. Loaded in every run of pytest, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Limit -> what the number counts.
LIMITS = {
    "max_step_ms": "milliseconds that a step takes",
    "max_operators": "operators and backward functions, inner ones included",
    "max_allocations": "allocations of memory",
    "max_peak_bytes": "bytes of memory held at once on a device",
    "max_kernels": "kernels on devices",
}
WARMUP = "warmup_steps"


@dataclass(frozen=True)
class Limits:
    """The limits of one run.

    Attributes:
        allowed: The limits that are set.
        warmup_steps: How many of the first steps `max_step_ms` skips.
        settings: What is recorded, as keywords of `profile`.
    """

    allowed: Mapping[str, float]
    warmup_steps: int
    settings: Mapping[str, bool]
