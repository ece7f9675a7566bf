"""Which steps a recording has, where only some were recorded: the metadata that `kinetoscope.leave_on` writes.

It is `{"stretches": [[first step, share], ...], "asked": [[first step, last step], ...]}`: from which step on which share of the steps was
recorded, the first one first, and, under `asked`, which steps were recorded by captures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLAN_KEY = "step_plan"
"""The key of the metadata."""


def recorded_share(info: Mapping[str, Any]) -> str:
    """In words, of how many steps one was recorded: `1 of 32 steps`, or `1 of 4 to 1 of 128 steps`; empty where all were.

    Args:
        info: The metadata of a run; what makes no sense in it is ignored.
    """
    plan = info.get(PLAN_KEY)
    shares = sorted(set(_shares(plan.get("stretches")))) if isinstance(plan, dict) else []
    if not shares:
        return ""
    ends = [_of(shares[-1]), _of(shares[0])]
    return " to ".join(dict.fromkeys(ends)) + " steps"


def _of(share: float) -> str:
    """A share of the steps in words: `1 of 32`, or `63 of 64`."""
    if share > 0.5:
        total = round(1 / (1 - share)) if share < 1 else 1
        return f"{total - 1} of {total}" if total > 1 else "1 of 1"
    return f"1 of {round(1 / share):,}"


def _shares(stretches: Any) -> list[float]:
    """The shares of stretches that are pairs of numbers, above 0 and at most 1."""
    return [
        pair[1]
        for pair in (stretches if isinstance(stretches, list) else [])
        if isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(number, int | float) for number in pair)
        and 0 < pair[1] <= 1
    ]
