"""The times in which collection was switched off, so that gaps are not mistaken for idle time."""

from __future__ import annotations

import math
from collections.abc import Iterable

# The table of a recording that has a row for each activity that was switched off or on.
TOGGLES = "toggles"

Pause = dict[str, str | int | None]


class Pauses:
    """When each activity was off, in nanoseconds of the system's clock; an open end is still off."""

    def __init__(self) -> None:
        """Begin with everything on."""
        self._off: dict[str, int] = {}
        self._ended: list[Pause] = []

    def toggle(self, enable: bool, activities: Iterable[str], now_ns: int) -> bool:
        """Note a switch at that time, by the names of activities; return whether it changed anything."""
        changed = False
        for name in activities:
            if enable and name in self._off:
                self._ended.append(_pause(name, self._off.pop(name), now_ns))
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

    def as_list(self) -> list[Pause]:
        """All of them as the metadata `pauses` of a trace has them: those that ended, in that order, then the others."""
        return [*self._ended, *(_pause(name, since_ns, None) for name, since_ns in self._off.items())]


def _pause(activity: str, from_ns: int, to_ns: int | None) -> Pause:
    return {"activity": activity, "from_realtime_ns": from_ns, "to_realtime_ns": to_ns}
