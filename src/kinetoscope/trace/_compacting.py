"""Leaving out of the dictionaries of a trace what nothing refers to any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.trace._schema import STORED

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REFERENCE = "row of "
# In this order, so that each comes after all that refer to it.
_ORDER = ("arguments", "shapes", "parameters", "stacks", "frames", "modules", "streams", "threads", "strings")


def compacted(tables: dict[str, dict[str, Any]], strings: list[str], threads: NDArray[np.bool_]) -> list[str]:
    """Leave out strings, frames, stacks, modules and the like that no row names, and renumber the references.

    Args:
        tables: The given columns of every table; they are changed in place. In each table parents come first, and
            do so afterwards.
        strings: The string table, whose first entry stays.
        threads: The threads that stay even if nothing names them.

    Returns:
        The new string table.
    """
    for name in _ORDER:
        length = len(strings) if name == "strings" else _length(tables[name])
        used = _used(name, length, tables)
        if name in ("strings", "shapes", "stacks") and not used[:1].any():
            # The empty string has to be there; shapes and stacks, so that it still shows that they were recorded.
            used[: 1 if name == "strings" or not used.any() else 0] = True
        elif name == "threads":
            used |= threads
        elif name == "streams":
            # Only streams of threads that are gone go with them; an idle stream says something too.
            used |= bool(threads.all())
        if used.all():
            continue
        rows = np.flatnonzero(used)
        place = np.full(length + 1, -1, dtype=np.int32)
        place[rows] = np.arange(len(rows), dtype=np.int32)
        if name == "strings":
            strings = [strings[row] for row in rows.tolist()]
        else:
            tables[name] = {column: _taken(values, rows) for column, values in tables[name].items()}
        for table, column in _references(name, tables):
            tables[table][column] = place[tables[table][column]]
    return strings


def _used(name: str, length: int, tables: dict[str, dict[str, Any]]) -> NDArray[np.bool_]:
    """Mark the rows of a dictionary that are named, by itself too."""
    used = np.zeros(length + 1, dtype=bool)
    for table, column in _references(name, tables):
        if table != name:
            used[tables[table][column]] = True
    used = used[:-1]
    own = [tables[name][column] for table, column in _references(name, tables) if table == name]
    while True:
        before = int(used.sum())
        for values in own:
            above = values[used]
            used[above[above >= 0]] = True
        if int(used.sum()) == before:
            return used


def _references(name: str, tables: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """The columns that name rows of a dictionary."""
    return [
        (table, column)
        for table, columns in tables.items()
        for column in columns
        if STORED[table].column(column).unit == f"{_REFERENCE}{name}"
    ]


def _length(columns: dict[str, Any]) -> int:
    """How many rows a table has."""
    return len(next(iter(columns.values()))) if columns else 0


def _taken(values: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows of a column."""
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else values[rows]
