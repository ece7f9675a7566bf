"""Saving a trace: the suffix of a file names its format, and `catalog` who writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope._errors import ArgumentError
from kinetoscope.trace import catalog

if TYPE_CHECKING:
    import os

    from kinetoscope.trace._trace import Trace


def save(trace: Trace, path: str | os.PathLike[str], table: str | None = None) -> None:
    """Write a trace in the format that the suffix of `path` names.

    Args:
        trace: The trace.
        path: Where to write.
        table: For formats that hold one table, which one; `spans` if None.

    Raises:
        ArgumentError: No format has this suffix, there is no such table, or the format holds more than one.
        StateError: The trace was closed.
        OSError: The file cannot be written.
    """
    trace.columns("spans")  # says it if the trace was closed
    suffix = suffix_of(path)
    if suffix in catalog.TABLE_WRITERS:
        if table is not None and table not in trace.table_names:
            raise ArgumentError(f"there is no table {table!r}; choose one of: {', '.join(trace.table_names)}")
        catalog.resolve(catalog.TABLE_WRITERS[suffix])(trace, Path(path), table or "spans")
        return
    if table is not None:
        raise ArgumentError(
            f"{path}: {suffix} holds more than one table, so table={table!r} cannot be chosen; formats of one table: "
            f"{', '.join(catalog.TABLE_WRITERS)}"
        )
    catalog.resolve(catalog.WRITERS[suffix])(trace, Path(path))


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Return the suffix by which a file's format is known: the longest one that fits.

    Raises:
        ArgumentError: There is none.
    """
    name = Path(path).name.lower()
    known = [*catalog.WRITERS, *catalog.TABLE_WRITERS]
    fitting = [suffix for suffix in known if name.endswith(suffix)]
    if not fitting:
        raise ArgumentError(f"{path}: the suffix names no known format; use one of: {', '.join(known)}")
    return max(fitting, key=len)
