"""What the installed release of torch has, where tests of several releases differ.

The releases between 2.8 and 2.11 were not tried: what 2.8 lacks, tests expect from 2.11 on.
"""

from __future__ import annotations

import torch

TORCH: tuple[int, ...] = tuple(map(int, torch.__version__.split(".")[:2]))
# What its events store of an event's metadata: torch 2.15 deprecates `event_metadata`.
METADATA = "metadata" if TORCH >= (2, 15) else "event_metadata"


def notes_what_kernels_compute() -> bool:
    """Whether the compiler can be asked what its kernels compute; older ones note it only in files for debugging."""
    from torch._inductor import config

    return hasattr(config.trace, "provenance_tracking_level")
