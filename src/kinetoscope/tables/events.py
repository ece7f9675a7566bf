"""The two entry points of torch's event face: `events` and `key_averages`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope.tables.event_list import EventList, SpanEvents, key_averages

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

__all__ = ["events", "key_averages"]


def events(trace: Trace) -> EventList:
    """Return the spans of a trace as events, in order of time."""
    return EventList(SpanEvents(trace))
