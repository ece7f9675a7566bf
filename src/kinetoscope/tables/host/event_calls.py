"""Calls of Python functions and of modules as events: what `events()` and `key_averages()` list with `with_stack=True`.

torch lists such calls among the operators, and an event that runs in a call is inside it. Here they are in the lists
of events only: every other table is about the work of the host, which calls merely enclose. Calls that were recorded
are taken as they are; else they are rebuilt from the stacks of operators, as for a Chrome trace.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.calls import call_mask
from kinetoscope.model.schema import STORED, SpanKind
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.host.rebuilt_calls import call_names, order_with_calls, rebuilt_calls
from kinetoscope.tables.host.shown_stacks import shown_frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kinetoscope.tables.host.rebuilt_calls import RebuiltCalls
    from kinetoscope.tables.host.shown_stacks import ShownFrames

    Arrays = dict[str, NDArray[Any]]

# They follow from how spans nest, or are about other spans, and are found again among more spans.
_FOUND_AGAIN = frozenset(
    {
        "parent", "caller", "depth", "lane", "self_ns", "forward", "bytes", "self_bytes", "device_bytes",
        "device_self_bytes", "device_ns", "device_self_ns",
    }
)  # fmt: skip
# The first release of torch whose `key_averages()` leaves Python functions out unless it is asked for them.
_LEFT_OUT_FROM = (2, 14)


class EventTrace(TraceData):
    """A trace of whose spans all calls are events, as torch has them: they nest with the operators.

    Attributes:
        source: The trace that it shows.
        ids: For each span its row in `source`, and for rebuilt calls numbers behind these.
        moved: For each span of `source`, and at the end for -1, its row here.
        is_call: Which spans are calls.
    """

    source: TraceData
    ids: NDArray[np.int64]
    moved: NDArray[np.int32]
    is_call: NDArray[np.bool_]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the trace that it shows."""
        return trace_of_events, (self.source,)


def trace_of_events(trace: TraceData) -> TraceData:
    """The trace whose spans are listed as events: with calls, where the session asked for stacks and has calls."""
    if not trace.info.get("with_stack") or isinstance(trace, EventTrace):
        return trace
    return trace.cached("trace_of_events", lambda: _with_calls(trace))


def lists_python_functions(trace: TraceData) -> bool:
    """Whether `key_averages()` of the torch that recorded a trace lists Python functions without being asked."""
    version = re.match(r"(\d+)\.(\d+)", str(trace.info.get("torch_version", "")))
    return version is not None and (int(version[1]), int(version[2])) < _LEFT_OUT_FROM


def event_ids(trace: TraceData) -> NDArray[np.int64] | None:
    """For each span the `id` of its event, None where that is the row."""
    return trace.ids if isinstance(trace, EventTrace) else None


class CallNumbers(NamedTuple):
    """Of every span torch's `python_id`, `python_parent_id` and `python_module_id`, -1 without."""

    own: NDArray[np.int64]
    around: NDArray[np.int64]
    module: NDArray[np.int64]


def call_numbers(trace: TraceData, parent: NDArray[np.int32]) -> CallNumbers | None:
    """Number calls in the order in which they begin, and modules in that of their class; None without calls as events.

    Args:
        trace: What the events are of.
        parent: For each span the event around it.
    """
    if not isinstance(trace, EventTrace):
        return None

    def make() -> CallNumbers:
        spans, is_call = trace.columns("spans"), trace.is_call
        rows = np.flatnonzero(is_call)
        own, around, module = (np.full(len(spans), -1, np.int64) for _ in range(3))
        own[rows[np.argsort(spans["start_ns"][rows], kind="stable")]] = np.arange(1, len(rows) + 1)
        caller = parent[rows]
        while (on := np.flatnonzero((caller >= 0) & ~is_call[caller])).size:
            caller[on] = parent[caller[on]]
        around[rows] = np.where(caller >= 0, own[caller], -1)
        names = spans["name"][rows]
        for name in np.unique(names[spans["kind"][rows] == SpanKind.MODULE]).tolist():
            number = re.fullmatch(r"nn\.Module: .*_(\d+)", trace.strings[name])
            module[rows[names == name]] = int(number[1]) if number else -1
        return CallNumbers(own, around, module)

    return trace.cached("event_call_numbers", make)


def nest_as_torch(
    thread: NDArray[np.int32], start_ns: NDArray[np.int64], duration_ns: NDArray[np.int64]
) -> Arrays:
    """Nest spans among which calls partly overlap others: from where one outlasts a span, nothing more is in that span.

    Returns:
        `parent`, `depth`, `lane` and `self_ns`, as `_core.nest` has them.
    """
    shortened_ns = duration_ns.copy()
    while True:
        made: Arrays = dict(_core.nest(thread, start_ns, shortened_ns))  # type: ignore[arg-type]
        beside = np.flatnonzero(made["lane"] > 0)
        if len(beside) == 0:
            break
        parent, lane = made["parent"], made["lane"]
        ends_ns = start_ns + duration_ns
        for row in beside.tolist():
            around = row - 1
            while lane[around] > 0:
                around -= 1
            start = int(start_ns[row])
            while around >= 0:
                if start < start_ns[around] + shortened_ns[around] < ends_ns[row]:
                    shortened_ns[around] = start - start_ns[around]
                around = int(parent[around])
    inside = made["parent"] >= 0
    own = duration_ns.copy()
    np.subtract.at(own, made["parent"][inside], duration_ns[inside])
    made["self_ns"] = own
    return made


def _with_calls(trace: TraceData) -> TraceData:
    """Put rebuilt calls among the spans, and give all calls torch's names; the trace itself where it has no calls."""
    shown = shown_frames(trace)
    calls = rebuilt_calls(trace, shown)
    if calls is None and not call_mask(trace.column("spans", "kind")).any():
        return trace
    spans = trace.columns("spans")
    count, more = len(spans), 0 if calls is None else len(calls.start_ns)
    order = np.arange(count) if calls is None else order_with_calls(spans, calls)
    moved = np.full(count + more, -1, np.int32)
    moved[order] = np.arange(count + more, dtype=np.int32)
    moved = np.append(moved[:count], np.int32(-1))
    changed = _described(trace, shown, calls)
    strings = list(shown.strings)
    own_stack = changed.pop("own_stack")
    changed["name"] = call_names(trace, shown, changed, own_stack, strings)

    def of_spans(name: str) -> Callable[[], Any]:
        def make() -> Any:
            values = changed.get(name)
            if values is None:
                default = STORED["spans"].column(name).default
                values = np.append(spans[name], np.full(more, default, spans[name].dtype))
            return values[order]

        return make

    def of_table(table: str, name: str) -> Callable[[], Any]:
        about_spans = STORED[table].column(name).unit == "row of spans"
        return lambda: moved[trace.column(table, name)] if about_spans else trace.column(table, name)

    names = dict.fromkeys((*spans.given, *changed, "flops", "bytes_moved"))
    tables = {"spans": {name: of_spans(name) for name in names if name not in _FOUND_AGAIN}}
    rows: dict[str, int | Callable[[], int]] = {"spans": count + more}
    for table, columns in ((table, trace.columns(table)) for table in STORED if table != "spans"):
        # Steps were found among all spans, and so were the allocations that belong together.
        given = {"steps": tuple(columns), "allocations": (*columns.given, "match", "total_bytes")}
        tables[table] = {name: of_table(table, name) for name in given.get(table, columns.given)}
        rows[table] = partial(len, columns)
    made = EventTrace.from_columns(tables, strings=strings, info=trace.info, path=trace.path, rows=rows)
    made.source, made.moved = trace, moved
    made.ids, made.is_call = order.astype(np.int64), call_mask(changed["kind"])[order]
    return made


def _described(trace: TraceData, shown: ShownFrames, calls: RebuiltCalls | None) -> Arrays:
    """The columns of spans that are others with calls among them: those of the spans, followed by those of the calls."""
    spans, parents = trace.columns("spans"), np.append(trace.columns("stacks")["parent"], -1)
    kind, name, own_stack = spans["kind"].copy(), spans["name"].copy(), spans["own_stack"]
    called = np.flatnonzero(kind == SpanKind.PYTHON)
    stack = spans["stack"].copy()
    # The stack of a call says what called it.
    stack[called] = parents[own_stack[called]]
    if shown.module_calls and not (kind == SpanKind.MODULE).any():
        frame = np.append(trace.columns("stacks")["frame"], -1)[own_stack[called]]
        of_module = called[np.isin(frame, list(shown.module_calls)) & (spans["module"][called] >= 0)]
        kind[of_module] = SpanKind.MODULE
        name[of_module] = trace.columns("modules")["class"][spans["module"][of_module]]
    found = {
        "kind": kind,
        "name": name,
        "own_stack": own_stack,
        "stack": stack,
        "module": spans["module"],
        "start_ns": spans["start_ns"],
        "duration_ns": spans["duration_ns"],
        "thread": spans["thread"],
    }
    if calls is None:
        return found
    added = {name: getattr(calls, name) for name in found if name not in ("own_stack", "stack")}
    added["own_stack"] = calls.stack
    added["stack"] = np.where(calls.module < 0, parents[calls.stack], calls.stack)
    return {name: np.append(values, added[name]).astype(values.dtype) for name, values in found.items()}
