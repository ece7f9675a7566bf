"""Kinds of steps in a sentence: how many there are of each, and how long they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kinetoscope.model import units

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_NAMED = 4


class StepKind(NamedTuple):
    """A kind of steps, as a person reads it.

    Attributes:
        steps: How many there are.
        step_ns: How long one takes.
        share_percent: Their share of the time of all steps.
        most_of: The operator of which it has more than other kinds; None without.
    """

    steps: int
    step_ns: float
    share_percent: float
    most_of: str | None


def kinds_in_words(kinds: Sequence[StepKind]) -> str:
    """How many kinds of steps there are, and of those with most time how many steps and how long, such as `2 kinds of steps: 9 of 12 ms, 54 % of the time; ...`."""
    texts = []
    for at, one in enumerate(kinds[:_MOST_NAMED]):
        text = f"{one.steps:,} of {units.duration(one.step_ns)}"
        text += f" with more {one.most_of}" if one.most_of else ""
        texts.append(f"{text}, {units.percent(one.share_percent)}" + (" of the time" if at == 0 else ""))
    more = [f"{len(kinds) - _MOST_NAMED} more kinds"] if len(kinds) > _MOST_NAMED else []
    return f"{units.count(len(kinds), 'kind')} of steps: {'; '.join([*texts, *more])}"
