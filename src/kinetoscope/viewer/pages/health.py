"""The page Trace health: the results of `kinetoscope.analyses.health`, also for a trace that is still being recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetoscope.analyses import health as judgement
from kinetoscope.storage.live_recording import is_running

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query


def health(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `health`. Not cached: whether the recording continues may change at any time."""
    return judgement.health(trace, running=is_running(trace.run_info))
