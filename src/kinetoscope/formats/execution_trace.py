"""Chakra execution traces, as PyTorch's observer and ours write them: operators with their tensors, without times.

A trace is one JSON object: `schema`, `pid`, times, and `nodes`. A node is an operator, a range, a thread or the
process. Its `ctrl_deps` is the id of the node that called it; `inputs` and `outputs` hold `values`, `shapes`, `types`
and `strides` in parallel; `attrs` is a list of named values, among them `rf_id`, the number by which torch knows the
call, and by which the times of the same call are found (`kinetoscope.formats.execution_join`). A tensor among the
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
from kinetoscope.formats._execution_trace_mending import Mending
from kinetoscope.formats._execution_trace_tensors import TENSORS_SCHEMA, tensors_of
from kinetoscope.trace import Column, Table
from kinetoscope.trace._arrow import to_arrow

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow
    from numpy.typing import NDArray

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
        Column("thread", "int64", "", "torch's logical id of the thread it ran on."),
        Column("sequence", "int64", "", "Autograd's sequence number."),
        Column("forward_thread", "int64", "", "For a backward function, the thread its forward ran on.", 0),
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
    "rf_id": "rf_id", "thread": "tid", "sequence": "seq_id", "forward_thread": "fw_tid", "scope": "scope",
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
