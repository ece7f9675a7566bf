"""Columns as `_core.ChromeWriter` takes them, from rows given by what is unusual about them."""

from __future__ import annotations

from typing import Any

import numpy as np

import kinetoscope._core as _core
from tests.support.strict_json import read_strictly

HEADER, FOOTER = b'{"traceEvents": [', b"]}"
COLUMNS: dict[str, tuple[type[np.generic], int]] = {
    "start_ns": (np.int64, 0),
    "duration_ns": (np.int64, 0),
    "name": (np.int32, 0),
    "kind": (np.uint8, 0),
    "thread": (np.int32, 0),
    "lane": (np.int32, 0),
    "sequence": (np.int64, -1),
    "forward_thread": (np.int32, -1),
    "stack": (np.int32, -1),
    "module": (np.int32, -1),
    "shapes": (np.int32, -1),
    "flags": (np.uint8, 0),
}
MORE: dict[str, tuple[type[np.generic], int]] = {
    "record_function": (np.int64, -1),
    "external_id": (np.int64, -1),
    "event_index": (np.int64, -1),
    "correlation": (np.int64, -1),
    "call_number": (np.int64, -1),
    "stream": (np.int32, -1),
    "arguments": (np.int32, -1),
    "category": (np.int32, 0),
}
OPERATOR, RANGE, CALL, MODULE = range(4)
TABLES: dict[str, Any] = {
    "strings": ["", "aten::mm", "train.py", "main", "model.py", "forward", "mtia_ccp_events"],
    "stack_parent": np.array([-1, 0], np.int32),
    "stack_frame": np.array([0, 1], np.int32),
    "frame_function": np.array([3, 5], np.int32),
    "frame_file": np.array([2, 4], np.int32),
    "frame_line": np.array([7, 12], np.int32),
    "module_path": ["GPT", "head"],
    "module_class": ["GPT", "Linear"],
    "shape_dims": ["[[2, 3]]"],
    "shape_types": ['["float"]'],
    "shape_concrete": ['[""]'],
    "categories": ["cpu_op", "user_annotation", "python_function", "python_function"],
    "device_categories": ["kernel", "gpu_user_annotation", "python_function", "python_function"],
    "traits": np.array([0, 4, 1, 3], np.uint8),
    "flow_categories": ["fwdbwd", "ac2g"],
    "thread_torch_tid": np.array([1, 2], np.int64),
    "thread_first_track": np.array([0, 2], np.int32),
    "track_pid": np.array([9, 9, 8], np.int64),
    "track_tid": np.array([100, 1000, 200], np.int64),
    "stream_device": np.array([3], np.int64),
    "stream_number": np.array([7], np.int64),
}


def columns(rows: list[dict[str, Any]], types: dict[str, tuple[type[np.generic], Any]]) -> dict[str, Any]:
    """Rows given by their unusual columns, as arrays."""
    return {
        name: np.array([row.get(name, usual) for row in rows], kind) for name, (kind, usual) in types.items()
    }


def writer(
    spans: list[dict[str, int]], *, tables: dict[str, Any] | None = None, **more: Any
) -> _core.ChromeWriter:
    """A writer of spans, with some tables changed."""
    told = {name: kind for name, kind in MORE.items() if any(name in span for span in spans)}
    arguments = {"header": HEADER, "footer": FOOTER} | more
    return _core.ChromeWriter(
        spans=columns(spans, COLUMNS | told), tables=TABLES | (tables or {}), **arguments
    )


def events(spans: list[dict[str, int]], **more: Any) -> list[dict[str, Any]]:
    """The events a writer wrote, by a parser without extensions."""
    return read_strictly(b"".join(writer(spans, **more)).decode("utf-8"))["traceEvents"]


def arrows(*rows: tuple[int, int, int, int]) -> dict[str, Any]:
    """Flows as (source, target, id, kind)."""
    types = {"source": np.int32, "target": np.int32, "id": np.int64, "kind": np.uint8}
    return {name: np.array([row[at] for row in rows], kind) for at, (name, kind) in enumerate(types.items())}


KERNEL: dict[str, tuple[type[np.generic], Any]] = {
    "span": (np.int32, 0), "grid_x": (np.int32, -1), "grid_y": (np.int32, -1), "grid_z": (np.int32, -1),
    "block_x": (np.int32, -1), "block_y": (np.int32, -1), "block_z": (np.int32, -1), "registers": (np.int32, -1),
    "shared_bytes": (np.int64, -1), "blocks_per_sm": (np.float64, -1), "warps_per_sm": (np.float64, -1),
    "occupancy_percent": (np.float64, -1), "context": (np.int64, -1), "graph": (np.int64, -1),
    "graph_node": (np.int64, -1),
}  # fmt: skip
COPY: dict[str, tuple[type[np.generic], Any]] = {
    name: (np.int32 if name == "span" else np.int64, -1)
    for name in ("span", "bytes", "context", "graph", "graph_node")
}
