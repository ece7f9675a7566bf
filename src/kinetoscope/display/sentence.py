"""Sentences with separate numbers, which each renderer writes in its units, and text that is safe to print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from kinetoscope.model import units


class Sentence(TypedDict):
    """A sentence.

    Attributes:
        text: The text, with `{}` where a number goes.
        values: A number and its unit for each placeholder: `ns`, `bytes`, `%`, or an empty text for a count.
    """

    text: str
    values: list[tuple[float | None, str]]


def sentence(text: str, *values: tuple[float | None, str] | int) -> Sentence:
    """Make a sentence from its text and the numbers for its places; an int without a unit is a count."""
    return {"text": text, "values": [(value, "") if isinstance(value, int) else value for value in values]}


def plain(parts: Sentence) -> str:
    """Write a sentence with its numbers, as text.

    Only `{}` is a placeholder: names in the text may have other braces, such as C++ lambdas.
    """
    written, *rest = parts["text"].split("{}")
    for index, part in enumerate(rest):
        number = units.written(*parts["values"][index]) if index < len(parts["values"]) else "{}"
        written += number + part
    return written


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


def printable(text: str) -> str:
    """Write control characters, line breaks and lone surrogates as escapes, so that no name breaks a table."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def printable_lines(text: str) -> str:
    """Like `printable`, but keep line breaks."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))
