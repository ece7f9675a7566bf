"""Memory over time as files: the two JSON forms that torch.profiler writes. Its third form, a page, is the viewer's.

- `.json`, `.json.gz`: ``[times, sizes]``. Times are distinct microseconds since 1970, except that memory from before the recording has the first
  time, too. For each time, `sizes` has nine numbers of bytes: a zero, parameters, optimizer state, inputs, temporaries, activations, gradients,
  autograd details, and unknown.
- `raw.json.gz`: a list of ``[time, action, bytes, category]``. Times are nanoseconds since 1970, -1 for
  memory from before the recording; actions are 1 preexisting, 2 create, 3 increment version (two rows: the bytes leave one version of the content and
  join the next), 4 destroy; categories are the positions in the list above, without its zero.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.model.rows import Rows, ends_run
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.atomic_write import open_packed
from kinetoscope.tables.memory.categories import judged_blocks
from kinetoscope.tables.memory.timeline import (
    INCREMENT_VERSION,
    PREEXISTING,
    changes_of,
    content_changes,
    device_names,
    find_device,
    live_by_category,
    need_memory,
)

SUFFIXES = (".json", ".json.gz", "raw.json.gz")
# How many rows become Python numbers at a time.
_ROWS_AT_ONCE = 16384
_CHARACTERS_AT_ONCE = 1 << 20


def write_memory_timeline(
    trace: TraceData,
    path: str | os.PathLike[str],
    device: str | None = None,
    *,
    torchs: Any = None,
) -> None:
    """Write the memory of a device over time, in the form that the file's suffix selects.

    Args:
        trace: A trace recorded with `profile_memory`.
        path: The file; its name ends in `.json`, `.json.gz` or `raw.json.gz`.
        device: The device, such as `cpu` or `cuda:0`; None: the one that held the most bytes at its peak.
        torchs: torch's `MemoryProfileTimeline` of the same recording, which then writes the file, or None. Unlike the trace, which was read from
            torch's text, it knows when contents changed.

    Raises:
        StateError: Memory was not recorded.
        ArgumentError: The name ends in something else, or no memory of the device was recorded.
        OSError: The file cannot be written.
    """
    name = Path(path).name.lower()
    if not name.endswith(SUFFIXES):
        raise ArgumentError(
            f"{path}: a memory timeline has another suffix; use one of: .html, {', '.join(SUFFIXES)}"
        )
    need_memory(trace)
    device_row = find_device(trace, device)
    pieces: Iterator[str]
    is_raw = name.endswith("raw.json.gz")
    if torchs is not None:
        write = torchs.export_memory_timeline_raw if is_raw else torchs.export_memory_timeline
        pieces = _written_by(write, device_names(trace)[device_row])
    else:
        pieces = (_raw if is_raw else _by_category)(trace, device_row)
    _write(Path(path), pieces)


def write_empty_timeline(path: str | os.PathLike[str]) -> None:
    """Write the timeline of a device without memory, in the form that the file's suffix selects.

    Raises:
        OSError: The file cannot be written.
    """
    target = Path(path)
    _write(target, ["[]" if target.name.lower().endswith("raw.json.gz") else "[[], []]"])


def _write(target: Path, pieces: Iterable[str]) -> None:
    with open_packed(target) as file:
        file.writelines(piece.encode("utf-8", "backslashreplace") for piece in pieces)


def _written_by(write: Callable[[str, str], None], device: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="kinetoscope-memory-") as folder:
        path = os.path.join(folder, "timeline.json")
        write(path, device)
        with open(path, encoding="utf-8") as file:
            while text := file.read(_CHARACTERS_AT_ONCE):
                yield text


def _by_category(trace: TraceData, device: int) -> Iterator[str]:
    changes = changes_of(trace, device)
    held = live_by_category(changes, judged_blocks(trace).category)
    times = np.where(changes.time_ns < 0, -1, (changes.time_ns + _epoch_ns(trace)) // 1000)
    # Changes within a microsecond are one point, the last one.
    last = np.flatnonzero(ends_run(times))
    times, held = times[last], held[last]
    recorded = times[times >= 0]
    plotted_ns = np.where(times < 0, recorded[0] if len(recorded) else -1, times)
    sizes = np.concatenate([np.zeros((len(held), 1), dtype=np.int64), held], axis=1)
    yield f"[{plotted_ns.tolist()}, ["
    yield from _rows(sizes)
    yield "]]"


def _raw(trace: TraceData, device: int) -> Iterator[str]:
    changes, judged = changes_of(trace, device), judged_blocks(trace)
    written_ns, written = content_changes(trace)
    on_device = judged.blocks.device[written] == device
    written_ns, written = written_ns[on_device], written[on_device]
    size = judged.blocks.bytes[written]
    time_ns = np.concatenate([changes.time_ns, np.repeat(written_ns, 2)])
    block = np.concatenate([changes.block, np.repeat(written, 2)])
    action = np.concatenate([
        changes.action.astype(np.int64), np.full(2 * len(written), INCREMENT_VERSION, dtype=np.int64)
    ])  # fmt: skip
    change = np.concatenate([changes.change_bytes, np.stack([-size, size], axis=1).ravel()])
    order = np.argsort(time_ns, kind="stable")
    absolute = np.where(action == PREEXISTING, -1, time_ns + _epoch_ns(trace))
    rows = np.stack([absolute, action, change, judged.category[block].astype(np.int64)], axis=1)[order]
    yield "["
    yield from _rows(rows)
    yield "]"


def _rows(values: Rows) -> Iterator[str]:
    for first in range(0, len(values), _ROWS_AT_ONCE):
        rows = values[first : first + _ROWS_AT_ONCE].tolist()
        yield (", " if first else "") + ", ".join(map(str, rows))


def _epoch_ns(trace: TraceData) -> int:
    return trace.run_info.start_realtime_ns or 0
