"""Which spans torch's event lists show, how these nest, and what becomes of the time of those they leave out.

`torch.profiler` hides a few bookkeeping operators, and shows a span that is the only child of a span of the same name
as one event. Here both are *absorbed*: their self time and memory go to the nearest ancestor that is shown, and their
children become its children, so totals are the same as torch's and nothing is lost.

Calls of Python functions and modules on the timeline are absorbed too, and events nest as if the calls were not there:
recording them changes no number of any event. With `with_stack=True`, torch lists calls as events:
`trace_of_events` makes the trace that contains them, and there they nest with the rest. Asynchronous events and those of devices are outside the
tree, as in torch: they have no parent and no children.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import (
    Hierarchy,
    NestedAgain,
    asynchronous_spans,
    device_spans,
    recorded_calls,
    spans_named,
)
from kinetoscope.model.kinds import is_call
from kinetoscope.model.names import HIDDEN_NAMES, event_names, frame_texts
from kinetoscope.model.nesting import Nesting, nest
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.schema import SCOPE_BACKWARD, STORED, SpanKind
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.host.rebuilt_calls import (
    as_module_calls,
    call_names,
    module_number,
    numbers_of_calls,
    order_with_calls,
    rebuilt_calls,
    shown_frames,
)

# Calls of Python functions and of modules as events: what `events()` and `key_averages()` list with `with_stack=True`.
#
# torch lists such calls among the operators, and an event that runs in a call is inside it. Here they are in the lists
# of events only: every other table is about the work of the host, which calls merely enclose. Calls that were recorded
# are taken as they are; else they are rebuilt from the stacks of operators, as for a Chrome trace.

# They follow from how spans nest, or are about other spans, and are found again among more spans.
_FOUND_AGAIN = frozenset(
    {
        "parent", "caller", "depth", "lane", "self_ns", "forward", "bytes", "self_bytes", "device_bytes",
        "device_self_bytes", "device_ns", "device_self_ns",
    }
)  # fmt: skip
# The columns of spans that calls have, too.
_OF_CALLS = ("thread", "start_ns", "duration_ns", "kind", "name", "module")
# The first release of torch whose `key_averages()` leaves Python functions out by default.
_LEFT_OUT_FROM = (2, 14)


class EventTrace(TraceData):
    """A trace of whose spans all calls are events, as torch has them: they nest with the operators.

    Attributes:
        source: The trace that it shows.
        ids: For each span its row in `source`, and for rebuilt calls numbers behind these.
        moved: For each span of `source`, and at the end for -1, its row here.
        is_call: Which spans are calls.
        is_rebuilt: Which calls were not recorded but follow from the stacks of operators.
    """

    source: TraceData
    ids: Rows
    moved: NDArray[np.int32]
    is_call: Mask
    is_rebuilt: Mask

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the trace that it shows."""
        return trace_of_events, (self.source,)


def trace_of_events(trace: TraceData) -> TraceData:
    """The trace whose spans are listed as events: with calls, if the session had `with_stack=True` and has calls."""
    if not trace.run_info.with_stack or isinstance(trace, EventTrace):
        return trace
    return _with_calls(trace)


def lists_python_functions(trace: TraceData) -> bool:
    """Whether `key_averages()` of the torch that recorded a trace lists Python functions by default."""
    version = re.match(r"(\d+)\.(\d+)", trace.run_info.torch_version)
    return version is not None and (int(version[1]), int(version[2])) < _LEFT_OUT_FROM


class CallNumbers(NamedTuple):
    """Of every span torch's `python_id`, `python_parent_id` and `python_module_id`, -1 without."""

    own: Rows
    around: Rows
    module: Rows


@derived
def call_numbers(trace: TraceData) -> CallNumbers:
    """Number calls in the order in which they begin, and modules in that of their class, where calls are events."""
    spans = trace.columns("spans")
    around, module = (np.full(len(spans), -1, np.int64) for _ in range(2))
    if not isinstance(trace, EventTrace):
        return CallNumbers(around, around, module)
    of_call, parent = trace.is_call, visible_spans(trace).parent
    rows = np.flatnonzero(of_call)
    numbers = numbers_of_calls(spans["kind"], spans["start_ns"])
    caller = _shown_parents(parent, ~of_call)[rows]
    around[rows] = np.where(caller >= 0, numbers[caller], -1)
    names = spans["name"][rows]
    for name in np.unique(names[spans["kind"][rows] == SpanKind.MODULE]).tolist():
        module[rows[names == name]] = module_number(trace.strings[name])
    return CallNumbers(numbers, around, module)


class EventStacks(NamedTuple):
    """The Python stacks that events show, as chains from the innermost entry to the outermost.

    Attributes:
        of_span: For each span the row of its innermost entry, -1 without a stack.
        above: For each entry the row of the one around it, -1 for the outermost.
        texts: The entries; None for one that is not shown.
    """

    of_span: NDArray[Any]
    above: list[int]
    texts: list[str | None]

    def entries(self, row: int, limit: int | None = None) -> list[str]:
        """The entries of a stack, innermost first, at most `limit`; none for stack -1."""
        entries: list[str | None] = []
        while row >= 0 and (limit is None or len(entries) < limit):
            entries.append(self.texts[row])
            # Callers come first in every honest file; anything else would be a circle.
            row = self.above[row] if self.above[row] < row else -1
        return [text for text in entries if text is not None]


@derived
def event_stacks(trace: TraceData) -> EventStacks:
    """The stacks of a trace: where calls are events, as torch has them, the names of the calls around; else the frames, each with the line it was at."""
    if isinstance(trace, EventTrace):
        return _calls_around(trace)
    stacks, texts = trace.columns("stacks"), frame_texts(trace)
    return EventStacks(
        trace.column("spans", "stack"),
        stacks["parent"].tolist(),
        [texts[frame] if frame >= 0 else None for frame in stacks["frame"].tolist()],
    )


def _calls_around(trace: TraceData) -> EventStacks:
    """Stacks of the calls around each event; in backward functions those around the forward operator."""
    spans = trace.columns("spans")
    parent, is_call_row = visible_spans(trace).parent.tolist(), np.asarray(is_call(spans["kind"])).tolist()
    names, backward = spans["name"].tolist(), (spans["scope"] == SCOPE_BACKWARD).tolist()
    around, function = [-1] * len(names), [-1] * len(names)
    above: list[int] = []
    texts: list[str | None] = []
    entry_rows: dict[tuple[int, int], int] = {}
    for row in np.argsort(event_tree(trace).depth, kind="stable").tolist():
        caller = parent[row]
        if caller >= 0:
            around[row], function[row] = around[caller], function[caller]
            if is_call_row[caller]:
                entry = (around[caller], names[caller])
                if entry not in entry_rows:
                    entry_rows[entry] = len(texts)
                    above.append(entry[0])
                    texts.append(trace.strings[entry[1]])
                around[row] = entry_rows[entry]
        if backward[row]:
            function[row] = row
    of_span, of_function = np.array(around, np.int64), np.array(function, np.int64)
    forward = np.append(spans["forward"], -1)[of_function]
    inside = np.flatnonzero(forward >= 0)
    of_forward = of_span[forward[inside]]
    of_span[inside] = of_forward
    return EventStacks(of_span, above, texts)


# Each of them is looked at by itself.
_MOST_CROSSING = 10_000


def nest_as_torch(thread: NDArray[np.int32], start_ns: Rows, duration_ns: Rows) -> Nesting:
    """Nest spans of which some partly overlap others: from where one outlasts a span, nothing more is in that span.

    Self times are torch's, but where overlapping spans add up to more than the one around them, whose self time is negative there: in such a
    span, time is that of the span that began last.
    """
    _, nesting = _without_overlaps(thread, start_ns, duration_ns)
    parent, lane = nesting.parent, nesting.lane
    self_ns = duration_ns - Groups(parent, len(parent)).sums(duration_ns)
    overfull = self_ns < 0
    while (within := (parent >= 0) & overfull[parent] & ~overfull).any():
        overfull |= within
    return Nesting(parent, nesting.depth, lane, np.where(overfull, nesting.self_ns, self_ns))


def _without_overlaps(thread: NDArray[np.int32], start_ns: Rows, duration_ns: Rows) -> tuple[Rows, Nesting]:
    """The durations of spans that end where another one begins that outlasts them, and how these nest."""
    shortened_ns = duration_ns.copy()
    while True:
        nesting = nest(thread, start_ns, shortened_ns)
        parent, lane = nesting.parent, nesting.lane
        beside = np.flatnonzero(lane > 0)
        if len(beside) == 0:
            return shortened_ns, nesting
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


@derived
def outlasted_spans(trace: TraceData) -> Rows:
    """The spans in which another one begins that ends after them; none where these are too many to be looked at."""
    spans, rows = trace.columns("spans"), event_tree(trace).rows
    times = (spans["thread"][rows], spans["start_ns"][rows], spans["duration_ns"][rows])
    crossing = np.count_nonzero(nest(*times).lane)
    if not 0 < crossing <= _MOST_CROSSING:
        return rows[:0]
    outlasted: Rows = rows[_without_overlaps(*times)[0] != times[2]]
    return outlasted


@derived
def _with_calls(trace: TraceData) -> TraceData:
    """Put rebuilt calls among the spans, and give all calls torch's names; the trace itself where it has no calls."""
    frames = shown_frames(trace)
    calls = rebuilt_calls(trace, frames)
    if calls is None and not is_call(trace.column("spans", "kind")).any():
        return trace
    spans = trace.columns("spans")
    count, more = len(spans), 0 if calls is None else len(calls.start_ns)
    order, moved = np.arange(count), np.append(np.arange(count, dtype=np.int32), np.int32(-1))
    if calls is not None:
        order, moved = order_with_calls(spans, calls)
    parents = np.append(trace.columns("stacks")["parent"], -1)
    kind, name = as_module_calls(trace, frames, spans["kind"], spans["name"])
    called = np.flatnonzero(spans["kind"] == SpanKind.PYTHON)
    # The stack of a call says what called it.
    stack = spans["stack"].copy()
    stack[called] = parents[spans["own_stack"][called]]
    changed, of_calls = {"kind": kind, "name": name, "stack": stack}, dict[str, Any]()
    if calls is not None:
        of_calls = {
            "own_stack": calls.stack,
            "stack": np.where(calls.module < 0, parents[calls.stack], calls.stack),
        }
        of_calls |= {name: getattr(calls, name) for name in _OF_CALLS}

    def with_calls(name: str) -> NDArray[Any]:
        """A column of the spans, followed by that of the calls."""
        values = changed.get(name, spans[name])
        default = np.full(more, STORED["spans"].column(name).default, values.dtype)
        return np.append(values, of_calls.get(name, default)).astype(values.dtype, copy=False)

    strings = list(frames.strings)
    described = {name: with_calls(name) for name in ("kind", "name", "module", "start_ns")}
    described["name"] = call_names(trace, frames, described, with_calls("own_stack"), strings)

    def of_spans(name: str) -> Callable[[], Any]:
        return lambda: (described[name] if name in described else with_calls(name))[order]

    def of_table(table: str, name: str) -> Callable[[], Any]:
        about_spans = STORED[table].column(name).unit == "row of spans"
        return lambda: moved[trace.column(table, name)] if about_spans else trace.column(table, name)

    names = dict.fromkeys((*spans.given, *changed, *_OF_CALLS, "flops", "bytes_moved"))
    tables = {"spans": {name: of_spans(name) for name in names if name not in _FOUND_AGAIN}}
    for table, columns in ((table, trace.columns(table)) for table in STORED if table != "spans"):
        # Steps were found among all spans, and so were the allocations that belong together.
        columns_of = {"steps": tuple(columns), "allocations": (*columns.given, "match", "total_bytes")}
        tables[table] = {name: of_table(table, name) for name in columns_of.get(table, columns.given)}
    event_trace = EventTrace.from_columns(tables, strings=strings, info=trace.info, path=trace.path)
    event_trace.source, event_trace.moved = trace, moved
    event_trace.ids, event_trace.is_call = order.astype(np.int64), is_call(described["kind"])[order]
    event_trace.is_rebuilt = order >= count
    return event_trace


@dataclass(frozen=True)
class VisibleSpans:
    """The spans that are events.

    Attributes:
        absorbed: Which spans are none.
        parent: The nearest shown ancestor of every row.
    """

    absorbed: Mask
    parent: NDArray[np.int32]

    @property
    def shown_in(self) -> NDArray[np.int32]:
        """The event around every event; -1 for absorbed rows, too."""
        return np.where(self.absorbed, np.int32(-1), self.parent)

    def self_values(self, own: Rows) -> Rows:
        """Move what absorbed rows hold of `own` to the events around them."""
        rows = np.flatnonzero(self.absorbed)
        if len(rows) == 0:
            return own
        values = own.copy()
        values[rows] = 0
        values += Groups(self.parent[rows], len(own)).sums(own[rows])
        return values

    def shown(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """For each row the event it belongs to: itself, or what absorbed it; -1 for -1 and for rows in no event."""
        event_of = np.where(self.absorbed, self.parent, np.arange(len(self.parent), dtype=np.int32))
        events: NDArray[np.int32] = np.append(event_of, np.int32(-1))[rows]
        return events


@derived
def visible_spans(trace: TraceData) -> VisibleSpans:
    """Find out, once for a trace, which spans are events."""
    spans = trace.columns("spans")
    parent, name = event_tree(trace).parent, event_names(trace)
    absorbed = spans_named(trace, HIDDEN_NAMES.__contains__)
    if not isinstance(trace, EventTrace) and len(calls := recorded_calls(trace)):
        absorbed |= calls.mask
        # What a call launched itself belongs to the event around the call.
        parent = np.where(calls.mask, spans["parent"], parent)
    visible = VisibleSpans(absorbed, _shown_parents(parent, absorbed))
    parent = visible.parent
    # Roots look up the last row here, which costs less than keeping them out first.
    same = name == name.take(parent, mode="wrap")
    same &= parent >= 0
    if not same.any():
        return visible
    children = Groups(visible.shown_in, len(name)).sizes()
    absorbed = absorbed | (same & (children[parent] == 1))
    return VisibleSpans(absorbed, _shown_parents(parent, absorbed))


@derived
def event_tree(trace: TraceData) -> Hierarchy:
    """The spans that nest as events: all but asynchronous ones, those of devices, and calls that are no events."""
    spans, with_calls = trace.columns("spans"), isinstance(trace, EventTrace)
    populations = [asynchronous_spans(trace), device_spans(trace)] + (
        [] if with_calls else [recorded_calls(trace)]
    )
    outside = [population.mask for population in populations if len(population)]
    plain = Hierarchy(spans, None)
    if not outside and not with_calls and not _crosses(plain):
        return plain
    rows = np.flatnonzero(~np.logical_or.reduce(outside)) if outside else np.arange(len(spans))
    times = (spans["thread"][rows], spans["start_ns"][rows], spans["duration_ns"][rows])
    if not with_calls:
        nested = NestedAgain(spans, rows, nest(*times)) if outside else plain
        if not _crosses(nested):
            return nested
    return NestedAgain(spans, rows, nest_as_torch(*times))


def _crosses(tree: Hierarchy) -> bool:
    """Whether a few spans begin inside another one and end after it, as ranges do that the compiler opens in a dispatch mode.

    Of many, as in files of other tools, each stays without a parent.
    """
    return 0 < int(np.count_nonzero(tree.lane[tree.rows])) <= _MOST_CROSSING


def _shown_parents(parent: NDArray[np.int32], absorbed: Mask) -> NDArray[np.int32]:
    """Climb from each row until the parent is shown, as far again in each round, so that deep nests take few rounds."""
    shown_parent = parent.copy()
    waiting = np.flatnonzero((parent >= 0) & absorbed[parent])
    while len(waiting):
        shown_parent[waiting] = shown_parent[shown_parent[waiting]]
        still = shown_parent[waiting]
        waiting = waiting[(still >= 0) & absorbed[still]]
    return shown_parent
