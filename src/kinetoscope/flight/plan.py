"""Which steps are recorded: one of each 2^n consecutive ones, at a position that depends on the job and the step number alone.

All ranks of a job therefore record the same steps without talking to each other. The steps of a sparser plan are a subset of those
of a denser one, so that ranks whose budgets differ still slow down the same steps. The position within a stratum varies: a fixed
period would fall into step with what a program does every so many steps, such as logging.
"""

from __future__ import annotations

import math
import zlib

MOST_LEVEL = 16
"""The sparsest plan records one of 65,536 steps."""

CONTROL_LEVEL = 6
"""Where all steps fit into the budget, one of 64 is not recorded, to compare with."""

_MASK = (1 << 64) - 1


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
        self._chosen: dict[tuple[int, int], int] = {}

    @property
    def share(self) -> float:
        """The share of the steps that are recorded."""
        return 1.0 - 0.5**CONTROL_LEVEL if self.level == 0 else 0.5**self.level

    def records(self, step: int) -> bool:
        """Whether a step is recorded."""
        if self.level == 0:
            return self._chosen_of(step, CONTROL_LEVEL) != step
        return self._chosen_of(step, self.level) == step

    def next_after(self, step: int) -> int:
        """The first recorded step after one that is not recorded, if not all are; else the next step."""
        if self.level == 0:
            return step + 1
        stratum = step >> self.level
        chosen = self._chosen_of(step, self.level)
        return chosen if chosen > step else self._chosen_of((stratum + 1) << self.level, self.level)

    def _chosen_of(self, step: int, level: int) -> int:
        """The chosen step of the stratum of 2^level steps that a step is in."""
        stratum = step >> level
        key = (level, stratum)
        chosen = self._chosen.get(key)
        if chosen is None:
            # One half after the other, from the largest to a single step: this nests the plans of all levels.
            chosen = stratum
            for half in range(level - 1, -1, -1):
                chosen = chosen * 2 + (self._random(half, chosen) & 1)
            self._chosen = {key: chosen}
        return chosen

    def _random(self, level: int, block: int) -> int:
        """A number that looks random, the same for the same job, level and block (the finalizer of SplitMix64)."""
        mixed = (block * 0x9E3779B97F4A7C15 + (level + 1) * 0xD1B54A32D192ED03 + self._seed) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)
