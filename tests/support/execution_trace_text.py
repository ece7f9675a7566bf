"""Execution traces in torch's own layout, written by hand."""

from __future__ import annotations

import json
from typing import Any

SCHEMA = "1.1.1-chakra.0.0.4"


def attributes(**values: Any) -> list[dict[str, Any]]:
    """The named values of a node."""
    known = {"rf_id": 0, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0, "op_schema": "",
             "kernel_backend": "", "kernel_file": "", "tensor_range": ""} | values  # fmt: skip
    return [{"name": name, "type": "", "value": value} for name, value in known.items()]


def side(values=(), shapes=(), types=(), strides=()) -> dict[str, Any]:
    """The inputs or outputs of a node."""
    return {"values": list(values), "shapes": list(shapes), "types": list(types), "strides": list(strides)}


def node_text(
    number: int, name: str, parent: int, inputs: Any = None, outputs: Any = None, **attrs: Any
) -> str:
    """A node as torch writes it: its name unescaped."""
    return (
        "      {\n"
        f'        "id": {number}, "name": "{name}", "ctrl_deps": {parent},\n'
        f'        "inputs": {json.dumps(inputs or side())},\n'
        f'        "outputs": {json.dumps(outputs or side())},\n'
        f'        "attrs": {json.dumps(attributes(**attrs))}\n'
        "      }"
    )


def file_text(*nodes: str, schema: str = SCHEMA, pid: int = 4242) -> str:
    """A file as torch writes it."""
    process = node_text(1, "[pytorch|profiler|execution_trace|process]", 1, scope=7)
    head = f'{{\n  "schema": "{schema}", "pid": {pid}, "time": "2026-01-01 00:00:00", "start_ts": 5,\n  "nodes": [\n'
    return head + ",\n".join([*nodes, process]) + '\n  ],\n  "finish_ts": 9\n}'
