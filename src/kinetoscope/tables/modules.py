"""The tree of `nn.Module` instances, with the time and memory of what ran in each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.tables._module_tree import by_module, tree_order, with_submodules
from kinetoscope.tables._visible import host_spans, host_total_ns
from kinetoscope.tables.ops import percent
from kinetoscope.trace import Column, Phase, SpanKind, Table
from kinetoscope.trace._arrow import Labels, to_arrow
from kinetoscope.trace._calls import calls_of
from kinetoscope.trace._naming import module_classes
from kinetoscope.trace._shown import memory_recorded

if TYPE_CHECKING:
    import pyarrow

    from kinetoscope.trace import Trace

MODULES_SCHEMA = Table(
    "modules",
    "An `nn.Module` instance. As an outline: each is followed by its submodules, those with the most time first.",
    (
        Column("id", "int32", "row of modules", "The row in the trace, which `parent` refers to."),
        Column("path", "string", "", "Its dotted path as `named_modules()` spells it; a root's is its class."),
        Column("class", "category", "", "Its class."),
        Column("depth", "int32", "", "How many modules hold it.", 0),
        Column("parent", "int32", "row of modules", "The module that holds it."),
        Column("calls", "int64", "", "How often it was called; null unless module calls were recorded as spans, since"
               " calls of one module right after each other cannot be told apart by their operators."),
        Column("operators", "int64", "", "Operators and backward functions that ran in it, submodules left out."),
        Column("total_operators", "int64", "", "The same, submodules included."),
        Column("self_ns", "int64", "ns", "Time of what ran in it, submodules left out."),
        Column("total_ns", "int64", "ns", "The same, submodules included."),
        Column("total_percent", "float64", "%", "Share of all self time of the trace."),
        Column("forward_self_ns", "int64", "ns", "The part of `self_ns` outside backward."),
        Column("forward_ns", "int64", "ns", "The part of `total_ns` outside backward."),
        Column("backward_self_ns", "int64", "ns", "The part of `self_ns` in backward, by the operator that caused it."),
        Column("backward_ns", "int64", "ns", "The part of `total_ns` in backward."),
        Column("self_bytes", "int64", "bytes", "Host memory allocated minus freed, submodules left out; null if not recorded."),
        Column("bytes", "int64", "bytes", "The same, submodules included."),
        Column("device_ns", "int64", "ns", "Device time of what was launched, submodules included."),
    ),
)  # fmt: skip


def modules(trace: Trace) -> pyarrow.Table:
    """Return the `modules` table: one row for each module instance, as an outline.

    Times are sums of self times of spans, so the parts of a module add up to it, and all roots together
    to no more than the trace. Time in Python between operators counts where a range or a step covers it.

    Args:
        trace: The trace.

    Returns:
        The table; the meaning of its columns is in `MODULES_SCHEMA`.
    """
    spans, own = trace.columns("spans"), trace.columns("modules")
    kind, self_ns = spans["kind"], spans["self_ns"]
    calls = calls_of(trace)
    everywhere = np.ones(len(spans), dtype=bool) if calls is None else ~calls
    in_backward = spans["phase"] == Phase.BACKWARD
    ones = np.ones(len(spans), dtype=np.int64)
    operator = (kind == SpanKind.OPERATOR) | (kind == SpanKind.BACKWARD)
    on_host = host_spans(trace)
    forward = by_module(trace, self_ns, on_host & ~in_backward)
    backward = by_module(trace, self_ns, on_host & in_backward)
    operators = by_module(trace, ones, operator)
    forward_total, backward_total = with_submodules(trace, forward), with_submodules(trace, backward)
    called = kind == SpanKind.MODULE
    total = forward_total + backward_total
    columns: dict[str, Any] = {
        "id": np.arange(len(own), dtype=np.int32),
        "path": own["path"],
        "class": Labels(np.arange(len(own)), module_classes(trace)),
        "depth": own["depth"],
        "parent": own["holder"],
        "calls": by_module(trace, ones, called) if called.any() else None,
        "operators": operators,
        "total_operators": with_submodules(trace, operators),
        "self_ns": forward + backward,
        "total_ns": total,
        "total_percent": percent(total, host_total_ns(trace)),
        "forward_self_ns": forward,
        "forward_ns": forward_total,
        "backward_self_ns": backward,
        "backward_ns": backward_total,
        "self_bytes": None,
        "bytes": None,
        "device_ns": with_submodules(trace, by_module(trace, spans["device_self_ns"], everywhere)),
    }
    if memory_recorded(trace):
        size = by_module(trace, spans["self_bytes"], everywhere)
        columns |= {"self_bytes": size, "bytes": with_submodules(trace, size)}
    return to_arrow(MODULES_SCHEMA, columns).take(np.array(tree_order(trace, total), dtype=np.int64))
