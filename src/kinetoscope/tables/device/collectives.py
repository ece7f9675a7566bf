"""Collectives: how much data each moves, in which group, and how long it took."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.names import stack_texts
from kinetoscope.model.processes import process_runs, thread_processes
from kinetoscope.model.rows import SpanRow, ThreadRow
from kinetoscope.model.schema import PHASE_NAMES, TRANSFER_MARKS
from kinetoscope.model.trace_data import derived
from kinetoscope.tables.device.collective_facts import (
    CALLS,
    DESCRIBED,
    UNKNOWN_CALL,
    Facts,
    elements_of,
    facts_of_call,
    facts_of_description,
    facts_of_kernel,
    facts_of_range,
    merged,
    type_named,
)
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.device.work import WorkCategory, busy, device_work
from kinetoscope.tables.stored import processes, ranks

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.run_info import RunInfo
    from kinetoscope.model.trace_data import TraceData


# Which transfer belongs to which call between ranks.
#
# A backend such as gloo carries a call out on threads of its own and marks each transfer with a range, `gloo:all_reduce`
# for example. torch does not link the two, so they are matched by what must hold: the transfer begins after its
# call, has its name and its number of elements, comes in the order of the calls, and a thread works for one group only.

# What carries out a call; gloo has no reduce_scatter of its own.
_CARRIED_BY = {"reduce_scatter": ("reduce_scatter", "all_reduce")}


@dataclass
class Transfer:
    """A range of a backend: one movement of data.

    Attributes:
        span: Its row of spans.
        name: What it does, without the backend's mark.
        backend: Whose range it is.
        thread: The row of the thread it ran on.
        start_ns: When it began.
        end_ns: When it ended.
        elements: How many elements it was given, -1 if not known.
        type: The type of the elements as torch names it, empty if not known.
    """

    span: SpanRow
    name: str
    backend: str
    thread: ThreadRow
    start_ns: int
    end_ns: int
    elements: int = -1
    type: str = ""


@dataclass
class Call:
    """A collective, with the facts that its transfers are found by.

    Attributes:
        name: The collective, such as all_reduce.
        group: The process group, empty if not known.
        start_ns: When the call began.
        elements: How many elements one transfer of it moves, -1 if not known.
        parts: How many transfers carry it out.
        transfers: Those that were found.
    """

    name: str
    group: str
    start_ns: int
    elements: int = -1
    parts: int = 1
    transfers: list[Transfer] = field(default_factory=list)


def pair(calls: Iterable[Call], transfers: Iterable[Transfer]) -> None:
    """Assign transfers to calls; a transfer belongs to one call at most.

    Args:
        calls: The calls in order of time; their `transfers` are filled.
        transfers: The transfers of the same process.
    """
    waiting: dict[str, list[Transfer]] = defaultdict(list)
    for transfer in sorted(transfers, key=lambda transfer: transfer.start_ns):
        waiting[transfer.name].append(transfer)
    group_of_thread: dict[int, str] = {}
    for call in calls:
        for name in _CARRIED_BY.get(call.name, (call.name,)):
            carriers = _fitting(call, waiting[name], group_of_thread)
            if not carriers:
                continue
            call.transfers = carriers
            taken = {transfer.span for transfer in carriers}
            waiting[name] = [transfer for transfer in waiting[name] if transfer.span not in taken]
            if call.group:
                group_of_thread.update((transfer.thread, call.group) for transfer in carriers)
            break


def _fitting(call: Call, waiting: list[Transfer], group_of_thread: dict[int, str]) -> list[Transfer]:
    """The first transfers that can be those of a call; of a thread of its own group where there is a choice."""
    claimed: list[Transfer] = []
    unknown: list[Transfer] = []
    for transfer in waiting:
        if transfer.start_ns < call.start_ns or (
            call.elements >= 0 and transfer.elements >= 0 and call.elements != transfer.elements
        ):
            continue
        group = group_of_thread.get(transfer.thread)
        if not call.group or group == call.group:
            claimed.append(transfer)
        elif group is None:
            unknown.append(transfer)
        if len(claimed) == call.parts or len(claimed) + len(unknown) > 8 * call.parts:
            break
    # A thread that no group has claimed yet may be a second one of the same group, and then comes earlier.
    both = sorted(claimed + unknown, key=lambda transfer: transfer.start_ns)
    return both[: call.parts]


# Backends whose ranges on the host only ask a device for the transfer.
_ON_DEVICE = ("nccl", "xccl", "hccl")
_WHOLE_MESSAGES = ("broadcast", "reduce", "send", "recv")
_PARTS_OF_MESSAGES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


@dataclass
class _Row:
    """One call: its span, its facts, its transfers, and the kernels among these."""

    span: SpanRow
    facts: Facts
    call: Call
    kernels: list[SpanRow] = field(default_factory=list)
    backend: str = ""


@dataclass(frozen=True)
class KernelTimes:
    """The times of the kernels of each call.

    Attributes:
        total_ns: Their durations added up.
        overlapped_ns: The part of it in which the same device computed too.
        device: The device of the first, as a place in `device_work(trace).devices`; -1 without kernels.
    """

    total_ns: NDArray[np.int64]
    overlapped_ns: NDArray[np.int64]
    device: NDArray[np.int32]


def collectives(trace: TraceData) -> pyarrow.Table:
    """Return the `collectives` table: one row for each call between ranks.

    Sizes, groups and types are known where shapes were recorded (`record_shapes=True`), or where the backend describes
    its calls itself.

    Args:
        trace: The trace.

    Returns:
        The table, without rows if the process called no other; `docs/tables.md` describes its columns.
    """
    spans = trace.columns("spans")
    rows = _rows(trace)
    call_rows = np.array([row.span for row in rows], dtype=np.int64)
    groups = [_groups(run) for run in process_runs(trace)]
    whose = thread_processes(trace)[spans["thread"][call_rows]].tolist()
    facts = [row.facts for row in rows]
    transfers = [row.call.transfers for row in rows]
    first = np.array(
        [min((t.start_ns for t in carriers), default=-1) for carriers in transfers], dtype=np.int64
    )
    last = np.array([max((t.end_ns for t in carriers), default=-1) for carriers in transfers], dtype=np.int64)
    start, duration = spans["start_ns"][call_rows], spans["duration_ns"][call_rows]
    called = spans["stream"][call_rows] < 0
    is_carried, on_device = (
        np.array([bool(carriers) for carriers in transfers], dtype=bool),
        _on_device(trace, rows),
    )
    has_kernels = on_device["device"].ids >= 0
    waits = is_carried & ~has_kernels & np.array([fact.asynchronous == 0 for fact in facts], dtype=bool)
    size = _integers(_message_bytes(fact) for fact in facts)
    transfer_ns = np.where(has_kernels, on_device.pop("total_ns"), np.where(is_carried, last - first, -1))
    columns: dict[str, Any] = {
        "span": call_rows.astype(np.int32),
        "name": [fact.name for fact in facts],
        "backend": [
            row.backend or (row.call.transfers[0].backend if row.call.transfers else None) for row in rows
        ],
        "group": [fact.group or None for fact in facts],
        "group_description": [fact.description or None for fact in facts],
        "group_size": _integers(fact.size for fact in facts),
        "group_ranks": [
            groups[process].get(fact.group) or fact.ranks or None
            for process, fact in zip(whose, facts, strict=True)
        ],
        "rank": ranks(trace)[spans["thread"][call_rows]],
        "group_rank": _integers(fact.rank for fact in facts),
        "peer": _integers(fact.peer for fact in facts),
        "reduction": [fact.reduction or None for fact in facts],
        "dtype": [fact.type or None for fact in facts],
        "bytes": size,
        "input_bytes": _integers(fact.bytes_of(fact.in_elements) for fact in facts),
        "output_bytes": _integers(fact.bytes_of(fact.out_elements) for fact in facts),
        "input_elements": _integers(fact.in_elements for fact in facts),
        "output_elements": _integers(fact.out_elements for fact in facts),
        "input_splits": [fact.in_splits or None for fact in facts],
        "output_splits": [fact.out_splits or None for fact in facts],
        "is_async": _integers(fact.asynchronous for fact in facts),
        "start_ns": start,
        "call_ns": np.where(called, duration, -1),
        "transfers": _integers(len(carriers) for carriers in transfers),
        "transfer_span": _integers(carriers[0].span if carriers else -1 for carriers in transfers),
        "transfer_start_ns": first,
        "transfer_ns": transfer_ns,
        **on_device,
        **_speeds(facts, size, transfer_ns),
        "queued_ns": np.where(is_carried & called, first - start, -1),
        "waited_ns": np.where(waits, np.maximum(last - start - duration, 0), -1),
        "os_tid": np.where(called, trace.column("threads", "os_tid")[spans["thread"][call_rows]], -1),
        "step": np.append(trace.column("steps", "number"), -1)[spans["step"][call_rows]],
        "phase": Labels(np.where(called, spans["phase"][call_rows].astype(np.int32), -1), PHASE_NAMES),
        "module": Labels(spans["module"][call_rows], trace.columns("modules")["path"]),
        "stack": Labels(spans["stack"][call_rows], stack_texts(trace)),
        "process": processes(trace)[spans["thread"][call_rows]],
    }
    return to_arrow("collectives", columns)


def count_collectives(trace: TraceData) -> int:
    """Count the rows of the table `collectives`, without making it."""
    return len(_rows(trace))


def _on_device(trace: TraceData, rows: list[_Row]) -> dict[str, Any]:
    times = kernel_times(trace, [row.kernels for row in rows])
    has_kernels, streams = times.device >= 0, trace.columns("streams")
    first = np.array([row.kernels[0] if row.kernels else -1 for row in rows], dtype=np.int64)
    stream = np.append(trace.column("spans", "stream"), -1)[first]
    return {
        "total_ns": times.total_ns,
        "overlapped_ns": np.where(has_kernels, times.overlapped_ns, -1),
        "exposed_ns": np.where(has_kernels, times.total_ns - times.overlapped_ns, -1),
        "device": Labels(times.device, [device.name for device in device_work(trace).devices]),
        "stream": np.append(streams["number"], -1)[stream],
    }


def _speeds(
    facts: list[Facts], size: NDArray[np.int64], time_ns: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """The bandwidths of calls; null if the size or the time is unknown."""
    is_known = (size > 0) & (time_ns > 0)
    speed = np.where(is_known, size, np.nan) / np.where(is_known, time_ns, 1)
    factors = np.array([bus_factor(fact.name, fact.size) for fact in facts], dtype=np.float64)
    return {"gb_per_s": speed, "bus_gb_per_s": speed * factors}


def bus_factor(name: str, size: int) -> float:
    """The factor from algorithm to bus bandwidth: the part of a message that each rank of a group sends; NaN if unknown.

    See ``doc/PERFORMANCE.md`` of nccl-tests.
    """
    if name in _WHOLE_MESSAGES:
        return 1.0
    if size < 1 or name not in _PARTS_OF_MESSAGES:
        return float("nan")
    return _PARTS_OF_MESSAGES[name] * (size - 1) / size


@derived
def _rows(trace: TraceData) -> list[_Row]:
    """Every call of a trace in order of time, with its transfers."""
    spans, strings = trace.columns("spans"), trace.strings
    noted = dict(
        zip(
            trace.column("collectives", "span").tolist(),
            trace.column("collectives", "facts").tolist(),
            strict=True,
        )
    )
    calls, described, marks = (_rows_named(trace, wanted) for wanted in (CALLS, (DESCRIBED,), TRANSFER_MARKS))
    world = _world_size(trace)
    dims, types, concrete = (trace.columns("shapes")[name] for name in ("dims", "types", "concrete"))
    by_span: dict[SpanRow, _Row] = {}
    for row in calls:
        shapes = int(spans["shapes"][row])
        inputs = (dims[shapes], concrete[shapes]) if shapes >= 0 else ("", "")
        facts = facts_of_call(strings[spans["name"][row]], strings[noted.get(row, 0)], *inputs)
        by_span[row] = _Row(
            row, facts, _call(facts, int(spans["start_ns"][row]), strings[spans["name"][row]], world)
        )
    for row in described:
        stated = facts_of_description(strings[noted.get(row, 0)])
        around = _ancestor(spans["parent"], row, by_span)
        if around >= 0:
            if stated is not None:
                merged(by_span[around].facts, stated)
        elif stated is None or stated.name not in ("init", "wait", "coalesced"):
            stated = stated or Facts("")
            by_span[row] = _Row(row, stated, _call(stated, int(spans["start_ns"][row]), DESCRIBED, world))
    _take_ranges(trace, by_span, marks)
    _take_kernels(trace, by_span, noted, world)
    listed = sorted((row for row in by_span.values() if row.facts.name), key=lambda row: row.call.start_ns)
    transfers = []
    enqueues = len(device_work(trace).rows) > 0
    for row in marks:
        backend, _, name = strings[spans["name"][row]].partition(":")
        if enqueues and backend in _ON_DEVICE:
            continue
        start, shapes = int(spans["start_ns"][row]), int(spans["shapes"][row])
        transfer = Transfer(
            row,
            name,
            backend,
            ThreadRow(int(spans["thread"][row])),
            start,
            start + int(spans["duration_ns"][row]),
        )
        if shapes >= 0:
            kinds = json.loads(types[shapes] or "[]")
            transfer.elements, transfer.type = elements_of(dims[shapes]), kinds[0] if kinds else ""
        transfers.append(transfer)
    process = thread_processes(trace)[spans["thread"]]
    for process_row in sorted({int(process[transfer.span]) for transfer in transfers}):
        pair(
            (row.call for row in listed if not row.kernels and process[row.span] == process_row),
            [transfer for transfer in transfers if process[transfer.span] == process_row],
        )
    for made_row in listed:
        facts, carried = made_row.facts, made_row.call.transfers
        if carried and not facts.type and facts.in_elements > 0:
            facts.type, facts.item_bytes = type_named(carried[0].type)
    return listed


def _take_ranges(trace: TraceData, made: dict[SpanRow, _Row], marks: list[SpanRow]) -> None:
    """Add the backend, and missing names, to calls from the ranges of a device's backend inside them."""
    spans, strings = trace.columns("spans"), trace.strings
    types, dims = (trace.columns("shapes")[name] for name in ("types", "dims"))
    for row in marks:
        backend, name = facts_of_range(strings[spans["name"][row]])
        around = _ancestor(spans["parent"], row, made) if backend in _ON_DEVICE else SpanRow(-1)
        if around < 0:
            continue
        call = made[around]
        call.backend = call.backend or backend
        call.facts.name = call.facts.name or name
        shapes = int(spans["shapes"][row])
        if shapes >= 0 and not call.facts.type:
            kinds = json.loads(types[shapes] or "[]")
            call.facts.type, call.facts.item_bytes = type_named(kinds[0] if kinds else "")
            if call.facts.in_elements < 0:
                call.facts.in_elements = elements_of(dims[shapes])


def _take_kernels(trace: TraceData, made: dict[SpanRow, _Row], noted: dict[int, int], world: int) -> None:
    """Assign kernels to calls; a kernel without a call becomes a row of its own."""
    spans, strings = trace.columns("spans"), trace.strings
    for row, kernels in kernels_of_calls(trace, made).items():
        start_ns = int(spans["start_ns"][row])
        if row not in made:
            made[row] = _Row(row, Facts(""), _call(Facts(""), start_ns, "", world))
        call = made[row]
        call.kernels = kernels
        for kernel in kernels:
            text = strings[spans["name"][kernel]]
            described, named = facts_of_description(strings[noted.get(kernel, 0)]), facts_of_kernel(text)
            for facts in (named,) if described is None else (described, named):
                call.facts.name = call.facts.name or facts.name
                if facts.name in (call.facts.name, UNKNOWN_CALL):
                    merged(call.facts, facts)
            if not call.backend:
                call.backend = "nccl" if "nccl" in text.lower() else ""
            start, thread = int(spans["start_ns"][kernel]), ThreadRow(int(spans["thread"][kernel]))
            end = start + int(spans["duration_ns"][kernel])
            call.call.transfers.append(Transfer(kernel, call.facts.name, call.backend, thread, start, end))


def _call(facts: Facts, start_ns: int, operator: str, world: int) -> Call:
    """The facts of a call that its transfers are found by."""
    if facts.name == "barrier":
        return Call(facts.name, facts.group, start_ns)
    if operator == "c10d::reduce_scatter_":
        # One reduction for each rank, of what that rank gets.
        return Call(
            facts.name, facts.group, start_ns, facts.out_elements, facts.size if facts.size > 0 else world
        )
    if facts.name == "recv":
        return Call(facts.name, facts.group, start_ns, facts.out_elements)
    # On the root a scatter is given what all get; its range names the output first.
    return Call(facts.name, facts.group, start_ns, -1 if facts.name == "scatter" else facts.in_elements)


def _rows_named(trace: TraceData, wanted: Any) -> list[SpanRow]:
    """The rows of spans whose name is one of these, or begins with one of the marks."""
    strings = trace.strings
    numbers = [
        number
        for number, text in enumerate(strings)
        if (text.startswith(TRANSFER_MARKS) if wanted is TRANSFER_MARKS else text in wanted)
    ]
    if not numbers:
        return []
    # Devices show ranges of the host again.
    chosen = np.isin(trace.column("spans", "name"), numbers) & (trace.column("spans", "stream") < 0)
    return [SpanRow(row) for row in np.flatnonzero(chosen).tolist()]


def _ancestor(parent: Any, row: SpanRow, wanted: dict[SpanRow, _Row]) -> SpanRow:
    """The innermost enclosing span that is one of the wanted, -1 without."""
    span = SpanRow(int(parent[row]))
    while span >= 0 and span not in wanted:
        span = SpanRow(int(parent[span]))
    return span


def _groups(run: RunInfo) -> dict[str, str]:
    """The global ranks of each process group that existed when the recording began, as JSON, by the group's name."""
    return {group.name: json.dumps(group.ranks) for group in run.process_groups if group.name and group.ranks}


def _world_size(trace: TraceData) -> int:
    return trace.run_info.world_size or 1


def _message_bytes(facts: Facts) -> int:
    """The larger of input and output bytes, -1 if neither is known."""
    return max(facts.bytes_of(facts.in_elements), facts.bytes_of(facts.out_elements))


def _integers(values: Any) -> Any:
    return np.array(list(values), dtype=np.int64)


def kernels_of_calls(trace: TraceData, calls: Container[SpanRow]) -> dict[SpanRow, list[SpanRow]]:
    """The kernels that carried out each call, by its row; those that belong to none of the calls under their own rows."""
    work, started, parent = device_work(trace), starters(trace), trace.column("spans", "parent")
    rows = work.rows[work.category == WorkCategory.COMMUNICATION]
    rows = rows[np.argsort(trace.column("spans", "start_ns")[rows], kind="stable")]
    hosts = np.where(started.operator[rows] >= 0, started.operator[rows], started.call[rows])
    kernels_of: dict[SpanRow, list[SpanRow]] = {}
    for row, host in zip(rows.tolist(), hosts.tolist(), strict=True):
        span = host
        while span >= 0 and span not in calls:
            span = int(parent[span])
        kernels_of.setdefault(span if span >= 0 else row, []).append(row)
    return kernels_of


def kernel_times(trace: TraceData, kernels: list[list[SpanRow]]) -> KernelTimes:
    """How long the kernels of each of some collectives ran, and how much of it overlapped computing."""
    work = device_work(trace)
    of_call = np.repeat(np.arange(len(kernels)), [len(rows) for rows in kernels])
    rows = np.array([row for rows in kernels for row in rows], dtype=np.int64)
    work_row = np.searchsorted(work.rows, rows)
    device, start, end = work.device[work_row], work.start_ns[work_row], work.end_ns[work_row]
    overlapped = np.zeros(len(rows), dtype=np.int64)
    for number, when in enumerate(busy(trace)):
        calls_there = np.flatnonzero(device == number)
        overlapped[calls_there] = when.compute.within(start[calls_there], end[calls_there])
    first = np.full(len(kernels), -1, dtype=np.int32)
    first[of_call[::-1]] = device[::-1]
    by_call = Groups(of_call, len(kernels))
    return KernelTimes(by_call.sums(end - start), by_call.sums(overlapped), first)
