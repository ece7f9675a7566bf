"""Read Chakra execution traces, which have operators and their tensors but no times, and join them with traces.

An execution trace, as PyTorch's observer and Kinetoscope's write it, is one JSON object: `schema`, `pid`, times, and
`nodes`. A node is an operator, a range, a thread or the process. `ctrl_deps` is the id of the node that called it; `inputs`
and `outputs` have `values`, `shapes`, `types` and `strides` as parallel lists; `attrs` is a list of named values. One of
them is `rf_id`, torch's record function number of the call, by which it is joined with the same call in a trace. A tensor
among the values is `[tensor, storage, offset, elements, bytes per element, device]`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kinetoscope._errors import ArgumentError, FormatError
from kinetoscope.model.arrow import ArrowTable, Labels, to_arrow
from kinetoscope.model.dictionary import Table, table_definition
from kinetoscope.model.groups import Groups
from kinetoscope.model.names import stack_texts
from kinetoscope.model.rows import Rows, as_columns, look_up
from kinetoscope.model.schema import KIND_NAMES, PHASE_NAMES
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.byte_source import ByteSource
from kinetoscope.storage.unpacking import UnpackedText

# [tensor, storage, offset, elements, bytes per element, device]
_FIELDS = 6


def tensors_of(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the columns of the table `execution trace: tensors` for the nodes of a file."""
    rows = [
        (node["id"], side, argument, *tensor)
        for node in nodes
        for side in ("input", "output")
        for argument, tensor in _tensors(node.get(f"{side}s"))
    ]
    names = ("node", "side", "argument", "tensor", "storage", "offset", "elements", "item_bytes", "device", "type",
              "shape", "strides")  # fmt: skip
    columns: dict[str, Any] = as_columns(names, rows)
    for name, values in columns.items():
        kind = table_definition("execution trace: tensors").column(name).type
        columns[name] = values if kind == "category" else np.array(values, kind)
    sizes = np.where(columns["item_bytes"] >= 0, columns["elements"] * columns["item_bytes"], -1)
    return columns | {"bytes": sizes}


def _tensors(side: object) -> Iterator[tuple[int, tuple[Any, ...]]]:
    if not isinstance(side, dict):
        return
    values, types = side.get("values"), side.get("types")
    if not isinstance(values, list) or not isinstance(types, list):
        return
    for argument, (value, kind) in enumerate(zip(values, types, strict=False)):
        for tensor in _inside(
            value, kind, _entry(side.get("shapes"), argument), _entry(side.get("strides"), argument)
        ):
            yield argument, tensor


def _entry(values: object, index: int) -> Any:
    return values[index] if isinstance(values, list) and index < len(values) else None


def _inside(value: Any, kind: Any, shape: Any, strides: Any) -> Iterator[tuple[Any, ...]]:
    if not isinstance(kind, str) or not isinstance(value, list):
        return
    outer, bracket, inner = kind.partition("[")
    if bracket:
        for index, (part, part_kind) in enumerate(zip(value, _split_types(inner[:-1]), strict=False)):
            yield from _inside(part, part_kind, _entry(shape, index), _entry(strides, index))
    elif outer.startswith("Tensor(") and len(value) == _FIELDS and all(_is_int(part) for part in value[:5]):
        yield (*value[:5], str(value[5]), outer[len("Tensor(") : -1], _numbers(shape), _numbers(strides))


def _split_types(text: str) -> list[str]:
    parts, depth, begin = [], 0, 0
    for index, char in enumerate(text):
        depth += (char in "[(") - (char in "])")
        if char == "," and depth == 0:
            parts.append(text[begin:index])
            begin = index + 1
    parts.append(text[begin:])
    return parts


def _is_int(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _numbers(value: object) -> str | None:
    if isinstance(value, list) and all(_is_int(part) for part in value):
        return "[" + ",".join(map(str, value)) + "]"
    return None


READABLE = "1.1"
_VERSION = re.compile(r"(\d+\.\d+)\.\d+(?:-chakra\.[\w.]+)?")


_NUMBERS = {
    "rf_id": "rf_id", "torch_tid": "tid", "sequence": "seq_id", "forward_torch_tid": "fw_tid", "scope": "scope",
}  # fmt: skip
_TEXTS = ("op_schema", "kernel_backend", "kernel_file")
# The side and the part of a node that each column has.
_PARTS = {
    "inputs": ("inputs", "values"), "input_shapes": ("inputs", "shapes"), "input_types": ("inputs", "types"),
    "input_strides": ("inputs", "strides"), "outputs": ("outputs", "values"), "output_shapes": ("outputs", "shapes"),
    "output_types": ("outputs", "types"),
}  # fmt: skip


@dataclass(frozen=True)
class ExecutionTrace:
    """An execution trace.

    Attributes:
        schema: The file's schema version, such as `1.1.1-chakra.0.0.4`.
        info: The keys of the file other than `nodes`.
        nodes: The columns of the table `execution trace: nodes`, one row per node, in the order of the file.
        tensors: The columns of the table `execution trace: tensors`, one row per input or output tensor of a node.
        lost: The number of losses, by kind: nodes that could not be read (`unreadable_nodes`).
    """

    schema: str
    info: Mapping[str, Any]
    nodes: Mapping[str, Any]
    tensors: Mapping[str, Any]
    lost: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.nodes["id"])

    @property
    def process(self) -> int | None:
        """The id of the recorded process, None if the file lacks it."""
        pid = self.info.get("pid")
        return pid if isinstance(pid, int) else None

    def table(self, name: str) -> ArrowTable:
        """Return `nodes` or `tensors` as an Arrow table, with the meaning of each column in its field's metadata.

        Raises:
            ArgumentError: `name` is neither.
        """
        if name not in ("nodes", "tensors"):
            raise ArgumentError(f"an execution trace has no table {name!r}; choose 'nodes' or 'tensors'")
        return to_arrow(f"execution trace: {name}", getattr(self, name))


def read_execution_trace(path: str | os.PathLike[str]) -> ExecutionTrace:
    """Read an execution trace of schema 1.1, written by any tool, optionally compressed.

    Args:
        path: The file.

    Returns:
        The execution trace.

    Raises:
        FormatError: The file is not an execution trace, has another schema, or is damaged, such as what a killed process leaves.
        OSError: The file cannot be read.
    """
    facts, nodes = _split(path, _document(path))
    schema = _checked_schema(path, facts)
    dicts = (node for node in nodes if isinstance(node, dict))
    valid = [node for node in dicts if isinstance(node.get("id"), int) and isinstance(node.get("name"), str)]
    lost = {"unreadable_nodes": len(nodes) - len(valid)} if len(valid) < len(nodes) else {}
    return ExecutionTrace(schema, facts, _node_columns(valid), tensors_of(valid), lost)


def _document(path: str | os.PathLike[str]) -> Any:
    with ByteSource.of(path) as source, closing(UnpackedText(source)) as text:
        content = b"".join(text)
    if text.losses:
        raise FormatError(f"{path}: the compressed file is damaged or truncated")
    try:
        return json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{path}: not an execution trace that was finished: it is no valid JSON ({error})"
        ) from error


def _split(path: str | os.PathLike[str], document: Any) -> tuple[dict[str, Any], list[Any]]:
    if isinstance(document, dict) and "traceEvents" in document:
        raise FormatError(f"{path}: a Chrome trace, not an execution trace")
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise FormatError(f"{path}: not an execution trace: it has no list `nodes`")
    return {key: value for key, value in document.items() if key != "nodes"}, document["nodes"]


def _checked_schema(path: str | os.PathLike[str], facts: Mapping[str, Any]) -> str:
    schema = facts.get("schema")
    version = _VERSION.fullmatch(schema) if isinstance(schema, str) else None
    if version is None or version[1] != READABLE:
        raise FormatError(
            f"{path}: an execution trace of schema {schema!r}; only schema {READABLE} is supported: record it again with "
            "PyTorch 2.5 or newer."
        )
    return str(schema)


def _node_columns(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    attributes = [_attributes(node) for node in nodes]
    columns: dict[str, Any] = {
        "id": _integers(node["id"] for node in nodes),
        "name": [node["name"] for node in nodes],
        # In the file, the process is its own parent.
        "parent": _integers(
            -1 if node.get("ctrl_deps") == node["id"] else node.get("ctrl_deps") for node in nodes
        ),
    }
    for column, name in _NUMBERS.items():
        columns[column] = _integers(node_attributes.get(name) for node_attributes in attributes)
    columns["rf_id"][columns["rf_id"] == 0] = -1
    for name in _TEXTS:
        columns[name] = [_text(node_attributes.get(name)) for node_attributes in attributes]
    for column, (side, part) in _PARTS.items():
        columns[column] = [_part(node.get(side), part) for node in nodes]
    return columns


def _attributes(node: Mapping[str, Any]) -> dict[str, Any]:
    attrs = node.get("attrs")
    return {
        str(entry.get("name")): entry.get("value")
        for entry in (attrs if isinstance(attrs, list) else [])
        if isinstance(entry, dict)
    }


def _part(side: object, name: str) -> str | None:
    if not isinstance(side, dict) or name not in side:
        return None
    return json.dumps(side[name], separators=(",", ":"), ensure_ascii=False)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _integers(values: Any) -> Rows:
    return np.array([value if _is_int(value) else -1 for value in values], np.int64)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


# The join of an execution trace with the trace of the same run, by torch's record function number, which is unique in a
# process. A call that only one of them has is also a row, with nulls in the columns of the other and with `match` set.

MATCHES = ("both", "trace only", "execution trace only")
_OF_NODES = (
    "op_schema", "kernel_backend", "kernel_file", "input_shapes", "input_types", "input_strides", "inputs", "output_shapes",
    "output_types", "outputs",
)  # fmt: skip


def execution(
    trace: TraceData, execution_trace: str | os.PathLike[str] | ExecutionTrace | None = None
) -> ArrowTable:
    """Return the `execution` table: operators and ranges with their times and tensors.

    Args:
        trace: The trace of a run that was recorded with an `execution_trace_observer`.
        execution_trace: The execution trace of the same run, or its path. The default is the one in the trace's metadata.

    Returns:
        The table, with the columns of the table `execution`; empty if there is no execution trace.

    Raises:
        ArgumentError: The two are of different processes, or the trace has no record function numbers.
        FormatError: The file is not a readable execution trace.
    """
    other = _execution_trace(trace, execution_trace)
    if other is None:
        return _without_rows(table_definition("execution"))
    spans = trace.columns("spans")
    node_of, span_of = matched(trace, other)
    span_rows = np.flatnonzero(spans["stream"] < 0)
    span_rows = span_rows[np.argsort(spans["start_ns"][span_rows], kind="stable")]
    called = other.nodes["rf_id"] >= 0
    alone = np.flatnonzero(called & (span_of < 0))
    span = np.concatenate([span_rows, np.full(len(alone), -1)]).astype(np.int32)
    node = np.concatenate([node_of[span_rows], alone]).astype(np.int64)
    match = np.where(node < 0, 1, np.where(span < 0, 2, 0))
    span_names = trace.column("spans", "name").tolist()
    module, stack = look_up(span, spans["module"]), look_up(span, spans["stack"])
    columns: dict[str, Any] = {
        "node": look_up(node, other.nodes["id"]),
        "span": span,
        "match": Labels(match, MATCHES),
        "name": [
            trace.strings[span_names[row]] if row >= 0 else other.nodes["name"][there]
            for row, there in zip(span.tolist(), node.tolist(), strict=True)
        ],
        "kind": Labels(look_up(span, spans["kind"]), KIND_NAMES),
        "parent_node": look_up(node, other.nodes["parent"]),
        "os_tid": look_up(span, trace.column("threads", "os_tid")[spans["thread"]]),
        "step": look_up(look_up(span, spans["step"]), trace.column("steps", "number")),
        "phase": Labels(look_up(span, spans["phase"]), PHASE_NAMES),
        "module": Labels(module, trace.columns("modules")["path"]),
        "stack": Labels(stack, stack_texts(trace)),
        "sequence": np.where(
            span >= 0, look_up(span, spans["sequence"]), look_up(node, other.nodes["sequence"])
        ),
    }
    columns |= {time: look_up(span, spans[time]) for time in ("start_ns", "duration_ns", "self_ns", "parent")}
    columns |= {
        name: [other.nodes[name][row] if row >= 0 else None for row in node.tolist()] for name in _OF_NODES
    }
    for side in ("input", "output"):
        columns[f"{side}_bytes"] = look_up(node, _bytes_of_nodes(other, side))
    return to_arrow("execution", columns)


def execution_tensors(
    trace: TraceData, execution_trace: str | os.PathLike[str] | ExecutionTrace | None = None
) -> ArrowTable:
    """Return the `execution_tensors` table: the input and output tensors of operators, with the operators' spans.

    Args:
        trace: The trace of a run that was recorded with an `execution_trace_observer`.
        execution_trace: The execution trace of the same run, or its path. The default is the one in the trace's metadata.

    Returns:
        The table; empty if there is no execution trace.

    Raises:
        ArgumentError: The two are of different processes, or the trace has no record function numbers.
        FormatError: The file is not a readable execution trace.
    """
    other = _execution_trace(trace, execution_trace)
    if other is None:
        return _without_rows(table_definition("execution_tensors"))
    _, span_of = matched(trace, other)
    return to_arrow("execution_tensors", {**other.tensors, "span": span_of[_nodes_of_tensors(other)]})


def matched(trace: TraceData, other: ExecutionTrace) -> tuple[Rows, Rows]:
    """Match nodes with spans by record function number and name.

    Args:
        trace: The trace.
        other: The execution trace of the same process.

    Returns:
        The row of each span's node and the row of each node's span, -1 where there is none.

    Raises:
        ArgumentError: The two are of different processes, or the trace has no record function numbers.
    """
    process = trace.run_info.process
    if process is not None and other.process is not None and process != other.process:
        raise ArgumentError(
            f"the execution trace is of process {other.process}, but the trace is of process {process}: pass the execution "
            "trace of the same run."
        )
    spans = trace.columns("spans")
    ours = np.flatnonzero(spans["record_function"] >= 0)
    theirs = np.flatnonzero(other.nodes["rf_id"] >= 0)
    if len(ours) == 0 and len(spans) > 0 and len(theirs) > 0:
        raise ArgumentError(
            "this trace has no record function numbers to join by: record it with "
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


def _without_rows(table: Table) -> ArrowTable:
    return to_arrow(table, dict.fromkeys(table.column_names))


def _execution_trace(
    trace: TraceData, execution_trace: str | os.PathLike[str] | ExecutionTrace | None
) -> ExecutionTrace | None:
    if isinstance(execution_trace, ExecutionTrace):
        return execution_trace
    if execution_trace is not None:
        return read_execution_trace(execution_trace)
    path = trace.run_info.execution_trace
    if not path:
        return None
    try:
        return trace.cached(f"execution trace {path}", lambda: read_execution_trace(path))
    except OSError as error:
        raise ArgumentError(
            f"the execution trace that was recorded with this trace cannot be read ({error}): pass its current path as "
            "execution_trace='...'."
        ) from error


def _bytes_of_nodes(other: ExecutionTrace, side: str) -> Rows:
    tensors = other.tensors
    wanted = np.array([text == side for text in tensors["side"]], dtype=bool) & (tensors["bytes"] >= 0)
    of_node = Groups(np.where(wanted, _nodes_of_tensors(other), -1), len(other.nodes["id"]))
    total_bytes: Rows = of_node.sums(tensors["bytes"])
    return total_bytes


def _nodes_of_tensors(other: ExecutionTrace) -> Rows:
    ids: Rows = other.nodes["id"]
    order = np.argsort(ids, kind="stable")
    rows: Rows = order[np.searchsorted(ids[order], other.tensors["node"])]
    return rows
