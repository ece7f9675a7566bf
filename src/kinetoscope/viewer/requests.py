"""Requests of pages about a trace: parsing of their options, and types of responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple, TypeAlias

import pyarrow

from kinetoscope._errors import ArgumentError, checked_choice

Query: TypeAlias = Mapping[str, str]
Answer: TypeAlias = "pyarrow.Table | Limited | MadeFile | dict[str, Any] | list[Any]"


MOST_ASKED = 1_000_000
_MOST_DIGITS = 9


class Limited(NamedTuple):
    """The first rows of a table, with its total number of rows."""

    table: pyarrow.Table
    total: int


class MadeFile(NamedTuple):
    """A file for the user to download: open, with the name to save it under, and its MIME type."""

    file: IO[bytes]
    name: str
    type: str


def number(query: Query, name: str, default: float | None = None) -> float:
    """Return an option as a number.

    Raises:
        ArgumentError: It is missing and has no default, or is not a finite number.
    """
    text = query.get(name)
    if text is None:
        if default is None:
            raise ArgumentError(f"the request needs the option {name!r}")
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise ArgumentError(f"the option {name!r} must be a number, not {text[:50]!r}")
    return value


def whole_number(query: Query, name: str, default: int) -> int:
    """Return an option as a number of rows.

    Raises:
        ArgumentError: It is not a whole number from 1 to a million.
    """
    value = number(query, name, default)
    if not (1 <= value <= MOST_ASKED and value == int(value)):
        raise ArgumentError(
            f"the option {name!r} must be a whole number from 1 to {MOST_ASKED:,}, not {value:g}"
        )
    return int(value)


def integer(query: Query, name: str, default: int | str = "") -> int:
    """Return an option as a whole number, which may be negative.

    Raises:
        ArgumentError: It is missing and has no default, is something else, or has more than nine digits.
    """
    text = query.get(name, str(default))
    if not text.removeprefix("-").isdecimal() or len(text) > _MOST_DIGITS:
        raise ArgumentError(f"{name}={text[:50]!r} is not valid: need a whole number")
    return int(text)


def choice(query: Query, name: str, values: Sequence[str]) -> str:
    """Return an option that must be one of some values; the first is the default.

    Raises:
        ArgumentError: It has another value.
    """
    return checked_choice(name, query.get(name, values[0]), tuple(values))


MOST_PIXELS = 16_384
# Times of a trace in nanoseconds are below this.
_LARGEST = float(2**62)


def window_of(query: Query) -> tuple[float, float, int]:
    """Return the options `start` and `end` in nanoseconds, and `width` in pixels.

    Raises:
        ArgumentError: One is missing, or they do not describe a window.
    """
    start, end = span_of_time(query)
    width = number(query, "width")
    if not 1 <= width <= MOST_PIXELS:
        raise ArgumentError(f"width={width:g} is not valid: need 1 to {MOST_PIXELS:,} pixels")
    return start, end, int(width)


def span_of_time(query: Query) -> tuple[float, float]:
    """The options `start` and `end`, in nanoseconds from the start of the trace.

    Raises:
        ArgumentError: One is missing, or the end is not after the start.
    """
    start, end = number(query, "start"), number(query, "end")
    if not -_LARGEST < start < end < _LARGEST:
        raise ArgumentError(
            f"start={start:.17g}, end={end:.17g} is not a window: the end must come after the start"
        )
    return start, end


MOST_ROWS = 50_000
"""A page sorts and filters this many by itself; the command line sees all."""
