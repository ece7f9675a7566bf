"""Devices and their queues: how long they were busy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.arrow import ArrowTable, to_arrow
from kinetoscope.model.groups import Groups, percent
from kinetoscope.model.processes import of_processes, process_runs
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.device.work import WORK_CATEGORIES, Device, DeviceWork, device_work
from kinetoscope.tables.intervals import united_by
from kinetoscope.tables.memory.peak import device_peaks
from kinetoscope.tables.memory.timeline import allocator_peak
from kinetoscope.tables.stored import Shown


def streams(trace: TraceData) -> ArrowTable:
    """Return the `streams` table: how busy each queue of each device was.

    Args:
        trace: The trace.

    Returns:
        The table; `docs/tables.md` describes its columns.
    """
    stored, work = trace.columns("streams"), device_work(trace)
    stream = trace.column("spans", "stream")[work.rows]
    columns = Shown(trace, "streams")
    columns |= _busy_columns(trace, work, Groups(stream, len(stored)))
    columns["name"] = [name or None for name in stored["name"]]
    order = np.lexsort((stored["number"], stored["device_index"], stored["device_type"]))
    return to_arrow("streams", columns, order)


def devices(trace: TraceData) -> ArrowTable:
    """Return the `devices` table: how busy each device was, whatever queue its work ran in.

    Args:
        trace: The trace.

    Returns:
        The table; `docs/tables.md` describes its columns.
    """
    work = device_work(trace)
    stream = trace.column("spans", "stream")[work.rows].astype(np.int64)
    used = np.unique(work.device * np.int64(len(trace.columns("streams"))) + stream)
    properties = [trace.run_info.properties_of(device.index) for device in work.devices]
    sizes = [-1 if model is None or model.total_bytes is None else model.total_bytes for model in properties]
    columns: dict[str, Any] = {
        "device": [device.name for device in work.devices],
        **of_processes(trace, np.array([device.process for device in work.devices], np.int32)),
        "rank": np.array([device.rank for device in work.devices], dtype=np.int64),
        "device_type": np.array([device.type for device in work.devices], dtype=np.int64),
        "device_index": np.array([device.index for device in work.devices], dtype=np.int64),
        "model": [model.name or None if model else None for model in properties],
        "memory_bytes": np.array(sizes, dtype=np.int64),
        **_memory_columns(trace, work.devices),
        "streams": Groups(used // max(len(trace.columns("streams")), 1), len(work.devices)).sizes(),
        **_busy_columns(trace, work, Groups(work.device, len(work.devices))),
    }
    return to_arrow("devices", columns)


def _memory_columns(trace: TraceData, listed: Sequence[Device]) -> dict[str, Rows]:
    names = ("allocated_peak_bytes", "attributed_peak_bytes", "reserved_peak_bytes")
    columns = {name: np.full(len(listed), -1, dtype=np.int64) for name in names}
    if len(trace.columns("allocations")) == 0:
        return columns
    attributed = {peak.device: peak.attributed_bytes for peak in device_peaks(trace)}
    ranks = [run.rank for run in process_runs(trace)]
    for row, device in enumerate(listed):
        process_rows = [process_row for process_row, rank in enumerate(ranks) if rank == device.rank]
        counted = allocator_peak(
            trace, device.type, device.index, np.array(process_rows) if process_rows else None
        )
        columns["allocated_peak_bytes"][row] = counted.allocated_bytes
        columns["attributed_peak_bytes"][row] = attributed.get(device.name, -1)
        columns["reserved_peak_bytes"][row] = counted.reserved_bytes
    return columns


def _busy_columns(trace: TraceData, work: DeviceWork, groups: Groups) -> dict[str, NDArray[Any]]:
    kernel = trace.column("spans", "kind")[work.rows] == SpanKind.KERNEL
    first = groups.minima(work.start_ns)
    last = groups.maxima(work.end_ns)
    count = groups.sizes()
    columns: dict[str, NDArray[Any]] = {
        "kernels": groups.sums(kernel),
        "copies": groups.sums(~kernel),
        "work_ns": groups.sums(work.end_ns - work.start_ns),
        "first_ns": np.where(count > 0, first, -1),
        "last_ns": np.where(count > 0, last, -1),
    }
    categories = {f"{name}_ns": work.category == category for category, name in enumerate(WORK_CATEGORIES)}
    for name, chosen in {**categories, "busy_ns": np.ones(len(work.rows), dtype=bool)}.items():
        times = united_by(groups.of_row[chosen], len(groups), work.start_ns[chosen], work.end_ns[chosen])
        columns[name] = np.array([part.total_ns for part in times], dtype=np.int64)
    columns["idle_ns"] = last - first - columns["busy_ns"]
    start_ns, end_ns = trace.extent_ns
    columns["utilization_percent"] = percent(columns["busy_ns"], last - first)
    columns["busy_percent"] = percent(columns["busy_ns"], end_ns - start_ns)
    return columns
