"""What each device and the host of each process did, and when each was recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller

import numpy as np

from kinetoscope.model.hierarchy import spans_named
from kinetoscope.model.kinds import is_operator, is_runtime_call
from kinetoscope.model.rows import Mask, ProcessRow, Rows, mask_of
from kinetoscope.model.schema import (
    ASKING,
    COLLATE_BATCH,
    FETCH_BATCH,
    FLAG_ASYNC,
    PIN_BATCH,
    SampleState,
    SpanKind,
)
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.device.launches import queued_until_start, waiting_names
from kinetoscope.tables.device.work import Device, Owner, busy, device_work, thread_owners
from kinetoscope.tables.intervals import Intervals, united, united_by, when_ran

NOBODY = Owner(-1, ProcessRow(-1))
"""The owner of work whose process is unknown."""

# What torch names the range around the wait for the next batch.
_LOADING = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")
# How a loader's work is marked: in the process of the loop it lies in the wait, in a worker it is what the worker is for.
_MAKING = (FETCH_BATCH, COLLATE_BATCH, PIN_BATCH)
# Backends that move data on threads of the host.
_CARRIED_BY_HOST = ("gloo:", "mpi:", "ucc:")
# Ranges of FSDP in backward functions: what computes in them is operators, and the rest asks for communication or waits for it.
_SHARDING = ("FSDP::", "FullyShardedDataParallel.")


@dataclass(frozen=True)
class HostActivity:
    """What the host of one process did.

    Attributes:
        compute: An operator or backward function ran outside the loading of data, and did not wait for shards.
        communication: A backend moved data between ranks on threads of the host.
        sharding: A range of FSDP ran in backward without a computing operator inside: it started communication or waited for it.
        loading: The program waited for the next batch or made it.
        waiting: A call waited for a device, and no operator or call ran on another thread.
        calls: An operator, backward function or call of a runtime ran.
        ranges: A range that the program marked ran; steps are none.
        sampled: Samples say that a thread of the process ran, or waited only for Python's global lock.
    """

    compute: Intervals
    communication: Intervals
    sharding: Intervals
    loading: Intervals
    waiting: Intervals
    calls: Intervals
    ranges: Intervals
    sampled: Intervals


@dataclass(frozen=True)
class Activity:
    """What a device and its host did, for the decision which part a moment counts for.

    Attributes:
        owner: The process.
        device: The device; None for a process without work on any, whose host then does the computing.
        compute: It computed.
        communication: It communicated, or the host did for it.
        copies: It copied or filled memory.
        queued: Something that was launched had not begun, although the launch was done long ago.
        host: What the host did.
    """

    owner: Owner
    device: Device | None
    compute: Intervals
    communication: Intervals
    copies: Intervals
    queued: Intervals
    host: HostActivity


@derived
def activities(trace: TraceData) -> list[Activity]:
    """What each device did, and each process that used none; once for a trace."""
    work = device_work(trace)
    devices, none = work.devices, Intervals.none()
    queues = united_by(work.device, len(devices), *queued_until_start(trace, work.rows))
    listed = []
    for device, when, queued in zip(devices, busy(trace), queues, strict=True):
        host = host_activity(trace, device.owner)
        carried = when.communication | host.communication
        listed.append(Activity(device.owner, device, when.compute, carried, when.copies, queued, host))
    with_device = {device.owner for device in devices}
    for owner in host_owners(trace):
        if owner not in with_device and NOBODY not in with_device:
            host = host_activity(trace, owner)
            listed.append(Activity(owner, None, host.compute, host.communication, none, none, host))
    return listed


def host_owners(trace: TraceData) -> list[Owner]:
    """The owners of the threads that host spans ran on; an unknown one counts as any of the others."""
    spans = trace.columns("spans")
    hosts = mask_of(spans["thread"][spans["stream"] < 0], len(trace.columns("threads")) + 1)
    owner_of_thread, owners = thread_owners(trace)
    return [owners[row] for row in np.unique(owner_of_thread[hosts]).tolist() if row >= 0] or [NOBODY]


def owned(trace: TraceData, owner: Owner) -> Mask:
    """For each row of `threads`, and for -1, whether it counts as an owner's: an unknown owner counts for all, and all count for `NOBODY`."""
    owner_of_thread, owners = thread_owners(trace)
    if owner == NOBODY:
        return np.ones(len(owner_of_thread), dtype=bool)
    return np.asarray((owner_of_thread == owners.index(owner)) | (owner_of_thread < 0))


@derived
def host_activity(trace: TraceData, owner: Owner) -> HostActivity:
    """What the host of a process did; `NOBODY` takes all together."""
    spans = trace.columns("spans")
    kind, thread, name = spans["kind"], spans["thread"], spans["name"]
    on_host = (spans["stream"] < 0) & owned(trace, owner)[thread]
    nested = on_host & ((spans["flags"] & FLAG_ASYNC) == 0)

    def rows(marked: Mask) -> Rows:
        return np.flatnonzero(nested & marked)

    (loads, carries, asks, shards, makes), waits = _named(trace), waiting_names(trace)
    operator = is_operator(kind)
    runtime = is_runtime_call(kind) | (kind == SpanKind.SYNC)
    loading = rows(loads & (operator | (kind == SpanKind.USER_ANNOTATION)))
    waiting = rows(runtime & waits[name])
    operators = rows(operator & ~loads)
    working = operators[~asks[operators]]
    sharding = rows((kind == SpanKind.USER_ANNOTATION) & shards)
    sharded = _begin_in(trace, working, sharding)
    ranges = rows((kind == SpanKind.USER_ANNOTATION) & ~loads & ~(makes & (len(loading) > 0)))
    busy_calls = rows(runtime & ~waits[name])
    active = np.concatenate((operators, busy_calls))
    return HostActivity(
        compute=_without_own(trace, working[~sharded], np.concatenate((loading, sharding)))
        | _without_own(trace, working[sharded], loading),
        # A backend may begin them on the thread that called it, and end them on its own.
        communication=when_ran(trace, np.flatnonzero(on_host & (kind == SpanKind.COLLECTIVE) & carries)),
        sharding=when_ran(trace, sharding) - when_ran(trace, working[sharded]),
        loading=when_ran(trace, loading),
        waiting=when_ran(trace, waiting) - _without_own(trace, active, waiting)
        if len(waiting)
        else Intervals.none(),
        calls=when_ran(trace, active) | when_ran(trace, waiting),
        ranges=when_ran(trace, ranges),
        sampled=_sampled(trace, owner),
    )


def _sampled(trace: TraceData, owner: Owner) -> Intervals:
    """When samples say that a thread of a process ran: the time that each of them stands for."""
    samples = trace.columns("samples")
    ran = np.isin(samples["state"], (SampleState.RUNNING, SampleState.WAITING_FOR_GIL))
    rows = np.flatnonzero(ran & owned(trace, owner)[samples["thread"]])
    until = samples["time_ns"][rows]
    return Intervals.of(until - samples["period_ns"][rows], until)


def _begin_in(trace: TraceData, rows: Rows, outer: Rows) -> Mask:
    """For each of `rows` whether it begins while one of `outer` runs on its thread."""
    thread, start = trace.column("spans", "thread"), trace.column("spans", "start_ns")[rows]
    begins_inside = np.zeros(len(rows), dtype=bool)
    for row in np.unique(thread[outer]).tolist():
        there, around = thread[rows] == row, when_ran(trace, outer[thread[outer] == row])
        begins_inside[there] = around.within(start[there], start[there] + 1) > 0
    return begins_inside


def _without_own(trace: TraceData, rows: Rows, holes: Rows) -> Intervals:
    """When `rows` ran, without the time in which `holes` of the same thread did."""
    thread = trace.column("spans", "thread")
    is_holed = mask_of(thread[holes], len(trace.columns("threads")))
    parts = (
        when_ran(trace, rows[thread[rows] == row]) - when_ran(trace, holes[thread[holes] == row])
        for row in np.flatnonzero(is_holed).tolist()
    )
    return united([when_ran(trace, rows[~is_holed[thread[rows]]]), *parts])


@derived
def _named(trace: TraceData) -> list[Mask]:
    """Mark the spans whose names are of loading data, of communication that the host carries out, of a call for it, of sharding, of making a batch."""
    tests: list[Callable[[str], bool]] = [
        methodcaller("startswith", prefixes) for prefixes in (_LOADING, _CARRIED_BY_HOST, ASKING, _SHARDING)
    ]
    return [spans_named(trace, is_named) for is_named in (*tests, _MAKING.__contains__)]


def recorded_extent(trace: TraceData, process: ProcessRow) -> tuple[int, int]:
    """When the recording of a process, a row of `processes`, began and ended; that of the trace for -1.

    Spans that a process has outside of it, by another clock for example, count as recorded.
    """
    if process < 0:
        return trace.extent_ns
    table, spans = trace.columns("processes"), trace.columns("spans")
    begin = int(table["start_ns"][process])
    end = begin + int(table["duration_ns"][process])
    rows = np.flatnonzero(trace.column("threads", "process_row")[spans["thread"]] == process)
    start = spans["start_ns"][rows]
    return (
        int(start.min(initial=begin)),
        int((start + spans["duration_ns"][rows]).max(initial=max(begin, end))),
    )
