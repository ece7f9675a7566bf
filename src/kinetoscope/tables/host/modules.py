"""The tree of `nn.Module` instances with their time and memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.arrow import ArrowTable, Labels, few_texts, to_arrow
from kinetoscope.model.groups import Groups, percent
from kinetoscope.model.hierarchy import host_work, module_calls, operator_spans, recorded_calls
from kinetoscope.model.names import event_names, module_classes
from kinetoscope.model.processes import of_processes
from kinetoscope.model.rows import Mask, Rows, outline
from kinetoscope.model.schema import KIND_NAMES, Phase, SpanKind
from kinetoscope.model.steps import MARK, STEP_KEY
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.costs.columns import costs_of, coverage
from kinetoscope.tables.device.launches import captured_time
from kinetoscope.tables.host.host_shares import HostShares
from kinetoscope.tables.host.python_time import charged, gaps
from kinetoscope.tables.memory.blocks import allocating_spans
from kinetoscope.tables.stored import Shown, memory_recorded


def by_module(trace: TraceData, values: Rows, chosen: Mask, *, divided: bool = True) -> Rows:
    """Sum `values` of the `chosen` spans by module, without submodules.

    The values of a fused kernel are divided among the modules whose operators it computes, unless `divided` is False, as for counts.
    """
    modules, origins = len(trace.columns("modules")), trace.columns("origins")
    module = trace.column("spans", "module")
    sums = Groups(module, modules).sums(values, chosen)
    if divided and len(origins):
        _divide(trace, np.flatnonzero(chosen & (module >= 0)), values, origins["weight"], sums)
    return sums


def _divide(
    trace: TraceData,
    rows: Rows,
    values: Rows,
    parts: NDArray[Any],
    sums: Rows,
) -> None:
    """Move the shares of other modules in fused kernels from the module that they were counted for to these modules, in place.

    Args:
        trace: The trace.
        rows: The spans of fused kernels.
        values: The value of each span of the trace.
        parts: For each row of `origins` its fraction of the value.
        sums: The sum of each module.
    """
    spans, origins = trace.columns("spans"), trace.columns("origins")
    rows = rows[spans["origin"][rows] >= 0]
    of_kernel = Groups(spans["origin"][rows], len(origins)).sums(values[rows])
    holder = np.full(len(origins), -1, dtype=np.int64)
    holder[spans["origin"][rows]] = spans["module"][rows]
    holder = holder[origins["first"]]
    other = np.flatnonzero((holder >= 0) & (origins["module"] >= 0) & (origins["module"] != holder))
    moved = (of_kernel[origins["first"][other]] * parts[other]).astype(np.int64)
    sums += Groups(origins["module"][other], len(sums)).sums(moved)
    sums -= Groups(holder[other], len(sums)).sums(moved)


def _flops(trace: TraceData) -> dict[str, Rows]:
    """The operations of each module, -1 if too few are known; those of a fused kernel count where its operators belong."""
    costs, spans, origins = costs_of(trace), trace.columns("spans"), trace.columns("origins")
    everything = np.ones(len(spans), dtype=np.bool_)
    self_flops = by_module(trace, np.maximum(costs.flops, 0), everything, divided=False)
    counted = np.flatnonzero((spans["kind"] == SpanKind.FUSED_KERNEL) & (costs.flops > 0))
    _divide(trace, counted, np.ones(len(spans), np.int64), np.maximum(origins["flops"], 0), self_flops)
    unknown_ns = np.where(costs.unknown, spans["self_ns"], 0)
    operators_ns = np.where(operator_spans(trace).mask | costs.unknown, spans["self_ns"], 0)
    parts = [
        by_module(trace, operators_ns, everything),
        by_module(trace, unknown_ns, everything),
        by_module(trace, (costs.flops < 0).astype(np.int64), everything, divided=False),
        self_flops,
    ]
    totals = [with_submodules(trace, part) for part in parts]
    return {
        name: np.where(coverage(*values).lacking, -1, values[-1])
        for name, values in (("self_flops", parts), ("flops", totals))
    }


def with_submodules(trace: TraceData, own: Rows) -> Rows:
    """Return the sums of modules with their submodules."""
    modules = trace.columns("modules")
    return _core.sums_below(modules["holder"], modules["depth"], own)


def tree_order(trace: TraceData, weight: Rows) -> list[int]:
    """Order modules as an outline: each followed by its submodules, siblings with the most weight first."""
    by_weight = sorted(range(len(weight)), key=lambda row: (-weight[row], row))
    return [row for row, _ in outline(trace.column("modules", "holder").tolist(), by_weight)]


def modules(trace: TraceData) -> ArrowTable:
    """Return the `modules` table: one row for each module instance, as an outline.

    Times are sums of self times, so a module's parts add up to it, and all roots together do not exceed the trace.
    Python between operators is separate, in `python_ns`.

    Args:
        trace: The trace.

    Returns:
        The table; `docs/tables.md` describes its columns.
    """
    spans, stored = trace.columns("spans"), trace.columns("modules")
    everywhere = ~recorded_calls(trace).mask
    in_backward = spans["phase"] == Phase.BACKWARD
    ones = np.ones(len(spans), dtype=np.int64)
    on_host = host_work(trace).mask
    again = spans["recompute"] != 0
    parts = {
        name: by_module(trace, spans["self_ns"], on_host & chosen)
        for name, chosen in (
            ("forward", ~in_backward & ~again), ("backward", in_backward & ~again), ("recompute", again),
        )
    }  # fmt: skip
    totals = {name: with_submodules(trace, part) for name, part in parts.items()}
    operators = by_module(trace, ones, operator_spans(trace).mask, divided=False)
    called = module_calls(trace)
    total = with_submodules(trace, sum(parts.values(), np.zeros(len(stored), np.int64)))
    on_device = by_module(trace, spans["device_self_ns"], everywhere)
    on_device += captured_time(trace, spans["module"], len(stored))
    # The time between operators while the forward of a module ran.
    shares = gaps(trace).shares
    python = Groups(shares.module, len(stored)).sums(charged(trace), ~shares.blocked)
    columns = Shown(trace, "modules")
    columns |= {
        "parent": stored["holder"],
        **dict.fromkeys(("calls", "call_ns", "call_self_ns", "self_bytes", "bytes")),
        "operators": operators,
        "total_operators": with_submodules(trace, operators),
        "self_ns": sum(parts.values()),
        "total_ns": total,
        "total_percent": percent(total, host_work(trace).total_self_ns),
        **{f"{name}_self_ns": part for name, part in parts.items()},
        **{f"{name}_ns": part for name, part in totals.items()},
        "recompute_percent": percent(totals["recompute"], total),
        "python_self_ns": python,
        "python_ns": with_submodules(trace, python),
        "device_self_ns": on_device,
        "device_ns": with_submodules(trace, on_device),
        "span": _first_spans(trace),
        **_flops(trace),
    }
    columns |= of_processes(trace, stored["process_row"])
    if len(called):
        outermost = called.mask & (_core.descends_from_same(called.parent, spans["module"]) == 0)
        columns["calls"] = by_module(trace, ones, called.mask)
        columns["call_ns"] = by_module(trace, spans["duration_ns"], outermost)
        columns["call_self_ns"] = by_module(trace, called.self_ns, called.mask)
    if memory_recorded(trace):
        size = by_module(trace, _self_bytes(trace), everywhere)
        columns |= {"self_bytes": size, "bytes": with_submodules(trace, size)}
    return to_arrow("modules", columns, np.array(tree_order(trace, total), dtype=np.int64))


def _self_bytes(trace: TraceData) -> Rows:
    """`self_bytes` of each span, with allocations by a compiled graph for a kernel moved to the kernel."""
    events, size = trace.columns("allocations"), trace.column("spans", "self_bytes")
    inner, owner = events["span"], allocating_spans(trace)
    moved = (inner != owner) & (events["device_type"] == 0)
    from_owner, taken = (Groups(span, len(size)).sums(events["bytes"], moved) for span in (owner, inner))
    return np.asarray(size + from_owner - taken)


def _first_spans(trace: TraceData) -> NDArray[np.int32]:
    """Return for each module its first recorded call or, if there is none, the first span in it or its submodules; else -1."""
    spans, stored = trace.columns("spans"), trace.columns("modules")
    calls = _first_of(trace, module_calls(trace).mask)
    first = _first_of(trace, host_work(trace).mask)
    first = np.where(calls >= 0, calls, first).astype(np.int32)
    holder, depth = stored["holder"], stored["depth"]
    start = np.append(spans["start_ns"], np.iinfo(np.int64).max)
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero((depth == level) & (holder >= 0) & (first >= 0))
        # Latest first, so that the earliest span of each module is assigned last.
        rows = rows[np.argsort(-start[first[rows]], kind="stable")]
        above = holder[rows]
        earlier = (calls[above] < 0) & (start[first[rows]] < start[first[above]])
        first[above[earlier]] = first[rows[earlier]]
    return first


def _first_of(trace: TraceData, chosen: Mask) -> NDArray[np.int32]:
    spans = trace.columns("spans")
    by_module = Groups(np.where(chosen, spans["module"], -1), len(trace.columns("modules")))
    return by_module.row_of_minimum(spans["start_ns"])


def module_operators(trace: TraceData) -> ArrowTable:
    """Return the `module_operators` table: the spans directly in each module, by name and kind."""
    spans = trace.columns("spans")
    on_host = host_work(trace).mask
    counted = (on_host | (spans["device_self_ns"] > 0)) & ~recorded_calls(trace).mask
    rows = np.flatnonzero(counted & (spans["module"] >= 0))
    kind = spans["kind"][rows].astype(np.int32)
    groups = Groups.by([spans["module"][rows], event_names(trace)[rows], kind])
    row_self_ns, first = np.where(on_host, spans["self_ns"], 0)[rows], groups.first
    self_ns = groups.sums(row_self_ns)
    name_ids, texts = few_texts(event_names(trace)[rows[first]], trace.strings)
    columns: dict[str, Any] = {
        "module": spans["module"][rows[first]],
        "name": Labels(name_ids, [STEP_KEY if text.startswith(MARK) else text for text in texts]),
        "kind": Labels(kind[first], KIND_NAMES),
        "count": groups.sizes(),
        "self_ns": self_ns,
        "device_self_ns": groups.sums(spans["device_self_ns"][rows]),
        "span": rows[groups.row_of_minimum(-row_self_ns)].astype(np.int32),
    }
    order = np.lexsort((kind[first], name_ids, columns["module"], -self_ns))
    return to_arrow("module_operators", columns, order)


def modules_in(trace: TraceData, shares: HostShares) -> list[dict[str, Any]]:
    """The modules as an outline, with the spans that `shares` counts.

    Modules with the same path and class in several processes, such as ranks, are merged.

    Returns:
        For each its `id`, `path`, `class`, `depth`, `total_operators`, and `total_ns`, `forward_ns` and `backward_ns`, submodules
        included.
    """
    spans, stored = trace.columns("spans"), trace.columns("modules")
    backward = spans["phase"] == Phase.BACKWARD
    operator = shares.counts & operator_spans(trace).mask
    sums = {
        name: with_submodules(trace, by_module(trace, values, chosen))
        for name, values, chosen in (
            ("total_ns", shares.own_ns, shares.counts),
            ("forward_ns", shares.own_ns, shares.counts & ~backward & (spans["recompute"] == 0)),
            ("backward_ns", shares.own_ns, shares.counts & backward & (spans["recompute"] == 0)),
        )
    }
    counted = by_module(trace, np.ones(len(spans), np.int64), operator, divided=False)
    sums["total_operators"] = with_submodules(trace, counted)
    paths, classes, depths = stored["path"], module_classes(trace), stored["depth"].tolist()
    alone = len(trace.columns("processes")) == 0
    alike: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in tree_order(trace, sums["total_ns"]):
        named = {"path": paths[row], "class": classes[row], "depth": depths[row]}
        key = (row,) if alone else tuple(named.values())
        outline_row = alike.setdefault(key, {"id": row, **named, **dict.fromkeys(sums, 0)})
        outline_row.update({name: outline_row[name] + int(values[row]) for name, values in sums.items()})
    return list(alike.values())
