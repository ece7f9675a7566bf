"""The page Modules: the table of modules, with links to the timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.model.arrow import Labels, few_texts, number_array, to_arrow, to_numpy
from kinetoscope.model.hierarchy import host_work, module_calls, recorded_calls
from kinetoscope.model.schema import KIND_NAMES, Column, Table
from kinetoscope.model.steps import MARK, STEP_KEY
from kinetoscope.torch_events.event_tree import event_names
from kinetoscope.viewer.requests import Limited

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query

_MOST_MODULES = 50_000
_MOST_ROWS = 200_000
_LATE = np.iinfo(np.int64).max

_MORE = Table(
    "modules",
    "What the page shows of modules beyond their table.",
    (
        Column("span", "int32", "row of spans", "Its first recorded call, or else the first operator in it or its submodules."),
    ),
)  # fmt: skip

OPERATORS_SCHEMA = Table(
    "module_operators",
    "The spans of one name and kind in one module, submodules left out. Most self time first.",
    (
        Column("module", "int32", "row of modules", "The module."),
        Column("name", "category", "", "Their name."),
        Column("kind", "category", "", "What they are, as in `spans`."),
        Column("count", "int64", "", "How many."),
        Column("self_ns", "int64", "ns", "Self time: the time outside of child spans."),
        Column("device_self_ns", "int64", "ns", "Device time that they launched themselves."),
        Column("span", "int32", "row of spans", "The one with the most host self time."),
    ),
)  # fmt: skip

REPORTED: tuple[tuple[str, dict[str, str]], ...] = (("modules", {}), ("module_operators", {}))


def modules(trace: Trace, query: Query) -> Limited:
    """Respond to `modules`: the table of modules and, for each, a span to show on the timeline."""
    found = trace.table("modules")
    order = to_numpy(found.column("id"))
    added = to_arrow(_MORE, {"span": _first_spans(trace)[order]})
    for field, column in zip(added.schema, added.columns, strict=True):
        found = found.append_column(field, column)
    return Limited(found.slice(0, _MOST_MODULES), found.num_rows)


def module_operators(trace: Trace, query: Query) -> Limited:
    """Respond to `module_operators`: the spans in each module, by name and kind."""
    spans = trace.columns("spans")
    on_host = host_work(trace).mask
    counted = (on_host | (spans["device_self_ns"] > 0)) & ~recorded_calls(trace).mask
    rows = np.flatnonzero(counted & (spans["module"] >= 0))
    kind = spans["kind"][rows].astype(np.int32)
    group, first = _core.group([spans["module"][rows], event_names(trace)[rows], kind])
    groups, own = len(first), np.where(on_host, spans["self_ns"], 0)[rows]
    self_ns = _core.group_sums(group, groups, own)
    longest = np.full(groups, -1, np.int32)
    at_most = np.flatnonzero(own == _core.group_max(group, groups, own)[group])[::-1]
    longest[group[at_most]] = rows[at_most]
    places, texts = few_texts(event_names(trace)[rows[first]], trace.strings)
    columns: dict[str, Any] = {
        "module": spans["module"][rows[first]],
        "name": Labels(places, [STEP_KEY if text.startswith(MARK) else text for text in texts]),
        "kind": Labels(kind[first], KIND_NAMES),
        "count": _core.group_counts(group, groups),
        "self_ns": self_ns,
        "device_self_ns": _core.group_sums(group, groups, spans["device_self_ns"][rows]),
        "span": longest,
    }
    order = np.lexsort((kind[first], places, columns["module"], -self_ns))
    found = to_arrow(OPERATORS_SCHEMA, columns)
    return Limited(found.take(number_array(order[:_MOST_ROWS])), groups)


def _first_spans(trace: Trace) -> NDArray[np.int32]:
    """Return for each module its first recorded call or, if there is none, the first span in it or its submodules; else -1."""
    spans, own = trace.columns("spans"), trace.columns("modules")
    calls = _first_of(trace, module_calls(trace).mask)
    first = _first_of(trace, host_work(trace).mask)
    first = np.where(calls >= 0, calls, first).astype(np.int32)
    holder, depth = own["holder"], own["depth"]
    start = np.append(spans["start_ns"], _LATE)
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero((depth == level) & (holder >= 0) & (first >= 0))
        # In reverse order of time, so that the earliest span of each module is assigned last.
        rows = rows[np.argsort(-start[first[rows]], kind="stable")]
        above = holder[rows]
        earlier = (calls[above] < 0) & (start[first[rows]] < start[first[above]])
        first[above[earlier]] = first[rows[earlier]]
    return first


def _first_of(trace: Trace, chosen: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return for each module the first of some spans in it, or -1."""
    spans = trace.columns("spans")
    rows = np.flatnonzero(chosen & (spans["module"] >= 0))
    module, start = spans["module"][rows], spans["start_ns"][rows]
    count = len(trace.columns("modules"))
    found = np.full(count, -1, np.int32)
    earliest = np.flatnonzero(start == _core.group_min(module, count, start)[module])[::-1]
    found[module[earliest]] = rows[earliest]
    return found
