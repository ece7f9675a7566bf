"""The spans of one name: where their time went, what called them, and what they started on devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import lies_in, recorded_calls
from kinetoscope.model.kinds import is_device_work
from kinetoscope.model.rows import Mask, Rows, mask_of
from kinetoscope.model.schema import KIND_NAMES
from kinetoscope.model.strings import to_utf8
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.device.launches import launch_rows, starters
from kinetoscope.tables.host.ops import operator_keys, operator_names
from kinetoscope.tables.host.places import place_labels

Describe = Callable[[int], dict[str, Any]]


_MOST_PARTS = 40


def parts_of(trace: TraceData, rows: Rows) -> dict[str, Any]:
    """Return where the time of some spans went: their counts and sums, and lists of `parts` that add up.

    `total_ns` of a part counts only the outermost of these spans, so that the parts of each list add up to their total. That of
    device work is its self time, which adds up to `device_ns`.

    Args:
        trace: The trace.
        rows: The spans, as `tables.host.places.spans_of` finds those of a name.
    """
    spans = trace.columns("spans")
    mark = mask_of(rows, len(spans) + 1)
    inner = _core.descends_from_same(spans["parent"], mark[:-1].astype(np.int32)).astype(bool)
    outer = np.where(inner[rows], 0, spans["duration_ns"][rows])
    on_device = bool(len(rows)) and bool(is_device_work(spans["kind"][rows[:1]])[0])
    parts = {
        "step": _part(np.append(spans["step"], -1)[rows], outer, _steps(trace)),
        "module": _by_place(trace, "module", rows, outer),
    }
    device_ns = None
    if on_device:
        started = starters(trace).operator[rows]
        parts["operator"] = _by_name(trace, started, outer)
        parts["stream"] = _part(spans["stream"][rows], outer, _streams(trace))
        parts["launch"] = _launches(trace, rows, outer)
    else:
        parts["shape"] = _by_place(trace, "shape", rows, outer)
        parts["line"] = _by_place(trace, "line", rows, outer)
        parts["caller"] = _by_name(trace, spans["parent"][rows], outer)
        parts["inside"] = _inside(trace, mark)
        work = _started_within(trace, mark)
        parts["kernel"] = _by_name(trace, work, spans["duration_ns"][work])
        device_ns = int(spans["duration_ns"][work].sum())
    return {
        "count": len(rows),
        "total_ns": int(outer.sum()),
        "self_ns": int(spans["self_ns"][rows].sum()),
        "device_ns": device_ns,
        "parts": {name: rows for name, rows in parts.items() if rows},
    }


def _part(keys: NDArray[Any], time_ns: Rows, describe: Describe) -> list[dict[str, Any]]:
    """Group time and calls by key, which `describe` has words for, sorted by time; all after the first `_MOST_PARTS` become one last row."""
    if len(keys) == 0:
        return []
    groups = Groups.by([keys])
    group_keys, total, count = keys[groups.first], groups.sums(time_ns), groups.sizes()
    order = np.lexsort((group_keys, -count, -total))
    listed = order[:_MOST_PARTS]
    rows = [
        {**describe(int(group_keys[group])), "count": int(count[group]), "total_ns": int(total[group])}
        for group in listed.tolist()
    ]
    rest = order[_MOST_PARTS:]
    if len(rest):
        rows.append({
            "label": None,
            "others": len(rest),
            "count": int(count[rest].sum()),
            "total_ns": int(total[rest].sum()),
        })  # fmt: skip
    return rows


def _by_place(trace: TraceData, way: str, rows: Rows, time_ns: Rows) -> list[dict[str, Any]]:
    labels = place_labels(trace, way)
    ids = labels.ids[rows]
    if not (ids >= 0).any():
        return []
    return _part(
        ids, time_ns, lambda number: {"label": to_utf8(labels.texts[number]) if number >= 0 else None}
    )


def _by_name(trace: TraceData, rows: NDArray[Any], time_ns: Rows) -> list[dict[str, Any]]:
    if not (rows >= 0).any():
        return []
    spans = trace.columns("spans")
    # Row -1 indexes the last span; its code is replaced by -1 below.
    keys = np.where(rows >= 0, operator_keys(trace)[rows].astype(np.int64), -2)
    unique, first = np.unique(keys, return_index=True)
    name, kind = spans["name"][rows[first]], spans["kind"][rows[first]]
    texts = operator_names(trace, name, kind)

    def describe(key: int) -> dict[str, Any]:
        index = int(np.searchsorted(unique, key))
        text = to_utf8(texts[index])
        label = {"label": text, "name": text, "kind": KIND_NAMES[int(kind[index])]}
        return {"label": None} if key == -2 else label

    return _part(keys, time_ns, describe)


def _inside(trace: TraceData, mark: Mask) -> list[dict[str, Any]]:
    """Group the children of the spans by name, which is the time that self time does not contain."""
    spans = trace.columns("spans")
    parent, calls = spans["parent"], recorded_calls(trace).mask
    is_child = mark[parent]
    if calls.any():
        # Calls inside an operator do not reduce its self time, but operators directly inside a call reduce that of the call.
        is_call = np.append(calls, np.False_)
        caller = np.append(spans["caller"], np.int32(-1))
        is_child &= ~calls | is_call[parent]
        is_child |= ~calls & (caller[parent] != caller[:-1]) & mark[caller[:-1]]
    # A selected span inside another one counts as self time of that one, not as its child.
    within = np.flatnonzero(is_child & ~mark[:-1] & (spans["lane"] == 0))
    return _by_name(trace, within, spans["duration_ns"][within])


def _started_within(trace: TraceData, mark: Mask) -> Rows:
    operator = starters(trace).operator[:-1]
    work = np.flatnonzero(operator >= 0)
    return work[lies_in(trace, np.flatnonzero(mark[:-1]), operator[work].astype(np.int64))]


def _launches(trace: TraceData, rows: Rows, time_ns: Rows) -> list[dict[str, Any]]:
    """Group kernels by grid, block, registers and shared memory; empty if these were not recorded."""
    kernels, kernel_rows = trace.columns("kernels"), launch_rows(trace)[rows]
    if not (kernel_rows >= 0).any():
        return []
    names = [f"{size}_{axis}" for size in ("grid", "block") for axis in "xyz"] + ["registers", "shared_bytes"]
    values = [np.append(kernels[name], -1)[kernel_rows].astype(np.int64) for name in names]
    group, first = _core.group(values)
    labels = [
        {
            "label": "",
            **{
                name: (int(v) if (v := column[row]) >= 0 else None)
                for name, column in zip(names, values, strict=True)
            },
        }
        for row in first.tolist()
    ]
    return _part(group, time_ns, labels.__getitem__)


def _steps(trace: TraceData) -> Describe:
    numbers = trace.column("steps", "number")
    return lambda row: {"label": f"step {numbers[row]}" if row >= 0 else None}


def _streams(trace: TraceData) -> Describe:
    streams = trace.columns("streams")
    index, number = streams["device_index"], streams["number"]
    return lambda row: {"label": f"device {index[row]}, stream {number[row]}" if row >= 0 else None}
