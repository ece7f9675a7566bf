"""The page Trace health: what `kinetoscope.analyses.health` finds, of a trace that may still be recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetoscope.analyses import health as judgement
from kinetoscope.storage.live_recording import is_running

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query

REPORTED: tuple[tuple[str, dict[str, str]], ...] = (
    ("health", {}),
    ("table/losses", {}),
    ("table/processes", {}),
    ("table/info", {}),
)
"""What a report includes."""


def health(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `health`. Whether the recording goes on is looked up each time: a process can end at any moment."""
    return judgement.health(trace, running=is_running(trace.run_info))
