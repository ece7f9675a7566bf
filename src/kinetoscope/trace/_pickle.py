"""Traces through `pickle` and `copy`: what was recorded travels, what follows from it is computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from kinetoscope.trace._trace import Trace

Parts = tuple[dict[str, dict[str, Any]], list[str], dict[str, Any], "Path | None"]


def pickled(trace: Trace) -> tuple[Any, Parts]:
    """How a trace is made again from its given columns; a closed trace raises `StateError`."""
    from kinetoscope.trace._schema import STORED

    tables = {}
    for table in STORED:
        columns = trace.columns(table)
        tables[table] = {name: columns[name] for name in columns.given}
    return _made_again, (tables, trace.strings, trace.info, trace.path)


def itself(trace: Trace, memo: Any = None) -> Trace:
    """The copy of a trace, which nobody can change: the trace itself."""
    return trace


def _made_again(
    tables: dict[str, dict[str, Any]], strings: list[str], info: dict[str, Any], path: Path | None
) -> Trace:
    """Make the trace that was pickled."""
    from kinetoscope.trace._trace import Trace

    return Trace.from_columns(tables, strings=strings, info=info, path=path)
