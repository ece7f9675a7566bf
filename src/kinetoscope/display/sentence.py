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


def plain(parts: Sentence) -> str:
    """Write a sentence with its numbers, as text.

    Only `{}` is a place: names in the text may hold other braces, as those of C++ lambdas do.
    """
    written, *rest = parts["text"].split("{}")
    for index, part in enumerate(rest):
        number = units.written(*parts["values"][index]) if index < len(parts["values"]) else "{}"
        written += number + part
    return written
