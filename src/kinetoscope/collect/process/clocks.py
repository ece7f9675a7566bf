"""The machine's boot, within which all recordings share a monotonic clock, and the offset of that clock."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CLOCKS = Path("/proc/self/ns/time")


def boot() -> dict[str, str]:
    """Return the metadata `boot_id` as a JSON text; empty if the system does not provide it.

    It consists of Linux's random boot id and the id of the time namespace, because a container can have a monotonic clock of
    its own.
    """
    try:
        number = _BOOT_ID.read_text().strip()
    except OSError:
        return {}
    try:
        clocks = f" {os.readlink(_CLOCKS)}"
    except OSError:
        # Kernels before Linux 5.6 have no time namespaces.
        clocks = ""
    return {"boot_id": json.dumps(number + clocks)}


def monotonic_of_realtime_ns() -> int:
    """The monotonic clock minus the system's clock, in nanoseconds; the most precise of three readings."""
    readings = []
    for _ in range(3):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, (before + after) // 2 - wall))
    return min(readings)[1]
