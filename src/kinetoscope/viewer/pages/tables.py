"""Tables of a trace as the pages ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope._errors import ArgumentError
from kinetoscope.viewer.server.answers import Limited

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.answers import Query

MOST_ROWS = 50_000
"""A page sorts and filters this many by itself; SQL and the command line see all."""


def table(trace: Trace, query: Query, name: str) -> Limited:
    """Return the first rows of a table of the trace; the options are those of its function.

    Raises:
        ArgumentError: No such table, or an option that it does not have.
    """
    try:
        found = trace.table(name, **query)
    except TypeError as error:
        raise ArgumentError(f"the table {name!r} has no such options: {', '.join(query)}") from error
    return Limited(found.slice(0, MOST_ROWS), found.num_rows)
