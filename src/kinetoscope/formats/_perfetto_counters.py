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
    process = trace.column("threads", "process_row").astype(np.int64)[allocations["thread"]]
    if len(trace.columns("threads")) == 0:
        process = np.full(len(allocations), -1, np.int64)
    ranks = _ranks(trace)
    key = ((process + 1) << 32) + kind * np.int64(256) + index * (kind > 0)
    series = []
    for one in np.unique(key).tolist():
        rows = np.flatnonzero(key == one)
        device = (int(kind[rows[0]]), int(index[rows[0]]))
        for column, label in _MEMORY:
            values = allocations[column][rows]
            known = values != -1 if column != "total_bytes" else np.ones(len(rows), np.bool_)
            if known.any():
                name = f"CPU {label}" if device[0] == 0 else label
                whose = int(process[rows[0]])
                track = tracks.add_counter(name, device, "bytes", process=whose, rank=ranks[whose])
                # What was live when a window of a longer trace began is what the counter begins with.
                series.append((track, np.maximum(allocations["time_ns"][rows][known], 0), values[known]))
    return series


def _sampled(trace: Trace, tracks: PerfettoTracks) -> list[Series]:
    """The table `counters`, a series for each name of each process."""
    counters = trace.columns("counters")
    if len(counters) == 0:
        return []
    order = np.lexsort((counters["time_ns"], counters["name"], counters["process_row"]))
    name, process = counters["name"][order], counters["process_row"][order]
    changes = np.flatnonzero((np.diff(name) != 0) | (np.diff(process) != 0)) + 1
    edges = [0, *changes.tolist(), len(name)]
    return [
        (
            tracks.add_counter(trace.strings[int(name[first])], None, process=int(process[first])),
            counters["time_ns"][order[first:last]],
            counters["value"][order[first:last]],
        )
        for first, last in pairwise(edges)
    ]


def _ranks(trace: Trace) -> list[int]:
    """The rank of each row of `processes`, and at the end that of the whole trace: -1, for its threads say none."""
    return [*trace.column("processes", "rank").tolist(), -1]
