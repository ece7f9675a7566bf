"""The HTML page of a trace in a notebook: its contents, what makes it slow, and where the time went."""

from __future__ import annotations

import re
from collections.abc import Callable

from kinetoscope.analyses.overview import overview
from kinetoscope.analyses.trace_blocks import ROWS, RunFacts, file_name, trace_blocks
from kinetoscope.display.html import as_html
from kinetoscope.model.trace_data import TraceData

# Summing more spans than this takes seconds, too long for displaying a value in a notebook.
MOST_SPANS = 5_000_000

# The recording of a session without a path: a temporary file, deleted with the trace.
_TEMPORARY = re.compile(r"kinetoscope-\d+-[^/]+/live\.recording$")


def trace_page(
    trace: TraceData,
    *,
    rows: int = ROWS,
    details: bool = False,
    title: str = "Trace",
    file_label: Callable[[str], str] = file_name,
) -> str:
    """Return HTML about a trace.

    Args:
        trace: The trace.
        rows: The most rows of each table.
        details: Show findings and tables even if there are many spans.
        title: The title, before the path of the trace.
        file_label: Returns the label of a source file; by default its name.

    Returns:
        The HTML, with all names escaped.
    """
    path = "" if trace.path is None or _TEMPORARY.search(str(trace.path)) else str(trace.path)
    trace_overview = overview(trace)
    run = RunFacts.of(
        trace_overview, title, where=path, file_label=file_label, title=" ".join(filter(None, (title, path)))
    )
    tables = details or len(trace.columns("spans")) <= MOST_SPANS
    return as_html(trace_blocks(trace_overview, run, rows, in_full=True, tables=tables), rows)
