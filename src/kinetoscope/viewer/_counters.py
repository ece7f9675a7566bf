"""Counters of the timeline: values over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinetoscope.trace import Trace


def counter_tracks(trace: Trace) -> list[tuple[int, dict[str, Any]]]:
    """The tracks of counters, each with the row of its process."""
    return []
