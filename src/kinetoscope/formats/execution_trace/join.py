"""Operators with their tensors and their times: an execution trace and the trace of the same run, joined.

Both know torch's number of a call, which is unique in a process. A call that only one of them knows has a row too, so
that nothing disappears: the columns of the other are null there, and `match` says which one knew it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.formats.execution_trace.read import (
    NODES_SCHEMA,
    TENSORS_SCHEMA,
    ExecutionTrace,
    read_execution_trace,
)
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.names import stack_texts
from kinetoscope.model.schema import KIND_NAMES, PHASE_NAMES, Column, Table
from kinetoscope.tables.stored import thread_ids

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData

MATCHES = ("both", "trace only", "execution trace only")

_OF_NODES = tuple(
    NODES_SCHEMA.column(name)
    for name in (
        "op_schema", "kernel_backend", "kernel_file", "input_shapes", "input_types", "input_strides", "inputs",
        "output_shapes", "output_types", "outputs",
    )
)  # fmt: skip

EXECUTION_SCHEMA = Table(
    "execution",
    "An operator or range, with its times from the trace and its tensors from an execution trace of the same run. In "
    "order of time, and those without times last.",
    (
        Column("node", "int64", "", "Its id in the execution trace; null if only the trace knows it."),
        Column("span", "int32", "row of spans", "Its span; null if only the execution trace knows it."),
        Column("match", "category", "", f"Which of the two knew it: {', '.join(MATCHES)}."),
        Column("name", "category", "", "Its name."),
        Column("kind", "category", "", "What it is, as in `spans`."),
        Column("start_ns", "int64", "ns", "When it began, from the start of the trace."),
        Column("duration_ns", "int64", "ns", "How long it ran."),
        Column("self_ns", "int64", "ns", "Its duration without that of the spans inside it."),
        Column("parent_node", "int64", "", "The id of the node that called it."),
        Column("parent", "int32", "row of spans", "The innermost span of the same thread that encloses it."),
        Column("thread", "int64", "", "The operating system's id of the thread it began on."),
        Column("step", "int64", "", "The number of the step it began in."),
        Column("phase", "category", "", f"One of {', '.join(PHASE_NAMES)}."),
        Column("module", "category", "", "The path of the module it ran in; in backward that of its forward operator."),
        Column("stack", "category", "", "The Python stack, root first, joined by `;`; in backward that of the forward."),
        Column("sequence", "int64", "", "Autograd's sequence number."),
        *_OF_NODES,
        Column("input_bytes", "int64", "bytes", "The size of the tensors it took, each as often as it took it."),
        Column("output_bytes", "int64", "bytes", "The size of the tensors it gave."),
    ),
)  # fmt: skip

EXECUTION_TENSORS_SCHEMA = Table(
    "execution_tensors",
    TENSORS_SCHEMA.row,
    (
        TENSORS_SCHEMA.columns[0],
        Column("span", "int32", "row of spans", "The span of that node; null if only the execution trace knows it."),
        *TENSORS_SCHEMA.columns[1:],
    ),
)  # fmt: skip


def execution(
    trace: TraceData, execution_trace: str | os.PathLike[str] | ExecutionTrace | None = None
) -> pyarrow.Table:
    """Return the `execution` table: what ran, with times and tensors.

    Args:
        trace: The trace of a run that was recorded with an `execution_trace_observer`.
        execution_trace: The execution trace of the same run, or its path; None takes the one that the session noted.

    Returns:
        The table, without rows if no execution trace is known; the meaning of its columns is in `EXECUTION_SCHEMA`.

    Raises:
        ArgumentError: The two are of different processes, or the trace does not know torch's numbers of calls.
        FormatError: The file is no execution trace that can be read.
    """
    other = _execution_trace(trace, execution_trace)
    if other is None:
        return _without_rows(EXECUTION_SCHEMA)
    own = trace.columns("spans")
    node_of, span_of = matched(trace, other)
    span_rows = np.flatnonzero(own["stream"] < 0)
    span_rows = span_rows[np.argsort(own["start_ns"][span_rows], kind="stable")]
    called = other.nodes["rf_id"] >= 0
    alone = np.flatnonzero(called & (span_of < 0))
    span = np.concatenate([span_rows, np.full(len(alone), -1)]).astype(np.int32)
    node = np.concatenate([node_of[span_rows], alone]).astype(np.int64)
    match = np.where(node < 0, 1, np.where(span < 0, 2, 0))
    name = _names(trace, other, span, node)
    module, stack = _through(span, own["module"]), _through(span, own["stack"])
    columns: dict[str, Any] = {
        "node": _through(node, other.nodes["id"]),
        "span": span,
        "match": Labels(match, MATCHES),
        "name": name,
        "kind": Labels(_through(span, own["kind"]), KIND_NAMES),
        "parent_node": _through(node, other.nodes["parent"]),
        "thread": _through(span, thread_ids(trace)[own["thread"]]),
        "step": _through(_through(span, own["step"]), trace.column("steps", "number")),
        "phase": Labels(_through(span, own["phase"]), PHASE_NAMES),
        "module": Labels(module, trace.columns("modules")["path"]),
        "stack": Labels(stack, stack_texts(trace)),
        "sequence": np.where(
            span >= 0, _through(span, own["sequence"]), _through(node, other.nodes["sequence"])
        ),
    }
    columns |= {time: _through(span, own[time]) for time in ("start_ns", "duration_ns", "self_ns", "parent")}
    columns |= {
        column.name: [other.nodes[column.name][row] if row >= 0 else None for row in node.tolist()]
        for column in _OF_NODES
    }
    for side in ("input", "output"):
        columns[f"{side}_bytes"] = _through(node, _bytes_of_nodes(other, side))
    return to_arrow(EXECUTION_SCHEMA, columns)


def execution_tensors(
    trace: TraceData, execution_trace: str | os.PathLike[str] | ExecutionTrace | None = None
) -> pyarrow.Table:
    """Return the `execution_tensors` table: each tensor that an operator took or gave, with the operator's span.

    Args:
        trace: The trace of a run that was recorded with an `execution_trace_observer`.
        execution_trace: The execution trace of the same run, or its path; None takes the one that the session noted.

    Returns:
        The table, without rows if no execution trace is known.

    Raises:
        ArgumentError: The two are of different processes, or the trace does not know torch's numbers of calls.
        FormatError: The file is no execution trace that can be read.
    """
    other = _execution_trace(trace, execution_trace)
    if other is None:
        return _without_rows(EXECUTION_TENSORS_SCHEMA)
    _, span_of = matched(trace, other)
    ids = other.nodes["id"]
    order = np.argsort(ids, kind="stable")
    rows = order[np.searchsorted(ids[order], other.tensors["node"])] if len(ids) else other.tensors["node"]
    return to_arrow(EXECUTION_TENSORS_SCHEMA, {**other.tensors, "span": span_of[rows]})


def matched(trace: TraceData, other: ExecutionTrace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find which node and which span are one call: the same number of torch's, and the same name.

    Args:
        trace: The trace.
        other: The execution trace of the same process.

    Returns:
        For each span the row of its node, and for each node the row of its span; -1 without.

    Raises:
        ArgumentError: The two are of different processes, or the trace does not know torch's numbers of calls.
    """
    process = trace.info.get("process")
    if isinstance(process, int) and other.process is not None and process != other.process:
        raise ArgumentError(
            f"the execution trace is of process {other.process}, and the trace of process {process}: join what was "
            "recorded together."
        )
    spans = trace.columns("spans")
    ours = np.flatnonzero(spans["record_function"] >= 0)
    theirs = np.flatnonzero(other.nodes["rf_id"] >= 0)
    if len(ours) == 0 and len(spans) > 0 and len(theirs) > 0:
        raise ArgumentError(
            "this trace does not know torch's numbers of calls: record it with "
            "profile(execution_trace_observer=ExecutionTraceObserver().register_callback(path))."
        )
    _, left, right = np.intersect1d(
        spans["record_function"][ours], other.nodes["rf_id"][theirs], return_indices=True
    )
    left, right = ours[left], theirs[right]
    names = trace.strings
    same = np.array(
        [
            names[name] == other.nodes["name"][node]
            for name, node in zip(spans["name"][left].tolist(), right.tolist(), strict=True)
        ],
        dtype=bool,
    )
    node_of = np.full(len(spans), -1, dtype=np.int64)
    span_of = np.full(len(other), -1, dtype=np.int64)
    node_of[left[same]] = right[same]
    span_of[right[same]] = left[same]
    return node_of, span_of


def _without_rows(schema: Table) -> pyarrow.Table:
    """A table without rows."""
    return to_arrow(
        schema,
        {
            column.name: [] if column.type in ("category", "string") else np.zeros(0)
            for column in schema.columns
        },
    )


def _execution_trace(
    trace: TraceData, given: str | os.PathLike[str] | ExecutionTrace | None
) -> ExecutionTrace | None:
    """The execution trace that was given, or that the session noted; None if there is none."""
    if isinstance(given, ExecutionTrace):
        return given
    if given is not None:
        return read_execution_trace(given)
    noted = trace.info.get("execution_trace")
    if not isinstance(noted, str):
        return None
    try:
        return trace.cached(f"execution trace {noted}", lambda: read_execution_trace(noted))
    except OSError as error:
        raise ArgumentError(
            f"the execution trace that was recorded with this trace cannot be read ({error}): say where it is now with "
            "execution_trace='...'."
        ) from error


def _names(
    trace: TraceData, other: ExecutionTrace, span: NDArray[np.int32], node: NDArray[np.int64]
) -> list[str]:
    """The name of each row, from whichever of the two knows it."""
    own = trace.column("spans", "name").tolist()
    return [
        trace.strings[own[row]] if row >= 0 else other.nodes["name"][there]
        for row, there in zip(span.tolist(), node.tolist(), strict=True)
    ]


def _bytes_of_nodes(other: ExecutionTrace, side: str) -> NDArray[np.int64]:
    """The size of all tensors on one side of each node."""
    tensors = other.tensors
    wanted = np.array([given == side for given in tensors["side"]], dtype=bool) & (tensors["bytes"] >= 0)
    ids = other.nodes["id"]
    total = np.zeros(len(ids), dtype=np.int64)
    if len(ids):
        order = np.argsort(ids, kind="stable")
        np.add.at(
            total, order[np.searchsorted(ids[order], tensors["node"][wanted])], tensors["bytes"][wanted]
        )
    return total


def _through(rows: NDArray[Any], values: Any) -> Any:
    """Look up `values` at `rows`, and -1 where the row is -1."""
    return np.where(rows >= 0, np.append(np.asarray(values).astype(np.int64), -1)[rows], -1)
