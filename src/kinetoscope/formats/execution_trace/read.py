"""Chakra execution traces, as PyTorch's observer and ours write them: operators with their tensors, without times.

A trace is one JSON object: `schema`, `pid`, times, and `nodes`. A node is an operator, a range, a thread or the
process. Its `ctrl_deps` is the id of the node that called it; `inputs` and `outputs` hold `values`, `shapes`, `types`
and `strides` in parallel; `attrs` is a list of named values, among them `rf_id`, the number by which torch knows the
call, and by which the times of the same call are found (`kinetoscope.formats.execution_trace.read`). A tensor among the
values is `[tensor, storage, offset, elements, bytes of an element, device]`.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError, FormatError
from kinetoscope.formats.execution_trace.mend import Mending
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.names import stack_texts
from kinetoscope.model.schema import KIND_NAMES, PHASE_NAMES, Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData


# The tensors that the nodes of an execution trace took and gave, one row each.

TENSORS_SCHEMA = Table(
    "tensors",
    "A tensor that a node of an execution trace took or gave.",
    (
        Column("node", "int64", "", "The id of the node."),
        Column("side", "category", "", "`input` or `output`."),
        Column("argument", "int32", "", "Which of the inputs or outputs it is; tensors of a list share one."),
        Column("tensor", "int64", "", "The tensor's id in the file."),
        Column("storage", "int64", "", "The id of its storage: tensors with one storage share memory."),
        Column("offset", "int64", "", "Where it begins in the storage, in elements."),
        Column("elements", "int64", "", "How many elements."),
        Column("item_bytes", "int64", "bytes", "The size of one element."),
        Column("bytes", "int64", "bytes", "The size of all its elements."),
        Column("device", "category", "", "The device, as torch names it."),
        Column("type", "category", "", "The type of its elements, as torch names it in C++."),
        Column("shape", "category", "", "Its sizes, as JSON."),
        Column("strides", "category", "", "Its strides, as JSON; null where the schema is older than 1.1.1."),
    ),
)

# [tensor, storage, offset, elements, bytes of an element, device]
_FIELDS = 6


def tensors_of(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the columns of `TENSORS_SCHEMA` from the nodes of a file."""
    rows = [
        (node["id"], side, argument, *tensor)
        for node in nodes
        for side in ("input", "output")
        for argument, tensor in _tensors(node.get(f"{side}s"))
    ]
    columns: dict[str, Any] = {}
    places = ("node", "side", "argument", "tensor", "storage", "offset", "elements", "item_bytes", "device", "type",
              "shape", "strides")  # fmt: skip
    for place, name in enumerate(places):
        values = [row[place] for row in rows]
        kind = TENSORS_SCHEMA.column(name).type
        columns[name] = values if kind == "category" else np.array(values, kind)
    sizes = np.where(columns["item_bytes"] >= 0, columns["elements"] * columns["item_bytes"], -1)
    return columns | {"bytes": sizes}


def _tensors(given: object) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The tensors of one side of a node, each with the number of its argument."""
    if not isinstance(given, dict):
        return
    values, types = given.get("values"), given.get("types")
    if not isinstance(values, list) or not isinstance(types, list):
        return
    for argument, (value, kind) in enumerate(zip(values, types, strict=False)):
        for tensor in _inside(
            value, kind, _part(given, "shapes", argument), _part(given, "strides", argument)
        ):
            yield argument, tensor


def _part(given: Mapping[str, Any], name: str, argument: int) -> Any:
    """One entry of a parallel list that may be missing or too short."""
    part = given.get(name)
    return part[argument] if isinstance(part, list) and argument < len(part) else None


def _inside(value: Any, kind: Any, shape: Any, strides: Any) -> Iterator[tuple[Any, ...]]:
    """The tensors in one value: itself, or those of a list."""
    if not isinstance(kind, str) or not isinstance(value, list):
        return
    outer, bracket, inner = kind.partition("[")
    if bracket:
        shapes = shape if isinstance(shape, list) else []
        stepped = strides if isinstance(strides, list) else []
        for place, (part, part_kind) in enumerate(zip(value, _split_types(inner[:-1]), strict=False)):
            yield from _inside(
                part,
                part_kind,
                shapes[place] if place < len(shapes) else None,
                stepped[place] if place < len(stepped) else None,
            )
    elif outer.startswith("Tensor(") and len(value) == _FIELDS and all(_is_int(part) for part in value[:5]):
        yield (*value[:5], str(value[5]), outer[len("Tensor(") : -1], _numbers(shape), _numbers(strides))


def _split_types(text: str) -> list[str]:
    """Split the element types of a list at the commas that stand in no bracket."""
    parts, depth, begin = [], 0, 0
    for place, char in enumerate(text):
        depth += (char in "[(") - (char in "])")
        if char == "," and depth == 0:
            parts.append(text[begin:place])
            begin = place + 1
    parts.append(text[begin:])
    return parts


def _is_int(value: object) -> bool:
    """Whether a value is a number that a column can hold."""
    return type(value) is int and -(2**63) <= value < 2**63


def _numbers(value: object) -> str | None:
    """A list of numbers as JSON."""
    if isinstance(value, list) and all(_is_int(part) for part in value):
        return "[" + ",".join(map(str, value)) + "]"
    return None


READABLE = "1.1"
_VERSION = re.compile(r"(\d+\.\d+)\.\d+(?:-chakra\.[\w.]+)?")

NODES_SCHEMA = Table(
    "nodes",
    "A node of an execution trace: an operator, a range, a thread or the process.",
    (
        Column("id", "int64", "", "Its id in the file."),
        Column("name", "category", "", "Its name."),
        Column("parent", "int64", "", "The id of the node that called it; null for the process."),
        Column("rf_id", "int64", "", "torch's number of the call; null for threads and the process."),
        Column("torch_tid", "int64", "", "torch's logical id of the thread it ran on."),
        Column("sequence", "int64", "", "Autograd's sequence number."),
        Column("forward_torch_tid", "int64", "", "For a backward function, torch's logical id of the thread its forward ran on.", 0),
        Column("scope", "int64", "", "torch's record scope: 0 function, 1 backward function, 7 user range.", 0),
        Column("op_schema", "category", "", "The operator's schema."),
        Column("kernel_backend", "category", "", "What generated its kernel, for example triton."),
        Column("kernel_file", "category", "", "The file of the generated kernel."),
        Column("input_shapes", "category", "", "The sizes of its inputs, as JSON."),
        Column("input_types", "category", "", "Their types, as JSON."),
        Column("input_strides", "category", "", "Their strides, as JSON; null where the schema is older than 1.1.1."),
        Column("inputs", "string", "", "Their values, as JSON; a tensor is `[tensor, storage, offset, elements, item bytes, device]`."),
        Column("output_shapes", "category", "", "The sizes of its outputs, as JSON."),
        Column("output_types", "category", "", "Their types, as JSON."),
        Column("outputs", "string", "", "Their values, as JSON."),
    ),
)  # fmt: skip

_NUMBERS = {
    "rf_id": "rf_id", "torch_tid": "tid", "sequence": "seq_id", "forward_torch_tid": "fw_tid", "scope": "scope",
}  # fmt: skip
_TEXTS = ("op_schema", "kernel_backend", "kernel_file")
_PARTS = ("values", "shapes", "types", "strides")


@dataclass(frozen=True)
class ExecutionTrace:
    """An execution trace that was read.

    Attributes:
        schema: The version its writer gives, such as `1.1.1-chakra.0.0.4`.
        info: The keys of the file beside `nodes`.
        nodes: The columns of `NODES_SCHEMA`, one row for each node in the order of the file.
        tensors: The columns of `TENSORS_SCHEMA`, one row for each tensor that a node took or gave.
        mended: How many nodes had a defect that reading put right, by kind; empty for a valid file.
        lost: What is missing, by kind: what its writer noted, and what could not be read.
    """

    schema: str
    info: Mapping[str, Any]
    nodes: Mapping[str, Any]
    tensors: Mapping[str, Any]
    mended: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.nodes["id"])

    @property
    def process(self) -> int | None:
        """The id of the process that was recorded, if the file says it."""
        pid = self.info.get("pid")
        return pid if isinstance(pid, int) else None

    def table(self, name: str) -> pyarrow.Table:
        """Return `nodes` or `tensors` as an Arrow table, the meaning of each column in its field's metadata.

        Raises:
            ArgumentError: Another name.
        """
        if name == "nodes":
            return to_arrow(NODES_SCHEMA, self.nodes)
        if name == "tensors":
            return to_arrow(TENSORS_SCHEMA, self.tensors)
        raise ArgumentError(f"an execution trace has no table {name!r}; choose 'nodes' or 'tensors'")


def read_execution_trace(path: str | os.PathLike[str]) -> ExecutionTrace:
    """Read an execution trace of schema 1.1, compressed or not, ours or another's.

    A valid file is read as it is. One that torch left invalid, or that belongs to a process that was killed, is mended
    on the way; `mended` and `lost` of the result say what.

    Args:
        path: The file.

    Returns:
        The trace.

    Raises:
        FormatError: The file is no execution trace, of another schema, or damaged beyond reading.
        OSError: The file cannot be read.
    """
    data = _contents(path)
    mended: dict[str, int] = {}
    lost: dict[str, int] = {}
    try:
        document = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        mending = Mending(io.BytesIO(data))
        try:
            nodes: list[Any] = [node for _, node in mending.nodes()]
        except FormatError:
            raise FormatError(
                f"{path}: not valid JSON, and not what torch leaves behind ({error})"
            ) from error
        facts, mended, lost = mending.facts, dict(mending.mended), dict(mending.lost)
    else:
        facts, nodes = _split(path, document)
    schema = _checked_schema(path, facts)
    written = facts.get("kinetoscope")
    noted = written.get("lost") if isinstance(written, dict) else None
    if isinstance(noted, dict):
        lost = {**{str(key): value for key, value in noted.items() if isinstance(value, int)}, **lost}
    kept = [node for node in nodes if _is_node(node)]
    if len(kept) < len(nodes):
        lost["unreadable_nodes"] = lost.get("unreadable_nodes", 0) + len(nodes) - len(kept)
    return ExecutionTrace(schema, facts, _node_columns(kept), tensors_of(kept), mended, lost)


def _contents(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file, unpacked if they are compressed, whatever its name."""
    data = Path(path).read_bytes()
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path}: the compressed file is damaged or breaks off ({error})") from error


def _split(path: str | os.PathLike[str], document: Any) -> tuple[dict[str, Any], list[Any]]:
    """The facts and the nodes of a valid JSON file, or an error that says what it is instead."""
    if isinstance(document, dict) and "traceEvents" in document:
        raise FormatError(f"{path}: this is a Chrome trace, not an execution trace")
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise FormatError(f"{path}: not an execution trace: it has no list `nodes`")
    return {key: value for key, value in document.items() if key != "nodes"}, document["nodes"]


def _checked_schema(path: str | os.PathLike[str], facts: Mapping[str, Any]) -> str:
    """The schema's version, if it is one that is understood."""
    schema = facts.get("schema")
    version = _VERSION.fullmatch(schema) if isinstance(schema, str) else None
    if version is None or version[1] != READABLE:
        raise FormatError(
            f"{path}: execution traces of schema {READABLE} can be read, and this one says schema {schema!r}. Record "
            "it again with PyTorch 2.5 or newer."
        )
    return str(schema)


def _is_node(node: object) -> bool:
    """Whether something in the list of nodes is one."""
    return isinstance(node, dict) and isinstance(node.get("id"), int) and isinstance(node.get("name"), str)


def _node_columns(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """One column for each definition of `NODES_SCHEMA`."""
    attributes = [_attributes(node) for node in nodes]
    columns: dict[str, Any] = {
        "id": _integers(node["id"] for node in nodes),
        "name": [node["name"] for node in nodes],
        # The process is its own parent in the file.
        "parent": _integers(
            -1 if node.get("ctrl_deps") == node["id"] else node.get("ctrl_deps") for node in nodes
        ),
    }
    for column, name in _NUMBERS.items():
        columns[column] = _integers(found.get(name) for found in attributes)
    columns["rf_id"][columns["rf_id"] == 0] = -1
    for name in _TEXTS:
        columns[name] = [_text(found.get(name)) for found in attributes]
    for side in ("input", "output"):
        given = [_parts(node, f"{side}s") for node in nodes]
        columns[f"{side}s"] = [parts["values"] for parts in given]
        columns[f"{side}_shapes"] = [parts["shapes"] for parts in given]
        columns[f"{side}_types"] = [parts["types"] for parts in given]
        if side == "input":
            columns["input_strides"] = [parts["strides"] for parts in given]
    return columns


def _attributes(node: Mapping[str, Any]) -> dict[str, Any]:
    """The named values of a node."""
    attrs = node.get("attrs")
    return {
        str(entry.get("name")): entry.get("value")
        for entry in (attrs if isinstance(attrs, list) else [])
        if isinstance(entry, dict)
    }


def _parts(node: Mapping[str, Any], side: str) -> dict[str, str | None]:
    """The values, shapes, types and strides of one side of a node, as JSON texts."""
    given = node.get(side)
    if not isinstance(given, dict):
        return dict.fromkeys(_PARTS)
    return {name: _compact(given[name]) if name in given else None for name in _PARTS}


def _compact(value: Any) -> str:
    """A value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _text(value: object) -> str | None:
    """A text; empty means none."""
    return value if isinstance(value, str) and value else None


def _integers(values: Any) -> NDArray[np.int64]:
    """Numbers as a column; what is none, or no signed number of 64 bits, is -1."""
    return np.array(
        [value if type(value) is int and -(2**63) <= value < 2**63 else -1 for value in values], np.int64
    )


def _refuse(word: str) -> None:
    """Refuse the numbers that Python's reader lets through."""
    raise ValueError(f"{word} is not JSON")


# Operators with their tensors and their times: an execution trace and the trace of the same run, joined.
#
# Both know torch's number of a call, which is unique in a process. A call that only one of them knows has a row too, so
# that nothing disappears: the columns of the other are null there, and `match` says which one knew it.

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
        Column("os_tid", "int64", "", "The operating system's id of the thread it began on."),
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
        "os_tid": _through(span, trace.column("threads", "os_tid")[own["thread"]]),
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
    process = trace.run_info.process
    if process is not None and other.process is not None and process != other.process:
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
    noted = trace.run_info.execution_trace
    if not noted:
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
