"""Our own recordings: from what the native reader finds in a file to a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope._errors import FormatError
from kinetoscope.model.assemble import assemble
from kinetoscope.model.losses import NOT_STOPPED, TOLD_AT_STOP, counted_losses, loss_columns, paused_losses
from kinetoscope.model.nesting import mark_collections
from kinetoscope.model.schema import StorageRole
from kinetoscope.model.steps import one_cycle
from kinetoscope.model.trace_data import TraceData

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from numpy.typing import NDArray


# What a recording says in words: values of its metadata, and Python's names of its threads.


def with_python_names(threads: Mapping[str, Any], names: object) -> dict[str, Any]:
    """The threads, those that Python knew at the end under Python's name for them."""
    if not isinstance(names, dict):
        return dict(threads)
    shown = [
        str(names.get(str(number), name))
        for number, name in zip(threads["os_tid"], threads["name"], strict=True)
    ]
    return {**threads, "name": shown}


def from_json(text: str) -> Any:
    """Read a metadata value; what is no JSON after all stays text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


# What a recording notes beside its spans: memory blocks, torch's number of the call, facts of collectives, keywords.

# NoteKind in native/core/recording_format.h.
_OPERAND, _GRADIENT, _RECORD_FUNCTION, _BETWEEN_RANKS, _ARGUMENTS = 1, 2, 3, 4, 5


def add_notes(tables: dict[str, Mapping[str, Any]], notes: Mapping[str, Any], strings: Sequence[str]) -> None:
    """Put a recording's notes into the tables `operands`, `collectives` and `arguments`, and into columns of `spans`.

    Args:
        tables: The delivered columns of a trace; changed.
        notes: The columns that `_core.read_recording` returns as "notes"; may be empty.
        strings: What notes that are texts point into.
    """
    kind = notes.get("kind", ())
    if len(kind) == 0:
        return
    numbered = kind == _RECORD_FUNCTION
    if numbered.any():
        numbers = np.full(len(tables["spans"]["start_ns"]), -1, dtype=np.int64)
        numbers[notes["span"][numbered]] = notes["value"][numbered].astype(np.int64)
        tables["spans"] = {**tables["spans"], "record_function": numbers}
    told = kind == _BETWEEN_RANKS
    if told.any():
        tables["collectives"] = {"span": notes["span"][told], "facts": notes["value"][told].astype(np.int32)}
    given = kind == _ARGUMENTS
    if given.any():
        texts, row = np.unique(notes["value"][given].astype(np.int64), return_inverse=True)
        arguments = np.full(len(tables["spans"]["start_ns"]), -1, dtype=np.int32)
        arguments[notes["span"][given]] = row.reshape(-1)
        tables["spans"] = {**tables["spans"], "arguments": arguments}
        tables["arguments"] = {
            "json": [strings[text] if text < len(strings) else "{}" for text in texts.tolist()]
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


PREFIX = "storages."
_SKIPPED = f"{PREFIX}skipped"
# torch's numbers of the device types whose tensors have an address.
_DEVICES = {
    "cpu": 0, "cuda": 1, "hip": 6, "fpga": 7, "maia": 8, "xla": 9, "vulkan": 10, "xpu": 12, "mps": 13,
    "hpu": 15, "ve": 16, "lazy": 17, "ipu": 18, "mtia": 19,
}  # fmt: skip
_PRIVATE = 20
_NUMBERS: dict[str, type[np.generic]] = {
    "time_ns": np.int64, "role": np.uint8, "address": np.uint64, "bytes": np.int64, "device_index": np.int8,
    "module": np.uint64, "parameter": np.uint64,
}  # fmt: skip


def add_storages(
    tables: MutableMapping[str, Any], info: dict[str, Any], strings: list[str], start_realtime_ns: int
) -> tuple[list[str], int]:
    """Take what tensors held out of the metadata, and make the table `storages` of it.

    Args:
        tables: The delivered columns of a trace; changed. Owners are found by the addresses in `modules` and
            `parameters`.
        info: The metadata, each value read from its JSON; the parts that are taken are removed from it.
        strings: The string table.
        start_realtime_ns: The clock time of the start of the trace.

    Returns:
        The string table with the names that it lacked, and how many tensors could not be looked at; a part that the
        recorder cannot have written counts as one of them.
    """
    skipped = info.pop(_SKIPPED, 0)
    lost = skipped if isinstance(skipped, int) and skipped > 0 else 0
    parts: list[dict[str, Any]] = []
    for key in sorted(key for key in info if key.startswith(PREFIX)):
        part = _checked(info.pop(key))
        if part is None:
            lost += 1
        else:
            parts.append(part)
    if not parts:
        return strings, lost
    numbers: dict[str, NDArray[Any]] = {
        name: np.concatenate([part[name] for part in parts]) for name in _NUMBERS
    }
    places = {text: place for place, text in enumerate(strings)}
    texts = list(strings)
    names: list[int] = []
    for text in (text for part in parts for text in part["name"]):
        place = places.setdefault(text, len(texts))
        if place == len(texts):
            texts.append(text)
        names.append(place)
    columns = {
        "time_ns": numbers["time_ns"] - np.int64(start_realtime_ns),
        "role": numbers["role"],
        "address": numbers["address"],
        "bytes": numbers["bytes"],
        "device_type": np.array([_device(text) for part in parts for text in part["device"]], dtype=np.uint8),
        "device_index": numbers["device_index"],
        "module": _owners(
            numbers["module"], numbers["parameter"], tables.get("modules", {}), tables.get("parameters", {})
        ),
        "name": np.array(names, dtype=np.int32),
    }
    known = (numbers["role"] <= max(StorageRole)) & (numbers["bytes"] > 0) & (numbers["address"] > 0)
    tables["storages"] = {name: values[known] for name, values in columns.items()}
    return texts, lost


def _checked(part: object) -> dict[str, Any] | None:
    """One part with its numbers as arrays, or None if it is not of the recorder's making."""
    if not isinstance(part, dict):
        return None
    made: dict[str, Any] = {}
    for name in (*_NUMBERS, "device", "name"):
        values = part.get(name)
        if not isinstance(values, list):
            return None
        if name in _NUMBERS:
            if not all(type(value) is int for value in values):
                return None
            try:
                made[name] = np.array(values, dtype=_NUMBERS[name])
            except OverflowError:
                return None
        elif all(isinstance(value, str) for value in values):
            made[name] = values
        else:
            return None
    return made if len({len(values) for values in made.values()}) == 1 else None


def _device(text: str) -> int:
    """torch's number of a device type; one that registered itself under a name of its own is the private one."""
    return _DEVICES.get(text, _PRIVATE)


def _owners(
    module: NDArray[np.uint64],
    parameter: NDArray[np.uint64],
    modules: Mapping[str, Any],
    parameters: Mapping[str, Any],
) -> NDArray[np.int32]:
    """The row of the module that holds each tensor: as it was seen, else that of the parameter it belongs to."""
    owner = _rows(module, modules.get("address", ()))
    row = _rows(parameter, parameters.get("address", ()))
    of_row = np.append(np.asarray(parameters.get("module", ()), dtype=np.int32), np.int32(-1))
    owner = np.where(owner >= 0, owner, of_row[row])
    # What no gradient ever flowed to is no row of `parameters`; the module that registers it was seen all the same.
    known = np.flatnonzero((owner >= 0) & (parameter > 0))
    seen, first = np.unique(parameter[known], return_index=True)
    if len(seen):
        place = np.minimum(np.searchsorted(seen, parameter), len(seen) - 1)
        found = (owner < 0) & (seen[place] == parameter)
        owner = np.where(found, owner[known[first]][place], owner)
    return owner.astype(np.int32)


def _rows(addresses: NDArray[np.uint64], table: Sequence[int] | NDArray[np.uint64]) -> NDArray[np.int32]:
    """For each address its last row in a table, -1 if it is in none."""
    known = np.asarray(table, dtype=np.uint64)
    if len(known) == 0:
        return np.full(len(addresses), -1, dtype=np.int32)
    order = np.argsort(known, kind="stable")
    place = np.searchsorted(known[order], addresses, side="right") - 1
    row = order[np.maximum(place, 0)]
    found = (place >= 0) & (known[row] == addresses) & (addresses > 0)
    return np.where(found, row, -1).astype(np.int32)


_RECORDED = (
    "threads", "frames", "stacks", "modules", "parameters", "shapes", "spans", "allocations",
)  # fmt: skip
_RENAMED = {"stack": "own_stack", "module": "own_module"}


def read_recording(path: Path) -> TraceData:
    """Read the file of a recording, also of one whose process was killed.

    Raises:
        FormatError: The file is no recording, or of a version this release does not read.
        OSError: The file cannot be read.
    """
    try:
        recording: Mapping[str, Any] = _core.read_recording(str(path))
    except ValueError as error:
        raise FormatError(f"{path}: not a readable recording: {error}") from error
    return from_parts(recording, path=path)


def from_parts(recording: Mapping[str, Any], *, path: Path | None = None) -> TraceData:
    """Make a trace from what `_core.read_recording` returns.

    Args:
        recording: The parts of a recording: tables, strings, metadata as JSON texts, and counted losses.
        path: The file it came from.
    """
    tables: dict[str, Mapping[str, Any]] = {name: dict(recording[name]) for name in _RECORDED}
    tables["spans"] = {_RENAMED.get(name, name): values for name, values in recording["spans"].items()}
    add_notes(tables, recording.get("notes", {}), recording["strings"])
    stopped = recording["state"] == "stopped"
    info: dict[str, Any] = {key: from_json(text) for key, text in recording["info"].items()}
    mark_collections(tables, recording["strings"], info)
    strings, unseen = add_storages(tables, info, recording["strings"], recording["start_realtime_ns"])
    found = {NOT_STOPPED: int(not stopped), **recording["losses"], "skipped_storages": unseen}
    # What the recorder itself could tell only when it had stopped.
    found |= {name: told for name in TOLD_AT_STOP if isinstance(told := info.get(name), int)}
    tables["losses"] = loss_columns([*counted_losses(found), *paused_losses(info.get("pauses"))])
    tables["cycles"] = one_cycle(info, recording["stop_ns"])
    info.update(
        process=recording["process"],
        start_realtime_ns=recording["start_realtime_ns"],
        stop_ns=recording["stop_ns"],
        complete=stopped,
    )
    if (monotonic_ns := recording.get("start_monotonic_ns", -1)) >= 0:
        info["start_monotonic_ns"] = monotonic_ns
    tables["threads"] = with_python_names(tables["threads"], info.pop("python_threads", None))
    errors = recording["clock_checks"].get("error_ns")
    if errors is not None and len(errors):
        info["clock_checks"] = {"readings": len(errors), "largest_error_ns": int(abs(errors).max())}
    return TraceData(assemble(tables, strings), strings, info, path)
