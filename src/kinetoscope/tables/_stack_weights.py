"""Self times of events by Python stack, for flame graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinetoscope._errors import StateError
from kinetoscope.tables._event_numbers import TIMES, numbers
from kinetoscope.tables.average_event import FunctionEventAvg
from kinetoscope.trace._calls import call_mask
from kinetoscope.trace._naming import frame_texts, stack_frames

if TYPE_CHECKING:
    from kinetoscope.tables.event_list import EventList

Weights = dict[tuple[str, ...], int]


def stack_weights(events: EventList, metric: str) -> Weights:
    """Add up a time of events by stack.

    Args:
        events: The events.
        metric: `self_cpu_time_total` or `self_device_time_total`.

    Returns:
        For each stack, as frames from the root, nanoseconds above 0; in the order in which the stacks were recorded.

    Raises:
        StateError: There are events, and none can have a stack.
    """
    rows = events.span_rows()
    if rows is None:
        return _one_by_one(events, metric)
    _refuse_without_stacks(events)
    trace, spans = events.trace, np.flatnonzero(rows >= 0)
    stacks = trace.column("spans", "stack")[rows[spans]]
    # What a call does itself is in no operator.
    known = np.flatnonzero((stacks >= 0) & ~call_mask(trace.column("spans", "kind")[rows[spans]]))
    sums = np.zeros(len(trace.columns("stacks")), dtype=np.int64)
    np.add.at(sums, stacks[known], numbers(trace, TIMES[metric])[rows[spans][known]])
    texts, weights = frame_texts(trace), Weights()
    for row in np.flatnonzero(sums > 0).tolist():
        frames = tuple(texts[frame] for frame in reversed(stack_frames(trace, row)))
        weights[frames] = weights.get(frames, 0) + int(sums[row])
    return weights


def _one_by_one(events: EventList, metric: str) -> Weights:
    """The same for sums and for lists put together by hand."""
    weights = Weights()
    seen = False
    for event in events:
        frames = tuple(reversed(event.stack or []))
        seen = seen or bool(frames)
        nanoseconds = round(getattr(event, metric) * 1000)
        if frames and nanoseconds > 0:
            weights[frames] = weights.get(frames, 0) + nanoseconds
    if not seen:
        _refuse_without_stacks(events)
        if any(isinstance(event, FunctionEventAvg) for event in events):
            raise StateError(
                "these sums were not kept apart by stack: use key_averages(group_by_stack_n=...), or export the "
                "stacks of events()"
            )
    return weights


def _refuse_without_stacks(events: EventList) -> None:
    """Say what to do when no stacks were recorded; a recording that asked for them may still have found none."""
    if len(events) == 0:
        return
    trace = events.trace
    if len(trace.columns("stacks")) == 0 and trace.info.get("with_stack") not in (1, True):
        raise StateError("no Python stacks were recorded: record with with_stack=True to export them")
