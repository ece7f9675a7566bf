"""How busy devices were, and what was sampled of the machine, over the whole trace at the detail of a small chart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.arrow import to_arrow
from kinetoscope.model.schema import Column, Table
from kinetoscope.tables.device.work import busy, device_work
from kinetoscope.viewer.timeline.counters import counters_of

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.tables.intervals import Intervals
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.answers import Query
    from kinetoscope.viewer.timeline.counters import Counter

REPORTED: tuple[tuple[str, dict[str, str]], ...] = (("load", {}),)
"""What a report must answer of this."""

STRETCHES = 240
MOST_SERIES = 24


def load(trace: Trace, query: Query) -> pyarrow.Table:
    """Answer `load`: the trace in equal stretches of time, and for each of them what devices and the machine did.

    The column `time_ns` is where each stretch begins. The others, `series0` and so on, have what they show as their
    meaning: of each device the percentage of the time in which it worked, then each sampled counter, of bytes the most
    and of everything else the mean, which is null before the first sample.
    """
    edges = np.linspace(0.0, max(trace.duration_ns, 1), STRETCHES + 1)
    columns: dict[str, Any] = {"time_ns": edges[:-1]}
    fields = [Column("time_ns", "float64", "ns", "Where the stretch begins.")]
    work, many = device_work(trace), len({device.rank for device in device_work(trace).devices}) > 1
    for device, did in zip(work.devices, busy(trace), strict=True):
        rank = f" · rank {device.rank}" if many else ""
        _add(
            columns,
            fields,
            "%",
            f"{device.name}{rank} busy",
            busy_percent(did.compute | did.communication | did.copies, edges),
        )
    for counter in counters_of(trace):
        if counter.detail == "sampled":
            _add(columns, fields, counter.unit, counter.label, sampled(counter, edges))
    kept = fields[: 1 + MOST_SERIES]
    return to_arrow(
        Table("load", "A stretch of time.", tuple(kept)), {one.name: columns[one.name] for one in kept}
    )


def busy_percent(worked: Intervals, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of each stretch between two edges in which something worked."""
    if len(worked) == 0:
        return np.zeros(len(edges) - 1)
    # How much work was done up to a time: flat between stretches of work, rising within them.
    turns = np.stack([worked.start_ns, worked.end_ns], axis=1).ravel()
    lasting = np.cumsum(worked.end_ns - worked.start_ns)
    done = np.stack([np.append(0, lasting[:-1]), lasting], axis=1).ravel()
    share: NDArray[np.float64] = 100 * np.diff(np.interp(edges, turns, done)) / np.diff(edges)
    return share.clip(0, 100)


def sampled(counter: Counter, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values of a counter between any two edges; each holds until the next."""
    time, value = counter.time_ns.astype(np.float64), counter.value
    rows = np.searchsorted(time, edges)
    if counter.unit == "bytes":
        first = np.maximum(rows[:-1] - 1, 0)
        pairs = np.stack([first, np.maximum(rows[1:], first + 1)], axis=1).ravel()
        found = np.maximum.reduceat(np.append(value, -np.inf), pairs)[::2]
    else:
        known = np.append(time, max(edges[-1], time[-1]) + 1)
        sums = np.append(0, np.cumsum(value * np.diff(known)))
        covered = np.diff(np.maximum(edges, time[0]))
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.diff(np.interp(edges, known, sums)) / covered
    return np.where(edges[1:] > time[0], found, np.nan)


def _add(
    columns: dict[str, Any], fields: list[Column], unit: str, label: str, values: NDArray[np.float64]
) -> None:
    """Put one more series to those that are there."""
    name = f"series{len(fields) - 1}"
    columns[name] = values
    fields.append(Column(name, "float64", unit, label))
