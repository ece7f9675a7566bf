"""The text of source lines, for every page that names a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope.model.strings import to_utf8
from kinetoscope.tables.host.source_lines import source_lines

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query

REPORTED: tuple[tuple[str, dict[str, str]], ...] = (("source", {}),)
"""What a report includes."""


def source(trace: Trace, query: Query) -> dict[str, dict[str, str]]:
    """Respond to `source`: the stored lines of each file, by line number."""
    return {
        to_utf8(file): {str(number): to_utf8(text) for number, text in lines.items()}
        for file, lines in source_lines(trace).items()
    }
