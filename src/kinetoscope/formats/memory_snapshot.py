"""Read snapshots of torch's caching allocator: the pickles of `torch.cuda.memory._dump_snapshot`, or the same as JSON.

A snapshot has the segments that the allocator holds, each with its blocks, and for each device the history of what it did, with the Python
stack of each allocation, if `_record_memory_history` was on. The docstring of `torch.cuda.memory._snapshot` describes its structure.

Pickles are programs. This reader allows dictionaries, lists, tuples, texts and numbers, and refuses anything that would import a name: no
code of a file runs.

A snapshot becomes a trace with allocations: an event of the history is one row; a block that is in use at the end, but not in the history, was
allocated before it. Its spans are the ranges that the program marked (`external_annotations`) and allocations that failed (`oom`). The times are those of the history (`time_us`); in files without any, events are 1 us apart.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from kinetoscope._errors import FormatError
from kinetoscope.model import units
from kinetoscope.model.losses import counted_losses, loss_columns
from kinetoscope.model.rows import as_columns
from kinetoscope.model.run_info import SNAPSHOT
from kinetoscope.model.schema import FLAG_INSTANT, FLAG_UNFINISHED, DeviceType, SpanKind
from kinetoscope.model.steps import MARK
from kinetoscope.model.strings import StringTable
from kinetoscope.model.trace_data import TraceData

_PICKLE = re.compile(rb"\x80[\x02-\x05]|\(d|\}[q(]")
"""How a pickle of a dictionary begins: protocols 2 to 5 with their number, 1 and 0 with the dictionary."""

_SEGMENTS, _HISTORY = "segments", "device_traces"
_IN_USE = ("active_allocated", "active_awaiting_free", "active_pending_free")
_ALLOCATED, _FREED, _FAILED = "alloc", "free_completed", "oom"
# The time of blocks from before the history; see `Blocks`.
_BEFORE_NS = -1
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
# Larger numbers are no address or size of a device, and would overflow where they are added up.
_MOST = 1 << 62
_LAST_LINE = (1 << 31) - 1
_MOST_DEVICES = 128


class _Refused(pickle.UnpicklingError):
    """The pickle wants to import a name."""


class _Containers(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every name, because it could run code."""
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
        snapshot = _Containers(io.BytesIO(content)).load() if _PICKLE.match(content) else json.loads(content)
    except _Refused as error:
        raise FormatError(f"{name}: the pickle is not read: {error}") from error
    except Exception as error:
        raise FormatError(f"{name}: the pickle is damaged: {type(error).__name__}: {error}") from error
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get(_SEGMENTS), list):
        raise FormatError(
            f"{name}: a pickle, but not a memory snapshot: those have the keys {_SEGMENTS!r} and {_HISTORY!r} "
            "(torch.cuda.memory._dump_snapshot)"
        )
    return _Snapshot(snapshot).trace(path)


class _Snapshot:
    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content
        self._strings = StringTable([""])
        self._frames: dict[tuple[int, int, int], int] = {}
        self._stacks: dict[tuple[int, int], int] = {}
        # A pickle has one list of frames for all that happened with one stack.
        self._rows_of_lists: dict[int, int] = {}
        self._lists_read: set[int] = set()
        self._rows: list[tuple[int, ...]] = []
        self._spans: list[tuple[int, ...]] = []
        self._failures: list[dict[str, Any]] = []
        self._lost: Counter[str] = Counter()
        histories = content.get(_HISTORY)
        self._histories = [
            self._dicts(history)
            for history in (histories[:_MOST_DEVICES] if isinstance(histories, (list, tuple)) else ())
        ]
        self._annotations = self._dicts(content.get("external_annotations"))
        times_us = (_number(entry.get("time_us")) for entry in chain(self._annotations, *self._histories))
        self._base_us = min((time_us for time_us in times_us if time_us > 0), default=0)
        self._segments: dict[int, list[dict[str, Any]]] = {}
        for segment in self._dicts(content[_SEGMENTS]):
            self._segments.setdefault(_number(segment.get("device"), 0), []).append(segment)

    def trace(self, path: Path | None) -> TraceData:
        devices = sorted({*range(len(self._histories)), *self._segments})
        self._lost["bad_memory_events"] += sum(device >= _MOST_DEVICES for device in devices)
        devices = [device for device in devices if device < _MOST_DEVICES]
        ends_ns = [self._add_device(device) for device in devices]
        self._add_annotations(max(ends_ns, default=0))
        rows = sorted(self._rows, key=lambda row: row[0])
        spans = sorted(self._spans, key=lambda span: (span[0], span[1], -span[2]))
        info: dict[str, Any] = {
            "recorded_by": SNAPSHOT,
            "stop_ns": max(
                [*ends_ns, *(start_ns + lasted_ns for _, start_ns, lasted_ns, *_ in spans)], default=0
            ),
            "reserved_bytes": sum(map(self._reserved_bytes, self._segments)),
        }
        absent = {
            "snapshot_lacks_spans": 1,
            "snapshot_without_history": int(not any(self._histories)),
            "snapshot_without_stacks": int(not self._stacks),
        }
        if self._base_us:
            info["start_realtime_ns"] = self._base_us * 1000
        if self._failures:
            info["out_of_memory"] = self._failures
        if isinstance(settings := self._content.get("allocator_settings"), dict):
            info["allocator_settings"] = {
                key: value
                for key, value in settings.items()
                if isinstance(key, str) and isinstance(value, (bool, int, str))
            }
        names = [
            "" if len(devices) < 2 else f"cuda:{device}" for device in range(max(devices, default=0) + 1)
        ]
        numbers = range(len(names))
        tables: dict[str, dict[str, Any]] = {
            "threads": {"index": numbers, "os_tid": numbers, "torch_tid": numbers, "name": names},
            "frames": as_columns(("function", "file", "line"), self._frames),
            "stacks": as_columns(("parent", "frame"), self._stacks),
            "spans": as_columns(_SPAN_COLUMNS, spans),
            "allocations": as_columns(_COLUMNS, rows) | {"device_type": [DeviceType.CUDA] * len(rows)},
            "losses": loss_columns(counted_losses(absent | self._lost)),
        }
        return TraceData.from_columns(tables, strings=self._strings.texts, info=info, path=path)

    def _reserved_bytes(self, device: int) -> int:
        return sum(max(_number(segment.get("total_size")), 0) for segment in self._segments.get(device, ()))

    def _add_device(self, device: int) -> int:
        """Add the rows of a device; return the time of its last event."""
        live = self._live_at_the_end(device)
        events = self._events(device)
        last_ns = events[-1][0] if events else 0
        # Backwards from the end: what is in use before each event.
        allocated = sum(size for size, _ in live.values())
        reserved = self._reserved_bytes(device)
        rows, before = [], dict(live)
        for time_ns, action, address, size, stack in reversed(events):
            counted = (max(allocated, 0), max(reserved, 0))
            if action == _ALLOCATED:
                rows.append((time_ns, address, size, 0, device, device, stack, *counted))
                before.pop(address, None)
                allocated -= size
            elif action == _FREED:
                rows.append((time_ns, address, 0, size, device, device, stack, *counted))
                before[address] = (size, -1)
                allocated += size
            else:
                reserved -= _RESERVED[action] * size
        # The rest was allocated before the history began.
        held = 0
        for address, (size, stack) in before.items():
            held += size
            self._rows.append((_BEFORE_NS, address, size, 0, device, device, stack, held, max(reserved, 0)))
        self._rows += reversed(rows)
        return last_ns

    def _time_ns(self, entry: dict[str, Any], otherwise_ns: int) -> int:
        time_us = _number(entry.get("time_us"))
        return (time_us - self._base_us) * 1000 if self._base_us and time_us > 0 else otherwise_ns

    def _events(self, device: int) -> list[tuple[int, str, int, int, int]]:
        """Events that change used or reserved memory, in order: time, action, address, size and stack."""
        events, time_ns = [], 0
        for number, entry in enumerate(self._histories[device] if device < len(self._histories) else (), 1):
            action, size = entry.get("action"), _number(entry.get("size"))
            address = _number(entry.get("addr"))
            if action not in (_ALLOCATED, _FREED, *_RESERVED, _FAILED):
                continue
            if size < 0 or (address < 0 and action != _FAILED):
                self._lost["bad_memory_events"] += 1
                continue
            # The order of the list is that of the allocator, also where its clock went back.
            time_ns = max(time_ns, self._time_ns(entry, number * 1000), 0)
            stack = self._stack(entry.get("frames"))
            if action == _FAILED:
                self._add_failure(device, time_ns, size, _number(entry.get("device_free")), stack)
            else:
                events.append((time_ns, str(action), address, size, stack))
        return events

    def _add_failure(self, device: int, time_ns: int, size: int, free_bytes: int, stack: int) -> None:
        name = f"out of memory: {units.size(size)} requested"
        self._spans.append(
            (device, time_ns, 0, self._strings.row(name), stack, FLAG_INSTANT, SpanKind.USER_ANNOTATION)
        )
        lines, row = [], stack
        stacks, frames = list(self._stacks), list(self._frames)
        while row >= 0:
            row, frame = stacks[row]
            function, file, line = frames[frame]
            lines.append(f"{self._strings.texts[file]}({line}): {self._strings.texts[function]}")
        free = {} if free_bytes < 0 else {"free_bytes": free_bytes}
        self._failures.append(
            {
                "time_ns": time_ns,
                "device": f"cuda:{device}",
                "bytes": size,
                **free,
                "stack": ";".join(reversed(lines)),
            }
        )

    def _add_annotations(self, end_ns: int) -> None:
        """Add the ranges that the program marked; one without an end lasts until the recording's end."""
        begun: dict[tuple[int, str], list[int]] = {}
        for entry in self._annotations:
            device, name = _number(entry.get("device"), 0), _text(entry.get("name"))
            time_ns = self._time_ns(entry, -1)
            if device >= _MOST_DEVICES or time_ns < 0 or entry.get("stage") not in ("START", "END"):
                self._lost["bad_events"] += 1
            elif entry["stage"] == "START":
                begun.setdefault((device, name), []).append(time_ns)
            elif starts := begun.get((device, name)):
                self._add_annotation(device, name, starts.pop(), time_ns, 0)
            else:
                self._lost["unmatched_ends"] += 1
        for (device, name), starts in begun.items():
            self._lost["unfinished_begins"] += len(starts)
            for start_ns in starts:
                self._add_annotation(device, name, start_ns, max(start_ns, end_ns), FLAG_UNFINISHED)

    def _add_annotation(self, device: int, name: str, start_ns: int, end_ns: int, flags: int) -> None:
        kind = SpanKind.STEP if name.startswith(MARK) else SpanKind.USER_ANNOTATION
        duration_ns = max(end_ns - start_ns, 0)
        self._spans.append((device, start_ns, duration_ns, self._strings.row(name), -1, flags, kind))

    def _live_at_the_end(self, device: int) -> dict[int, tuple[int, int]]:
        live = {}
        for segment in self._segments.get(device, ()):
            address = _number(segment.get("address"))
            for block in self._dicts(segment.get("blocks")):
                # Files of torch before 2.1 have no address of a block; blocks follow each other.
                start, size = _number(block.get("address"), address), _number(block.get("size"))
                if size < 0 or start < 0:
                    self._lost["bad_memory_events"] += 1
                    continue
                address = start + size
                if block.get("state") in _IN_USE:
                    live[start] = (size, self._stack(block.get("frames") or self._of_history(block)))
        return live

    def _dicts(self, entries: object) -> list[dict[str, Any]]:
        """The mappings in a list, of which each list is read once: a pickle can name one many times, so that reading would not end."""
        if not isinstance(entries, (list, tuple)) or not entries:
            return []
        if id(entries) in self._lists_read:
            self._lost["bad_memory_events"] += 1
            return []
        self._lists_read.add(id(entries))
        return [entry for entry in entries if isinstance(entry, dict)]

    def _of_history(self, block: dict[str, Any]) -> object:
        """The frames of a block in files of torch before 2.1, which have them in its history."""
        history = self._dicts(block.get("history"))
        return history[0].get("frames") if history else None

    def _stack(self, frames: object) -> int:
        """The row of a stack, whose frames are listed innermost first; -1 for an empty one."""
        if not isinstance(frames, (list, tuple)) or not frames:
            return -1
        row = self._rows_of_lists.get(id(frames))
        if row is None:
            row = -1
            named = tuple(
                (
                    _text(frame.get("filename")),
                    min(max(_number(frame.get("line")), -1), _LAST_LINE),
                    _text(frame.get("name")),
                )
                for frame in frames
                if isinstance(frame, dict)
            )
            for file, line, function in reversed(_telling(named)):
                frame_key = (self._strings.row(function), self._strings.row(file), line)
                frame_row = self._frames.setdefault(frame_key, len(self._frames))
                row = self._stacks.setdefault((row, frame_row), len(self._stacks))
            self._rows_of_lists[id(frames)] = row
        return row


_COLUMNS = (
    "time_ns", "address", "bytes", "freed_bytes", "device_index", "thread", "stack", "allocated_bytes", "reserved_bytes",
)  # fmt: skip
_SPAN_COLUMNS = ("thread", "start_ns", "duration_ns", "name", "stack", "flags", "kind")


_Frame = tuple[str, int, str]
_NO_FILE = ("", "??")
_OF_CPP = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
_NATIVE_FILE = "/torch/csrc"
_OPERATOR_CALL = re.compile(r"at::_ops::(\w+)::call\(")
_BACKWARD_CALL = re.compile(r"torch::autograd::generated::(\w+)::apply\(")


def _text(value: object) -> str:
    """The value if it is a text, else an empty one: nested lists could be endless as text."""
    return value if isinstance(value, str) else ""


def _number(value: object, otherwise: int = -1) -> int:
    return value if type(value) is int and 0 <= value < _MOST else otherwise


def _telling(frames: tuple[_Frame, ...]) -> tuple[_Frame, ...]:
    """The frames to show: those of Python or, without any, the operators and backward functions among those of C++.

    By default torch writes C++ frames, too, without lines and around those of Python.
    """
    of_python = tuple(
        frame
        for frame in frames
        if frame[1] > 0 and frame[0] not in _NO_FILE and not frame[0].endswith(_OF_CPP)
    )
    if of_python:
        return of_python
    operators = []
    for _, _, function in frames:
        if called := _OPERATOR_CALL.match(function):
            operators.append((_NATIVE_FILE, -1, f"aten::{called[1]}"))
        elif called := _BACKWARD_CALL.match(function):
            operators.append((_NATIVE_FILE, -1, called[1]))
    return tuple(operators)
