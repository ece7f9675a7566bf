"""Kinds of steps in a sentence: how many there are of each, and how long they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kinetoscope.model import units

_MOST_NAMED = 4


def kinds_in_words(kinds: Sequence[Mapping[str, Any]], count: str, step_ns: str) -> str:
    """How many kinds of steps there are, and of those with most time how many steps and how long, such as `2 kinds of steps: 9 of 12 ms, 54 % of the time; ...`.

    Args:
        kinds: The kinds, those with most time first, with `share_percent` and `most_of` (the operator of which one has more than the others, or None).
        count: The name of how many steps there are of a kind.
        step_ns: The name of how long a step takes.
    """
    texts = []
    for index, kind in enumerate(kinds[:_MOST_NAMED]):
        text = f"{kind[count]:,} of {units.duration(kind[step_ns])}"
        text += f" with more {kind['most_of']}" if kind["most_of"] else ""
        whole_time = " of the time" if index == 0 else ""
        texts.append(f"{text}, {units.percent(kind['share_percent'])}{whole_time}")
    more = [f"{len(kinds) - _MOST_NAMED} more kinds"] if len(kinds) > _MOST_NAMED else []
    return f"{units.count(len(kinds), 'kind')} of steps: {'; '.join([*texts, *more])}"
