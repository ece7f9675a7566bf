"""Read snapshots of torch's caching allocator: the pickles of `torch.cuda.memory._dump_snapshot`, or the same as JSON.

A snapshot has the segments that the allocator holds, each with its blocks, and for each device the history of what it did, with the Python
stack of each allocation, if `_record_memory_history` was on. The docstring of `torch.cuda.memory._snapshot` describes its structure.

Pickles are programs. This reader allows dictionaries, lists, tuples, texts and numbers, and refuses anything that would import a name: no
code of a file runs.

A snapshot becomes a trace with allocations, without spans: an event of the history is one row; a block that is in use at the end, but not in
the history, was allocated before it. The times are those of the history (`time_us`); in files without any, events are 1 us apart.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kinetoscope._errors import FormatError
from kinetoscope.model.losses import Loss, loss_columns
from kinetoscope.model.schema import DeviceType
from kinetoscope.model.strings import StringTable
from kinetoscope.model.trace_data import TraceData

if TYPE_CHECKING:
    from pathlib import Path

PICKLE_MAGIC = b"\x80"
"""How pickles of protocol 2 and later begin; the number of the protocol follows."""

_SEGMENTS, _HISTORY = "segments", "device_traces"
_IN_USE = ("active_allocated", "active_awaiting_free", "active_pending_free")
_ALLOCATED, _FREED = "alloc", "free_completed"
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
# Larger numbers are no address or size of a device, and would overflow where they are added up.
_MOST = 1 << 62
_LAST_LINE = (1 << 31) - 1
_MOST_DEVICES = 128


class _Refused(pickle.UnpicklingError):
    """The pickle wants to import a name."""


class _Containers(pickle.Unpickler):
    """Reads pickles of builtin containers, texts and numbers."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every name, as what it stands for could run code."""
        raise _Refused(f"it refers to {module}.{name}, and kinetoscope runs no code of a file")

    def persistent_load(self, identity: object) -> NoReturn:
        """Refuse references to objects outside of the file."""
        raise _Refused(f"it refers to an object outside of the file, {identity!r}")


def read_memory_snapshot(content: bytes, name: str, path: Path | None = None) -> TraceData:
    """Read a snapshot.

    Args:
        content: The whole file, a pickle or JSON.
        name: Its name, for messages.
        path: Its path, if it is a local file.

    Returns:
        The trace; what a snapshot lacks is in `losses`.

    Raises:
        FormatError: It is neither, wants to run code, or is not a snapshot.
    """
    try:
        if content.startswith(PICKLE_MAGIC):
            found = _Containers(io.BytesIO(content)).load()
        else:
            found = json.loads(content)
    except _Refused as error:
        raise FormatError(f"{name}: the pickle is not read: {error}") from error
    except Exception as error:
        raise FormatError(f"{name}: the pickle is damaged: {type(error).__name__}: {error}") from error
    if not is_snapshot(found):
        raise FormatError(
            f"{name}: a pickle, but not a memory snapshot: those have the keys {_SEGMENTS!r} and {_HISTORY!r} "
            "(torch.cuda.memory._dump_snapshot)"
        )
    return _Snapshot(found).trace(path)


def is_snapshot(found: object) -> bool:
    """Whether something that was read has the keys of a snapshot."""
    return isinstance(found, dict) and isinstance(found.get(_SEGMENTS), list)


class _Snapshot:
    """One snapshot: the rows that it becomes."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found
        self._strings = StringTable([""])
        self._frames: dict[tuple[int, int, int], int] = {}
        self._stacks: dict[tuple[int, int], int] = {}
        # By its frames, as most stacks occur many times.
        self._known: dict[tuple[tuple[str, int, str], ...], int] = {}
        self._rows: list[tuple[int, int, int, int, int, int, int, int]] = []
        self._unusable = 0

    def trace(self, path: Path | None) -> TraceData:
        """Make the trace."""
        histories = self._found.get(_HISTORY)
        histories = histories[:_MOST_DEVICES] if isinstance(histories, list) else []
        starts = [
            time
            for history in histories
            for entry in _dicts(history)
            if (time := _number(entry.get("time_us"))) > 0
        ]
        base_us = min(starts, default=0)
        ends = [
            self._add_device(device, _dicts(history), base_us) for device, history in enumerate(histories)
        ]
        used = {_number(segment.get("device"), 0) for segment in _dicts(self._found[_SEGMENTS])}
        others = sorted(device for device in used if len(histories) <= device < _MOST_DEVICES)
        ends += [self._add_device(device, [], base_us) for device in others]
        self._unusable += sum(device >= _MOST_DEVICES for device in used)
        rows = sorted(self._rows, key=lambda row: row[0])
        info: dict[str, Any] = {
            "recorded_by": "torch.cuda.memory._dump_snapshot",
            "stop_ns": max(ends, default=0),
            "reserved_bytes": sum(
                max(_number(each.get("total_size")), 0) for each in _dicts(self._found[_SEGMENTS])
            ),
        }
        if base_us:
            info["start_realtime_ns"] = base_us * 1000
        if isinstance(settings := self._found.get("allocator_settings"), dict):
            info["allocator_settings"] = {
                str(key): value for key, value in settings.items() if isinstance(value, (bool, int, str))
            }
        columns = {
            key: np.array([row[at] for row in rows], kind) for at, (key, kind) in enumerate(_COLUMNS.items())
        }
        columns["device_type"] = np.full(len(rows), DeviceType.CUDA, np.uint8)
        tables = {
            "threads": {"index": np.zeros(1, np.int32), "os_tid": np.zeros(1, np.int64), "torch_tid": np.zeros(1, np.int64), "name": [""]},
            "frames": _table(list(self._frames), ("function", "file", "line")),
            "stacks": _table(list(self._stacks), ("parent", "frame")),
            "allocations": columns,
            "losses": loss_columns(self._losses(histories)),
        }  # fmt: skip
        return TraceData.from_columns(tables, strings=self._strings.texts, info=info, path=path)

    def _add_device(self, device: int, history: list[dict[str, Any]], base_us: int) -> int:
        """Add the rows of a device; return when its last event was."""
        live = self._live_at_the_end(device)
        events = self._events(device, history, base_us)
        last_ns = events[-1][0] if events else 0
        # Backwards from the end: what is in use before each event.
        allocated = sum(size for size, _ in live.values())
        reserved = sum(
            max(_number(each.get("total_size")), 0)
            for each in _dicts(self._found[_SEGMENTS])
            if _number(each.get("device"), 0) == device
        )
        rows, before = [], dict(live)
        for time_ns, action, address, size, stack in reversed(events):
            if action == _ALLOCATED:
                rows.append((time_ns, address, size, 0, device, stack, max(allocated, 0), max(reserved, 0)))
                before.pop(address, None)
                allocated -= size
            elif action == _FREED:
                rows.append((time_ns, address, 0, size, device, stack, max(allocated, 0), max(reserved, 0)))
                before[address] = (size, -1)
                allocated += size
            else:
                reserved -= _RESERVED[action] * size
        # The rest was there before the history began.
        held = 0
        for address, (size, stack) in before.items():
            held += size
            self._rows.append((0, address, size, 0, device, stack, held, max(reserved, 0)))
        self._rows += reversed(rows)
        return last_ns

    def _events(
        self, device: int, history: list[dict[str, Any]], base_us: int
    ) -> list[tuple[int, str, int, int, int]]:
        """The events that change how much is used or reserved, in order: time, action, address, size and stack."""
        found, time_ns = [], 0
        for place, entry in enumerate(history, 1):
            action, size, address = (
                entry.get("action"),
                _number(entry.get("size")),
                _number(entry.get("addr")),
            )
            if action not in (_ALLOCATED, _FREED, *_RESERVED):
                continue
            if size < 0 or address < 0:
                self._unusable += 1
                continue
            time_us = _number(entry.get("time_us"))
            own_ns = (time_us - base_us) * 1000 if base_us and time_us > 0 else place * 1000
            # The order of the list is that of the allocator, also where its clock went back.
            time_ns = max(time_ns, own_ns, 0)
            found.append((time_ns, str(action), address, size, self._stack(entry.get("frames"))))
        return found

    def _live_at_the_end(self, device: int) -> dict[int, tuple[int, int]]:
        """The blocks in use at the end: size and stack by address."""
        found = {}
        for segment in _dicts(self._found[_SEGMENTS]):
            if _number(segment.get("device"), 0) != device:
                continue
            address = _number(segment.get("address"))
            for block in _dicts(segment.get("blocks")):
                # Files of torch before 2.1 have no address of a block; blocks follow each other.
                own, size = _number(block.get("address"), address), _number(block.get("size"))
                if size < 0 or own < 0:
                    self._unusable += 1
                    continue
                address = own + size
                if block.get("state") in _IN_USE:
                    found[own] = (size, self._stack(block.get("frames") or _of_history(block)))
        return found

    def _stack(self, frames: object) -> int:
        """The row of a stack, whose frames are listed innermost first; -1 without."""
        key = tuple(
            (
                str(frame.get("filename", "")),
                min(max(_number(frame.get("line")), -1), _LAST_LINE),
                str(frame.get("name", "")),
            )
            for frame in _dicts(frames)
        )
        if not key:
            return -1
        row = self._known.get(key)
        if row is None:
            row = -1
            for file, line, function in reversed(_telling(key)):
                frame = (self._strings.row(function), self._strings.row(file), line)
                place = self._frames.setdefault(frame, len(self._frames))
                row = self._stacks.setdefault((row, place), len(self._stacks))
            self._known[key] = row
        return row

    def _losses(self, histories: list[Any]) -> list[Loss]:
        found = [Loss.of("snapshot_lacks_spans")]
        if not any(histories):
            found.append(Loss.of("snapshot_without_history"))
        if not self._stacks:
            found.append(Loss.of("snapshot_without_stacks"))
        if self._unusable:
            found.append(Loss.of("bad_memory_events", self._unusable))
        return found


_COLUMNS: dict[str, Any] = {
    "time_ns": np.int64, "address": np.uint64, "bytes": np.int64, "freed_bytes": np.int64, "device_index": np.int8, "stack": np.int32,
    "allocated_bytes": np.int64, "reserved_bytes": np.int64,
}  # fmt: skip


_Frame = tuple[str, int, str]
_NO_FILE = ("", "??")
_OF_CPP = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
_NATIVE_FILE = "/torch/csrc"
_OPERATOR_CALL = re.compile(r"at::_ops::(\w+)::call\(")
_BACKWARD_CALL = re.compile(r"torch::autograd::generated::(\w+)::apply\(")


def _dicts(given: object) -> list[dict[str, Any]]:
    """The mappings in a list; an empty list if it is none."""
    return [each for each in given if isinstance(each, dict)] if isinstance(given, (list, tuple)) else []


def _number(given: object, otherwise: int = -1) -> int:
    """A whole number that a column can hold; `otherwise` if it is none."""
    return given if type(given) is int and 0 <= given < _MOST else otherwise


def _telling(frames: tuple[_Frame, ...]) -> tuple[_Frame, ...]:
    """The frames that say where a program was.

    By default torch writes those of C++, too, without lines and around those of Python. Where there is Python, that is all; elsewhere, as on
    the threads of autograd, operators and backward functions are left of C++.
    """
    of_python = tuple(
        one for one in frames if one[1] > 0 and one[0] not in _NO_FILE and not one[0].endswith(_OF_CPP)
    )
    if of_python:
        return of_python
    found = []
    for _, _, function in frames:
        if called := _OPERATOR_CALL.match(function):
            found.append((_NATIVE_FILE, -1, f"aten::{called[1]}"))
        elif called := _BACKWARD_CALL.match(function):
            found.append((_NATIVE_FILE, -1, called[1]))
    return tuple(found)


def _of_history(block: dict[str, Any]) -> object:
    """The frames of a block in files of torch before 2.1, which have them in its history."""
    history = _dicts(block.get("history"))
    return history[0].get("frames") if history else None


def _table(rows: list[tuple[int, ...]], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: np.array([row[at] for row in rows], np.int32) for at, name in enumerate(names)}
