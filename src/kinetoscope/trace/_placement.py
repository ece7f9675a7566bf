"""Where a trace lies on the axis of time of another one, and how surely.

A clock of another machine runs faster or slower than ours, by some parts in a million: so a moment of a trace is moved, and
stretched from the trace's own beginning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kinetoscope.trace._trace import Trace

ONE_TRACE, MONOTONIC, WALL, UNKNOWN = "", "monotonic", "wall", "unknown"
# Two readings of clocks that are taken one after the other are not closer than this.
_LEAST_READING_ERROR_NS = 1_000


@dataclass(frozen=True)
class Placement:
    """How a moment `t` of a trace is told on the common axis: `offset_ns + t + round(t * drift)`.

    Attributes:
        offset_ns: Where its time 0 lies, in nanoseconds.
        drift: How much longer its nanoseconds are there, as a part of them; between -0.5 and 0.5.
        error_ns: By how many nanoseconds any of its moments may be off from those of the first trace; -1 where nobody knows.
        clock: By what it was found: `monotonic` (the clock of one machine), `wall`, `barriers`, `collectives`, `given`, or
            `unknown` where the traces were taken to have begun together.
        facts: What else is to be told of how it was found.
    """

    offset_ns: int
    drift: float = 0.0
    error_ns: int = -1
    clock: str = "given"
    facts: dict[str, Any] = field(default_factory=dict)

    def at(self, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Moments of the trace on the common axis; a later moment never comes to lie before an earlier one."""
        if self.drift == 0.0:
            return np.asarray(time_ns + np.int64(self.offset_ns))
        return np.asarray(time_ns + np.rint(time_ns * self.drift).astype(np.int64) + np.int64(self.offset_ns))

    def lasting(self, start_ns: NDArray[np.int64], duration_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """How long spans take there, so that what ended together, or one inside the other, still does."""
        if self.drift == 0.0:
            return duration_ns
        return self.at(start_ns + duration_ns) - self.at(start_ns)


def one_machine(traces: Sequence[Trace]) -> list[Placement] | None:
    """Place traces by the monotonic clock of the machine that all were recorded on.

    Args:
        traces: The traces; recordings say what is needed in `info["start_monotonic_ns"]` and `info["boot_id"]`.

    Returns:
        A place for each, the first at 0; None if they are not known to be of one machine and one start of it. The error is that
        of reading the clock: twice the largest deviation of the readings that the recordings themselves have, and 2
        microseconds at least.
    """
    boots = {trace.info.get("boot_id") for trace in traces}
    begins = [trace.info.get("start_monotonic_ns") for trace in traces]
    known = [begin for begin in begins if type(begin) is int and begin >= 0]
    if len(boots) > 1 or not isinstance(next(iter(boots), None), str) or len(known) < len(begins):
        return None
    errors = [_reading_error_ns(trace) for trace in traces]
    return [
        Placement(begin - known[0], error_ns=0 if place == 0 else errors[0] + error, clock=MONOTONIC)
        for place, (begin, error) in enumerate(zip(known, errors, strict=True))
    ]


def by_wall_clock(traces: Sequence[Trace]) -> list[Placement]:
    """Place traces by the clocks on the wall of their machines, which may differ by any time.

    Returns:
        A place for each, the first at 0, with an unknown error. A trace that does not say when it began is taken to have begun
        with the first.
    """
    begins = [_realtime_ns(trace) for trace in traces]
    made: list[Placement] = []
    for place, begin in enumerate(begins):
        known = begin > 0 and begins[0] > 0
        error_ns = -1 if place else 0
        made.append(
            Placement(begin - begins[0] if known else 0, error_ns=error_ns, clock=WALL if known else UNKNOWN)
        )
    return made


def checked_drift(drift: float) -> bool:
    """Whether a drift is one that a clock can have."""
    return math.isfinite(drift) and -0.5 < drift < 0.5


def _realtime_ns(trace: Trace) -> int:
    """The clock on the wall when a trace began, 0 where it does not say."""
    known = trace.info.get("start_realtime_ns")
    return known if type(known) is int else 0


def _reading_error_ns(trace: Trace) -> int:
    """How far a recording's own clock readings are apart."""
    checks = trace.info.get("clock_checks")
    largest = checks.get("largest_error_ns") if isinstance(checks, dict) else 0
    return max(_LEAST_READING_ERROR_NS, largest if type(largest) is int else 0)
