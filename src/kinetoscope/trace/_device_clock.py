"""Whether the times of a device's runtime calls fit those of the operators that made them, which another recorder took.

An operator begins or ends while no call of a runtime is under way on its thread: a call is made by the code between two
such moments, and that is mostly an operator's. A call with one of them inside it shows that the two clocks disagree, by how
much at least; the calls without one show by how much they can disagree at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Times = NDArray[np.int64]

# Above this share of calls that do not fit, the clocks are said to disagree.
MOST_ASTRIDE = 0.01
# A better shift is taken if it leaves at most this share of those calls.
_LEFT_BY_A_SHIFT = 0.25
_LARGEST_SHIFT_NS = 10_000_000
_CANDIDATES, _ROUNDS = 200, 3
_CALLS_TRIED = 20_000


@dataclass(frozen=True)
class ThreadTimes:
    """What one thread did, by both clocks.

    Attributes:
        moments_ns: When its operators began and ended, in order.
        running: How many operators were under way after each of these moments.
        starts_ns: When its calls of the runtime began.
        ends_ns: When these ended.
    """

    moments_ns: Times
    running: Times
    starts_ns: Times
    ends_ns: Times

    @classmethod
    def of(cls, begins_ns: Times, finishes_ns: Times, starts_ns: Times, ends_ns: Times) -> ThreadTimes:
        """Of when operators began and ended, and when calls did."""
        moments_ns = np.concatenate((finishes_ns, begins_ns))
        change = np.repeat(np.array([-1, 1], np.int64), (len(finishes_ns), len(begins_ns)))
        # At the same moment one ends before the next begins.
        order = np.argsort(moments_ns, kind="stable")
        return cls(moments_ns[order], np.cumsum(change[order]), starts_ns, ends_ns)

    def moved(self, shift_ns: int) -> ThreadTimes:
        """The same with the calls later."""
        return replace(self, starts_ns=self.starts_ns + shift_ns, ends_ns=self.ends_ns + shift_ns)

    def sampled(self, stride: int) -> ThreadTimes:
        """The same with every so many-th call."""
        return replace(self, starts_ns=self.starts_ns[::stride], ends_ns=self.ends_ns[::stride])


@dataclass(frozen=True)
class Fit:
    """How the two clocks fit.

    Attributes:
        calls: How many calls lay on threads that had operators.
        astride: How many of them have a begin or end of an operator inside them.
        shift_ns: What was added to the device's times to make them fit.
        largest_astride_ns: By how much the worst of those would have to move.
        earliest_ns: By how much the device's times could be earlier at most (below 0) without any call that fits now
            ceasing to; None without such calls.
        latest_ns: The same for later.
    """

    calls: int
    astride: int
    shift_ns: int
    largest_astride_ns: int
    earliest_ns: int | None
    latest_ns: int | None

    @property
    def fits(self) -> bool:
        """Whether so few calls lie astride that the clocks may be called one."""
        return self.astride <= MOST_ASTRIDE * self.calls

    def as_info(self) -> dict[str, int | None]:
        """The facts for the metadata of a trace."""
        return {
            "device_calls": self.calls,
            "device_calls_astride": self.astride,
            "device_shift_ns": self.shift_ns,
            "device_largest_astride_ns": self.largest_astride_ns,
            "device_earliest_ns": self.earliest_ns,
            "device_latest_ns": self.latest_ns,
        }


def fit_clocks(threads: Sequence[ThreadTimes]) -> Fit:
    """See how a device's calls fit the operators of their threads, and find the shift that mends it where they do not."""
    threads = [one for one in threads if len(one.moments_ns) and len(one.starts_ns)]
    calls = sum(len(one.starts_ns) for one in threads)
    shift_ns = 0
    if calls and _astride(threads) > MOST_ASTRIDE * calls:
        shift_ns = _best_shift(threads, calls)
        threads = [one.moved(shift_ns) for one in threads]
    earliest, latest, needed = [], [], [np.zeros(1, np.int64)]
    for one in threads:
        low, high = _inside(one)
        fitting, astride = high <= low, high > low
        # Where nothing lies before the first moment, or behind the last, there is no limit.
        before, behind = fitting & (low > 0), fitting & (low < len(one.moments_ns))
        earliest.append(one.moments_ns[low[before] - 1] - one.starts_ns[before])
        latest.append(one.moments_ns[low[behind]] - one.ends_ns[behind])
        needed.append(
            np.minimum(
                one.moments_ns[high[astride] - 1] - one.starts_ns[astride],
                one.ends_ns[astride] - one.moments_ns[low[astride]],
            )
        )
    known_earliest = np.concatenate(earliest) if earliest else np.zeros(0, np.int64)
    known_latest = np.concatenate(latest) if latest else np.zeros(0, np.int64)
    return Fit(
        calls=calls,
        astride=_astride(threads),
        shift_ns=shift_ns,
        largest_astride_ns=int(np.concatenate(needed).max()),
        earliest_ns=int(known_earliest.max()) if len(known_earliest) else None,
        latest_ns=int(known_latest.min()) if len(known_latest) else None,
    )


def _inside(one: ThreadTimes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each call the first moment after its start, and the first that is not before its end."""
    low = np.searchsorted(one.moments_ns, one.starts_ns, side="right")
    return low, np.searchsorted(one.moments_ns, one.ends_ns, side="left")


def _astride(threads: Sequence[ThreadTimes]) -> int:
    """How many calls have a moment inside them."""
    total = 0
    for one in threads:
        low, high = _inside(one)
        total += int(np.count_nonzero(high > low))
    return total


def _best_shift(threads: Sequence[ThreadTimes], calls: int) -> int:
    """What must be added to the calls' times for the most to lie inside operators; 0 where nothing helps much."""
    tried = [one.sampled(-(-calls // _CALLS_TRIED)) for one in threads]
    best_ns = 0
    for _ in range(_ROUNDS):
        moved = [one.moved(best_ns) for one in tried]
        asked = np.concatenate([_needed(one) for one in moved]) + best_ns
        asked = asked[np.abs(asked) <= _LARGEST_SHIFT_NS]
        if len(asked) == 0:
            break
        candidates = np.unique(np.quantile(asked, np.linspace(0, 1, _CANDIDATES), method="nearest")).tolist()
        counted = {shift_ns: _misplaced(tried, shift_ns) for shift_ns in (best_ns, *candidates)}
        best_ns = int(min(counted, key=lambda shift_ns: (counted[shift_ns], abs(shift_ns))))
    left = _astride([one.moved(best_ns) for one in tried])
    return best_ns if left <= _LEFT_BY_A_SHIFT * _astride(tried) else 0


def _needed(one: ThreadTimes) -> Times:
    """How far the calls would have to go that lie astride or outside of operators, to either side."""
    low, high = _inside(one)
    wrong = (high > low) | (_around(one, low) == 0)
    low, high, starts_ns, ends_ns = low[wrong], high[wrong], one.starts_ns[wrong], one.ends_ns[wrong]
    astride, last = high > low, len(one.moments_ns) - 1
    # A call that lies astride has to begin behind the last moment in it, or to end before the first; another has to begin
    # where the next operator does, or to end with the one before.
    later = one.moments_ns[np.minimum(np.where(astride, high - 1, low), last)] - starts_ns
    earlier = one.moments_ns[np.clip(np.where(astride, low, low - 1), 0, last)] - ends_ns
    return np.concatenate((later, earlier))


def _misplaced(threads: Sequence[ThreadTimes], shift_ns: int) -> int:
    """How many calls, so much later, would lie astride or outside of operators."""
    total = 0
    for one in threads:
        moved = one.moved(shift_ns)
        low, high = _inside(moved)
        total += int(np.count_nonzero((high > low) | (_around(moved, low) == 0)))
    return total


def _around(one: ThreadTimes, low: Times) -> Times:
    """How many operators are under way at the moment before each call."""
    return np.where(low > 0, one.running[np.maximum(low, 1) - 1], 0)
