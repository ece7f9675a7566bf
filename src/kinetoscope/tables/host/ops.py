"""Operators and ranges added up by name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope._errors import checked_choice
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.dictionary import table_definition
from kinetoscope.model.groups import Groups, percent
from kinetoscope.model.hierarchy import host_work, recorded_calls
from kinetoscope.model.marks import request_names_in
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import KIND_NAMES, SpanKind
from kinetoscope.model.steps import STEP_KEY
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.costs.columns import costs_of, group_coverage
from kinetoscope.tables.costs.peaks import per_byte, per_second, working_ns
from kinetoscope.tables.host.data_loading import loading_spans
from kinetoscope.tables.stored import memory_recorded

if TYPE_CHECKING:
    from kinetoscope.tables.host.host_shares import HostShares


OPS_SCHEMA = table_definition("ops")


PLACE = table_definition("by place: ops").columns[0]
_BY_PLACE_SCHEMA = replace(OPS_SCHEMA, columns=(*OPS_SCHEMA.columns[:2], PLACE, *OPS_SCHEMA.columns[2:]))

WAYS = ("name", "shape", "line", "stack", "module")
SORTS = ("work", "calls")


def ops(trace: TraceData, by: str = "name", of: str = "work") -> ArrowTable:
    """Return the `ops` table: one row for each name and kind of what ran on the host.

    Args:
        trace: The trace.
        by: `name`, or `shape`, `line`, `stack` or `module` for one row for each name, kind and place: with the same input shapes, from the
            same line or stack of the user's code, or in the same module.
        of: `work`, or `calls` for the recorded calls of Python functions and modules, which enclose work and are no part of it.

    Returns:
        The table; the meaning of its columns is in `OPS_SCHEMA`. Unless it is by name, it has a column `place`, null where not known.

    Raises:
        ArgumentError: Another value of `by` or `of`.
    """
    keys, labels = operator_keys(trace), None
    work = host_work(trace) if checked_choice("of", of, SORTS) == "work" else recorded_calls(trace)
    groups_by = [keys]
    if checked_choice("by", by, WAYS) != "name":
        # Not loaded for the table by name, which is the one that most programs use.
        from kinetoscope.tables.host.places import place_labels

        labels = place_labels(trace, by)
        groups_by.append(labels.ids)
    groups = Groups.by(groups_by, None if work.is_everything else work.mask)
    columns = added_up(trace, keys if labels is None else groups.of_row, groups)
    if of == "calls":
        # The bytes and operations in a call are those of the work in it.
        columns |= dict.fromkeys(
            ("self_bytes", "flops", "bytes_moved", "flops_per_s", "arithmetic_intensity")
        )
    order = np.argsort(-columns["self_ns"], kind="stable")
    if labels is None:
        return to_arrow(OPS_SCHEMA, columns, order)
    return to_arrow(
        _BY_PLACE_SCHEMA, columns | {"place": Labels(labels.ids[groups.first], labels.texts)}, order
    )


def operators_in(trace: TraceData, shares: HostShares) -> list[dict[str, Any]]:
    """The operators, backward functions and calls of a runtime in the part of a trace that shares are of, those with most time first.

    Ranges and steps are none of them: what they hold besides is Python, or a wait.

    Returns:
        For each its `name`, `kind`, `count` and `self_ns`.
    """
    spans, keys = trace.columns("spans"), operator_keys(trace)
    groups = Groups.by([keys], shares.counts & (spans["kind"] != SpanKind.USER_ANNOTATION))
    kinds, self_ns, count = spans["kind"][groups.first], groups.sums(shares.own_ns), groups.sizes()
    columns = {
        "name": operator_names(trace, spans["name"][groups.first], kinds),
        "kind": [KIND_NAMES[kind] for kind in kinds.tolist()],
        "count": count.tolist(),
        "self_ns": self_ns.tolist(),
    }
    return _rows_of(columns, np.argsort(-self_ns, kind="stable"))


def _rows_of(columns: dict[str, list[Any]], order: Rows) -> list[dict[str, Any]]:
    return [{name: values[row] for name, values in columns.items()} for row in order.tolist()]


def ranges_in(trace: TraceData, shares: HostShares) -> list[dict[str, Any]]:
    """The ranges in the part of a trace that shares are of, by their whole time; without those of loading data, which are the wait for it, and
    of requests, which have tables of their own.

    Returns:
        For each its `name`, `count`, `total_ns`, in which a range inside one of the same name counts once, and `self_ns`.
    """
    spans, keys = trace.columns("spans"), operator_keys(trace)
    of_loading = loading_spans(trace)
    ranges = shares.counts & (spans["kind"] == SpanKind.USER_ANNOTATION)
    for rows in (of_loading.waits, of_loading.fetches, of_loading.collates, of_loading.pins):
        ranges[rows] = False
    ranges &= ~np.isin(spans["name"], request_names_in(trace.strings))
    groups = Groups.by([keys], ranges)
    total = groups.sums(spans["duration_ns"], _core.descends_from_same(spans["parent"], keys) == 0)
    columns = {
        "name": [trace.strings[name] for name in spans["name"][groups.first].tolist()],
        "count": groups.sizes().tolist(),
        "total_ns": total.tolist(),
        "self_ns": groups.sums(shares.own_ns).tolist(),
    }
    return _rows_of(columns, np.argsort(-total, kind="stable"))


def added_up(trace: TraceData, keys: NDArray[np.int32], groups: Groups) -> dict[str, Any]:
    """Return the columns of `ops` for groups of spans.

    Args:
        trace: The trace.
        keys: A number for each span. Where it is that of a span around it, its time is already in the total of the other.
        groups: Groups of the spans of one name and kind.
    """
    spans = trace.columns("spans")
    outermost = _core.descends_from_same(spans["parent"], keys) == 0
    duration = spans["duration_ns"]
    count = groups.sizes()
    self_ns = groups.sums(spans["self_ns"])
    # What overlaps the nesting (lanes above 0) has no self time, so it has no share either.
    nested = groups.sums(duration, outermost & (spans["lane"] == 0))
    everything = int(self_ns.sum())
    kind = spans["kind"][groups.first]
    has_memory = memory_recorded(trace)
    return {
        "name": operator_names(trace, spans["name"][groups.first], kind),
        "kind": Labels(kind, KIND_NAMES),
        "count": count,
        "self_ns": self_ns,
        "total_ns": groups.sums(duration, outermost),
        "mean_ns": groups.sums(duration) / np.maximum(count, 1),
        "min_ns": groups.minima(duration),
        "max_ns": groups.maxima(duration),
        "self_percent": percent(self_ns, everything),
        "total_percent": percent(nested, everything),
        "self_bytes": groups.sums(spans["self_bytes"]) if has_memory else None,
        "bytes": groups.sums(spans["bytes"], outermost) if has_memory else None,
        "device_self_ns": groups.sums(spans["device_self_ns"]),
        "device_ns": groups.sums(spans["device_ns"], outermost),
        **_rates(trace, groups),
    }


def _rates(trace: TraceData, groups: Groups) -> dict[str, Any]:
    costs = costs_of(trace)
    flops, moved, counts = costs.flops, costs.bytes_moved, costs.counted.counts

    total, size = groups.sums(flops, flops > 0), groups.sums(moved, moved > 0)
    total[group_coverage(trace, groups).lacking] = -1
    # Null where a group has unknown members and nothing is known of it.
    size[(size == 0) & (groups.sums(moved < 0) > 0)] = -1
    both = (flops >= 0) & (moved > 0)
    return {
        "flops": total,
        "bytes_moved": size,
        "flops_per_s": per_second(total, groups.sums(working_ns(trace), counts)),
        "arithmetic_intensity": per_byte(groups.sums(flops, both), groups.sums(moved, both)),
    }


def operator_keys(trace: TraceData) -> NDArray[np.int32]:
    """A number for each span that is equal where name and kind are; steps share one."""
    spans = trace.columns("spans")
    kind = spans["kind"]
    keys: NDArray[np.int32] = spans["name"] * np.int32(len(SpanKind)) + kind
    steps = kind == SpanKind.STEP
    if steps.any():
        keys[steps] = -1
    return keys


def operator_names(trace: TraceData, names: NDArray[np.int32], kinds: NDArray[np.uint8]) -> list[str]:
    """The names of groups by their first span."""
    return [
        STEP_KEY if kind == SpanKind.STEP else trace.strings[name]
        for name, kind in zip(names.tolist(), kinds.tolist(), strict=True)
    ]
