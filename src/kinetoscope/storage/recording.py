"""Turn what the native reader finds in a recording into a trace."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope._errors import FormatError
from kinetoscope.model.assemble import assemble
from kinetoscope.model.losses import (
    CALLS_MISSING,
    NOT_STOPPED,
    TOLD_AT_STOP,
    TORN_SAMPLES,
    Loss,
    counted_losses,
    loss_columns,
    paused_losses,
    sample_losses,
    sampled_losses,
)
from kinetoscope.model.nesting import mark_collections
from kinetoscope.model.pauses import TOGGLES
from kinetoscope.model.run_info import RunInfo
from kinetoscope.model.schema import STORED, DeviceType, StorageRole
from kinetoscope.model.steps import one_cycle, steps_counted_from, steps_of_ring
from kinetoscope.model.strings import StringTable
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.appended_rows import AppendedRows, read_pauses
from kinetoscope.storage.live_recording import LAYOUT


def from_json(text: str) -> Any:
    """Parse a metadata value; return the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


# Notes are what a recording stores about a span outside of its record: memory blocks, torch's record function number, facts
# about collectives, keyword arguments.

_OPERAND, _GRADIENT, _RECORD_FUNCTION, _COLLECTIVE, _ARGUMENTS, _TENSOR_VERSION, _TENSOR_CONTENT = (
    LAYOUT["note_kinds"][kind]
    for kind in (
        "operand",
        "gradient",
        "record_function",
        "between_ranks",
        "arguments",
        "tensor_version",
        "tensor_content",
    )
)
# TensorFlag in native/core/recording/format.h.
_IS_RESULT, _IS_SHARED, _IS_WHOLE, _IS_NUMBER = 1, 2, 4, 8


def add_notes(tables: dict[str, Mapping[str, Any]], notes: Mapping[str, Any], strings: Sequence[str]) -> None:
    """Convert a recording's notes to the tables `operands`, `tensor_versions`, `collectives` and `arguments`, and to columns of `spans`.

    Args:
        tables: The delivered columns of a trace; changed in place.
        notes: The columns that `_core.read_recording` returns as "notes"; may be empty.
        strings: The string table.
    """
    kind = notes.get("kind", ())
    if len(kind) == 0:
        return
    numbered = kind == _RECORD_FUNCTION
    if numbered.any():
        numbers = np.full(len(tables["spans"]["start_ns"]), -1, dtype=np.int64)
        numbers[notes["span"][numbered]] = notes["value"][numbered].astype(np.int64)
        tables["spans"] = {**tables["spans"], "record_function": numbers}
    collective = kind == _COLLECTIVE
    if collective.any():
        tables["collectives"] = {
            "span": notes["span"][collective],
            "facts": notes["value"][collective].astype(np.int32),
        }
    keywords = kind == _ARGUMENTS
    if keywords.any():
        texts, row = np.unique(notes["value"][keywords].astype(np.int64), return_inverse=True)
        arguments = np.full(len(tables["spans"]["start_ns"]), -1, dtype=np.int32)
        arguments[notes["span"][keywords]] = row.reshape(-1)
        tables["spans"] = {**tables["spans"], "arguments": arguments}
        tables["arguments"] = {
            "json": [strings[text] if text < len(strings) else "{}" for text in texts.tolist()]
        }
    versions = np.flatnonzero(kind == _TENSOR_VERSION)
    if len(versions):
        flags = notes["device_type"][versions]
        # A content is that of the note before.
        is_content = np.append(kind == _TENSOR_CONTENT, False)[versions + 1]

        def of_content(name: str, dtype: type[np.generic], default: int) -> NDArray[Any]:
            values = np.append(notes[name].astype(dtype, copy=False), dtype(default))[versions + 1]
            return np.where(is_content, values, dtype(default))

        tables["tensor_versions"] = {
            "span": notes["span"][versions],
            "result": flags & _IS_RESULT,
            "argument": notes["argument"][versions],
            "storage": notes["value"][versions].astype(np.int64),
            "version": notes["parameter"][versions].astype(np.int64),
            "offset_bytes": notes["bytes"][versions],
            "shared": (flags & _IS_SHARED != 0).astype(np.uint8),
            "whole": (flags & _IS_WHOLE != 0).astype(np.uint8),
            "number": (flags & _IS_NUMBER != 0).astype(np.uint8),
            "content": of_content("value", np.uint64, 0),
            "padding": of_content("bytes", np.int64, 0),
            "longest_row": of_content("parameter", np.int32, -1),
        }
    blocks = (kind == _OPERAND) | (kind == _GRADIENT)
    if blocks.any():
        tables["operands"] = {
            "span": notes["span"][blocks],
            "argument": np.where(kind == _OPERAND, notes["argument"], np.int32(-1))[blocks],
            "address": notes["value"][blocks],
            "bytes": notes["bytes"][blocks],
            "parameter": notes["parameter"][blocks],
            "device_type": notes["device_type"][blocks],
            "device_index": notes["device_index"][blocks],
        }


# Which losses the parts of the table count, the latest one what there are by then.
_COUNTED = ("skipped_storages", "unread_gradients")
# A device type registered under another name is torch's private one.
_DEVICES = {kind.name.lower(): kind for kind in DeviceType}
_NUMBERS: dict[str, type[np.generic]] = {
    "time_ns": np.int64, "role": np.uint8, "address": np.uint64, "bytes": np.int64, "device_index": np.int8,
    "module": np.uint64, "parameter": np.uint64,
}  # fmt: skip


# Many more than the parts of any recording have.
_MOST_ROWS = 1 << 20


def add_storages(
    tables: MutableMapping[str, Any], entries: Sequence[object], strings: list[str], start_realtime_ns: int
) -> tuple[list[str], dict[str, int]]:
    """Add the table `storages`: which tensors were seen to hold which memory.

    Args:
        tables: The delivered columns of a trace; changed in place. Owners are found by the addresses in `modules` and
            `parameters`.
        entries: What was seen, in parts, as `StorageWatch` has them: rows as columns, or under "counts" the losses so far.
        strings: The string table.
        start_realtime_ns: The start of the trace, in nanoseconds of Unix time.

    Returns:
        The string table with new names appended, and the losses by kind: how many tensors could not be inspected, where an
        invalid entry counts as one, and how many parameters' gradients.
    """
    counts: dict[str, Any] = dict.fromkeys(_COUNTED, 0)
    parts: list[dict[str, Any]] = []
    invalid = 0
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("counts"), dict):
            counts |= {loss: entry["counts"][loss] for loss in _COUNTED if loss in entry["counts"]}
        elif (part := _checked(entry)) is not None:
            parts.append(part)
        else:
            invalid += 1
    lost = {loss: count if isinstance(count, int) and count > 0 else 0 for loss, count in counts.items()}
    lost["skipped_storages"] += invalid
    if not parts:
        return strings, lost
    numbers: dict[str, NDArray[Any]] = {
        name: np.concatenate([part[name] for part in parts]) for name in _NUMBERS
    }
    table = StringTable(list(strings))
    names = [table.row(text) for part in parts for text in part["name"]]
    columns = {
        "time_ns": numbers["time_ns"] - np.int64(start_realtime_ns),
        "role": numbers["role"],
        "address": numbers["address"],
        "bytes": numbers["bytes"],
        "device_type": np.array(
            [_DEVICES.get(text, DeviceType.PrivateUse1) for part in parts for text in part["device"]],
            np.uint8,
        ),
        "device_index": numbers["device_index"],
        "module": _owners(
            numbers["module"], numbers["parameter"], tables.get("modules", {}), tables.get("parameters", {})
        ),
        "name": np.array(names, dtype=np.int32),
    }
    valid = (numbers["role"] <= max(StorageRole)) & (numbers["bytes"] > 0) & (numbers["address"] > 0)
    tables["storages"] = {name: values[valid] for name, values in columns.items()}
    return table.texts, lost


def _checked(part: object) -> dict[str, Any] | None:
    """Return an entry with its numbers as arrays, or None if it is invalid.

    A column is a list, one value for all rows, or, for numbers, the base64 of their little-endian bytes.
    """
    if not isinstance(part, dict):
        return None
    addresses = part.get("address")
    rows = len(addresses) if isinstance(addresses, list) else part.get("rows")
    # The recorder writes short parts.
    if type(rows) is not int or not 0 <= rows <= _MOST_ROWS:
        return None
    try:
        columns = {
            name: _values(part.get(name), rows, _NUMBERS.get(name)) for name in (*_NUMBERS, "device", "name")
        }
    except (TypeError, ValueError, OverflowError):
        return None
    return columns if len({len(values) for values in columns.values()}) == 1 else None


def _values(column: object, rows: int, kind: type[np.generic] | None) -> Any:
    if kind is not None and isinstance(column, str):
        encoded = base64.b64decode(column, validate=True)
        return np.frombuffer(encoded, np.dtype(kind).newbyteorder("<"))
    values = column if isinstance(column, list) else [column] * rows
    if not all(type(value) is (str if kind is None else int) for value in values):
        raise TypeError("a column has values of another type")
    return values if kind is None else np.array(values, dtype=kind)


def _owners(
    module: NDArray[np.uint64],
    parameter: NDArray[np.uint64],
    modules: Mapping[str, Any],
    parameters: Mapping[str, Any],
) -> NDArray[np.int32]:
    owner = _rows(module, modules.get("address", ()))
    row = _rows(parameter, parameters.get("address", ()))
    of_row = np.append(np.asarray(parameters.get("module", ()), dtype=np.int32), np.int32(-1))
    owner = np.where(owner >= 0, owner, of_row[row])
    # A parameter that never got a gradient is not in `parameters`, but another entry may name its module.
    resolved = np.flatnonzero((owner >= 0) & (parameter > 0))
    distinct, first = np.unique(parameter[resolved], return_index=True)
    if len(distinct):
        position = np.minimum(np.searchsorted(distinct, parameter), len(distinct) - 1)
        inherits = (owner < 0) & (distinct[position] == parameter)
        owner = np.where(inherits, owner[resolved[first]][position], owner)
    return owner.astype(np.int32)


def _rows(addresses: NDArray[np.uint64], table: Sequence[int] | NDArray[np.uint64]) -> NDArray[np.int32]:
    """The last row of each address in a table of addresses; -1 if it is not there."""
    listed = np.asarray(table, dtype=np.uint64)
    if len(listed) == 0:
        return np.full(len(addresses), -1, dtype=np.int32)
    order = np.argsort(listed, kind="stable")
    position = np.searchsorted(listed[order], addresses, side="right") - 1
    row = order[np.maximum(position, 0)]
    matched = (position >= 0) & (listed[row] == addresses) & (addresses > 0)
    return np.where(matched, row, -1).astype(np.int32)


_RECORDED = (
    "threads", "frames", "stacks", "modules", "parameters", "shapes", "spans", "allocations", "samples",
)  # fmt: skip
_NONE = np.zeros(0, dtype=np.int64)
_RENAMED = {"stack": "own_stack", "module": "own_module"}


def read_recording(path: Path) -> tuple[TraceData, AppendedRows]:
    """Read a recording, including one whose process was killed.

    Returns:
        The trace, and what sources appended that is not in its tables yet, for `kinetoscope.combine.sources.with_rows`.

    Raises:
        FormatError: The file is not a recording, or its version is not supported.
        OSError: The file cannot be read.
    """
    try:
        recording: Mapping[str, Any] = _core.read_recording(str(path))
    except ValueError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise FormatError(f"{path}: not a readable recording: {reason}") from error
    return from_parts(recording, path=path)


def from_parts(recording: Mapping[str, Any], *, path: Path | None = None) -> tuple[TraceData, AppendedRows]:
    """Make a trace from what `_core.read_recording` returns, as `read_recording` does.

    Args:
        recording: The parts of a recording: tables, strings, metadata values as JSON, and counts of losses.
        path: The recording's file.
    """
    tables: dict[str, Mapping[str, Any]] = {name: dict(recording[name]) for name in _RECORDED}
    tables["spans"] = {_RENAMED.get(name, name): values for name, values in recording["spans"].items()}
    add_notes(tables, recording.get("notes", {}), recording["strings"])
    stopped = recording["state"] == "stopped"
    info: dict[str, Any] = {
        key: from_json(text)
        for key, text in recording["info"].items()
        if not key.startswith("kinetoscope.session.")
    }
    run = RunInfo.of(info)
    if run.record_python_gc_info:
        mark_collections(tables, recording["strings"])
    # Other sessions that shared the recording have their own parts of it.
    rows = AppendedRows(
        {
            table: [part for part in parts if part["session"] == 0]
            for table, parts in recording.get("rows", {}).items()
        }
    )
    stored = rows.columns("storages", {"part": dict})[0]["part"]
    strings, of_storages = add_storages(tables, stored, recording["strings"], recording["start_realtime_ns"])
    began_ns = recording.get("start_monotonic_ns", -1)
    if pauses := read_pauses(rows, recording["start_realtime_ns"]):
        info["pauses"] = pauses
    lost_counts = {NOT_STOPPED: int(not stopped), **recording["losses"], **of_storages}
    lost_counts["damaged_records"] = lost_counts.get("damaged_records", 0) + rows.damaged
    # The recorder counts these losses only when it stops, so they are in the metadata.
    lost_counts |= {name: count for name in TOLD_AT_STOP if isinstance(count := info.get(name), int)}
    sampled = len(recording["samples"]["time_ns"]) + recording["losses"].get("recycled_samples", 0)
    of_samples = sample_losses(lost_counts.pop(TORN_SAMPLES, 0), sampled, info.get("samples_missing"))
    unwritten = [] if stopped else rows.unwritten()
    of_pauses = sampled_losses(info) or paused_losses(info.get("pauses"))
    if why := info.get(CALLS_MISSING):
        unwritten = [Loss.of(CALLS_MISSING, why=f"{why}."), *unwritten]
    tables["losses"] = loss_columns([*counted_losses(lost_counts), *unwritten, *of_samples, *of_pauses])
    tables["cycles"] = one_cycle(run.cycle_number, recording["stop_ns"])
    info.update(
        process=recording["process"],
        start_realtime_ns=recording["start_realtime_ns"],
        stop_ns=recording["stop_ns"],
        complete=stopped,
    )
    if began_ns >= 0:
        info["start_monotonic_ns"] = began_ns
    names, system_names = info.pop("python_threads", None), recording["threads"]["name"]
    if isinstance(names, dict):
        numbered = zip(recording["threads"]["os_tid"], system_names, strict=True)
        thread_names = [str(names.get(str(number), name)) for number, name in numbered]
        tables["threads"] = {**tables["threads"], "name": thread_names}
    errors = recording["clock_checks"].get("error_ns")
    if errors is not None and len(errors):
        info["clock_checks"] = {"readings": len(errors), "largest_error_ns": int(abs(errors).max())}
    _drop_unused_stacks(tables)
    columns = assemble(tables, strings)
    steps = None
    if recording["losses"].get("recycled_spans", 0):
        numbered = recording.get("optimizer_steps", {"span": _NONE, "number": _NONE})
        steps = steps_of_ring(columns["steps"], numbered["span"], numbered["number"], run.first_step or 0)
    elif run.first_step:
        steps = steps_counted_from(columns["steps"], run.first_step)
    if steps is not None:
        columns = assemble({**tables, "steps": steps}, strings)
    return TraceData(columns, strings, info, path), rows.without(TOGGLES, "storages")


def _drop_unused_stacks(tables: dict[str, Mapping[str, Any]]) -> None:
    """Empty the tables of stacks and frames if no span refers to one: the recorder also walks stacks to find modules."""
    if len(tables["spans"]["start_ns"]) == 0:
        return
    for table in STORED.values():
        for column in table.columns:
            if column.unit == "row of stacks" and table.name != "stacks":
                values = tables.get(table.name, {}).get(column.name)
                if values is not None and (np.asarray(values) >= 0).any():
                    return
    for name in ("stacks", "frames"):
        tables[name] = {column: values[:0] for column, values in tables[name].items()}
