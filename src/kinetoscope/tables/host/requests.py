"""Server requests that `kinetoscope.request` or the middleware marked: their duration and where they ran."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.arrow import ArrowTable, Labels, labels, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import operator_spans
from kinetoscope.model.kinds import is_operator
from kinetoscope.model.marks import parse_mark, request_names_in
from kinetoscope.model.processes import thread_processes
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.steps import stretch_at
from kinetoscope.model.time_spent import Cause
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.intervals import Intervals, united_by

Numbers = Rows


_NEVER_NS = 2**62
_NO_ROWS = np.zeros(0, np.int64)
STATUSES = ("unfinished", "finished", "error", "canceled")


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests of a trace, and the stretches in which they ran.

    Attributes:
        name: For each request its name.
        arguments: Its arguments, as JSON text.
        status: An index in `STATUSES`.
        thread: The row of the thread on which it began.
        start_ns: When it began.
        end_ns: When it ended.
        of: For each stretch its request; stretches of one request are sorted and disjoint.
        stretch_thread: The row of the stretch's thread.
        stretch_start_ns: When the stretch began.
        stretch_end_ns: When the stretch ended.
        submitted_ns: For each request the times at which it submitted work to a thread pool.
    """

    name: list[str]
    arguments: list[str]
    status: Numbers
    thread: Numbers
    start_ns: Numbers
    end_ns: Numbers
    of: Numbers
    stretch_thread: Numbers
    stretch_start_ns: Numbers
    stretch_end_ns: Numbers
    submitted_ns: list[list[int]]

    def __len__(self) -> int:
        """The number of requests."""
        return len(self.name)

    @cached_property
    def complete(self) -> Mask:
        """Whether each request began and ended in the recording."""
        return np.array([bool(name) for name in self.name], bool) & (self.status > 0)


class _Request:
    """A request under construction."""

    def __init__(self, name: str, arguments: str, start_ns: int, thread: int) -> None:
        self.name, self.arguments, self.start_ns, self.thread = name, arguments, start_ns, thread
        self.end_ns, self.status = -1, 0
        self.stretches: list[tuple[int, int, int]] = []
        self.submitted: list[int] = []

    def known_at_end(self, arguments: str) -> None:
        """Add the facts that only the end mark has, possibly including the name."""
        if not arguments:
            return
        facts = {**(json.loads(self.arguments) if self.arguments else {}), **json.loads(arguments)}
        self.name = str(facts.pop("name", self.name))
        self.arguments = json.dumps(facts) if facts else ""

    def disjoint(self) -> list[tuple[int, int, int]]:
        """The sorted, disjoint stretches; where several overlap on different threads, the latest start wins."""
        # The clocks of two threads may differ slightly: nothing runs after the end.
        last = self.end_ns if self.end_ns >= 0 else _NEVER_NS
        ordered = sorted(
            (start, min(end, last), thread) for start, end, thread in self.stretches if start < last
        )
        if all(earlier[1] <= later[0] for earlier, later in pairwise(ordered)):
            return ordered
        edges = sorted({edge for start, end, _ in ordered for edge in (start, end)})
        cut: list[tuple[int, int, int]] = []
        for start, end in pairwise(edges):
            running = [stretch for stretch in ordered if stretch[0] <= start and stretch[1] >= end]
            if not running:
                continue
            thread = running[-1][2]
            if cut and cut[-1][1] == start and cut[-1][2] == thread:
                cut[-1] = (cut[-1][0], end, thread)
            else:
                cut.append((start, end, thread))
        return cut


@derived
def requests_of(trace: TraceData) -> Requests:
    """The requests of a trace."""
    spans, strings = trace.columns("spans"), trace.strings
    marks = {row: mark for row in request_names_in(strings) if (mark := parse_mark(strings[row]))}
    rows = np.flatnonzero(np.isin(spans["name"], list(marks)) & (spans["stream"] < 0)) if marks else _NO_ROWS
    rows = rows[np.argsort(spans["start_ns"][rows], kind="stable")]
    starts, thread = spans["start_ns"][rows], spans["thread"][rows]
    ends = starts + np.maximum(spans["duration_ns"][rows], 0)
    process = thread_processes(trace)[thread]
    begun: list[_Request] = []
    # The requests in progress, by process and number.
    running: dict[tuple[int, int], _Request] = {}
    columns = (spans["name"][rows], starts, ends, thread, process)
    for name, start, end, on, pid in zip(*(column.tolist() for column in columns), strict=True):
        mark = marks[name]
        key = (pid, mark.number)
        if mark.what == "begin" or key not in running:
            if mark.what == "end":
                continue
            running[key] = _Request(mark.name, mark.arguments, start if mark.what == "begin" else 0, on)
            begun.append(running[key])
        request = running[key]
        if mark.what == "submit":
            request.submitted.append(start)
        elif mark.what == "end":
            request.end_ns, request.status = start, STATUSES.index(mark.status)
            request.known_at_end(mark.arguments)
            del running[key]
        elif end > start:
            request.stretches.append((start, end, on))
    # An unfinished request lasts to the end of the recording.
    last_ns = max(trace.duration_ns, int(ends.max(initial=0)))
    stretches = [(index, *stretch) for index, request in enumerate(begun) for stretch in request.disjoint()]
    stretch = np.array(stretches, np.int64).reshape(-1, 4)
    facts = [(request.status, request.thread, request.start_ns, request.end_ns) for request in begun]
    status, on_thread, start_ns, end_ns = np.array(facts, np.int64).reshape(-1, 4).T
    return Requests(
        [request.name for request in begun],
        [request.arguments for request in begun],
        status,
        on_thread,
        start_ns,
        np.where(end_ns >= 0, end_ns, last_ns),
        stretch[:, 0],
        stretch[:, 3],
        stretch[:, 1],
        stretch[:, 2],
        [request.submitted for request in begun],
    )


@derived
def request_marks(trace: TraceData) -> Mask:
    """Spans that mark requests."""
    return np.isin(trace.column("spans", "name"), request_names_in(trace.strings))


@derived
def names_by_time(trace: TraceData) -> list[str]:
    """The names of complete requests, most total time first."""
    marked, total_ns = requests_of(trace), dict[str, int]()
    for index in np.flatnonzero(marked.complete).tolist():
        name = marked.name[index]
        total_ns[name] = total_ns.get(name, 0) + int(marked.end_ns[index] - marked.start_ns[index])
    return sorted(total_ns, key=lambda name: -total_ns[name])


@derived
def kinds_of_requests(trace: TraceData) -> Numbers:
    """For each request the index of its name in `names_by_time`; -1 if incomplete."""
    marked = requests_of(trace)
    number_of = {name: number for number, name in enumerate(names_by_time(trace))}
    kinds = [number_of.get(name, -1) for name in marked.name]
    return np.where(marked.complete, np.array(kinds, np.int64), -1)


@derived
def requests_as_steps(trace: TraceData) -> Numbers:
    """The requests that analyses treat like steps: the numbers of the complete ones, if the trace has no steps."""
    if len(trace.columns("steps")):
        return _NO_ROWS
    return np.flatnonzero(requests_of(trace).complete)


@derived
def ran_in_requests(trace: TraceData) -> list[Intervals]:
    """For each thread, when it worked for a request."""
    marked, threads = requests_of(trace), len(trace.columns("threads"))
    return united_by(marked.stretch_thread, threads, marked.stretch_start_ns, marked.stretch_end_ns)


@derived
def suspended_time(trace: TraceData) -> dict[Cause, Numbers]:
    """For each cause why requests run on no thread, the time of each request."""
    marked, count = requests_of(trace), len(requests_of(trace))
    executor, other_requests, awaited = np.zeros((3, count), np.int64)
    ran = ran_in_requests(trace)
    edges = np.searchsorted(marked.of, np.arange(count + 1)).tolist()
    for index in range(count):
        stretches = slice(edges[index], edges[index + 1])
        idle = _gaps(marked, index, stretches)
        if not len(idle[0]):
            continue
        queued = _queued(marked, index, stretches, idle)
        executor[index] = queued.total_ns
        rest = Intervals.of(*idle) - queued
        other_requests[index] = (rest & ran[int(marked.thread[index])]).total_ns
        awaited[index] = rest.total_ns - other_requests[index]
    return {Cause.EXECUTOR: executor, Cause.OTHERS: other_requests, Cause.AWAITED: awaited}


def _gaps(marked: Requests, request: int, stretches: slice) -> tuple[Numbers, Numbers]:
    start = np.append(marked.start_ns[request], marked.stretch_end_ns[stretches])
    end = np.append(marked.stretch_start_ns[stretches], marked.end_ns[request])
    wide = end > start
    return start[wide], end[wide]


def _queued(marked: Requests, request: int, stretches: slice, idle: tuple[Numbers, Numbers]) -> Intervals:
    """When a request waited for a pool thread: from submitting work to the next stretch on another thread."""
    handed_ns = np.array(marked.submitted_ns[request], np.int64)
    away = marked.stretch_thread[stretches] != marked.thread[request]
    begins = marked.stretch_start_ns[stretches][away]
    following = np.searchsorted(begins, handed_ns)
    begun = following < len(begins)
    return Intervals.of(handed_ns[begun], begins[following[begun]]) & Intervals.of(*idle)


def slowest_tenth(requests: Numbers, duration_ns: Numbers) -> Numbers:
    """The slowest tenth of some requests, at least one, slowest first."""
    return requests[np.argsort(-duration_ns[requests], kind="stable")[: max(len(requests) // 10, 1)]]


def request_at(trace: TraceData, thread: NDArray[Any], time_ns: Numbers) -> Numbers:
    """Return the request for which each thread worked at a given time; -1 for none."""
    marked = requests_of(trace)
    stretches = marked.stretch_thread, marked.stretch_start_ns, marked.stretch_end_ns
    return np.asarray(np.append(marked.of, -1)[stretch_at(thread, time_ns, *stretches)])


def request_modules(trace: TraceData) -> ArrowTable:
    """Return the `request_modules` table.

    Args:
        trace: The trace.

    Returns:
        The table; `docs/tables.md` describes its columns.
    """
    marked, spans, work = requests_of(trace), trace.columns("spans"), operator_spans(trace)
    rows = work.rows[is_operator(spans["kind"][work.rows]) & (spans["stream"][work.rows] < 0)]
    owner = request_at(trace, spans["thread"][rows], spans["start_ns"][rows])
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    name = labels(marked.name)
    codes = name.ids[owner] if len(owner) else np.zeros(0, np.int32)
    module = spans["module"][rows].astype(np.int64)
    keys, group = np.unique(np.stack([codes.astype(np.int64), module], axis=1), axis=0, return_inverse=True)
    groups = Groups(group.reshape(-1), len(keys))
    of_requests = groups.of_row[Groups.by([groups.of_row, owner]).first]
    columns: dict[str, Any] = {
        "name": Labels(keys[:, 0].astype(np.int32), name.texts),
        "module": Labels(keys[:, 1].astype(np.int32), trace.columns("modules")["path"]),
        "requests": Groups(of_requests, len(keys)).sizes(),
        "count": groups.sizes(),
        "self_ns": groups.sums(work.self_ns[rows]),
    }
    return to_arrow("request_modules", columns, np.argsort(-columns["self_ns"], kind="stable"))
