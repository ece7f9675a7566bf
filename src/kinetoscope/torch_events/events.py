"""The two entry points of torch's event face: `events` and `key_averages`."""

from kinetoscope.torch_events.event_list import events_of as events
from kinetoscope.torch_events.event_list import key_averages

__all__ = ["events", "key_averages"]
