"""Counters on the timeline: memory of each device and process, and sampled counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError
from kinetoscope.model.groups import Groups
from kinetoscope.model.names import device_name
from kinetoscope.model.processes import thread_processes
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.device.utilization import sampled_counters
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import Query, window_of
from kinetoscope.viewer.timeline.rows import COUNTER, MEMORY, track_id

_MEMORY = (
    ("total_bytes", "memory in use", "sum of recorded allocations"),
    ("allocated_bytes", "memory allocated", "according to the allocator"),
    ("reserved_bytes", "memory reserved", "reserved by the allocator, used or not"),
)


@dataclass(frozen=True, eq=False)
class Counter:
    """A value over time; each sample is valid until the next one.

    Attributes:
        id: The number that identifies its track in requests.
        process: The row of its process.
        label: Its label.
        unit: The unit of its values; empty if unknown.
        detail: Additional text.
        device: Its device, or None.
        time_ns: Times of the samples, ascending.
        value: Values of the samples.
    """

    id: int
    process: int
    label: str
    unit: str
    detail: str
    device: str | None
    time_ns: NDArray[np.int64]
    value: NDArray[np.float64]

    def track(self) -> dict[str, Any]:
        """The track in the format of `tracks`."""
        shape = {"sort": "counter", "rows": 1, "spans": len(self.time_ns)}
        texts = {"device": self.device, "detail": self.detail, "unit": self.unit}
        bounds = {"low": float(self.value.min()), "high": float(self.value.max())}
        return {"id": self.id, "label": self.label, **shape, **texts, **bounds}


@derived
def counters_of(trace: Trace) -> list[Counter]:
    """Return the counters of a trace, which are cached."""
    return [*_memory(trace), *_sampled(trace)]


def counter(trace: Trace, query: Query) -> pa.Table:
    """Respond to `counter`: the lowest, highest and last sample of each pixel that has samples.

    The last sample before the window comes first, with its own time. The option `track` may name several tracks, whose rows are
    concatenated.

    Raises:
        ArgumentError: There is no such counter, or the window is not valid.
    """
    start, end, width = window_of(query)
    counter_of_id = {str(counter.id): counter for counter in counters_of(trace)}
    asked = query.get("track", "").split(",")
    for text in asked:
        if text not in counter_of_id:
            raise ArgumentError(
                f"track={text[:50]!r}: there is no such counter; request `tracks` for the list"
            )
    pixels = np.ceil(start + np.arange(width + 1) * (end - start) / width).astype(np.int64)
    return pa.concat_tables([_extremes(counter_of_id[text], pixels) for text in asked])


def _extremes(counter: Counter, pixels: NDArray[np.int64]) -> pa.Table:
    firsts = np.searchsorted(counter.time_ns, pixels)
    first = firsts[:-1][firsts[1:] > firsts[:-1]]
    if firsts[0] > 0:
        first = np.append(firsts[0] - 1, first)
    value = counter.value[: firsts[-1]]
    beyond = np.append(first[1:], len(value)) if len(first) else first
    of_pixels = Groups.beginning_at(first, len(value))
    return pa.table({
        "track": np.full(len(first), counter.id, dtype=np.float64),
        "time": counter.time_ns[first].astype(np.float64),
        "low": of_pixels.minima(value).astype(np.float64),
        "high": of_pixels.maxima(value).astype(np.float64),
        "last": value[beyond - 1].astype(np.float64),
    })  # fmt: skip


def _memory(trace: Trace) -> list[Counter]:
    allocations = trace.columns("allocations")
    if len(allocations) == 0:
        return []
    kind, index = allocations["device_type"].astype(np.int64), allocations["device_index"].astype(np.int64)
    process = np.maximum(thread_processes(trace)[allocations["thread"]], 0).astype(np.int64)
    key = (process * 256 + kind) * 256 + np.where(kind > 0, index + 128, 0)
    series = []
    for counter_key in np.unique(key).tolist():
        rows = np.flatnonzero(key == counter_key)
        owner, type_, number = (int(column[rows[0]]) for column in (process, kind, index))
        device = None if type_ == 0 else device_name(type_, number)
        for position, (column, label, detail) in enumerate(_MEMORY):
            values = allocations[column][rows].astype(np.float64)
            valid = (values != -1) | (column == "total_bytes")
            # No track for a counter that is always 0, such as reserved bytes of the host's allocator.
            if values[valid].any():
                times = allocations["time_ns"][rows][valid]
                name = f"{label} · {device or 'host'}"
                of_track = track_id(MEMORY, counter_key * len(_MEMORY) + position)
                series.append(Counter(of_track, owner, name, "bytes", detail, device, times, values[valid]))
    return series


def _sampled(trace: Trace) -> list[Counter]:
    process_count = max(len(trace.columns("processes")), 1)
    return [
        Counter(
            track_id(COUNTER, sampled.string * process_count + sampled.process),
            sampled.process,
            trace.strings[sampled.string],
            sampled.unit,
            "sampled",
            None,
            sampled.time_ns,
            sampled.value,
        )
        for sampled in sampled_counters(trace)
    ]
