"""The clocks of this machine, and its boot: recordings of the same boot share a monotonic clock."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

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


@dataclass(frozen=True)
class ClockReading:
    """The monotonic and the real-time clock, read at the same moment, in nanoseconds."""

    monotonic_ns: int
    realtime_ns: int

    @classmethod
    def now(cls) -> ClockReading:
        """Read both."""
        return cls(time.monotonic_ns(), time.time_ns())

    def begin_of(self, trace: Trace) -> int:
        """When a trace that was recorded around this reading began, by the monotonic clock."""
        run = trace.run_info
        if run.start_monotonic_ns is not None:
            return run.start_monotonic_ns
        return self.monotonic_ns + (run.start_realtime_ns or self.realtime_ns) - self.realtime_ns
