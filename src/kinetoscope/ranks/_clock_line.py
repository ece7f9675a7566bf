"""The difference of two clocks as a straight line, from moments that it is known to lie above or below at."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Values = NDArray[np.float64]

# No two clocks of computers run further apart: crystals are off by up to 50 parts in a million, and a system that follows
# the time of a network bends its clock by at most 500.
MOST_DRIFT = 1e-3
_ROUNDS = 120


@dataclass(frozen=True)
class Bounds:
    """What is known of the difference `d(t)` that has to be added to a clock to get another one's time.

    Attributes:
        above_at_ns: Moments of the clock.
        above_ns: `d` is at least this at each of them.
        below_at_ns: Further moments.
        below_ns: `d` is at most this at each of them.
    """

    above_at_ns: NDArray[np.int64]
    above_ns: NDArray[np.int64]
    below_at_ns: NDArray[np.int64]
    below_ns: NDArray[np.int64]

    def relaxed(self, error_ns: int) -> Bounds:
        """The same, each bound further away by what the readings may be off."""
        return Bounds(self.above_at_ns, self.above_ns - error_ns, self.below_at_ns, self.below_ns + error_ns)


@dataclass(frozen=True)
class ClockLine:
    """`d(t) = offset_ns + drift * t`, and how wrong it can be.

    Attributes:
        offset_ns: The difference at 0.
        drift: How it changes, in nanoseconds for each.
        error_ns: No line within all bounds is further away than this, between the moments asked for.
        violated_ns: By how much the bounds contradict each other: 0 where some line keeps to all. Where it is above 0 they
            were all moved away by that much, and `error_ns` holds for those.
    """

    offset_ns: float
    drift: float
    error_ns: int
    violated_ns: int


def fit(bounds: Bounds, begin_ns: int, end_ns: int, most_drift: float = MOST_DRIFT) -> ClockLine | None:
    """The line in the middle of all that keep to the bounds.

    The difference of two clocks is taken for a straight line whose drift is at most `most_drift`; then every possible one is
    among those that keep to the bounds, and the line that is returned is no further from it than `error_ns` at any
    moment between the two. At each of these it is half-way between the highest and the lowest.

    Args:
        bounds: What is known.
        begin_ns: Where the line is wanted from, of the clock.
        end_ns: And to where.
        most_drift: How far the two clocks may run apart, in parts.

    Returns:
        The line; None where nothing bounds it on one of its sides.
    """
    if len(bounds.above_ns) == 0 or len(bounds.below_ns) == 0:
        return None
    # Near 0, where a double counts single nanoseconds.
    base_ns, middle_ns = int(bounds.above_ns.max()), (begin_ns + end_ns) // 2
    low, low_at = _near(bounds.above_ns, base_ns), _near(bounds.above_at_ns, middle_ns)
    high, high_at = _near(bounds.below_ns, base_ns), _near(bounds.below_at_ns, middle_ns)
    violated = 0

    def lowest(drift: float) -> float:
        return float((low - drift * low_at).max())

    def highest(drift: float) -> float:
        return float((high - drift * high_at).min())

    def room(drift: float) -> float:
        return highest(drift) - lowest(drift)

    best = _top(room, -most_drift, most_drift)
    if room(best) < 0:
        violated = math.ceil(-room(best) / 2)
        low, high = low - violated, high + violated
    least, most = _edge(room, best, -most_drift), _edge(room, best, most_drift)
    ends = []
    for at_ns in (begin_ns, end_ns):
        at = float(at_ns - middle_ns)
        up = _top(lambda drift, at=at: highest(drift) + drift * at, least, most)  # type: ignore[misc]
        down = _top(lambda drift, at=at: -lowest(drift) - drift * at, least, most)  # type: ignore[misc]
        ends.append((lowest(down) + down * at, highest(up) + up * at))
    (begin_low, begin_high), (end_low, end_high) = ends
    first, last = (begin_low + begin_high) / 2, (end_low + end_high) / 2
    drift = (last - first) / (end_ns - begin_ns) if end_ns > begin_ns else best
    half = max(begin_high - begin_low, end_high - end_low) / 2
    # One nanosecond more for the rounding of what is computed here, and one for that of what is moved by it.
    return ClockLine(base_ns + first - drift * begin_ns, drift, math.ceil(max(half, 0.0)) + 2, violated)


def _near(values: NDArray[np.int64], base: int) -> Values:
    """Numbers as their distance from another one."""
    return (values - np.int64(base)).astype(np.float64)


def _top(concave: Callable[[float], float], low: float, high: float) -> float:
    """Where a concave function is largest."""
    for _ in range(_ROUNDS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if concave(left) < concave(right):
            low = left
        else:
            high = right
    return (low + high) / 2


def _edge(concave: Callable[[float], float], inside: float, outside: float) -> float:
    """How far from a point where it is not negative a concave function stays so, towards another point."""
    if concave(outside) >= 0:
        return outside
    for _ in range(_ROUNDS):
        middle = (inside + outside) / 2
        if concave(middle) >= 0:
            inside = middle
        else:
            outside = middle
    # The outer side of the edge: of what is possible nothing may be left out.
    return outside
