"""The clocks of this machine, and its boot: recordings of the same boot share a monotonic clock."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CLOCKS = Path("/proc/self/ns/time")


def boot() -> dict[str, str]:
    """The key `boot_id` and its JSON text; empty if the system does not provide it.

    It is Linux' own random number of the boot, and the number of the time namespace, in which a container can have a
    monotonic clock of its own.
    """
    try:
        number = _BOOT_ID.read_text().strip()
    except OSError:
        return {}
    try:
        clocks = f" {os.readlink(_CLOCKS)}"
    except OSError:
        # A kernel without time namespaces, which came with Linux 5.6.
        clocks = ""
    return {"boot_id": json.dumps(number + clocks)}


def monotonic_of_realtime_ns() -> int:
    """What has to be added to a clock on the wall to get the monotonic one, as they are now: of three readings the closest."""
    readings = []
    for _ in range(3):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, (before + after) // 2 - wall))
    return min(readings)[1]
