"""What a page may request of a trace, and what comes back: the options of a request, and the forms of a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from kinetoscope._errors import ArgumentError, checked_choice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

    import pyarrow

    Query: TypeAlias = Mapping[str, str]
    Answer: TypeAlias = "pyarrow.Table | Limited | MadeFile | dict[str, Any] | list[Any]"


MOST_ASKED = 1_000_000
_MOST_DIGITS = 9


class Limited:
    """The first rows of a table, and how many there are."""

    def __init__(self, table: pyarrow.Table, total: int) -> None:
        """Keep both."""
        self.table = table
        self.total = total


class MadeFile:
    """A file that was made for the person at the page."""

    def __init__(self, file: IO[bytes], name: str, type: str) -> None:  # noqa: A002  (as HTTP calls it)
        """Keep the open file, the name to save it under, and what kind of file it is."""
        self.file = file
        self.name = name
        self.type = type


def number(query: Query, name: str, default: float | None = None) -> float:
    """Return an option that is a number.

    Raises:
        ArgumentError: It is missing and has no default, or is no finite number.
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
    """Return an option that is a number of rows.

    Raises:
        ArgumentError: It is no whole number from 1 to a million.
    """
    value = number(query, name, default)
    if not (1 <= value <= MOST_ASKED and value == int(value)):
        raise ArgumentError(
            f"the option {name!r} must be a whole number from 1 to {MOST_ASKED:,}, not {value:g}"
        )
    return int(value)


def integer(text: str) -> int | None:
    """Return a text as a whole number, which may be negative; None for any other text and for more than nine digits."""
    return int(text) if text.removeprefix("-").isdecimal() and len(text) <= _MOST_DIGITS else None


def choice(query: Query, name: str, values: Sequence[str]) -> str:
    """Return an option that is one of some values, the first where it is left out.

    Raises:
        ArgumentError: It is another one.
    """
    return checked_choice(name, query.get(name, values[0]), tuple(values))


MOST_PIXELS = 16_384
# Times of a trace are integers below this.
_LARGEST = float(2**62)


def window_of(query: Query) -> tuple[float, float, int]:
    """The options `start`, `end` and `width`.

    Raises:
        ArgumentError: One is missing, or they are no window.
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


# Tables of a trace as the pages ask for them.

MOST_ROWS = 50_000
"""A page sorts and filters this many by itself; SQL and the command line see all."""
