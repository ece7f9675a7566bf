"""How much recording costs a job, measured inside it, and the share of steps that its budget allows.

Steps that are not recorded are the controls. A recorded step, with the one after it, is compared with the ones before and behind, and an
unrecorded one among recorded ones with its two neighbors, so that a program that becomes slower or faster meanwhile does not count as a
cost. What the recorder does between two steps is timed, and the processor time of its threads is added.

Which steps are recorded: one of each 2^n consecutive ones, at a position that depends on the job and the step number alone.

All ranks of a job therefore record the same steps without talking to each other. The steps of a sparser plan are a subset of those
of a denser one, so that ranks whose budgets differ still slow down the same steps. The position within a stratum varies: a fixed
period would fall into step with what a program does every so many steps, such as logging.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kinetoscope._runtime import chosen_step

MOST_LEVEL = 16
"""The sparsest plan records one of 65,536 steps."""

CONTROL_LEVEL = 6
"""Where all steps fit into the budget, one of 64 is not recorded, to compare with."""


def level_for(share: float) -> int:
    """The level of the densest plan that records at most this share of the steps; 0 records all.

    Args:
        share: More than 0; 1 and more means all steps.
    """
    return min(max(math.ceil(-math.log2(share) - 1e-9), 0), MOST_LEVEL)


class StepPlan:
    """The plan of a job.

    Attributes:
        level: One of 2^level steps is recorded.
    """

    def __init__(self, job: str, level: int = 0) -> None:
        """Plan for a job, by a name that all of its ranks have in common."""
        self._seed = zlib.crc32(job.encode("utf-8", "surrogatepass"))
        self.level = level

    @property
    def share(self) -> float:
        """The share of the steps that are recorded."""
        return 1.0 - 0.5**CONTROL_LEVEL if self.level == 0 else 0.5**self.level

    @property
    def rule(self) -> tuple[int, int, bool]:
        """The plan for `StepCount.arm`: its seed, the level of its strata, and whether the chosen step of each is the one that is not recorded."""
        return self._seed, self.level or CONTROL_LEVEL, self.level == 0

    def records(self, step: int) -> bool:
        """Whether a step is recorded."""
        _, level, records_others = self.rule
        return (self._chosen_of(step, level) == step) is not records_others

    def next_after(self, step: int) -> int:
        """The first recorded step after one that is not recorded, if not all are; else the next step."""
        if self.level == 0:
            return step + 1
        stratum = step >> self.level
        chosen = self._chosen_of(step, self.level)
        return chosen if chosen > step else self._chosen_of((stratum + 1) << self.level, self.level)

    def _chosen_of(self, step: int, level: int) -> int:
        """The chosen step of the stratum of 2^level steps that a step is in."""
        return chosen_step(self._seed, level, step >> level)


FEWEST = 30
"""With fewer comparisons no cost is told."""

FIRST_SHARE = 0.25
"""The share that is recorded until there are enough comparisons: cheap, and they come soon."""

_WINDOW = 5
_MOST = 1024
_RECENT = 64
# How many times between steps are averaged.
_OWN = 256
_DECIDE_EVERY = 16
# The more comparisons there are, the longer they take to average, and the less a few new ones change.
_DECIDE_AFTER = 1 / 16
_LEAST_SHARE = 2.0**-16
# Of the normal distribution, for an interval of 95 %.
_WIDTH = 1.96
# Distances above the median, in median absolute deviations, where a comparison is cut.
_FAR = 5.0
_RAISE_BELOW = 0.7
_RAISE = 1.1
# How many looks at many steps at once are averaged.
_LOOKS = 64
# Of the processor time of our threads, how many readings are averaged.
_READINGS = 16
# What is done between two steps also displaces the program's data from the caches of the processor, which the next step pays for:
# at most so many times what it took itself.
_DISPLACED = 1.0
# What looking at steps that are not recorded may take of the budget, and the most steps that are looked at together.
_LOOKING = 0.25
MOST_TOGETHER = 256
# After so many it is chosen again how many, and after twice as many each time that it stays the same: sorting them takes its time, too.
_LOOK_AGAIN, _LOOK_AGAIN_AT_MOST = 32, 256


class MeasuredOverhead(NamedTuple):
    """What recording adds to the time of the steps, as a share of it, with its 95 % interval.

    Attributes:
        share: The estimate; 0.01 is one percent.
        low: The lower limit of the interval.
        high: The upper limit.
        comparisons: How many recorded steps, or unrecorded ones, were compared with their neighbors.
    """

    share: float
    low: float
    high: float
    comparisons: int

    def text(self, budget: float) -> str:
        """In words: `0.6 % (0.4 to 0.8 %) of 1 %`."""
        if self.comparisons < FEWEST:
            return f"not known yet ({self.comparisons} of {FEWEST} comparisons) of {_percent(budget)}"
        low, high = _percent(max(self.low, 0.0)).removesuffix(" %"), _percent(max(self.high, 0.0))
        return f"{_percent(max(self.share, 0.0))} ({low} to {high}) of {_percent(budget)}"


def _percent(share: float) -> str:
    """A share with one or two digits: `0.6 %`, `12 %`."""
    value = 100 * share
    text = f"{value:.2f}" if 0 < value < 0.095 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
    return f"{text.removesuffix('.0')} %"


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean of values in the order of their steps, and its standard error, from the differences of successive ones; 0 and 0 without values.

    Values far from the median are cut, so that single steps that did something else do not decide.
    """
    values = list(values)
    if not values:
        return 0.0, 0.0
    count = len(values)
    ordered = sorted(values)
    median = ordered[count // 2]
    deviation = sorted(abs(value - median) for value in ordered)[count // 2]
    low, high = median - _FAR * deviation, median + _FAR * deviation
    if deviation > 0:
        values = [min(max(value, low), high) for value in values]
    squares = sum((after - before) ** 2 for before, after in itertools.pairwise(values))
    return sum(values) / count, math.sqrt(squares / (2 * count * max(count - 1, 1)))


class OverheadBudget:
    """Measures the cost of recording, and decides which share of the steps may be recorded.

    Attributes:
        limit: The share of the time of the steps that recording may cost.
        share: The share that may be recorded now.
        together: How many steps that are not recorded are to be looked at together, because they are so short that looking at each
            would cost too much.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.share = FIRST_SHARE
        self.together = 1
        # Of the last steps: the time without our own, and whether it was recorded; None: to be left out.
        self._last: deque[tuple[float, bool | None]] = deque(maxlen=_WINDOW)
        # How much longer a recorded step takes than an unrecorded one, as a share of the latter.
        self._differences: deque[float] = deque(maxlen=_MOST)
        # What the recorder does between two steps, as a share of a step: where nothing is recorded, and for each recorded step.
        self._idle: deque[float] = deque(maxlen=_OWN)
        # How many were added since it was chosen how many steps are looked at together.
        self._looked, self._look_again = 0, _LOOK_AGAIN
        self._switching: deque[float] = deque(maxlen=_OWN)
        self._switched = 0.0
        # What counting the steps costs that are looked at together, as a share of a step.
        self._passing: deque[float] = deque(maxlen=_OWN)
        # How long it took to look at many steps at once, the time since the look before, and how many they were.
        self._looks: deque[tuple[float, float, int]] = deque(maxlen=_LOOKS)
        # The processor time of our threads as a share of the time, and its last known mean and error.
        self._threads: deque[float] = deque(maxlen=_READINGS)
        self._threads_before = (0.0, 0.0)
        self._undecided = 0

    def add_threads(self, share: float) -> None:
        """Add a reading of the processor time of the recorder's threads, as a share of the time since the reading before."""
        self._threads.append(share)

    def add_look(self, spent_ns: float, since_ns: float, steps: int) -> None:
        """Add what it took to look at so many steps at once, of each of which `add` was told, and the time since the look before."""
        if since_ns > 0:
            self._looks.append((spent_ns, since_ns, max(steps, 1)))

    def add(
        self,
        step_ns: float,
        own_ns: float,
        recorded: bool | None,
        planned_share: float,
        passing_ns: float = 0.0,
    ) -> bool:
        """Add a step that has ended.

        Args:
            step_ns: How long it took, without what the recorder did between the steps.
            own_ns: How long that took before this step.
            recorded: Whether it was recorded; None if it cannot be compared, because of a capture for example.
            planned_share: The share of the steps that the plan records at present.
            passing_ns: How long counting took for this step, if it was looked at together with others.

        Returns:
            Whether `share` has changed.
        """
        before = self._last[-1][1] if self._last else None
        self._last.append((step_ns, recorded))
        if step_ns > 0 and recorded is not None and before is not None:
            self._add_own(own_ns / step_ns, recorded, before)
            if not recorded and not before:
                self._passing.append(passing_ns / step_ns)
        if not self._compare():
            return False
        self._undecided += 1
        count = len(self._differences)
        if count < FEWEST or self._undecided < max(_DECIDE_EVERY, count * _DECIDE_AFTER):
            return False
        self._undecided = 0
        return self._decide(planned_share)

    def overhead(self, planned_share: float) -> MeasuredOverhead:
        """What recording this share of the steps costs."""
        if not self._differences:
            return MeasuredOverhead(0.0, 0.0, math.inf, 0)

        def of_plan(values: Sequence[float]) -> tuple[float, float]:
            mean, error = mean_and_error(values)
            return planned_share * mean, planned_share * error

        between_steps = [mean_and_error(self._idle), mean_and_error(self._passing), self._looks_cost()]
        between_steps.append(of_plan(self._switching))
        costs = [*between_steps, self._threads_cost(), of_plan(self._differences)]
        displaced = _DISPLACED * sum(mean for mean, _ in between_steps) / 2
        cost = displaced + sum(mean for mean, _ in costs)
        width = displaced + _WIDTH * math.hypot(*(error for _, error in costs))
        return MeasuredOverhead(cost, cost - width, cost + width, len(self._differences))

    def _threads_cost(self) -> tuple[float, float]:
        """What the recorder's threads cost, and the standard error of that."""
        return mean_and_error(self._threads) if len(self._threads) > 1 else self._threads_before

    def _looks_cost(self) -> tuple[float, float]:
        """What looking at many steps at once costs as a share of the time, and the standard error of that.

        Nothing is cut: a look is expensive and rare by nature.
        """
        if not self._looks:
            return 0.0, 0.0
        mean = sum(spent for spent, _, _ in self._looks) / sum(since for _, since, _ in self._looks)
        squares = sum((spent / since - mean) ** 2 for spent, since, _ in self._looks)
        return mean, math.sqrt(squares) / len(self._looks)

    def _add_own(self, share: float, recorded: bool, before: bool) -> None:
        """Add what the recorder did before a step, as a share of it."""
        if not recorded and not before:
            self._idle.append(share)
            self._looked += 1
            if self._looked >= self._look_again:
                self._looked, self._look_again = 0, min(2 * self._look_again, _LOOK_AGAIN_AT_MOST)
                self._choose_together()
            return
        # A recorded step begins with one call, and another one ends it.
        self._switched += share
        if recorded:
            self._switching.append(self._switched)
            self._switched = 0.0

    def _choose_together(self) -> None:
        """Choose how many steps are looked at together."""
        per_look = self.together * mean_and_error(self._idle)[0]
        if self._looks and (step_ns := self._last[-1][0]) > 0:
            spent_ns = sum(spent for spent, _, _ in self._looks)
            per_look += spent_ns / sum(steps for _, _, steps in self._looks) / step_ns
        cost = (1 + _DISPLACED / 2) * per_look
        needed = math.ceil(cost / (_LOOKING * self.limit))
        needed = min(max(needed, 1), MOST_TOGETHER)
        # Fewer only if that is clear, because the cost varies.
        if needed > self.together or 2 * needed <= self.together:
            self.together = needed
            self._look_again = _LOOK_AGAIN
            self._idle.clear()

    def _compare(self) -> bool:
        """Compare a step with its neighbors, once three more have ended; whether that was possible."""
        if len(self._last) < _WINDOW:
            return False
        (before_ns, before), (mid_ns, mid), (after_ns, after), (later_ns, later), (last_ns, last) = self._last
        if mid is None or before is None or before is mid or after is not before:
            return False
        beside_ns = (before_ns + after_ns) / 2
        if not mid:
            plain_ns, more_ns = mid_ns, beside_ns - mid_ns
        elif later is False and last is False:
            # The two steps after a recorded one still pay for it: torch and the caches of the processor find their state again.
            plain_ns = (before_ns + last_ns) / 2
            more_ns = mid_ns + after_ns + later_ns - 3 * plain_ns
        elif later is False:
            plain_ns = (before_ns + later_ns) / 2
            more_ns = mid_ns + after_ns - before_ns - later_ns
        else:
            plain_ns, more_ns = beside_ns, mid_ns - beside_ns
        if plain_ns <= 0:
            return False
        self._differences.append(more_ns / plain_ns)
        return True

    def _decide(self, planned_share: float) -> bool:
        """Change the share if the measured cost asks for it; whether it did."""
        self._forget_another_program()
        before, cost = self.share, self.overhead(planned_share)
        if cost.high > self.limit:
            # At least half, and at once down to what the budget allows.
            allowed = planned_share * self.limit / cost.high
            self.share = max(min(self.share / 2, allowed), _LEAST_SHARE)
        elif cost.high < _RAISE_BELOW * self.limit:
            raised = min(self.share * _RAISE, 1.0)
            # A plan has whole levels: the next denser one records twice as many steps, which have to stay within the budget.
            is_same_level = level_for(raised) == level_for(self.share)
            if is_same_level or self.overhead(min(2 * planned_share, 1.0)).high <= self.limit:
                self.share = raised
        if self.share != before:
            # With another share, the threads have another cost.
            self._threads_before = self._threads_cost()
            self._threads.clear()
        return self.share != before

    def _forget_another_program(self) -> None:
        """Keep only the last comparisons if they differ from those before more than chance explains."""
        if len(self._differences) < 4 * _RECENT:
            return
        values = list(self._differences)
        recent, recent_error = mean_and_error(values[-_RECENT:])
        earlier, earlier_error = mean_and_error(values[:-_RECENT])
        if abs(recent - earlier) > 4 * math.hypot(recent_error, earlier_error):
            self._differences = deque(values[-_RECENT:], maxlen=_MOST)
