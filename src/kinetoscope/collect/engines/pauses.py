"""The times in which collection was switched off, so that gaps are not mistaken for idle time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable


class Pauses:
    """When each activity was off, in nanoseconds of the system's clock; an open end is still off."""

    def __init__(self) -> None:
        """Begin with everything on."""
        self._off: dict[str, int] = {}
        self._ended: list[dict[str, str | int | None]] = []

    def toggle(self, enable: bool, activities: Iterable[str]) -> bool:
        """Note a switch, by the names of activities; return whether it changed anything."""
        now_ns = time.time_ns()
        changed = False
        for name in activities:
            if enable and name in self._off:
                self._ended.append(
                    {"activity": name, "from_realtime_ns": self._off.pop(name), "to_realtime_ns": now_ns}
                )
                changed = True
            elif not enable and name not in self._off:
                self._off[name] = now_ns
                changed = True
        return changed

    def windows_ns(self, activity: str) -> list[tuple[int, float]]:
        """When an activity was off, as pairs of start and end; infinite if it is still off."""
        ended = [
            (int(pause["from_realtime_ns"] or 0), float(pause["to_realtime_ns"] or 0))
            for pause in self._ended
            if pause["activity"] == activity
        ]
        return [*ended, *((since_ns, math.inf) for name, since_ns in self._off.items() if name == activity)]

    def as_info(self) -> dict[str, str]:
        """All of them as metadata of the trace; empty if nothing was ever off."""
        still: list[dict[str, str | int | None]] = [
            {"activity": name, "from_realtime_ns": since_ns, "to_realtime_ns": None}
            for name, since_ns in self._off.items()
        ]
        return {"pauses": json.dumps(self._ended + still)} if self._ended or still else {}
