"""Which track of a Chrome trace each thread, stream and lane gets, and what the tracks are called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

# Above every process id, so that devices are shown below the process.
_DEVICE_SORT_INDEX = 5_000_000


@dataclass(frozen=True)
class Tracks:
    """The layout: thread row `t` has the tracks from `first_of_thread[t]` on, one for each of its lanes.

    Attributes:
        first_of_thread: For each row of `threads` the track of its lane 0.
        tid: For each track its number in the file; no two tracks of a process share one.
        name: For each track what the viewer shows.
        device: For each track the index of the device it belongs to, -1 for the host.
    """

    first_of_thread: NDArray[np.int32]
    tid: NDArray[np.int64]
    name: list[str]
    device: list[int]

    def metadata(self, process: int) -> Iterator[dict[str, Any]]:
        """The events that name processes and tracks and say in which order to show them."""
        devices = sorted({device for device in self.device if device >= 0})
        yield from _process_events(process, "CPU", process)
        for device in devices:
            yield from _process_events(device, f"GPU {device}", _DEVICE_SORT_INDEX + device)
        for place, (tid, name, device) in enumerate(
            zip(self.tid.tolist(), self.name, self.device, strict=True)
        ):
            pid = process if device < 0 else device
            yield _metadata("thread_name", pid, tid, {"name": name})
            yield _metadata("thread_sort_index", pid, tid, {"sort_index": place})


def lay_out(trace: Trace, shown: Mapping[str, NDArray[Any]]) -> Tracks:
    """Give every lane of every thread a track; `shown` has the columns of all that is shown on threads."""
    spans, threads, streams = trace.columns("spans"), trace.columns("threads"), trace.columns("streams")
    count = len(threads)
    lanes = np.ones(count, np.int64)
    np.maximum.at(lanes, spans["thread"], spans["lane"].astype(np.int64) + 1)
    np.maximum.at(lanes, shown["thread"], shown["lane"].astype(np.int64) + 1)
    first = np.zeros(count, np.int32)
    first[1:] = np.cumsum(lanes)[:-1]

    # A device stream is a row of threads all of whose spans are on that stream.
    stream_of = np.full(count, -1, np.int32)
    stream_of[spans["thread"]] = spans["stream"]

    names: list[str] = []
    devices: list[int] = []
    wanted: list[tuple[int, int]] = []
    for row in range(count):
        stream = int(stream_of[row])
        if stream >= 0:
            number, device = int(streams["number"][stream]), int(streams["device_index"][stream])
            label = f"stream {number}"
        else:
            number, device = int(threads["os_tid"][row]), -1
            label = f"thread {number}" + (f" ({threads['name'][row]})" if threads["name"][row] else "")
        for lane in range(int(lanes[row])):
            names.append(label if lane == 0 else f"{label}, overlapping {lane}")
            devices.append(device)
            # The system gives a number again once its thread has ended; only the first one keeps it here.
            wanted.append((device, number if lane == 0 else -1))
    return Tracks(first, np.array(_without_duplicates(wanted), np.int64), names, devices)


def _without_duplicates(wanted: list[tuple[int, int]]) -> list[int]:
    """Each wanted number at most once in its process, and a new one above all others where it is taken or none."""
    taken: set[tuple[int, int]] = set()
    unused = max((number for _, number in wanted), default=0) + 1
    given = []
    for process, number in wanted:
        if number < 0 or (process, number) in taken:
            given.append(unused)
            unused += 1
        else:
            taken.add((process, number))
            given.append(number)
    return given


def _process_events(pid: int, label: str, sort_index: int) -> Iterator[dict[str, Any]]:
    """The three events that introduce a process."""
    yield _metadata("process_name", pid, 0, {"name": "python"})
    yield _metadata("process_labels", pid, 0, {"labels": label})
    yield _metadata("process_sort_index", pid, 0, {"sort_index": sort_index})


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    """One metadata event."""
    return {"ph": "M", "name": name, "ts": 0, "pid": pid, "tid": tid, "args": args}
