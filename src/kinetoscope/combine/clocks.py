"""Puts the clocks of many recordings on one axis, by the barriers and collectives ("meetings") at which they were together.

The difference of two clocks is taken as a straight line. Nobody leaves a meeting before all have entered it, so each clock that was there bounds
its time, and these bounds hold for all clocks that were there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.groups import Groups
from kinetoscope.model.processes import MONOTONIC
from kinetoscope.model.rows import Mask, Rows, ends_run, mask_of

Times = Rows
Values = NDArray[np.float64]

# The largest drift between two clocks: crystals are off by up to 50 ppm, and NTP adjusts a clock by at most 500 ppm.
MOST_DRIFT = 1e-3
# Nearly all clocks drift less than this.
_WORKING_DRIFT = 1e-4
# To tell a drift from noise: the usual drift, the least spread of guesses, and how many of them count as independent, because a busy
# machine delays many at once.
_USUAL_DRIFT, _LEAST_SPREAD_NS, _INDEPENDENT = 2e-5, 5e3, 20
# More guesses, as of a thousand ranks, would cost time and change nothing.
_MOST_GUESSES = 100
# Golden-section search: after so many rounds an interval of 0.001 is a drift below a nanosecond per hour.
_ROUNDS, _GOLDEN = 48, (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Bounds:
    """Limits of the difference `d(t)` between two clocks, which is added to the time of one to get that of the other.

    Attributes:
        above_at_ns: Moments of the clock.
        above_ns: `d` is at least this at each of them.
        below_at_ns: Further moments.
        below_ns: `d` is at most this at each of them.
    """

    above_at_ns: Times
    above_ns: Times
    below_at_ns: Times
    below_ns: Times

    def relaxed(self, error_ns: int) -> Bounds:
        """These bounds, each moved outwards by an error of the readings."""
        return Bounds(self.above_at_ns, self.above_ns - error_ns, self.below_at_ns, self.below_ns + error_ns)


@dataclass(frozen=True)
class Guesses:
    """Estimates of the difference at some moments; each may be off by any amount.

    Attributes:
        at_ns: Moments of the clock.
        guess_ns: Estimates of `d` at these moments.
    """

    at_ns: Times
    guess_ns: Times


class _Possible:
    """All lines within bounds and `MOST_DRIFT`: a convex polygon in the plane of drift and difference at the origin."""

    def __init__(self, bounds: Bounds, origin_ns: int) -> None:
        """Count moments from `origin_ns`; relax contradictory bounds until one line satisfies all of them."""
        # Near 0, where a double counts single nanoseconds.
        self.origin_ns, self.base_ns = origin_ns, int(bounds.above_ns.max())
        low, low_at = _near(bounds.above_ns, self.base_ns), _near(bounds.above_at_ns, origin_ns)
        high, high_at = _near(bounds.below_ns, self.base_ns), _near(bounds.below_at_ns, origin_ns)
        low_hull, high_hull = (_upper_hull(low_at, low), _upper_hull(high_at, -high))
        low, low_at, high, high_at = low[low_hull], low_at[low_hull], high[high_hull], high_at[high_hull]
        turns = [np.diff(low) / np.diff(low_at), np.diff(high) / np.diff(high_at)]
        drifts = np.unique(
            np.clip(np.concatenate([[-MOST_DRIFT, MOST_DRIFT], *turns]), -MOST_DRIFT, MOST_DRIFT)
        )
        lowest = (low - drifts[:, None] * low_at).max(axis=1)
        highest = (high - drifts[:, None] * high_at).min(axis=1)
        room = highest - lowest
        best = int(np.argmax(room))
        # Less than half a nanosecond is rounding.
        self.violated_ns = max(0, math.ceil(-room[best] / 2 - 0.5))
        room += 2 * self.violated_ns
        room[best] = max(room[best], 0.0)
        # Between the drifts at which a bound takes over from another, all is straight.
        inside = drifts[room >= 0]
        before, behind = drifts[drifts < inside[0]][-1:], drifts[drifts > inside[-1]][:1]
        ends = [_crossing(outer, inside[end], drifts, room) for end, outer in ((0, before), (-1, behind))]
        self._drifts = np.unique(np.concatenate([*ends, inside]))
        self._lowest = np.interp(self._drifts, drifts, lowest) - self.violated_ns
        self._highest = np.interp(self._drifts, drifts, highest) + self.violated_ns
        self.least, self.most = float(self._drifts[0]), float(self._drifts[-1])

    def limits(self, drift: float) -> tuple[float, float]:
        """The least and the largest difference at the origin that a line of this drift can have."""
        return float(np.interp(drift, self._drifts, self._lowest)), float(
            np.interp(drift, self._drifts, self._highest)
        )

    def range_at(self, at_ns: Times, most_drift: float = math.inf) -> tuple[Values, Values]:
        """The range of the difference at some moments, relative to `base_ns`, for drifts up to `most_drift` if any line has one."""
        least, most = max(self.least, -most_drift), min(self.most, most_drift)
        if least > most:
            least, most = self.least, self.most
        drifts = np.clip(self._drifts, least, most)
        lowest, highest = (np.interp(drifts, self._drifts, limit) for limit in (self._lowest, self._highest))
        moved = np.multiply.outer(drifts, _near(at_ns, self.origin_ns))
        return (moved + lowest[:, None]).min(axis=0), (moved + highest[:, None]).max(axis=0)


@dataclass(frozen=True)
class ClockLine:
    """`d(t) = offset_ns + drift * t`, and how wrong it can be.

    Attributes:
        offset_ns: The difference at 0.
        drift: Its change per nanosecond.
        violated_ns: How much the bounds contradict each other; 0 if a line satisfies all. Above 0, all bounds were relaxed by
            it, and errors refer to the relaxed ones.
    """

    offset_ns: float
    drift: float
    violated_ns: int
    _possible: _Possible | None = field(repr=False, compare=False, default=None)

    def error_ns(self, begin_ns: int, end_ns: int) -> int:
        """The largest distance to any other line within the bounds, at any moment between the two."""
        if self._possible is None:
            return 0
        # The distance is a convex function of time, so it is largest at an end.
        ends = np.array([begin_ns, end_ns], dtype=np.int64)
        low, high = self._possible.range_at(ends)
        here = self.offset_ns - self._possible.base_ns + self.drift * ends
        # One nanosecond for rounding here, and one for rounding the times that are moved by it.
        return math.ceil(max(0.0, float((high - here).max()), float((here - low).max()))) + 2


OWN_CLOCK = ClockLine(0.0, 0.0, 0)
"""From a clock to itself."""


def fit(bounds: Bounds, begin_ns: int, end_ns: int, guesses: Guesses | None = None) -> ClockLine | None:
    """Fit a line within the bounds: the likeliest by the guesses or, without guesses, the one in the middle.

    The true line, with a drift of at most `MOST_DRIFT`, is one of those within the bounds; `ClockLine.error_ns` is the distance to the
    farthest of them. The middle line is half-way between the highest and the lowest one at both moments, of those with a usual drift if
    there are any. If the guesses are closer to each other than the bounds, it is the line with the smallest sum of distances to them, which
    single bad guesses do not move, with a penalty for drifts above 1 in 100,000.

    Args:
        bounds: The limits of the difference.
        begin_ns: Where the line begins, by the clock.
        end_ns: Where it ends.
        guesses: Estimates of the difference.

    Returns:
        The line; None if a side has no bound.
    """
    if len(bounds.above_ns) == 0 or len(bounds.below_ns) == 0:
        return None
    possible = _Possible(bounds, (begin_ns + end_ns) // 2)
    chosen = None if guesses is None or len(guesses.at_ns) == 0 else _likeliest(possible, guesses)
    drift, at_origin = chosen or _middle(possible, begin_ns, end_ns)
    offset_ns = possible.base_ns + at_origin - drift * possible.origin_ns
    return ClockLine(offset_ns, drift, possible.violated_ns, possible)


def _middle(possible: _Possible, begin_ns: int, end_ns: int) -> tuple[float, float]:
    """The drift and the offset at the origin, half-way between the extremes that clocks in order allow."""
    low, high = possible.range_at(np.array([begin_ns, end_ns], dtype=np.int64), _WORKING_DRIFT)
    first, last = ((low + high) / 2).tolist()
    drift = (
        (last - first) / (end_ns - begin_ns) if end_ns > begin_ns else (possible.least + possible.most) / 2
    )
    return drift, first + drift * (possible.origin_ns - begin_ns)


def _likeliest(possible: _Possible, guesses: Guesses) -> tuple[float, float] | None:
    """The drift and the offset at the origin that fit the guesses best; None where the bounds are tighter than the guesses."""
    moments, guess = _near(guesses.at_ns, possible.origin_ns), _near(guesses.guess_ns, possible.base_ns)

    def at_origin(drift: float) -> float:
        return float(np.clip(np.median(guess - drift * moments), *possible.limits(drift)))

    def away_ns(drift: float) -> Values:
        return np.abs(guess - drift * moments - at_origin(drift))

    closest = _top(lambda drift: -float(away_ns(drift).sum()), possible.least, possible.most)
    spread_ns = max(float(np.median(away_ns(closest))), _LEAST_SPREAD_NS)
    low, high = possible.range_at(np.array([possible.origin_ns]))
    if spread_ns > (high[0] - low[0]) / 2:
        return None
    weight = min(len(guess), _INDEPENDENT) / spread_ns
    drift = _top(
        lambda drift: -float(away_ns(drift).mean()) * weight - abs(drift) / _USUAL_DRIFT,
        possible.least,
        possible.most,
    )
    return drift, at_origin(drift)


def _near(values: Times, base: int) -> Values:
    return (values - np.int64(base)).astype(np.float64)


def _top(concave: Callable[[float], float], low: float, high: float) -> float:
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


def _crossing(outer: Values, inner: float, drifts: Values, room: Values) -> Values:
    """Where the range of possible lines ends, between a drift that has some and the next one, which has none."""
    if len(outer) == 0:
        return outer
    none, some = np.interp([outer[0], inner], drifts, room)
    return np.asarray(inner + (outer - inner) * (some / (some - none)))


def _upper_hull(moments: Values, value: Values, owner: Rows | None = None) -> Rows:
    """The corners of the upper convex hull of each owner's points, in order of owner and moment."""
    whose = np.zeros(len(moments), dtype=np.int64) if owner is None else owner
    order = np.lexsort((value, moments, whose))
    # The highest of each moment.
    rows = order[ends_run(whose[order], moments[order])]
    while len(rows) > 2:
        x, y, who = moments[rows], value[rows], whose[rows]
        below = (y[1:-1] - y[:-2]) * (x[2:] - x[:-2]) <= (y[2:] - y[:-2]) * (x[1:-1] - x[:-2])
        # A point below a line between two others is no corner, even if one of these is no corner either.
        below &= who[2:] == who[:-2]
        if not below.any():
            break
        rows = rows[np.concatenate([[True], ~below, [True]])]
    return np.asarray(rows)


# Smaller gains are not worth another round.
_LEAST_GAIN, _LEAST_GAIN_NS = 0.02, 10
_UNKNOWN_LOW, _UNKNOWN_HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Visits:
    """Which clock was at which meeting, one row each, with times on the axis of the clock.

    Attributes:
        clock: The number of the clock.
        meeting: The number of the meeting.
        entered_ns: The latest moment at which it had certainly not left.
        left_ns: The earliest moment at which it had certainly left.
        together: Whether all usually leave the meeting at the same moment.
    """

    clock: Rows
    meeting: Rows
    entered_ns: Times
    left_ns: Times
    together: Mask


class _Solver:
    """Bounds on the times of meetings, on the axis of the reference, and the lines of clocks that follow from them."""

    def __init__(self, visits: Visits, begin_ns: Times, end_ns: Times, reference: int) -> None:
        order = np.argsort(visits.clock, kind="stable")
        self.clock, self.meeting = visits.clock[order], visits.meeting[order]
        self.entered_ns, self.left_ns = visits.entered_ns[order], visits.left_ns[order]
        self.together = visits.together[order]
        self.begin_ns, self.end_ns = begin_ns, end_ns
        self.first = np.searchsorted(self.clock, np.arange(len(begin_ns) + 1))
        meetings = int(self.meeting.max(initial=-1)) + 1
        self.low = np.full(meetings, _UNKNOWN_LOW)
        self.high = np.full(meetings, _UNKNOWN_HIGH)
        # Clocks by the round in which they were reached.
        self.reached: list[list[int]] = [[reference]]
        self.contradicted_ns = np.zeros(len(begin_ns), dtype=np.int64)
        reference_rows = slice(self.first[reference], self.first[reference + 1])
        np.maximum.at(self.low, self.meeting[reference_rows], self.entered_ns[reference_rows])
        np.minimum.at(self.high, self.meeting[reference_rows], self.left_ns[reference_rows])
        self.reference = reference

    def bounds(self, clocks: Mask) -> dict[int, Bounds]:
        """The bounds of some clocks from their meetings; clocks without bounds on both sides are left out."""
        rows = np.flatnonzero(clocks[self.clock])
        sides = []
        for limit, unknown, moments_ns, sign in (
            (self.low, _UNKNOWN_LOW, self.left_ns, 1),
            (self.high, _UNKNOWN_HIGH, self.entered_ns, -1),
        ):
            side = rows[limit[self.meeting[rows]] != unknown]
            value = limit[self.meeting[side]] - moments_ns[side]
            corners = _upper_hull(
                moments_ns[side].astype(np.float64), sign * value.astype(np.float64), self.clock[side]
            )
            whose = self.clock[side[corners]]
            parts = np.searchsorted(whose, np.arange(len(clocks) + 1))
            sides.append((moments_ns[side[corners]], value[corners], parts))
        (above_at, above, a), (below_at, below, b) = sides
        return {
            clock: Bounds(above_at[a[clock] : a[clock + 1]], above[a[clock] : a[clock + 1]],
                        below_at[b[clock] : b[clock + 1]], below[b[clock] : b[clock + 1]])
            for clock in np.flatnonzero(clocks).tolist()
            if a[clock] < a[clock + 1] and b[clock] < b[clock + 1]
        }  # fmt: skip

    def _tighten(self) -> None:
        """Pass bounds from meetings to clocks and back until they no longer become much tighter."""
        is_reached = mask_of([self.reference], len(self.begin_ns))
        changed = self.low != _UNKNOWN_LOW
        while changed.any():
            due = mask_of(self.clock[changed[self.meeting]], len(is_reached))
            due[self.reference] = False
            of_clocks = self.bounds(due)
            new = [clock for clock in of_clocks if not is_reached[clock]]
            if new:
                self.reached.append(new)
                is_reached[new] = True
            changed = self._narrow(of_clocks)

    def _narrow(self, of_clocks: dict[int, Bounds]) -> Mask:
        """Tighten the bounds of meetings by those of clocks; return which meetings became much tighter."""
        rows, low, high = [], [], []
        for clock, bounds in of_clocks.items():
            clock_rows = slice(self.first[clock], self.first[clock + 1])
            possible = _Possible(bounds, int(self.begin_ns[clock] + self.end_ns[clock]) // 2)
            # A clock that contradicts the others does not bound them.
            if possible.violated_ns == 0:
                rows.append(np.arange(clock_rows.start, clock_rows.stop))
                entered, left = self.entered_ns[clock_rows], self.left_ns[clock_rows]
                low.append(
                    entered + np.floor(possible.range_at(entered)[0]).astype(np.int64) + possible.base_ns
                )
                high.append(left + np.ceil(possible.range_at(left)[1]).astype(np.int64) + possible.base_ns)
        if not rows:
            return np.zeros(len(self.low), dtype=bool)
        row, lows, highs = (np.concatenate(parts) for parts in (rows, low, high))
        meeting, new_low, new_high = self.meeting[row], self.low.copy(), self.high.copy()
        np.maximum.at(new_low, meeting, lows)
        np.minimum.at(new_high, meeting, highs)
        # Where two clocks contradict each other, neither is believed.
        wrong = new_low > new_high
        off_ns = np.maximum(lows - new_high[meeting], new_low[meeting] - highs)
        np.maximum.at(
            self.contradicted_ns, self.clock[row], np.where(wrong[meeting], np.maximum(off_ns, 0), 0)
        )
        new_low[wrong], new_high[wrong] = self.low[wrong], self.high[wrong]
        bounded = (self.low != _UNKNOWN_LOW) & (self.high != _UNKNOWN_HIGH)
        before_ns = np.where(bounded, self.high, 0) - np.where(bounded, self.low, 0)
        gain_ns = before_ns - (np.where(bounded, new_high, 0) - np.where(bounded, new_low, 0))
        gained = bounded & (gain_ns > np.maximum(_LEAST_GAIN_NS, _LEAST_GAIN * before_ns))
        gained |= ~bounded & (new_low != _UNKNOWN_LOW) & ~wrong
        self.low, self.high = new_low, new_high
        return np.asarray(gained)

    def lines(self) -> list[ClockLine | None]:
        """The line of each clock; None if meetings do not connect it to the reference."""
        self._tighten()
        lines: list[ClockLine | None] = [None] * len(self.begin_ns)
        lines[self.reference] = OWN_CLOCK
        reached = mask_of([clock for group in self.reached for clock in group], len(lines))
        reached[self.reference] = False
        of_clocks = self.bounds(reached)
        # When earlier clocks left each meeting, on the axis of the reference.
        left_ns = np.full(len(self.low), np.nan)
        for round_number, group in enumerate(self.reached):
            for clock in group if round_number else ():
                lines[clock] = self._line(clock, of_clocks[clock], left_ns)
            self._add_leaving(left_ns, group, lines)
        return lines

    def _line(self, clock: int, bounds: Bounds, left_ns: Values) -> ClockLine | None:
        rows = np.arange(self.first[clock], self.first[clock + 1])
        rows = rows[self.together[rows] & ~np.isnan(left_ns[self.meeting[rows]])]
        if len(rows) > _MOST_GUESSES:
            rows = rows[np.linspace(0, len(rows) - 1, _MOST_GUESSES).astype(np.int64)]
        left_at_ns = self.left_ns[rows]
        guesses = Guesses(left_at_ns, np.rint(left_ns[self.meeting[rows]]).astype(np.int64) - left_at_ns)
        wider_ns = int(self.contradicted_ns[clock])
        begin_ns, end_ns = int(self.begin_ns[clock]), int(self.end_ns[clock])
        line = fit(bounds.relaxed(wider_ns), begin_ns, end_ns, guesses)
        return line and replace(line, violated_ns=line.violated_ns + wider_ns)

    def _add_leaving(self, left_ns: Values, group: Sequence[int], lines: Sequence[ClockLine | None]) -> None:
        """Estimate when clocks left meetings, where that is unknown, as the median of this group."""
        rows, when = [], []
        for clock in group:
            line, clock_rows = lines[clock], np.arange(self.first[clock], self.first[clock + 1])
            clock_rows = clock_rows[self.together[clock_rows] & np.isnan(left_ns[self.meeting[clock_rows]])]
            if line is not None and len(clock_rows):
                rows.append(clock_rows)
                when.append(self.left_ns[clock_rows] * (1 + line.drift) + line.offset_ns)
        if rows:
            meeting, moment = self.meeting[np.concatenate(rows)], np.concatenate(when)
            order = np.lexsort((moment, meeting))
            met, first, count = np.unique(meeting[order], return_index=True, return_counts=True)
            left_ns[met] = moment[order][first + (count - 1) // 2]


OWN, BARRIERS, COLLECTIVES = "own", "barriers", "collectives"
"""How a clock is aligned, if not by that of its machine: it is the reference, or it was at barriers or collectives with others."""


class Machines(NamedTuple):
    """The machines of some recordings, with one clock each.

    Attributes:
        number: The machine of each recording, numbered by their first recordings.
        offset_ns: Where each recording begins on the axis of its machine, which is that of the machine's first one.
        error_ns: How far its readings of that clock may be off.
    """

    number: Rows
    offset_ns: Times
    error_ns: Times


def machines_of(boots: Sequence[str | None], begin_ns: Times, error_ns: Times) -> Machines:
    """Group recordings by the boot of the machine that they were made on.

    Args:
        boots: The boot id of each recording; empty or None if unknown.
        begin_ns: When each recording began by the clock of the machine; below 0 if unknown.
        error_ns: How far readings of that clock may be off.
    """
    numbers: dict[object, int] = {}
    machine = np.zeros(len(boots), dtype=np.int64)
    for row, boot in enumerate(boots):
        key: object = boot if boot and begin_ns[row] >= 0 else row
        machine[row] = numbers.setdefault(key, len(numbers))
    first = np.array([int(np.argmax(machine == number)) for number in range(len(numbers))])
    several = Groups(machine, len(numbers)).sizes()[machine] > 1
    offset_ns = np.where(several, begin_ns - begin_ns[first][machine], 0)
    return Machines(machine, offset_ns, np.where(several, error_ns, 0))


class Aligned(NamedTuple):
    """The clocks of some recordings.

    Attributes:
        reference: The number of the reference.
        lines: From each clock to that of the reference; None if it cannot be aligned.
        error_ns: How far its times may be off; -1 if it cannot be aligned.
        machine: The machine of each; those of one machine share a clock.
        kinds: At how many barriers, and at how many collectives, it met other machines.
    """

    reference: int
    lines: list[ClockLine | None]
    error_ns: Times
    machine: Rows
    kinds: Rows

    @property
    def is_aligned(self) -> Mask:
        """Whether each clock can be aligned."""
        return np.array([line is not None for line in self.lines], dtype=bool)

    def values(self, name: str) -> Values:
        """An attribute of each line; NaN without a line."""
        return np.array([math.nan if line is None else getattr(line, name) for line in self.lines])

    def clock(self, row: int) -> str | None:
        """How a clock is aligned, in words; None if it is not."""
        if self.lines[row] is None:
            return None
        if row == self.reference:
            return OWN
        if self.machine[row] == self.machine[self.reference]:
            return MONOTONIC
        met_by = self.kinds[:, self.machine == self.machine[row]].any(axis=1)
        return " and ".join(np.array([BARRIERS, COLLECTIVES])[met_by].tolist())


def aligned(visits: Visits, machines: Machines, duration_ns: Times, reference: int | None = None) -> Aligned:
    """Align the clocks of some recordings, those of one machine by its clock.

    Args:
        visits: Which recording was at which meeting, on its own axis; `together` tells collectives from barriers.
        machines: Their machines.
        duration_ns: How long each recording is.
        reference: The machine whose first recording is the reference; None for the one that meetings connect to most recordings.
    """
    machine, offset_ns, reading_ns = machines
    recording, meeting, entered_ns, left_ns, together = vars(visits).values()
    count, clock = int(machine.max()) + 1, machine[recording]
    # For each machine, the last to enter and the first to leave.
    cells = Groups.by([clock, meeting])
    first = cells.first
    last_in = cells.maxima(entered_ns + offset_ns[recording] - reading_ns[recording])
    first_out = cells.minima(left_ns + offset_ns[recording] + reading_ns[recording])
    of_machines = Visits(clock[first], meeting[first], last_in, first_out, together[first])
    is_shared = Groups(of_machines.meeting, int(meeting.max(initial=-1)) + 1).sizes() > 1
    by_recording, by_machine = Groups(recording, len(machine)), Groups(machine, count)
    kinds = np.array([by_recording.sums(is_shared[meeting] & (together == kind)) for kind in (False, True)])
    begin_ns = np.minimum(by_machine.minima(offset_ns), 0)
    end_ns = np.maximum(by_machine.maxima(offset_ns + duration_ns), 0)
    if reference is None:
        reference = Groups(_tied(of_machines, count)[machine], count).largest()
    between = _Solver(of_machines, begin_ns, end_ns, reference).lines()
    row = int(np.argmax(machine == reference))
    lines: list[ClockLine | None] = []
    error_ns = np.full(len(machine), -1, dtype=np.int64)
    for member, number in enumerate(machine.tolist()):
        line = between[number]
        if line is None:
            lines.append(None)
            continue
        # From the axis of the recording to that of its machine, from there to that of the reference's machine, and to that of its first one.
        here_ns = int(offset_ns[member])
        start_ns = line.offset_ns + here_ns * (1 + line.drift) - int(offset_ns[row])
        lines.append(OWN_CLOCK if member == row else ClockLine(start_ns, line.drift, line.violated_ns))
        until_ns = here_ns + int(duration_ns[member])
        error_ns[member] = (
            0 if member == row else line.error_ns(here_ns, until_ns) + reading_ns[member] + reading_ns[row]
        )
    return Aligned(row, lines, error_ns, machine, kinds)


def _tied(visits: Visits, count: int) -> Times:
    """For each clock, the lowest clock that it is connected to by meetings, directly or through others."""
    lowest = np.arange(count)
    while True:
        of_meeting = np.full(int(visits.meeting.max(initial=-1)) + 1, count)
        np.minimum.at(of_meeting, visits.meeting, lowest[visits.clock])
        after = lowest.copy()
        np.minimum.at(after, visits.clock, of_meeting[visits.meeting])
        after = after[after]
        if np.array_equal(after, lowest):
            return lowest
        lowest = after
