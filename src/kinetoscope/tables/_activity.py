"""What went on at each moment, as sets of moments: on a device, and on the host of its process and of no other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.tables._device_work import Device, Owner, busy, device_work, thread_owners
from kinetoscope.tables._intervals import Intervals, united
from kinetoscope.trace._device_time import calls_runtime
from kinetoscope.trace._loading_words import COLLATE, FETCH, PIN
from kinetoscope.trace._schema import FLAG_ASYNC, SpanKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

NOBODY = Owner(-1, -1)
"""The owner of what may be anybody's."""

# What torch names the range around the wait for the next batch.
_LOADING = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")
# How a loader's work is marked: in the process of the loop it lies in the wait, in a worker it is what the worker is for.
_MAKING = (FETCH, COLLATE, PIN)
# Backends that move data on threads of the host.
_CARRIED_BY_HOST = ("gloo:", "mpi:", "ucc:")
# Operators that only ask for communication or wait for it.
_ASKING = ("c10d::", "_c10d_functional::", "record_param_comms")
# Calls of a runtime in which the host waits: cudaStreamSynchronize, hipDeviceSynchronize, cuEventSynchronize,
# zeCommandQueueSynchronize, urQueueFinish, urEventWait and their like.
_WAITS = re.compile(r"synchronize|queuefinish|event_?wait$|_wait$|waitforevent", re.IGNORECASE)


@dataclass(frozen=True)
class HostActivity:
    """What the host of one process did.

    Attributes:
        compute: An operator or backward function ran outside the loading of data.
        communication: A backend moved data between ranks on threads of the host.
        loading: The program waited for the next batch or made it.
        waiting: A call waited for a device, and no operator or call ran on another thread.
        calls: An operator, backward function or call of a runtime ran.
        ranges: A range that the program marked ran; steps are none.
    """

    compute: Intervals
    communication: Intervals
    loading: Intervals
    waiting: Intervals
    calls: Intervals
    ranges: Intervals


@dataclass(frozen=True)
class Activity:
    """What a device and its host did, as far as it decides what a moment counts for.

    Attributes:
        owner: The process.
        device: The device; None for a process without work on any, whose host then does the computing.
        compute: It computed.
        communication: It communicated, or the host did for it.
        copies: It copied or filled memory.
        host: What the host did.
    """

    owner: Owner
    device: Device | None
    compute: Intervals
    communication: Intervals
    copies: Intervals
    host: HostActivity


def activities(trace: Trace) -> list[Activity]:
    """What each device did, and each process that used none; once for a trace."""

    def make() -> list[Activity]:
        devices = device_work(trace).devices
        found = []
        for device, when in zip(devices, busy(trace), strict=True):
            host = host_activity(trace, device.owner)
            carried = when.communication | host.communication
            found.append(Activity(device.owner, device, when.compute, carried, when.copies, host))
        known = {device.owner for device in devices}
        for owner in host_owners(trace):
            if owner not in known and NOBODY not in known:
                host = host_activity(trace, owner)
                found.append(Activity(owner, None, host.compute, host.communication, Intervals.none(), host))
        return found

    return trace.cached("activities", make)


def host_owners(trace: Trace) -> list[Owner]:
    """Whose threads host spans ran on; one that is not known counts as any other where there is one."""
    spans = trace.columns("spans")
    seen = np.zeros(len(trace.columns("threads")) + 1, dtype=bool)
    seen[spans["thread"][spans["stream"] < 0]] = True
    owner_of_thread, owners = thread_owners(trace)
    return [owners[place] for place in np.unique(owner_of_thread[seen]).tolist() if place >= 0] or [NOBODY]


def owned(trace: Trace, owner: Owner) -> NDArray[np.bool_]:
    """For each row of `threads`, and for -1, whether it counts as an owner's: what nobody knows counts for each, and of nobody is all."""
    owner_of_thread, owners = thread_owners(trace)
    if owner == NOBODY:
        return np.ones(len(owner_of_thread), dtype=bool)
    mine: NDArray[np.bool_] = (owner_of_thread == owners.index(owner)) | (owner_of_thread < 0)
    return mine


def host_activity(trace: Trace, owner: Owner) -> HostActivity:
    """What the host of a process did, once for a trace; `NOBODY` takes all together."""
    return trace.cached(f"host_activity_{owner}", lambda: _host_activity(trace, owner))


def waiting_calls(trace: Trace) -> NDArray[np.int64]:
    """The rows of the host's calls that wait for a device, in the order of spans."""
    spans = trace.columns("spans")
    kind = spans["kind"]
    waits = _names(trace)[3]
    runtime = calls_runtime(kind) | (kind == SpanKind.SYNC)
    return np.flatnonzero(runtime & (spans["stream"] < 0) & waits[spans["name"]])


def _host_activity(trace: Trace, owner: Owner) -> HostActivity:
    """Look at the spans of the host."""
    spans = trace.columns("spans")
    kind, thread, name = spans["kind"], spans["thread"], spans["name"]
    start = spans["start_ns"]
    own = (spans["stream"] < 0) & owned(trace, owner)[thread] & ((spans["flags"] & FLAG_ASYNC) == 0)

    def rows(marked: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.flatnonzero(own & marked)

    def when(chosen: NDArray[np.int64]) -> Intervals:
        return Intervals.of(start[chosen], start[chosen] + spans["duration_ns"][chosen])

    loads, carries, asks, waits, makes = _names(trace)
    operator = kind <= SpanKind.BACKWARD
    runtime = calls_runtime(kind) | (kind == SpanKind.SYNC)
    loading = rows(loads[name] & (operator | (kind == SpanKind.USER_ANNOTATION)))
    waiting = rows(runtime & waits[name])
    operators = rows(operator & ~loads[name])
    working = operators[~asks[name[operators]]]
    ranges = rows((kind == SpanKind.USER_ANNOTATION) & ~loads[name] & ~(makes[name] & (len(loading) > 0)))
    busy_calls = rows(runtime & ~waits[name])
    active = np.concatenate((operators, busy_calls))
    return HostActivity(
        compute=_without_own(when, thread, working, loading),
        communication=when(rows((kind == SpanKind.COLLECTIVE) & carries[name])),
        loading=when(loading),
        waiting=when(waiting) - _without_own(when, thread, active, waiting)
        if len(waiting)
        else Intervals.none(),
        calls=when(active) | when(waiting),
        ranges=when(ranges),
    )


def _without_own(
    when: Callable[[NDArray[np.int64]], Intervals],
    thread: NDArray[np.int32],
    rows: NDArray[np.int64],
    holes: NDArray[np.int64],
) -> Intervals:
    """When `rows` ran, without the time in which `holes` of the same thread did."""
    holed = np.unique(thread[holes])
    if len(holed) == 0:
        return when(rows)
    is_holed = np.zeros(int(thread.max()) + 1, dtype=bool)
    is_holed[holed] = True
    inside = is_holed[thread[rows]]
    parts = [when(rows[~inside])]
    parts += [when(rows[thread[rows] == one]) - when(holes[thread[holes] == one]) for one in holed.tolist()]
    return united(parts)


def _names(trace: Trace) -> tuple[NDArray[np.bool_], ...]:
    """For each string whether it names loading, communication that the host carries out, a call for it, a wait, or making a batch."""

    def make() -> tuple[NDArray[np.bool_], ...]:
        spans = trace.columns("spans")
        texts = trace.strings
        seen = np.zeros(len(texts), dtype=bool)
        seen[spans["name"]] = True
        found = tuple(np.zeros(len(texts), dtype=bool) for _ in range(5))
        for row in np.flatnonzero(seen).tolist():
            text = texts[row]
            for place, marks in enumerate((_LOADING, _CARRIED_BY_HOST, _ASKING)):
                found[place][row] = text.startswith(marks)
            found[3][row] = _WAITS.search(text) is not None
            found[4][row] = text in _MAKING
        return found

    return trace.cached("activity_names", make)
