"""The `copies` table: copies between memories, and fills."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import checked_choice
from kinetoscope.model.arrow import ArrowTable, Labels, compact, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.kinds import is_copy, is_operator
from kinetoscope.model.rows import Mask, Rows, look_up
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.strings import parsed_json
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.device.launches import copy_bytes, starters, waiting_calls
from kinetoscope.tables.stored import Shown

# `Memcpy HtoD (Pageable -> Device)` and `Memset (Device)` of CUPTI and roctracer, `Memcpy M2D` of Intel's tracer.
_SHORT = re.compile(r"(?<![A-Za-z])([HDPAMS])(?:to|2)([HDPAMS])(?![a-z])")
_BETWEEN = re.compile(r"\(\s*(\w[\w ]*?)\s*->\s*(\w[\w ]*?)\s*\)")
_FILLED = re.compile(r"\(\s*(\w[\w ]*?)\s*\)")
# `CopyHostToDevice`, `hipMemcpyDeviceToHost`, `DEVICE_TO_HOST`.
_LONG = re.compile(r"(host|device|peer)_?to_?(host|device|peer)", re.IGNORECASE)
# Intel's M is host memory, S is shared memory, and an array (A) is device memory.
_SIDES = {"H": "H", "M": "H", "D": "D", "A": "D", "S": "S", "P": "P"}
_DEVICE_MEMORY = frozenset({"device", "array", "device array"})


class Direction(NamedTuple):
    """The direction and kinds of memory of a copy; empty if unknown.

    Attributes:
        name: `HtoD`, `DtoH`, `DtoD`, `HtoH` or `PtoP`; empty for a fill.
        source: The kind of memory read, such as `pageable` or `pinned`.
        target: The kind of memory written.
    """

    name: str = ""
    source: str = ""
    target: str = ""


def direction_of(name: str, arguments: str, *, fills: bool) -> Direction:
    """Return the direction of a copy.

    Args:
        name: Its recorded name.
        arguments: Its recorded arguments as JSON; empty for none.
        fills: Whether it only fills memory.
    """
    if fills:
        match = _FILLED.search(name)
        return Direction(target=(match[1] if match else _stated_kind(arguments)).lower())
    between = _BETWEEN.search(name)
    source, target = (between[1].lower(), between[2].lower()) if between else ("", "")
    # Parsing arguments is slow, and most names suffice.
    if sides := _sides(name) or _sides(_stated_kind(arguments)):
        return Direction(sides, source, target)
    if source and target:
        sides = "to".join("D" if memory in _DEVICE_MEMORY else "H" for memory in (source, target))
        return Direction(sides, source, target)
    return Direction()


def _sides(text: str) -> str:
    if short := _SHORT.search(text):
        return f"{_SIDES[short[1]]}to{_SIDES[short[2]]}"
    long = _LONG.search(text)
    return f"{long[1][0].upper()}to{long[2][0].upper()}" if long else ""


def _stated_kind(arguments: str) -> str:
    """The field that ROCm calls kind and MTIA calls direction."""
    fields = parsed_json(arguments)
    stated = [fields.get(key) for key in ("kind", "direction")] if isinstance(fields, dict) else []
    return next((kind for kind in stated if isinstance(kind, str)), "")


def copies(trace: TraceData, by: str = "copy") -> ArrowTable:
    """Return the `copies` table: one row for each copy between memories and each fill.

    Args:
        trace: The trace.
        by: `copy` for single copies; `direction` to sum by direction, kind, source and destination; `operator` to sum also by operator.

    Returns:
        The table; `docs/tables.md` describes its columns. Sums have the `count`, the total, mean and longest duration, bytes and rates,
        and the number of copies that the host waited for; the table's metadata describes these columns.

    Raises:
        ArgumentError: `by` has another value.
    """
    checked_choice("by", by, ("copy", "direction", "operator"))
    spans, texts, streams = trace.columns("spans"), trace.strings, trace.columns("streams")
    rows = np.flatnonzero(is_copy(spans["kind"]))
    rows = rows[np.argsort(spans["start_ns"][rows], kind="stable")]
    started = starters(trace)
    call, operator = started.call[rows], started.operator[rows]
    size, duration = copy_bytes(trace)[rows], spans["duration_ns"][rows]
    has_rate = (size >= 0) & (duration > 0)
    direction_of_row, directions = _directions(trace, rows)
    names = spans["name"][call]
    asynchronous = np.array(["async" in text.lower() for text in texts], dtype=bool)[names]
    columns = Shown(trace, "spans", rows)
    columns |= {
        "span": rows,
        "direction": _labelled(direction_of_row, [direction.name for direction in directions]),
        "source": _labelled(direction_of_row, [direction.source for direction in directions]),
        "target": _labelled(direction_of_row, [direction.target for direction in directions]),
        "bytes": size,
        "gb_per_s": np.where(has_rate, size, np.nan) / np.where(has_rate, duration, 1),
        "device_index": np.append(streams["device_index"], -1)[spans["stream"][rows]],
        "stream": np.append(streams["number"], -1)[spans["stream"][rows]],
        "call": Labels(np.where(call >= 0, names, -1), texts),
        "call_ns": np.where(call >= 0, spans["duration_ns"][call], -1),
        "is_async": np.where(call >= 0, asynchronous, -1),
        "blocked": np.where(call >= 0, _blocked(trace, rows, call), -1),
        "operator": Labels(np.where(operator >= 0, spans["name"][operator], -1), texts),
        "module": Labels(look_up(operator, spans["module"]), trace.columns("modules")["path"]),
    }
    return to_arrow("copies", columns) if by == "copy" else _grouped(columns, by)


def copy_directions(trace: TraceData, rows: Rows) -> list[Direction]:
    """The direction of each of some copies and fills, by their rows of `spans`."""
    place, directions = _directions(trace, rows)
    return [directions[row] for row in place.tolist()]


def _directions(trace: TraceData, rows: Rows) -> tuple[NDArray[np.int32], list[Direction]]:
    """The distinct directions, and for each row its index in them."""
    spans, texts = trace.columns("spans"), trace.columns("arguments")["json"]
    keys = [spans[name][rows] for name in ("name", "arguments")]
    groups = Groups.by([*keys, spans["kind"][rows]])
    directions = []
    for row in rows[groups.first].tolist():
        arguments = int(spans["arguments"][row])
        fills = spans["kind"][row] == SpanKind.MEMSET
        text = texts[arguments] if arguments >= 0 else ""
        directions.append(direction_of(trace.strings[spans["name"][row]], text, fills=bool(fills)))
    return groups.of_row, directions


def _labelled(place: NDArray[np.int32], texts: list[str]) -> Labels:
    shown = np.array([row if text else -1 for row, text in enumerate(texts)], dtype=np.int32)
    return Labels(shown[place] if len(texts) else place, texts)


def _blocked(trace: TraceData, rows: Rows, call: NDArray[np.int32]) -> Mask:
    """Whether the host waited for each copy, in its call or in a later wait of the same operator."""
    spans = trace.columns("spans")
    start, parent = spans["start_ns"], spans["parent"]
    end = start + spans["duration_ns"]
    done = end[rows]
    waited_for: Mask = (call >= 0) & (end[call] >= done)
    waits = waiting_calls(trace)
    waits = waits[parent[waits] >= 0]
    # Calls of one operator are sequential: if any of its waits covers the copy, its last one does.
    last = np.full(len(spans) + 1, -1, dtype=np.int32)
    last[parent[waits]] = waits
    last[-1] = -1
    last[:-1][~is_operator(spans["kind"])] = -1
    waited = last[np.where(call >= 0, parent[call], -1)]
    waited_for |= (call >= 0) & (waited >= 0) & (start[waited] >= end[call]) & (end[waited] >= done)
    return waited_for


_KEYS = ("direction", "kind", "source", "target")


def _grouped(columns: dict[str, Any], by: str) -> ArrowTable:
    """Sum individual copies by direction, or by direction and operator."""
    keys = {name: compact(columns[name]) for name in ((*_KEYS, "operator") if by == "operator" else _KEYS)}
    groups = Groups.by([ids for ids, _ in keys.values()])
    duration, size, rate = (columns[name] for name in ("duration_ns", "bytes", "gb_per_s"))
    blocked = columns["blocked"] == 1
    has_rate = (size >= 0) & (duration > 0)
    total, count = groups.sums(duration), groups.sizes()
    rated = Groups(np.where(has_rate, groups.of_row, -1), len(groups))
    rated_ns = rated.sums(duration)
    return to_arrow("grouped: copies", {
        "operator": None,
        **{name: Labels(ids[groups.first], texts) for name, (ids, texts) in keys.items()},
        "count": count,
        "total_ns": total,
        "mean_ns": total / np.maximum(count, 1),
        "max_ns": groups.maxima(duration),
        "bytes": np.where(groups.maxima(size) >= 0, groups.sums(size, size >= 0), -1),
        "gb_per_s": rated.sums(size) / np.where(rated_ns > 0, rated_ns, np.nan),
        "min_gb_per_s": np.where(rated.sizes() > 0, rated.minima(rate), np.nan),
        "max_gb_per_s": np.where(rated.sizes() > 0, rated.maxima(rate), np.nan),
        "blocked": groups.sums(blocked),
        "blocked_ns": groups.sums(duration, blocked),
    }, np.argsort(-total, kind="stable"))  # fmt: skip
