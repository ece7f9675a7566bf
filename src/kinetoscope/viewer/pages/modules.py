"""The page Modules: the table of modules, and what ran in each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope.viewer.requests import Limited

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query

_MOST_MODULES = 50_000
_MOST_ROWS = 200_000

REPORTED: tuple[tuple[str, dict[str, str]], ...] = (("modules", {}), ("module_operators", {}))


def modules(trace: Trace, query: Query) -> Limited:
    """Respond to `modules`: the table of modules."""
    found = trace.table("modules")
    return Limited(found.slice(0, _MOST_MODULES), found.num_rows)


def module_operators(trace: Trace, query: Query) -> Limited:
    """Respond to `module_operators`: that table."""
    found = trace.table("module_operators")
    return Limited(found.slice(0, _MOST_ROWS), found.num_rows)
