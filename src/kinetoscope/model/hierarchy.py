"""The populations of a trace's spans and their nesting: host work, calls, device work, asynchronous spans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.columns import Columns
from kinetoscope.model.groups import Groups
from kinetoscope.model.kinds import is_call, is_device_work, is_operator
from kinetoscope.model.nesting import GARBAGE_COLLECTION, Nesting, depths_of, spread_down
from kinetoscope.model.rows import Mask, Rows, begins_run, mask_of
from kinetoscope.model.schema import FLAG_ASYNC, SpanKind
from kinetoscope.model.trace_data import TraceData, derived


class Hierarchy:
    """A population of spans and its nesting.

    `mask`, `parent`, `depth`, `lane` and `self_ns` have one entry for every span of the trace, indexed by row; entries of
    spans outside the population are meaningless. All are computed on first use.
    """

    def __init__(
        self, spans: Columns, mask: Mask | None, nesting: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """A population whose nesting is given by columns.

        Args:
            spans: The spans of the trace.
            mask: The members; None for all spans.
            nesting: The columns `parent`, `depth`, `lane` and `self_ns`; None for those of `spans`.
        """
        self._spans = spans
        self._mask = mask
        self._nesting = spans if nesting is None else nesting

    def __len__(self) -> int:
        """The number of members."""
        return len(self._spans) if self._mask is None else int(np.count_nonzero(self._mask))

    @property
    def is_everything(self) -> bool:
        """Whether every span of the trace is a member."""
        return self._mask is None

    @cached_property
    def mask(self) -> Mask:
        """Whether each span is a member."""
        return np.ones(len(self._spans), dtype=np.bool_) if self._mask is None else self._mask

    @cached_property
    def rows(self) -> Rows:
        """The rows of the members, ascending."""
        return np.arange(len(self._spans)) if self._mask is None else np.flatnonzero(self._mask)

    @property
    def parent(self) -> NDArray[np.int32]:
        """The row of the innermost member around each span, -1 without."""
        return np.asarray(self._nesting["parent"])

    @property
    def depth(self) -> NDArray[np.int32]:
        """How many members enclose each span."""
        return np.asarray(self._nesting["depth"])

    @property
    def lane(self) -> NDArray[np.int32]:
        """0, or more for a span that partly overlaps others and has neither parent nor children."""
        return np.asarray(self._nesting["lane"])

    @property
    def self_ns(self) -> Rows:
        """The duration of each span without that of the members directly inside."""
        return np.asarray(self._nesting["self_ns"])

    @cached_property
    def total_self_ns(self) -> int:
        """The sum of the self times of all members: the base of percentages."""
        return int(self.self_ns.sum() if self._mask is None else self.self_ns[self._mask].sum())


class NestedAgain(Hierarchy):
    """A population whose members nest among themselves, ignoring all other spans."""

    def __init__(self, spans: Columns, rows: Rows, nesting: Nesting) -> None:
        """Expand the nesting of some spans to all rows.

        Args:
            spans: The spans of the trace.
            rows: The rows of the members, ascending.
            nesting: Their nesting, as indices into `rows`.
        """
        mask = mask_of(rows, len(spans))
        # One extra entry, so that "no parent" stays -1.
        parent = np.full(len(spans), -1, dtype=np.int32)
        parent[rows] = np.append(rows, -1).astype(np.int32)[nesting.parent]
        depth, lane = np.zeros((2, len(spans)), dtype=np.int32)
        depth[rows], lane[rows] = nesting.depth, nesting.lane
        self_ns = np.zeros(len(spans), dtype=np.int64)
        self_ns[rows] = nesting.self_ns
        super().__init__(spans, mask, {"parent": parent, "depth": depth, "lane": lane, "self_ns": self_ns})


class Enclosing(Hierarchy):
    """A population whose members may enclose each other with spans of other populations in between."""

    def __init__(self, spans: Columns, mask: Mask, parent: Callable[[], NDArray[np.int32]]) -> None:
        """Take the nearest member around each span from a function, which runs on first use."""
        super().__init__(spans, mask)
        self._find_parent = parent

    @cached_property
    def parent(self) -> NDArray[np.int32]:
        """The row of the innermost member around each span, -1 without."""
        return self._find_parent()

    @cached_property
    def depth(self) -> NDArray[np.int32]:
        """How many members enclose each span."""
        return depths_of(self.parent)

    @cached_property
    def self_ns(self) -> Rows:
        """The duration of each member without that of the members directly inside; 0 for other spans."""
        duration, rows = self._spans["duration_ns"], self.rows
        inner = rows[self.parent[rows] >= 0]
        inside = Groups(self.parent[inner], len(duration)).sums(duration[inner])
        return np.where(self.mask, duration - inside, 0)


@derived
def host_work(trace: TraceData, *, with_steps: bool = True) -> Hierarchy:
    """The host's work: operators, backward functions, ranges and runtime calls; no Python or module calls.

    Args:
        trace: The trace.
        with_steps: Whether to include the ranges that mark steps.
    """
    if not with_steps:
        steps = trace.column("spans", "kind") == SpanKind.STEP
        return Hierarchy(trace.columns("spans"), host_work(trace).mask & ~steps)
    other_masks = [
        population.mask for population in (device_spans(trace), recorded_calls(trace)) if len(population)
    ]
    return Hierarchy(trace.columns("spans"), ~np.logical_or.reduce(other_masks) if other_masks else None)


@derived
def operator_spans(trace: TraceData) -> Hierarchy:
    """Operators and backward functions."""
    return Hierarchy(trace.columns("spans"), is_operator(trace.column("spans", "kind")))


@derived
def recorded_calls(trace: TraceData) -> Hierarchy:
    """Recorded calls of Python functions and modules; the parent is the innermost call around each."""
    called = is_call(trace.column("spans", "kind"))
    return Enclosing(trace.columns("spans"), called, lambda: trace.column("spans", "caller"))


@derived
def garbage_collections(trace: TraceData) -> Mask:
    """Spans of Python garbage collections; their kind is that of calls, as in torch."""
    return spans_named(trace, GARBAGE_COLLECTION.__eq__)


@derived
def requested_calls(trace: TraceData) -> Mask:
    """Function and module calls, which are recorded only on request; garbage collections, which always are, do not count."""
    return recorded_calls(trace).mask & ~garbage_collections(trace)


@derived
def module_calls(trace: TraceData) -> Hierarchy:
    """Recorded module calls; the parent is the innermost module call around each."""
    spans = trace.columns("spans")
    mask: Mask = spans["kind"] == SpanKind.MODULE

    def parent() -> NDArray[np.int32]:
        call_rows = np.where(mask, np.arange(len(spans), dtype=np.int32), np.int32(-1))
        # For each span the module call that it is or is inside.
        inside = np.append(spread_down(spans["parent"], spans["depth"], call_rows, -1), np.int32(-1))
        return np.asarray(inside.take(spans["parent"]))

    return Enclosing(spans, mask, parent)


@derived
def device_spans(trace: TraceData) -> Hierarchy:
    """All spans on device streams: kernels, copies, fills, and the ranges and waits that some sources put there."""
    spans = trace.columns("spans")
    return Hierarchy(spans, spans["stream"] >= 0)


@derived
def device_work_spans(trace: TraceData) -> Hierarchy:
    """The work of devices: kernels, copies and fills on a stream."""
    spans = trace.columns("spans")
    return Hierarchy(spans, is_device_work(spans["kind"]) & (spans["stream"] >= 0))


@derived
def asynchronous_spans(trace: TraceData) -> Hierarchy:
    """Spans that ended on another thread than they began on."""
    spans = trace.columns("spans")
    mask: Mask = (spans["flags"] & FLAG_ASYNC) != 0
    return Hierarchy(spans, mask)


def spans_named(trace: TraceData, is_chosen: Callable[[str], bool]) -> Mask:
    """Mark the spans whose name passes a test; each string is looked at once."""
    chosen = np.array([is_chosen(text) for text in trace.strings], dtype=np.bool_)
    names = trace.column("spans", "name")
    # Most tests choose none, which needs no look at the spans.
    return chosen.take(names) if chosen.any() else np.zeros(len(names), dtype=np.bool_)


def is_outermost(trace: TraceData, rows: Rows) -> Mask:
    """Tell which of some spans, in the order of their rows, lie in no other one of them on their thread."""
    spans = trace.columns("spans")
    outermost = np.ones(len(rows), dtype=np.bool_)
    thread, start = spans["thread"][rows], spans["start_ns"][rows]
    end = start + spans["duration_ns"][rows]
    for first, last in pairwise([*np.flatnonzero(begins_run(thread)).tolist(), len(rows)]):
        reach = np.maximum.accumulate(end[first:last])
        outermost[first + 1 : last] = end[first + 1 : last] > reach[:-1]
    return outermost


def outermost_operators(trace: TraceData, chosen: Mask | None = None) -> Rows:
    """The operators of the host, of those that are chosen, that lie in no other one of them, in the order in which each thread ran them."""
    on_host = operator_spans(trace).mask & (trace.column("spans", "stream") < 0)
    rows = np.flatnonzero(on_host if chosen is None else on_host & chosen)
    return rows[is_outermost(trace, rows)]


def nearest_of(trace: TraceData, chosen: NDArray[Any]) -> NDArray[np.int32]:
    """For each span the nearest chosen span (rows or mask) among itself and its ancestors; -1 for none, and at the end for "no span"."""
    spans = trace.columns("spans")
    mark = mask_of(chosen, len(spans))
    return np.append(_core.nearest_marked(spans["parent"], spans["depth"], mark), np.int32(-1))


def lies_in(trace: TraceData, ranges: Rows, rows: Rows | None = None) -> Mask:
    """Mark the spans, or some of them, that lie inside some ranges on their thread; the ranges themselves count."""
    spans = trace.columns("spans")
    # A stable sort of sorted ranges, the usual case, takes one pass.
    inside = _core.lies_in(
        spans["thread"], spans["start_ns"], spans["duration_ns"], np.sort(ranges, kind="stable")
    )
    return inside if rows is None else inside[rows]
