"""A sentence with its numbers apart from its text, so that every surface writes them in its own units."""

from __future__ import annotations

from typing import TypedDict

from kinetoscope.model import units


class Sentence(TypedDict):
    """A sentence.

    Attributes:
        text: The text, with `{}` where a number goes.
        values: A number and its unit for each place: `ns`, `bytes`, `%`, or an empty text for a count.
    """

    text: str
    values: list[tuple[float | None, str]]


def sentence(text: str, *values: tuple[float | None, str] | int) -> Sentence:
    """Make a sentence from its text and the numbers for its places; an int without a unit is a count."""
    return {"text": text, "values": [(value, "") if isinstance(value, int) else value for value in values]}


def plain(one: Sentence) -> str:
    """Write a sentence with its numbers, as text.

    Only `{}` is a place: names in the text may hold other braces, as those of C++ lambdas do.
    """
    first, *rest = one["text"].split("{}")
    numbers = [units.written(value, unit) for value, unit in one["values"]]
    numbers += ["{}"] * (len(rest) - len(numbers))
    return first + "".join(number + part for number, part in zip(numbers, rest, strict=False))
