"""Attributes the kernels of CUDA graphs to the operators, lines and modules of the capture.

A replay is one launch of many kernels, far from the code that captured them. If the capture is in the trace, its runtime calls have the order
of the graph's nodes, and no device work of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from kinetoscope.combine.extend import Origins, extend
from kinetoscope.model.device_time import started_by
from kinetoscope.model.kinds import is_device_work, is_runtime_call
from kinetoscope.model.losses import Loss
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.trace_data import AnyTrace, TraceData

Sequence = tuple[SpanKind, ...]

_REPLAY = re.compile(r"(cuda|cu|hip)GraphLaunch(?![A-Z])")
_BEGIN = re.compile(r"(cuda|cu|hip)StreamBeginCapture")
_END = re.compile(r"(cuda|cu|hip)StreamEndCapture")
# Calls that become nodes of a captured graph.
_NODES = (
    (SpanKind.KERNEL, re.compile(r"(cuda|cu|hip)(Ext|Module|ExtModule)?Launch(Cooperative)?Kernel")),
    (SpanKind.MEMCPY, re.compile(r"(cuda|cu|hip)Memcpy\w*Async")),
    (SpanKind.MEMSET, re.compile(r"(cuda|cu|hip)Memset\w*Async")),
)


def attribute_replays(trace: AnyTrace) -> AnyTrace:
    """Return a trace whose kernels of graph replays belong to the operators that were captured.

    A graph is matched with the capture that has the same sequence of kernels, copies and fills. Several graphs with the same sequence are matched
    with as many captures, in order of their numbers. Unmatched kernels are counted in `losses`.

    Args:
        trace: The trace; it is unchanged and shares its columns with the new one.

    Returns:
        The trace, with rows of `origins` for the captured operators; the given one if no graph was replayed.
    """
    replays = _replays(trace)
    if not replays:
        return trace
    captures = _captures(trace)
    calls_of = _matched(replays, captures)
    origins, spans = Origins(trace), trace.columns("spans")
    origin, origin_of = spans["origin"].copy(), dict[int, int]()
    unmatched = 0
    for graph, rows, _ in replays:
        calls = calls_of.get(graph)
        if calls is None:
            unmatched += len(rows)
            continue
        operators = started_by(spans, calls.astype(np.int32)).tolist()
        for operator in dict.fromkeys(operators):
            if operator not in origin_of:
                values = {name: int(spans[name][operator]) for name in ("module", "stack")}
                values |= {"operator": int(spans["name"][operator]), "node": origins.strings.row("")}
                origin_of[operator] = origins.add_group("", [values | {"weight": 1.0}])
        origin[rows] = [origin_of[operator] for operator in operators]
    losses = [Loss.of("unknown_replays", unmatched)] if unmatched else []
    return extend(
        trace,
        losses=losses,
        spans={"origin": origin},
        tables={"origins": origins.columns},
        strings=origins.texts,
    )


def _named(trace: TraceData, pattern: re.Pattern[str]) -> Rows:
    """The runtime calls whose names match a pattern, in order of start."""
    spans = trace.columns("spans")
    texts = [row for row, text in enumerate(trace.strings) if pattern.match(text)]
    rows = np.flatnonzero(np.isin(spans["name"], texts) & is_runtime_call(spans["kind"]))
    return rows[np.argsort(spans["start_ns"][rows], kind="stable")]


def _replays(trace: TraceData) -> list[tuple[int, Rows, Sequence]]:
    """For each graph launch: the graph's number, -1 if unknown, and its device work and kinds in the order of the nodes."""
    # Names first, so that traces without replays compute no columns.
    if not any(map(_REPLAY.match, trace.strings)):
        return []
    spans, launches = trace.columns("spans"), trace.columns("launches")
    hosts = _named(trace, _REPLAY)
    replayed = np.flatnonzero(np.isin(launches["host"], hosts) & (launches["device"] >= 0))
    replayed = replayed[is_device_work(spans["kind"][launches["device"][replayed]])]
    graph, node = np.full((2, len(spans)), -1, dtype=np.int64)
    for table in ("kernels", "copies"):
        columns = trace.columns(table)
        graph[columns["span"]], node[columns["span"]] = columns["graph"], columns["graph_node"]
    device, host = launches["device"][replayed].astype(np.int64), launches["host"][replayed]
    replays = []
    for host_row in hosts.tolist():
        rows = device[host == host_row]
        rows = rows[np.lexsort((spans["start_ns"][rows], node[rows]))]
        if len(rows):
            # On several streams, the order in time may differ from that of the capture.
            ordered = (node[rows] >= 0).all() or len(np.unique(spans["stream"][rows])) == 1
            kinds = tuple(SpanKind(kind) for kind in spans["kind"][rows].tolist()) if ordered else ()
            replays.append((int(graph[rows[0]]), rows, kinds))
    return replays


def _captures(trace: TraceData) -> list[tuple[Rows, Sequence]]:
    spans, launched = trace.columns("spans"), trace.column("launches", "host")
    start = spans["start_ns"]
    of_kind = [(kind, _named(trace, pattern)) for kind, pattern in _NODES]
    kinds = np.concatenate([np.full(len(rows), kind) for kind, rows in of_kind])
    calls = np.concatenate([rows for _, rows in of_kind])
    captured = ~np.isin(calls, launched)
    calls, kinds = calls[captured], kinds[captured]
    order = np.argsort(start[calls], kind="stable")
    calls, kinds = calls[order], kinds[order]
    ends = start[_named(trace, _END)]
    captures = []
    for begin in start[_named(trace, _BEGIN)].tolist():
        if (after := int(np.searchsorted(ends, begin))) < len(ends):
            inside = slice(*np.searchsorted(start[calls], (begin, ends[after])).tolist())
            captures.append((calls[inside], tuple(SpanKind(kind) for kind in kinds[inside].tolist())))
    return captures


def _matched(
    replays: Iterable[tuple[int, Rows, Sequence]],
    captures: list[tuple[Rows, Sequence]],
) -> dict[int, Rows]:
    """The calls of the capture of each graph, by its number; ambiguous captures are left out."""
    graphs: dict[Sequence, set[int]] = {}
    several: dict[int, set[Sequence]] = {}
    for graph, _, kinds in replays:
        graphs.setdefault(kinds, set()).add(graph)
        several.setdefault(graph, set()).add(kinds)
    calls_of_graph: dict[int, Rows] = {}
    for kinds, alike in graphs.items():
        calls = [calls for calls, captured_kinds in captures if captured_kinds == kinds]
        if kinds and len(calls) == len(alike) and all(len(several[graph]) == 1 for graph in alike):
            calls_of_graph |= dict(zip(sorted(alike), calls, strict=True))
    return calls_of_graph
