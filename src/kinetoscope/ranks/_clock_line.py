"""The difference of two clocks as a straight line, from moments that it is known to lie above or below at."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Values = NDArray[np.float64]

# No two clocks of computers run further apart: crystals are off by up to 50 parts in a million, and a system that follows
# the time of a network bends its clock by at most 500.
MOST_DRIFT = 1e-3
# And nearly none further than this.
_WORKING_DRIFT = 1e-4
# What tells a drift from chance where it is estimated: how far clocks usually run apart, in parts, how far apart from each
# other guesses are at least, and how many of them at most are taken for independent, for a busy machine is late many times.
_USUAL_DRIFT, _LEAST_SPREAD_NS, _INDEPENDENT = 2e-5, 5e3, 20
# An interval of 0.001 has shrunk below what a double tells apart in it.
_ROUNDS, _GOLDEN = 64, (math.sqrt(5) - 1) / 2


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
class Guesses:
    """What the difference probably is at some moments; each may be off by any time.

    Attributes:
        at_ns: Moments of the clock.
        guess_ns: `d` is about this at each of them.
    """

    at_ns: NDArray[np.int64]
    guess_ns: NDArray[np.int64]


class _Possible:
    """All lines within some bounds whose drift is small enough: a convex set in the plane of offset and drift."""

    def __init__(self, bounds: Bounds, origin_ns: int, most_drift: float) -> None:
        """Moments are counted from `origin_ns`; bounds that contradict each other are moved apart until one line keeps to all."""
        # Near 0, where a double counts single nanoseconds.
        self.origin_ns, self.base_ns = origin_ns, int(bounds.above_ns.max())
        self._low, self._low_at = _near(bounds.above_ns, self.base_ns), _near(bounds.above_at_ns, origin_ns)
        self._high, self._high_at = _near(bounds.below_ns, self.base_ns), _near(bounds.below_at_ns, origin_ns)
        best = _top(self._room, -most_drift, most_drift)
        # Less than half a nanosecond is what was rounded here.
        self.violated_ns = max(0, math.ceil(-self._room(best) / 2 - 0.5))
        self._low, self._high = self._low - self.violated_ns, self._high + self.violated_ns
        self.least, self.most = (
            _edge(self._room, best, -most_drift),
            _edge(self._room, best, most_drift),
        )

    def lowest(self, drift: float) -> float:
        """The least difference at the origin that a line of this drift can have."""
        return float((self._low - drift * self._low_at).max())

    def highest(self, drift: float) -> float:
        """The largest one."""
        return float((self._high - drift * self._high_at).min())

    def range_at(self, at_ns: int, most_drift: float = math.inf) -> tuple[float, float]:
        """Between what the difference lies at a moment, from `base_ns`, for drifts up to `most_drift` where there are such."""
        at = float(at_ns - self.origin_ns)
        least, most = max(self.least, -most_drift), min(self.most, most_drift)
        if least > most:
            least, most = self.least, self.most
        up = _top(lambda drift: self.highest(drift) + drift * at, least, most)
        down = _top(lambda drift: -self.lowest(drift) - drift * at, least, most)
        return self.lowest(down) + down * at, self.highest(up) + up * at

    def _room(self, drift: float) -> float:
        return self.highest(drift) - self.lowest(drift)


@dataclass(frozen=True)
class ClockLine:
    """`d(t) = offset_ns + drift * t`, and how wrong it can be.

    Attributes:
        offset_ns: The difference at 0.
        drift: How it changes, in nanoseconds for each.
        violated_ns: By how much the bounds contradict each other: 0 where some line keeps to all. Where it is above 0 they
            were all moved away by that much, and errors hold for those.
    """

    offset_ns: float
    drift: float
    violated_ns: int
    _possible: _Possible = field(repr=False, compare=False)

    def error_ns(self, begin_ns: int, end_ns: int) -> int:
        """No line within all bounds is further away than this at any moment between the two."""
        farthest = 0.0
        # How far the farthest line is away is a convex function of time, and largest at an end.
        for at_ns in (begin_ns, end_ns):
            low, high = self._possible.range_at(at_ns)
            here = self.offset_ns - self._possible.base_ns + self.drift * at_ns
            farthest = max(farthest, high - here, here - low)
        # One nanosecond more for the rounding of what is computed here, and one for that of what is moved by it.
        return math.ceil(farthest) + 2


def fit(
    bounds: Bounds, begin_ns: int, end_ns: int, most_drift: float = MOST_DRIFT, guesses: Guesses | None = None
) -> ClockLine | None:
    """A line that keeps to the bounds: the likeliest by the guesses, or without these the one in the middle.

    The difference of two clocks is taken for a straight line whose drift is at most `most_drift`; then it is among those that
    keep to the bounds, and `ClockLine.error_ns` says how far the farthest of these is away. The line in the middle is half-way
    between the highest and the lowest of them at both moments, of those only that clocks in order can have where there are
    such. With guesses that are closer to each other than the bounds are,
    it is the line, of those that keep to the bounds, that the guesses are the least away from in sum (which single bad ones
    do not move), where a drift has to be worth it: clocks that run apart by parts in 100,000 are usual, by more are not.

    Args:
        bounds: What is known.
        begin_ns: Where the line is wanted from, of the clock.
        end_ns: And to where.
        most_drift: How far the two clocks may run apart, in parts.
        guesses: What the difference probably is.

    Returns:
        The line; None where nothing bounds it on one of its sides.
    """
    if len(bounds.above_ns) == 0 or len(bounds.below_ns) == 0:
        return None
    possible = _Possible(bounds, (begin_ns + end_ns) // 2, most_drift)
    chosen = None if guesses is None or len(guesses.at_ns) == 0 else _likeliest(possible, guesses)
    drift, at_origin = chosen or _middle(possible, begin_ns, end_ns)
    offset_ns = possible.base_ns + at_origin - drift * possible.origin_ns
    return ClockLine(offset_ns, drift, possible.violated_ns, possible)


def _middle(possible: _Possible, begin_ns: int, end_ns: int) -> tuple[float, float]:
    """The drift, and the difference at the origin, half-way between all that is possible for clocks that work."""
    (begin_low, begin_high), (end_low, end_high) = (
        possible.range_at(moment, _WORKING_DRIFT) for moment in (begin_ns, end_ns)
    )
    first, last = (begin_low + begin_high) / 2, (end_low + end_high) / 2
    drift = (
        (last - first) / (end_ns - begin_ns) if end_ns > begin_ns else (possible.least + possible.most) / 2
    )
    return drift, first + drift * (possible.origin_ns - begin_ns)


def _likeliest(possible: _Possible, guesses: Guesses) -> tuple[float, float] | None:
    """The drift, and the difference at the origin, that fit the guesses best; None where the bounds say more than they do."""
    at, guess = _near(guesses.at_ns, possible.origin_ns), _near(guesses.guess_ns, possible.base_ns)

    def at_origin(drift: float) -> float:
        middle = float(np.median(guess - drift * at))
        return min(max(middle, possible.lowest(drift)), possible.highest(drift))

    def away_ns(drift: float) -> Values:
        return np.abs(guess - drift * at - at_origin(drift))

    closest = _top(lambda drift: -float(away_ns(drift).sum()), possible.least, possible.most)
    spread_ns = max(float(np.median(away_ns(closest))), _LEAST_SPREAD_NS)
    low, high = possible.range_at(possible.origin_ns)
    if spread_ns > (high - low) / 2:
        return None
    weight = min(len(guess), _INDEPENDENT) / spread_ns
    drift = _top(
        lambda drift: -float(away_ns(drift).mean()) * weight - abs(drift) / _USUAL_DRIFT,
        possible.least,
        possible.most,
    )
    return drift, at_origin(drift)


def _near(values: NDArray[np.int64], base: int) -> Values:
    """Numbers as their distance from another one."""
    return (values - np.int64(base)).astype(np.float64)


def _top(concave: Callable[[float], float], low: float, high: float) -> float:
    """Where a concave function is largest, by golden sections."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = concave(left), concave(right)
    for _ in range(_ROUNDS):
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = concave(right)
        else:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = concave(left)
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
