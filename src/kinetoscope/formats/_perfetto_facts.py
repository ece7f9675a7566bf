"""What the slices and the allocations of a Perfetto trace show of themselves, by the names that Kineto gives these facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope import _core
from kinetoscope.trace._naming import module_classes
from kinetoscope.trace._schema import FLAG_ASYNC, FLAG_BEGUN_BEFORE, FLAG_UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kinetoscope.formats._perfetto_spans import Slices
    from kinetoscope.tables.shown_stacks import ShownStacks
    from kinetoscope.trace import Trace
    from kinetoscope.trace._columns import Columns

# (name, kind, values) or (name, kind, rows, texts): see the kinds in native/core/perfetto_annotations.h.
Fact = tuple[str, str, "NDArray[Any]"] | tuple[str, str, "NDArray[Any]", list[str]]
# Of these slices, None for all.
Facts = tuple["NDArray[np.int32] | None", list[Fact]]

_NUMBERS = (
    ("external_id", "External id"),
    ("record_function", "Record function id"),
    ("sequence", "Sequence number"),
    ("correlation", "correlation"),
)
_SHAPES = (
    ("concrete", "Concrete Inputs"),
    ("types", "Input type"),
    ("dims", "Input Dims"),
    ("strides", "Input Strides"),
)
_STATES = (
    (FLAG_UNFINISHED, "Unfinished"),
    (FLAG_BEGUN_BEFORE, "Begun before"),
    (FLAG_ASYNC, "Asynchronous"),
)
_KERNELS = (
    ("registers", "registers per thread"),
    ("shared_bytes", "shared memory"),
    ("blocks_per_sm", "blocks per SM"),
    ("warps_per_sm", "warps per SM"),
    ("occupancy_percent", "est. achieved occupancy %"),
    ("context", "context"),
    ("graph", "graph id"),
    ("graph_node", "graph node id"),
)
_COPIES = (
    ("bytes", "bytes"),
    ("context", "context"),
    ("graph", "graph id"),
    ("graph_node", "graph node id"),
)


def span_facts(trace: Trace, slices: Slices) -> list[Facts]:
    """Return what slices show.

    Args:
        trace: The trace.
        slices: The slices.

    Returns:
        Groups of facts, each with the slices it speaks of.
    """
    return [
        (None, list(_of_every_slice(trace, slices))),
        *_of_streams(trace, slices),
        *_of_table(trace, slices, "kernels", _KERNELS),
        *_of_table(trace, slices, "copies", _COPIES),
        *_of_source(slices),
    ]


def _of_every_slice(trace: Trace, slices: Slices) -> Iterator[Fact]:
    """Facts that any slice may have; those that none has are left out."""
    spans, shapes, modules = (trace.columns(name) for name in ("spans", "shapes", "modules"))
    shown = slices.shown.columns
    for column, name in _NUMBERS:
        if column in shown and (shown[column] >= 0).any():
            yield name, "number", shown[column]
    if (shown["forward_thread"] >= 0).any():
        number = np.append(trace.column("threads", "torch_tid"), -1)
        yield "Fwd thread id", "number", number[shown["forward_thread"]]
    if spans["overload"].any():
        yield "Overload", "string", slices.of_spans(spans["overload"])
    for column, name in _SHAPES if len(shapes) else ():
        if any(shapes[column]):
            yield name, "text", shown["shapes"], list(shapes[column])
    if len(modules):
        yield "Module", "text", shown["module"], list(modules["path"])
        yield "Module class", "text", shown["module"], module_classes(trace)
    if len(trace.columns("parameters")):
        yield "Parameter", "text", slices.of_spans(spans["parameter"]), _parameters(trace)
    if (shown["stack"] >= 0).any():
        yield "Call stack", "stack", shown["stack"]
    for flag, name in _STATES:
        if (shown["flags"] & flag).any():
            yield name, "flag", (shown["flags"] & flag != 0).astype(np.uint8)


def _of_streams(trace: Trace, slices: Slices) -> Iterator[Facts]:
    """Where on which device something ran."""
    spans, streams = trace.columns("spans"), trace.columns("streams")
    rows = np.flatnonzero(spans["stream"] >= 0).astype(np.int32)
    if len(rows):
        stream = spans["stream"][rows]
        facts: list[Fact] = [
            ("device", "number", streams["device_index"][stream]),
            ("stream", "number", streams["number"][stream]),
        ]
        yield _in_order(slices, rows, facts)


def _of_table(
    trace: Trace, slices: Slices, table: str, columns: tuple[tuple[str, str], ...]
) -> Iterator[Facts]:
    """Facts from a table that has rows for some spans."""
    known = trace.columns(table)
    if len(known) == 0:
        return
    facts: list[Fact] = []
    if table == "kernels":
        facts += [_sizes(known, "grid"), _sizes(known, "block")]
    facts += [(name, "number", known[column]) for column, name in columns if (known[column] != -1).any()]
    yield _in_order(slices, known["span"], facts)


def _sizes(kernels: Columns, of: str) -> Fact:
    """The three sizes of a grid or block as one JSON text, each distinct one once."""
    sizes = [np.ascontiguousarray(kernels[f"{of}_{axis}"]) for axis in "xyz"]
    group, first = _core.group(sizes)
    texts = [_json_list(row) for row in zip(*(size[first].tolist() for size in sizes), strict=True)]
    return of, "text", group, texts


def _json_list(sizes: tuple[int, ...]) -> str:
    """Sizes as a JSON list; nothing where none is known."""
    return "" if max(sizes) < 0 else f"[{','.join(map(str, sizes))}]"


def _of_source(slices: Slices) -> Iterator[Facts]:
    """What a source said that has no column, and what is known of calls between ranks: what has a name already gives way."""
    if "arguments" in slices.shown.columns:
        yield None, [("arguments", "object", slices.shown.columns["arguments"], slices.shown.arguments)]


def _in_order(slices: Slices, rows: NDArray[np.int32], facts: list[Fact]) -> Facts:
    """Facts of some spans as facts of the slices that show them, in the order of these."""
    places = slices.shown.rows(rows)
    order = np.argsort(places, kind="stable")
    ordered: list[Any] = [
        (name, kind, np.ascontiguousarray(values[order]), *texts) for name, kind, values, *texts in facts
    ]
    return np.ascontiguousarray(places[order]), ordered


def _parameters(trace: Trace) -> list[str]:
    """The dotted name of every parameter, with the path of the module that owns it."""
    parameters, paths = trace.columns("parameters"), trace.columns("modules")["path"]
    return [
        f"{paths[module]}.{trace.strings[name]}" if module >= 0 else trace.strings[name]
        for module, name in zip(parameters["module"].tolist(), parameters["name"].tolist(), strict=True)
    ]


def allocation_facts(trace: Trace, stacks: ShownStacks, rows: slice) -> list[Fact]:
    """Return what allocations and frees show; a free has the size of its block, negative.

    Args:
        trace: The trace.
        stacks: Its stacks without the frames that are not shown.
        rows: Which rows of `allocations`.

    Returns:
        The facts of these rows.
    """
    own = trace.columns("allocations")
    size, match = own["bytes"], own["match"]
    freed = np.where(match >= 0, np.append(size, 0)[match], own["freed_bytes"])
    facts: list[tuple[str, str, NDArray[Any]]] = [
        ("Bytes", "always", np.where(size > 0, size, -freed)),
        ("Addr", "pointer", own["address"]),
        ("Device Type", "always", own["device_type"]),
        ("Device Id", "always", own["device_index"]),
        (
            "Total Allocated",
            "number",
            np.where(own["allocated_bytes"] >= 0, own["allocated_bytes"], own["total_bytes"]),
        ),
    ]
    if (own["reserved_bytes"] >= 0).any():
        facts.append(("Total Reserved", "number", own["reserved_bytes"]))
    if (own["stack"] >= 0).any():
        facts.append(("Call stack", "stack", stacks.row[own["stack"]]))
    return [(name, how, values[rows]) for name, how, values in facts]
