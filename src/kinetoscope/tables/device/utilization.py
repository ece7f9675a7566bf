"""How busy each device was over time, and the counters that were sampled meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import checked_whole
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.processes import of_processes
from kinetoscope.model.rows import Rows, begins_run
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.device.work import busy, device_work
from kinetoscope.tables.intervals import Intervals

_UNITS = (
    ("_bytes_per_s", "bytes/s"),
    ("_bytes", "bytes"),
    ("_percent", "%"),
    ("_ns", "ns"),
    ("_celsius", "°C"),
    ("_watts", "W"),
)


@dataclass(frozen=True, eq=False)
class SampledCounter:
    """A counter of a process; each sample is valid until the next one.

    Attributes:
        string: Its name, a row of `strings`.
        process: The row of its process; 0 in a trace of one process.
        unit: The unit of its values, by its name; empty if that does not say.
        time_ns: Times of the samples, ascending.
        value: Values of the samples, all finite.
    """

    string: int
    process: int
    unit: str
    time_ns: Rows
    value: NDArray[np.float64]


@derived
def sampled_counters(trace: TraceData) -> list[SampledCounter]:
    """Return the counters of the table `counters`, one for each name and process."""
    counters = trace.columns("counters")
    process_count = max(len(trace.columns("processes")), 1)
    key = counters["name"].astype(np.int64) * process_count + np.maximum(counters["process_row"], 0)
    order = np.lexsort((counters["time_ns"], key))
    sampled = []
    for first, last in pairwise([*np.flatnonzero(begins_run(key[order])).tolist(), len(key)]):
        rows = order[first:last]
        string, process = divmod(int(key[rows[0]]), process_count)
        name, value = trace.strings[string], counters["value"][rows]
        unit = next((unit for ending, unit in _UNITS if name.endswith(ending)), "")
        real = np.isfinite(value)
        if real.any():
            time_ns = counters["time_ns"][rows][real]
            sampled.append(SampledCounter(string, process, unit, time_ns, value[real].astype(np.float64)))
    return sampled


def utilization(trace: TraceData, stretches: int = 240) -> ArrowTable:
    """Return the `utilization` table: how busy devices were over time, and what counters showed.

    Args:
        trace: The trace.
        stretches: Into how many stretches the trace is divided.

    Returns:
        The table, the stretches of each device and then of each counter in order of time; the meaning of its columns is in
        the table `utilization`.

    Raises:
        ArgumentError: `stretches` is not a whole number from 1 on.
    """
    edges = edges_of(trace, checked_whole("stretches", stretches, 1))
    work, counters = device_work(trace), sampled_counters(trace)
    values = [_busy_percent(did.compute | did.communication | did.copies, edges) for did in busy(trace)] + [
        _of_counter(counter, edges) for counter in counters
    ]
    names = ["busy"] * len(work.devices) + [trace.strings[counter.string] for counter in counters]
    units = ["%"] * len(work.devices) + [counter.unit for counter in counters]
    process = [device.process for device in work.devices] + [counter.process for counter in counters]
    series, count = np.repeat(np.arange(len(values)), stretches), len(values)
    columns: dict[str, Any] = {
        "name": Labels(series, names),
        "device": Labels(
            np.where(series < len(work.devices), series, -1), [device.name for device in work.devices]
        ),
        "unit": Labels(np.where([unit != "" for unit in units], np.arange(count), -1)[series], units),
        "start_ns": np.tile(edges[:-1], count),
        "duration_ns": np.tile(np.diff(edges), count),
        "value": np.concatenate(values) if values else np.zeros(0),
        **of_processes(trace, np.array(process, dtype=np.int32)[series]),
    }
    # Some files say the rank of a device, but not its process.
    ranks = np.array([device.rank for device in work.devices], dtype=np.int64)
    columns["rank"][: len(ranks) * stretches] = np.repeat(ranks, stretches)
    return to_arrow("utilization", columns)


def edges_of(trace: TraceData, stretches: int) -> NDArray[np.float64]:
    """Where the stretches of `utilization` begin, and where the last one ends."""
    return np.linspace(0.0, max(trace.duration_ns, 1), stretches + 1)


def _busy_percent(worked: Intervals, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the percentage of each interval, given by its edges, that is covered by `worked`."""
    if len(worked) == 0:
        return np.zeros(len(edges) - 1)
    # Cumulative busy time: constant while idle, rising while busy.
    turns = np.stack([worked.start_ns, worked.end_ns], axis=1).ravel()
    lasting = np.cumsum(worked.end_ns - worked.start_ns)
    done = np.stack([np.append(0, lasting[:-1]), lasting], axis=1).ravel()
    share: NDArray[np.float64] = 100 * np.diff(np.interp(edges, turns, done)) / np.diff(edges)
    return share.clip(0, 100)


def _of_counter(counter: SampledCounter, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Reduce the samples of a counter in each interval, given by its edges; a sample is valid until the next one."""
    time, value = counter.time_ns.astype(np.float64), counter.value
    rows = np.searchsorted(time, edges)
    if counter.unit == "bytes":
        first = np.maximum(rows[:-1] - 1, 0)
        pairs = np.stack([first, np.maximum(rows[1:], first + 1)], axis=1).ravel()
        reduced = np.maximum.reduceat(np.append(value, -np.inf), pairs)[::2]
    else:
        edges_ns = np.append(time, max(edges[-1], time[-1]) + 1)
        # Scaled by the largest value, so that no sum overflows.
        largest = float(np.abs(value).max()) or 1.0
        sums = np.append(0, np.cumsum(value / largest * np.diff(edges_ns)))
        covered = np.diff(np.maximum(edges, time[0]))
        with np.errstate(divide="ignore", invalid="ignore"):
            reduced = np.diff(np.interp(edges, edges_ns, sums)) / covered * largest
    return np.where(edges[1:] > time[0], reduced, np.nan)
