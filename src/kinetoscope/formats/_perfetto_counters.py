"""The counters of a Perfetto trace: the memory of each device, and what else was sampled."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.formats._perfetto_tracks import PerfettoTracks
    from kinetoscope.trace import Trace

Series = tuple[int, "NDArray[np.int64]", "NDArray[Any]"]

_MEMORY = (
    ("total_bytes", "memory in use"),
    ("allocated_bytes", "memory allocated, as the allocator counts"),
    ("reserved_bytes", "memory reserved"),
)


def counter_series(trace: Trace, tracks: PerfettoTracks) -> list[Series]:
    """Return every counter as (track, times, values), adding the tracks.

    Args:
        trace: The trace.
        tracks: The layout, to which the counters' tracks are added.

    Returns:
        The series, each in order of time.
    """
    return [*_memory(trace, tracks), *_sampled(trace, tracks)]


def _memory(trace: Trace, tracks: PerfettoTracks) -> list[Series]:
    """The live bytes of each device after each allocation and free, and what its allocator said."""
    allocations = trace.columns("allocations")
    if len(allocations) == 0:
        return []
    kind, index = allocations["device_type"], allocations["device_index"].astype(np.int64)
    key = kind * np.int64(256) + index * (kind > 0)
    series = []
    for one in np.unique(key).tolist():
        rows = np.flatnonzero(key == one)
        device = (int(kind[rows[0]]), int(index[rows[0]]))
        for column, label in _MEMORY:
            values = allocations[column][rows]
            known = values != -1 if column != "total_bytes" else np.ones(len(rows), np.bool_)
            if known.any():
                name = f"CPU {label}" if device[0] == 0 else label
                track = tracks.add_counter(name, device, "bytes")
                # What was live when a window of a longer trace began is what the counter begins with.
                series.append((track, np.maximum(allocations["time_ns"][rows][known], 0), values[known]))
    return series


def _sampled(trace: Trace, tracks: PerfettoTracks) -> list[Series]:
    """The table `counters`, a series for each name."""
    counters = trace.columns("counters")
    if len(counters) == 0:
        return []
    order = np.lexsort((counters["time_ns"], counters["name"]))
    name = counters["name"][order]
    edges = [0, *(np.flatnonzero(np.diff(name)) + 1).tolist(), len(name)]
    return [
        (
            tracks.add_counter(trace.strings[int(name[first])], None),
            counters["time_ns"][order[first:last]],
            counters["value"][order[first:last]],
        )
        for first, last in pairwise(edges)
    ]
