"""Counters of the timeline: memory of each device and process, and what was sampled."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.model.processes import infos, rank_of, thread_processes
from kinetoscope.tables.device.work import Device
from kinetoscope.viewer.server.answers import window_of
from kinetoscope.viewer.timeline.rows import COUNTER, MEMORY, track_id

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.answers import Query

_MEMORY = (
    ("total_bytes", "memory in use", "as far as the trace saw it allocated"),
    ("allocated_bytes", "memory allocated", "as the allocator counts it"),
    ("reserved_bytes", "memory reserved", "held by the allocator, in use or not"),
)
_UNITS = (
    ("_bytes_per_s", "bytes/s"),
    ("_bytes", "bytes"),
    ("_percent", "%"),
    ("_ns", "ns"),
    ("_celsius", "°C"),
    ("_watts", "W"),
)


@dataclass(frozen=True, eq=False)
class Counter:
    """A value over time, which holds until the next one.

    Attributes:
        id: The number by which pages know it.
        process: The row of its process.
        label: What it is called.
        unit: What it is counted in, empty where that is not known.
        detail: What else there is to say.
        device: The device it is of, if it is of one.
        time_ns: When each value was taken, in order.
        value: The values.
    """

    id: int
    process: int
    label: str
    unit: str
    detail: str
    device: str | None
    time_ns: NDArray[np.int64]
    value: NDArray[np.float64]


def counters_of(trace: Trace) -> list[Counter]:
    """Find the counters of a trace, once."""
    return trace.cached("viewer: counters", lambda: [*_memory(trace), *_sampled(trace)])


def counter_tracks(trace: Trace) -> list[tuple[int, dict[str, Any]]]:
    """The tracks of counters as `tracks` tells them, each with the row of its process."""
    return [
        (
            counter.process,
            {
                "id": counter.id,
                "label": counter.label,
                "sort": "counter",
                "rows": 1,
                "spans": len(counter.time_ns),
                "device": counter.device,
                "detail": counter.detail,
                "unit": counter.unit,
                "low": float(counter.value.min()),
                "high": float(counter.value.max()),
            },
        )
        for counter in counters_of(trace)
    ]


def counter(trace: Trace, query: Query) -> pyarrow.Table:
    """Answer `counter`: for each pixel in which values were taken the lowest, the highest and the last.

    The value that holds when the window begins comes first, at the time when it was taken.

    Raises:
        ArgumentError: No such counter, or a window that is none.
    """
    import pyarrow as pa

    start, end, width = window_of(query)
    text = query.get("track", "")
    found = next((one for one in counters_of(trace) if str(one.id) == text), None)
    if found is None:
        raise ArgumentError(f"track={text[:50]!r}: there is no such counter; ask `tracks` which there are")
    pixels = np.ceil(start + np.arange(width + 1) * (end - start) / width).astype(np.int64)
    places = np.searchsorted(found.time_ns, pixels)
    first = places[:-1][places[1:] > places[:-1]]
    if places[0] > 0:
        first = np.append(places[0] - 1, first)
    value = found.value[: places[-1]]
    beyond = np.append(first[1:], len(value)) if len(first) else first
    none = np.zeros(0)
    return pa.table({
        "time": found.time_ns[first].astype(np.float64),
        "low": np.minimum.reduceat(value, first) if len(first) else none,
        "high": np.maximum.reduceat(value, first) if len(first) else none,
        "last": value[beyond - 1] if len(first) else none,
    })  # fmt: skip


def _memory(trace: Trace) -> list[Counter]:
    """The live bytes of each device after each allocation and free, and what its allocator said."""
    allocations = trace.columns("allocations")
    if len(allocations) == 0:
        return []
    kind, index = allocations["device_type"].astype(np.int64), allocations["device_index"].astype(np.int64)
    process = np.maximum(thread_processes(trace)[allocations["thread"]], 0).astype(np.int64)
    key = (process * 256 + kind) * 256 + np.where(kind > 0, index + 128, 0)
    ranks = [rank_of(info) for info in infos(trace)]
    found = []
    for one in np.unique(key).tolist():
        rows = np.flatnonzero(key == one)
        of, type_, number = (int(column[rows[0]]) for column in (process, kind, index))
        rank = ranks[of] if of < len(ranks) else None
        device = None if type_ == 0 else Device(-1 if rank is None else rank, type_, number).name
        for place, (column, label, detail) in enumerate(_MEMORY):
            values = allocations[column][rows]
            known = values != -1 if column != "total_bytes" else np.ones(len(rows), np.bool_)
            if known.any():
                times = allocations["time_ns"][rows][known]
                name = f"{label} · {device or 'host'}"
                of_track = track_id(MEMORY, one * len(_MEMORY) + place)
                found.append(_counter(of_track, of, name, "bytes", detail, device, times, values[known]))
    return found


def _sampled(trace: Trace) -> list[Counter]:
    """The table `counters`, one for each name and process."""
    counters = trace.columns("counters")
    if len(counters) == 0:
        return []
    many = max(len(trace.columns("processes")), 1)
    key = counters["name"].astype(np.int64) * many + np.maximum(counters["process_row"], 0)
    order = np.lexsort((counters["time_ns"], key))
    edges = [0, *(np.flatnonzero(np.diff(key[order])) + 1).tolist(), len(key)]
    found = []
    for first, last in pairwise(edges):
        rows = order[first:last]
        number = int(key[rows[0]])
        label = trace.strings[number // many]
        unit = next((unit for ending, unit in _UNITS if label.endswith(ending)), "")
        times, values = counters["time_ns"][rows], counters["value"][rows]
        real = np.isfinite(values)
        if real.any():
            of_track = track_id(COUNTER, number)
            found.append(
                _counter(of_track, number % many, label, unit, "sampled", None, times[real], values[real])
            )
    return found


def _counter(
    number: int,
    process: int,
    label: str,
    unit: str,
    detail: str,
    device: str | None,
    time_ns: NDArray[np.int64],
    value: NDArray[Any],
) -> Counter:
    """A counter whose values are in order of time."""
    if (time_ns[1:] < time_ns[:-1]).any():
        order = np.argsort(time_ns, kind="stable")
        time_ns, value = time_ns[order], value[order]
    return Counter(number, process, label, unit, detail, device, time_ns, value.astype(np.float64))
