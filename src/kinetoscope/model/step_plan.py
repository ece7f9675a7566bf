"""Which steps a recording has, where only some were recorded: the metadata that `kinetoscope.leave_on` writes.

It is `{"stretches": [[first step, share], ...], "asked": [[first step, last step], ...]}`: from which step on which share of the steps was
recorded, the first one first, and, under `asked`, which steps were recorded by captures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAN_KEY = "step_plan"
"""The key of the metadata."""


class StepSampling(NamedTuple):
    """Which steps were recorded; both are empty where all were.

    Attributes:
        stretches: The first step of each stretch, and the share of its steps that was recorded.
        captures: The first and the last step of each capture.
    """

    stretches: tuple[tuple[float, float], ...]
    captures: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> StepSampling:
        """Read the metadata of a run; what makes no sense is left out."""
        plan = info.get(PLAN_KEY)
        if not isinstance(plan, dict):
            return cls((), ())
        stretches = tuple(pair for pair in _pairs(plan.get("stretches")) if 0 < pair[1] <= 1)
        return cls(stretches, tuple(_pairs(plan.get("asked"))))

    def text(self) -> str:
        """In words: `1 of 32 steps`, or `1 of 4 to 1 of 128 steps`; empty where all were recorded."""
        shares = sorted({share for _, share in self.stretches})
        if not shares:
            return ""
        ends = [_of(shares[-1]), _of(shares[0])]
        return " to ".join(dict.fromkeys(ends)) + " steps"


def _of(share: float) -> str:
    """A share of the steps in words: `1 of 32`, or `63 of 64`."""
    if share > 0.5:
        of = round(1 / (1 - share)) if share < 1 else 1
        return f"{of - 1} of {of}" if of > 1 else "1 of 1"
    return f"1 of {round(1 / share):,}"


def _pairs(value: Any) -> list[tuple[float, float]]:
    """The pairs of numbers in a list; what is none is left out."""
    return [
        (pair[0], pair[1])
        for pair in (value if isinstance(value, list) else [])
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, int | float) for one in pair)
    ]
