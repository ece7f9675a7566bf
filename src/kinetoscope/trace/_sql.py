"""SQL over the tables of a trace, through DuckDB."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kinetoscope._errors import ArgumentError, MissingDependencyError

if TYPE_CHECKING:
    import pyarrow

    from kinetoscope.trace._trace import Trace

_WORD = re.compile(r"\w+")
# Statements that list tables without naming them need all of them.
_LISTING = {
    "show",
    "describe",
    "summarize",
    "information_schema",
    "duckdb_tables",
    "duckdb_views",
    "duckdb_columns",
}


def run_query(trace: Trace, query: str) -> pyarrow.Table:
    """Run one DuckDB query; only the tables whose names occur in it are made.

    Args:
        trace: The trace whose tables can be named.
        query: One SQL statement.

    Returns:
        The result.

    Raises:
        ArgumentError: DuckDB refused the query.
        MissingDependencyError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependencyError(
            "trace.sql() needs DuckDB: install it with `pip install kinetoscope[sql]`"
        ) from error

    with duckdb.connect(":memory:") as connection:
        for name in tables_named(trace, query):
            connection.register(name, trace.table(name))
        try:
            result = connection.sql(query)
        except duckdb.Error as error:
            raise ArgumentError(
                f"DuckDB refused the query: {error}. Tables of a trace: {', '.join(trace.table_names)}"
            ) from error
        if result is None:
            raise ArgumentError("the query returns no rows; ask with `select`")
        try:
            found: pyarrow.Table = result.to_arrow_table()
        except duckdb.Error as error:
            raise ArgumentError(f"DuckDB could not run the query: {error}") from error
        return found


def tables_named(trace: Trace, query: str) -> list[str]:
    """The tables of a trace that a query may be about: those whose names are words of it."""
    words = {word.lower() for word in _WORD.findall(query)}
    return [name for name in trace.table_names if name in words or words & _LISTING]
