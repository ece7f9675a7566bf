"""Launches: the device work that the host launched, and its launch latency."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.device_time import counted_launches, started_by
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import device_work_spans
from kinetoscope.model.kinds import is_copy, is_device_work, is_runtime_call
from kinetoscope.model.rows import Mask, Rows, look_up, places_of
from kinetoscope.model.schema import KIND_NAMES, SpanKind
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.intervals import united_by
from kinetoscope.tables.stored import Shown


class Starters(NamedTuple):
    """The host spans that launched each device span; -1 for other spans and, at the end, for row -1.

    Attributes:
        call: The host span that launched it: the runtime call if recorded.
        operator: The operator or range that its time counts for; -1 if only a runtime call is known.
    """

    call: NDArray[np.int32]
    operator: NDArray[np.int32]


@derived
def starters(trace: TraceData) -> Starters:
    """Find the launch of each kernel, copy and fill."""
    spans, launches = trace.columns("spans"), trace.columns("launches")
    call = np.full(len(spans) + 1, -1, dtype=np.int32)
    operator = call.copy()
    counted = counted_launches(spans, launches)
    if len(counted) == 0:
        return Starters(call, operator)
    device = launches["device"][counted]
    owner = started_by(spans, launches["host"])[counted]
    call[device] = launches["host"][counted]
    operator[device] = np.where(is_runtime_call(spans["kind"][owner]), -1, owner)
    return Starters(call, operator)


# Runtime calls in which the host waits: cudaStreamSynchronize, hipDeviceSynchronize, cuEventSynchronize,
# zeCommandQueueSynchronize, urQueueFinish, urEventWait, piEventsWait, MTIA's waitForEvent and similar ones; and synchronous copies:
# cudaMemcpy, cuMemcpyDtoH_v2, hipMemcpyWithStream. Between device memories these return at once.
_WAITS = re.compile(
    r"synchronize|queuefinish|(?<!enqueue)events?_?wait$|_wait$|waitforevents?"
    r"|^(cuda|cu|hip)memcpy(?!\w*(async|dtod|dtoa|atod|atoa|peer|batch))\w*$",
    re.IGNORECASE,
)


@derived
def waiting_names(trace: TraceData) -> Mask:
    """For each string whether a runtime call of this name waits for a device."""
    return np.array([_WAITS.search(text) is not None for text in trace.strings], dtype=bool)


def waiting_calls(trace: TraceData) -> Rows:
    """The rows of host calls that wait for a device, in the order of spans."""
    spans = trace.columns("spans")
    kind = spans["kind"]
    waits = waiting_names(trace)
    runtime = is_runtime_call(kind) | (kind == SpanKind.SYNC)
    return np.flatnonzero(runtime & (spans["stream"] < 0) & waits[spans["name"]])


LAUNCH_NS = 25_000
"""An idle device starts launched work within this time: 1 to 6 microseconds with CUDA, 5 to 21 with ROCm."""
PAGEABLE_BYTES_PER_S = 2e9
"""Copies of pageable memory, which the driver stages in pieces, are faster than this."""


def queued_until_start(trace: TraceData, rows: Rows) -> tuple[Rows, Rows]:
    """When each device span was queued, and when it started.

    A span counts as queued a short time after its launching call. Until then, the device waits for the host; later, for something else: earlier work, another
    stream, another rank. The call of a copy may return only when the copy is done, so the longest time that a copy of its size may take counts instead.
    If the launch is unknown, the span counts as queued when it started.
    """
    spans = trace.columns("spans")
    start, call = spans["start_ns"][rows], starters(trace).call[rows]
    called_ns = np.append(spans["start_ns"], 0)[call]
    taken_ns = np.append(spans["duration_ns"], 0)[call] + LAUNCH_NS
    copy = np.flatnonzero(is_copy(spans["kind"][rows]))
    taken_ns[copy] = np.minimum(taken_ns[copy], most_copy_ns(trace, rows[copy]))
    return np.minimum(np.where(call >= 0, called_ns + taken_ns, start), start), start


@derived
def launch_rows(trace: TraceData) -> NDArray[np.int32]:
    """For every span, and for -1, its row of `kernels`, which has the size of its grid; -1 without."""
    return places_of(trace.column("kernels", "span"), len(trace.columns("spans")))


@derived
def copy_bytes(trace: TraceData) -> Rows:
    """For every span, and for -1, how many bytes it copied or filled; -1 where that is not known."""
    stored = trace.columns("copies")
    return look_up(places_of(stored["span"], len(trace.columns("spans"))), stored["bytes"])


def most_copy_ns(trace: TraceData, rows: Rows) -> Rows:
    """The longest plausible time of each of some copies and fills from its call: by its bytes or, if unknown, its duration."""
    size, duration_ns = copy_bytes(trace)[rows], trace.column("spans", "duration_ns")[rows]
    by_size = np.maximum(size, 0) * (1e9 / PAGEABLE_BYTES_PER_S)
    return np.asarray(np.maximum(by_size.astype(np.int64), duration_ns) + LAUNCH_NS)


def captured_time(trace: TraceData, owner: NDArray[np.int32], groups: int) -> Rows:
    """How device time moves from the launches of CUDA graphs to the operators that were captured.

    Args:
        trace: The trace.
        owner: For each span what it belongs to, such as its module; -1 for none.
        groups: How many of these there are.

    Returns:
        For each the time of captured work minus the time of what its own launches replayed.
    """
    spans = trace.columns("spans")
    rows = np.flatnonzero((spans["origin"] >= 0) & is_device_work(spans["kind"]))
    launcher, duration_ns = starters(trace).operator[rows], spans["duration_ns"][rows]
    replayed = Groups(np.where(launcher >= 0, owner[launcher], -1), groups).sums(duration_ns)
    return np.asarray(Groups(owner[rows], groups).sums(duration_ns) - replayed)


def launches(trace: TraceData) -> ArrowTable:
    """Return the `launches` table: one row for each piece of work that a call of the host started on a device.

    Args:
        trace: The trace.

    Returns:
        The table; `docs/tables.md` describes its columns.
    """
    spans, stored, texts = trace.columns("spans"), trace.columns("launches"), trace.strings
    linked = np.flatnonzero((stored["host"] >= 0) & (stored["device"] >= 0))
    linked = linked[np.argsort(spans["start_ns"][stored["host"][linked]], kind="stable")]
    host, device = stored["host"][linked], stored["device"][linked]
    owner = started_by(spans, stored["host"])[linked]
    operator = np.where(is_runtime_call(spans["kind"][owner]), -1, owner)
    start = {"host": spans["start_ns"][host], "device": spans["start_ns"][device]}
    stream, streams = spans["stream"][device], trace.columns("streams")
    correlation = spans["correlation"][device]
    columns = Shown(trace, "spans", host)
    columns |= {
        "host": host,
        "device": device,
        "host_name": Labels(spans["name"][host], texts),
        "device_name": Labels(spans["name"][device], texts),
        "device_kind": Labels(spans["kind"][device], KIND_NAMES),
        "operator": Labels(np.where(operator >= 0, spans["name"][operator], -1), texts),
        "operator_span": operator,
        "device_index": np.append(streams["device_index"], -1)[stream],
        "stream": np.append(streams["number"], -1)[stream],
        "correlation": np.where(correlation >= 0, correlation, spans["correlation"][host]),
        "host_start_ns": start["host"],
        "host_ns": spans["duration_ns"][host],
        "device_start_ns": start["device"],
        "device_ns": spans["duration_ns"][device],
        "delay_ns": start["device"] - start["host"],
        "queue_ns": _queued(trace, device, start["host"]),
    }
    return to_arrow("launches", columns)


def _queued(trace: TraceData, device: NDArray[np.int32], launched_ns: Rows) -> Rows:
    """How long the stream of each device span was busy with other work between its launch and its start."""
    spans = trace.columns("spans")
    stream, start, work = spans["stream"], spans["start_ns"], device_work_spans(trace).rows
    groups = len(trace.columns("streams"))
    queued = np.zeros(len(device), dtype=np.int64)
    sets = united_by(stream[work], groups, start[work], start[work] + spans["duration_ns"][work])
    order = np.argsort(stream[device], kind="stable")
    edges = np.searchsorted(stream[device][order], np.arange(groups + 1)).tolist()
    for number, busy in enumerate(sets):
        rows = order[edges[number] : edges[number + 1]]
        queued[rows] = busy.within(launched_ns[rows], start[device[rows]])
    return queued
