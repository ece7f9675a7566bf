"""From the metadata in which a recording keeps what its tensors held to the `storages` table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.trace._schema import StorageRole

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from numpy.typing import NDArray

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
