"""Collectives: how much data each moves, in which group, and how long it took."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import spans_named
from kinetoscope.model.processes import process_runs, thread_processes
from kinetoscope.model.rows import Rows, ShapesRow, SpanRow, ThreadRow, places_of
from kinetoscope.model.run_info import RunInfo
from kinetoscope.model.schema import PHASE_NAMES, TRANSFER_MARKS
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.evaluate import input_texts
from kinetoscope.tables.deep_steps import shapes_of
from kinetoscope.tables.device import collective_facts
from kinetoscope.tables.device.collective_facts import Facts
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.device.work import WorkCategory, busy, device_work
from kinetoscope.tables.stored import Shown

# Match transfers to collectives.
#
# A backend such as gloo executes a collective on its own threads and marks each transfer with a range, for example
# `gloo:all_reduce`. torch does not link the two, so they are matched by necessary conditions: a transfer begins after its
# call, has the same name and number of elements, follows the order of calls, and a thread works for one group only.

# The transfers that execute a call; gloo has no reduce_scatter of its own.
_CARRIED_BY = {"reduce_scatter": ("reduce_scatter", "all_reduce")}


@dataclass
class Transfer:
    """A backend's range: one data transfer.

    Attributes:
        span: Its row of spans.
        name: Its name without the backend's prefix.
        backend: The backend.
        thread: The row of its thread.
        start_ns: When it began.
        end_ns: When it ended.
        elements: The number of elements passed to it, -1 if unknown.
        type: The element type as torch names it, empty if unknown.
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
    """A collective, with the facts that identify its transfers.

    Attributes:
        span: Its row of spans; for a kernel without a call, the row of the kernel.
        facts: Its facts, such as its name and its process group.
        start_ns: When the call began.
        elements: The number of elements in one of its transfers, -1 if unknown.
        parts: The number of transfers that execute it.
        backend: The backend, if a range in it or its kernel names it.
        transfers: Its matched transfers.
        kernels: The kernels among these.
    """

    span: SpanRow
    facts: Facts
    start_ns: int
    elements: int = -1
    parts: int = 1
    backend: str = ""
    transfers: list[Transfer] = field(default_factory=list)
    kernels: list[SpanRow] = field(default_factory=list)


def pair(calls: Iterable[Call], transfers: Iterable[Transfer]) -> None:
    """Assign transfers to calls; a transfer belongs to at most one call.

    Args:
        calls: The calls in order of time; their `transfers` are filled.
        transfers: The transfers of the same process.
    """
    waiting: dict[str, list[Transfer]] = defaultdict(list)
    for transfer in sorted(transfers, key=lambda transfer: transfer.start_ns):
        waiting[transfer.name].append(transfer)
    group_of_thread: dict[int, str] = {}
    for call in calls:
        for name in _CARRIED_BY.get(call.facts.name, (call.facts.name,)):
            carriers = _fitting(call, waiting[name], group_of_thread)
            if not carriers:
                continue
            call.transfers = carriers
            taken = {transfer.span for transfer in carriers}
            waiting[name] = [transfer for transfer in waiting[name] if transfer.span not in taken]
            if call.facts.group:
                group_of_thread.update((transfer.thread, call.facts.group) for transfer in carriers)
            break


def _fitting(call: Call, waiting: list[Transfer], group_of_thread: dict[int, str]) -> list[Transfer]:
    """The first transfers that fit a call, preferring threads of its own group."""
    claimed: list[Transfer] = []
    unknown: list[Transfer] = []
    for transfer in waiting:
        if transfer.start_ns < call.start_ns or (
            call.elements >= 0 and transfer.elements >= 0 and call.elements != transfer.elements
        ):
            continue
        group = group_of_thread.get(transfer.thread)
        if call.facts.group in ("", group):
            claimed.append(transfer)
        elif group is None:
            unknown.append(transfer)
        if len(claimed) == call.parts or len(claimed) + len(unknown) > 8 * call.parts:
            break
    # A thread that no group has claimed yet may be a second one of the same group, with earlier transfers.
    both = sorted(claimed + unknown, key=lambda transfer: transfer.start_ns)
    return both[: call.parts]


# Backends whose host ranges only launch the transfer on a device.
_ON_DEVICE = ("nccl", "xccl", "hccl")
_WHOLE_MESSAGES = ("broadcast", "reduce", "send", "recv")
_PARTS_OF_MESSAGES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


def collectives(trace: TraceData) -> ArrowTable:
    """Return the `collectives` table: one row per collective.

    Sizes, groups and types are known if shapes were recorded (`record_shapes=True`, or deep steps) or if the backend describes
    its calls.

    Args:
        trace: The trace.

    Returns:
        The table, empty without collectives; `docs/tables.md` describes its columns.
    """
    spans, calls = trace.columns("spans"), _calls(trace)
    call_rows = np.array([call.span for call in calls], dtype=np.int64)
    facts, transfers = [call.facts for call in calls], [call.transfers for call in calls]
    first = _integers(min((t.start_ns for t in carriers), default=-1) for carriers in transfers)
    last = _integers(max((t.end_ns for t in carriers), default=-1) for carriers in transfers)
    columns = Shown(trace, "spans", call_rows)
    start, duration = columns["start_ns"], columns["duration_ns"]
    called, is_carried = spans["stream"][call_rows] < 0, _integers(map(bool, transfers)) > 0
    on_device = _on_device(trace, calls)
    has_kernels = on_device["device"].ids >= 0
    waits = is_carried & ~has_kernels & (_integers(fact.is_async for fact in facts) == 0)
    input_bytes = _integers(fact.bytes_of(fact.input_elements) for fact in facts)
    output_bytes = _integers(fact.bytes_of(fact.output_elements) for fact in facts)
    size = np.maximum(input_bytes, output_bytes)
    transfer_ns = np.where(has_kernels, on_device.pop("total_ns"), np.where(is_carried, last - first, -1))
    groups = [_groups(run) for run in process_runs(trace)]
    whose = thread_processes(trace)[columns["thread"]].tolist()
    columns |= {
        "span": call_rows.astype(np.int32),
        "backend": [call.backend or next((t.backend for t in call.transfers), None) for call in calls],
        "group_ranks": [
            groups[process].get(fact.group) or fact.ranks or None
            for process, fact in zip(whose, facts, strict=True)
        ],
        "bytes": size,
        "input_bytes": input_bytes,
        "output_bytes": output_bytes,
        "call_ns": np.where(called, duration, -1),
        "transfers": _integers(len(carriers) for carriers in transfers),
        "transfer_span": _integers(carriers[0].span if carriers else -1 for carriers in transfers),
        "transfer_start_ns": first,
        "transfer_ns": transfer_ns,
        **on_device,
        **_speeds(facts, size, transfer_ns),
        "queued_ns": np.where(is_carried & called, first - start, -1),
        "waited_ns": np.where(waits, np.maximum(last - start - duration, 0), -1),
        "os_tid": np.where(called, columns["os_tid"], -1),
        "phase": Labels(np.where(called, spans["phase"][call_rows].astype(np.int32), -1), PHASE_NAMES),
    }
    for name, default in vars(Facts("")).items():
        values = [getattr(fact, name) for fact in facts]
        columns[name] = [value or None for value in values] if default == "" else _integers(values)
    return to_arrow("collectives", columns)


def count_collectives(trace: TraceData) -> int:
    """Count the rows of the table `collectives`, without making it."""
    return len(_calls(trace))


def _on_device(trace: TraceData, calls: list[Call]) -> dict[str, Any]:
    """The time of each call's kernels, its overlap with compute on the same device, and the location of the first kernel."""
    work, spans, streams = device_work(trace), trace.columns("spans"), trace.columns("streams")
    of_call = np.repeat(np.arange(len(calls)), [len(call.kernels) for call in calls])
    kernels = np.array([kernel for call in calls for kernel in call.kernels], dtype=np.int64)
    work_row = np.searchsorted(work.rows, kernels)
    device, start, end = work.device[work_row], work.start_ns[work_row], work.end_ns[work_row]
    overlapped = np.zeros(len(kernels), dtype=np.int64)
    for number, when in enumerate(busy(trace)):
        kernels_there = np.flatnonzero(device == number)
        overlapped[kernels_there] = when.compute.within(start[kernels_there], end[kernels_there])
    by_call = Groups(of_call, len(calls))
    total_ns, overlapped_ns = by_call.sums(end - start), by_call.sums(overlapped)
    has_kernels = by_call.sizes() > 0
    first = places_of(of_call, len(calls))[:-1]
    stream = np.append(spans["stream"], -1)[np.append(kernels, -1)[first]]
    return {
        "total_ns": total_ns,
        "overlapped_ns": np.where(has_kernels, overlapped_ns, -1),
        "exposed_ns": np.where(has_kernels, total_ns - overlapped_ns, -1),
        "device": Labels(np.append(device, -1)[first], [device.name for device in work.devices]),
        "stream": np.append(streams["number"], -1)[stream],
    }


def _speeds(facts: list[Facts], size: Rows, time_ns: Rows) -> dict[str, NDArray[np.float64]]:
    """The bandwidths of calls; null if the size or the time is unknown."""
    is_known = (size > 0) & (time_ns > 0)
    speed = np.where(is_known, size, np.nan) / np.where(is_known, time_ns, 1)
    factors = np.array([bus_factor(fact.name, fact.group_size) for fact in facts], dtype=np.float64)
    return {"gb_per_s": speed, "bus_gb_per_s": speed * factors}


def bus_factor(name: str, size: int) -> float:
    """The factor from algorithm bandwidth to bus bandwidth; NaN if unknown.

    See ``doc/PERFORMANCE.md`` of nccl-tests.
    """
    if name in _WHOLE_MESSAGES:
        return 1.0
    if size < 1 or name not in _PARTS_OF_MESSAGES:
        return float("nan")
    return _PARTS_OF_MESSAGES[name] * (size - 1) / size


@derived
def _calls(trace: TraceData) -> list[Call]:
    """Every collective of a trace in order of time, with its transfers."""
    spans, strings = trace.columns("spans"), trace.strings
    stored = trace.columns("collectives")
    noted = dict(zip(stored["span"].tolist(), stored["facts"].tolist(), strict=True))
    operators = _rows_named(trace, collective_facts.CALLS.__contains__)
    described = _rows_named(trace, collective_facts.DESCRIBED.__eq__)
    marks = _rows_named(trace, lambda text: text.startswith(TRANSFER_MARKS))
    by_span: dict[SpanRow, Call] = {}
    for row in operators:
        operator, (dims, _, concrete) = strings[spans["name"][row]], _inputs(trace, row)
        facts = collective_facts.facts_of_call(operator, strings[noted.get(row, 0)], dims, concrete)
        by_span[row] = _call(trace, row, facts, operator)
    for row in described:
        stated = collective_facts.facts_of_description(strings[noted.get(row, 0)])
        around = _nearest(spans["parent"], row, by_span)
        if around >= 0:
            if stated is not None:
                collective_facts.merged(by_span[around].facts, stated)
        elif stated is None or stated.name not in ("init", "wait", "coalesced"):
            by_span[row] = _call(trace, row, stated or Facts(""))
    _take_ranges(trace, by_span, marks)
    _take_kernels(trace, by_span, noted)
    listed = sorted((call for call in by_span.values() if call.facts.name), key=lambda call: call.start_ns)
    transfers = []
    enqueues = len(device_work(trace).rows) > 0
    for row in marks:
        backend, _, name = strings[spans["name"][row]].partition(":")
        if enqueues and backend in _ON_DEVICE:
            continue
        transfers.append(_transfer(trace, row, name, backend))
    process = thread_processes(trace)[spans["thread"]]
    for process_row in sorted({int(process[transfer.span]) for transfer in transfers}):
        pair(
            (call for call in listed if not call.kernels and process[call.span] == process_row),
            [transfer for transfer in transfers if process[transfer.span] == process_row],
        )
    for call in listed:
        if call.transfers and not call.facts.dtype and call.facts.input_elements > 0:
            call.facts.dtype, call.facts.item_bytes = collective_facts.type_named(call.transfers[0].type)
    return listed


def _transfer(trace: TraceData, span: SpanRow, name: str, backend: str) -> Transfer:
    thread, start, duration = (
        int(trace.column("spans", column)[span]) for column in ("thread", "start_ns", "duration_ns")
    )
    return Transfer(span, name, backend, ThreadRow(thread), start, start + duration, *_given_to(trace, span))


def _inputs(trace: TraceData, span: SpanRow) -> tuple[str, str, str]:
    """The three texts of `shapes` for the inputs of a span, empty for none."""
    return input_texts(trace, ShapesRow(int(shapes_of(trace)[span])))


def _given_to(trace: TraceData, span: SpanRow) -> tuple[int, str]:
    """The number of elements passed to a range, -1 if unknown, and their type, empty if unknown."""
    dims, types, _ = _inputs(trace, span)
    return collective_facts.elements_of(dims), next(iter(json.loads(types or "[]")), "")


def _take_ranges(trace: TraceData, calls: dict[SpanRow, Call], marks: list[SpanRow]) -> None:
    """Add backends and missing names to calls, from the ranges of device backends inside them."""
    spans, strings = trace.columns("spans"), trace.strings
    for row in marks:
        backend, name = collective_facts.facts_of_range(strings[spans["name"][row]])
        around = _nearest(spans["parent"], row, calls) if backend in _ON_DEVICE else SpanRow(-1)
        if around < 0:
            continue
        call, facts = calls[around], calls[around].facts
        call.backend = call.backend or backend
        facts.name = facts.name or name
        elements, spelt = _given_to(trace, row)
        if spelt and not facts.dtype:
            facts.dtype, facts.item_bytes = collective_facts.type_named(spelt)
            if facts.input_elements < 0:
                facts.input_elements = elements


def _take_kernels(trace: TraceData, calls: dict[SpanRow, Call], noted: dict[int, int]) -> None:
    """Assign kernels to calls; a kernel without a call becomes a row of its own."""
    spans, strings = trace.columns("spans"), trace.strings
    for row, kernels in kernels_of_calls(trace, calls).items():
        call = calls.setdefault(row, _call(trace, row, Facts("")))
        call.kernels = kernels
        for kernel in kernels:
            text = strings[spans["name"][kernel]]
            described = collective_facts.facts_of_description(strings[noted.get(kernel, 0)])
            named = collective_facts.facts_of_kernel(text)
            for facts in (named,) if described is None else (described, named):
                call.facts.name = call.facts.name or facts.name
                if facts.name in (call.facts.name, collective_facts.UNKNOWN_CALL):
                    collective_facts.merged(call.facts, facts)
            if not call.backend:
                call.backend = "nccl" if "nccl" in text.lower() else ""
            call.transfers.append(_transfer(trace, kernel, call.facts.name, call.backend))


def _call(trace: TraceData, span: SpanRow, facts: Facts, operator: str = "") -> Call:
    """A call with the number and size of its transfers."""
    # On the root, a scatter's input holds the data of all ranks; its range lists the output first.
    elements, parts = -1 if facts.name in ("barrier", "scatter") else facts.input_elements, 1
    if operator == "c10d::reduce_scatter_":
        # One reduction per rank, with the size of that rank's output.
        elements = facts.output_elements
        parts = facts.group_size if facts.group_size > 0 else trace.run_info.world_size or 1
    elif facts.name == "recv":
        elements = facts.output_elements
    return Call(span, facts, int(trace.column("spans", "start_ns")[span]), elements, parts)


def _rows_named(trace: TraceData, named: Callable[[str], bool]) -> list[SpanRow]:
    """The rows of host spans with names that pass a test; device tracks repeat host ranges."""
    chosen = spans_named(trace, named) & (trace.column("spans", "stream") < 0)
    return [SpanRow(row) for row in np.flatnonzero(chosen).tolist()]


def _nearest(parent: NDArray[np.int32], span: SpanRow, wanted: Container[SpanRow]) -> SpanRow:
    """The innermost of some spans that contains a span or is the span itself, -1 for none."""
    while span >= 0 and span not in wanted:
        span = SpanRow(int(parent[span]))
    return span


def _groups(run: RunInfo) -> dict[str, str]:
    """The global ranks, as JSON, of each process group that existed when the recording began, by group name."""
    return {group.name: json.dumps(group.ranks) for group in run.process_groups if group.name and group.ranks}


def _integers(values: Any) -> Any:
    return np.array(list(values), dtype=np.int64)


def kernels_of_calls(trace: TraceData, calls: Container[SpanRow]) -> dict[SpanRow, list[SpanRow]]:
    """The kernels of each call, by the call's row; kernels without a call appear under their own row."""
    work = device_work(trace)
    rows = work.rows[work.category == WorkCategory.COMMUNICATION]
    if len(rows) == 0:
        return {}
    started, parent = starters(trace), trace.column("spans", "parent")
    rows = rows[np.argsort(trace.column("spans", "start_ns")[rows], kind="stable")]
    hosts = np.where(started.operator[rows] >= 0, started.operator[rows], started.call[rows])
    kernels_of: dict[SpanRow, list[SpanRow]] = {}
    for row, host in zip(rows.tolist(), hosts.tolist(), strict=True):
        span = _nearest(parent, host, calls)
        kernels_of.setdefault(span if span >= 0 else row, []).append(row)
    return kernels_of
