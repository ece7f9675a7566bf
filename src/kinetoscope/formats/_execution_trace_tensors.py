"""The tensors that the nodes of an execution trace took and gave, one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.trace import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
