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


# torch's device type -> what its devices are called.
_DEVICE_NAMES = {1: "GPU", 6: "GPU", 9: "XLA", 12: "XPU", 13: "MPS", 15: "HPU", 18: "IPU", 19: "MTIA"}
_HOST = -1
# The number wanted by a track that has none of its own.
_NEW = -1


@dataclass(frozen=True)
class Process:
    """A process of the file: a real one, or a device.

    Attributes:
        pid: Its number in the file; no two have the same.
        name: What it is called.
        label: What the viewer shows beside its name.
        sort_index: Where the viewer shows it.
    """

    pid: int
    name: str
    label: str
    sort_index: int


@dataclass(frozen=True)
class Tracks:
    """The layout: thread row `t` has the tracks from `first_of_thread[t]` on, one for each of its lanes.

    Attributes:
        first_of_thread: For each row of `threads` the track of its lane 0.
        pid: For each track the number of its process in the file; a device's is its index where that is free.
        tid: For each track its number in the file; no two tracks of a process share one.
        name: For each track what the viewer shows.
        more: For each track what only our own reader wants to know: the number of the thread or stream, where the track
            has another, and for a lane above 0 the track whose lane it is.
        processes: What there is to say of the processes, in the order of the tracks.
        pid_of_process: For each row of the table `processes` the number of its process in the file; at the end that of the
            process of the trace.
    """

    first_of_thread: NDArray[np.int32]
    pid: NDArray[np.int64]
    tid: NDArray[np.int64]
    name: list[str]
    more: list[dict[str, int]]
    processes: list[Process]
    pid_of_process: NDArray[np.int64]

    def metadata(self) -> Iterator[dict[str, Any]]:
        """The events that name processes and tracks and say in which order to show them."""
        for process in self.processes:
            yield from _process_events(process)
        for place, (pid, tid, name, more) in enumerate(
            zip(self.pid.tolist(), self.tid.tolist(), self.name, self.more, strict=True)
        ):
            yield _metadata("thread_name", pid, tid, {"name": name, **more})
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
    lane_of: list[int] = []
    wanted: list[tuple[int, int]] = []
    processes = _Processes(trace, stream_of)
    for row in range(count):
        stream = int(stream_of[row])
        if stream >= 0:
            number = int(streams["number"][stream])
            label = streams["name"][stream] or f"stream {number}"
        else:
            number, label = int(threads["os_tid"][row]), threads["name"][row]
            label = f"thread {number}" + (f" ({label})" if label else "")
        pid = processes.of(row)
        for lane in range(int(lanes[row])):
            names.append(label if lane == 0 else f"{label}, overlapping {lane}")
            lane_of.append(int(first[row]) if lane else -1)
            # The system gives a number again once its thread has ended; only the first one keeps it here.
            wanted.append((pid, number if lane == 0 else _NEW))
    tids = _without_duplicates(wanted)
    more: list[dict[str, int]] = []
    for (_, number), tid, around in zip(wanted, tids, lane_of, strict=True):
        of_number = {"Track number": number} if tid != number and around < 0 else {}
        more.append({"Lane of": tids[around]} if around >= 0 else of_number)
    pids = np.array([pid for pid, _ in wanted], np.int64)
    return Tracks(
        first, pids, np.array(tids, np.int64), names, more, processes.in_order(), processes.pid_of_process()
    )


class _Processes:
    """The processes of the file by what they stand for."""

    def __init__(self, trace: Trace, stream_of: NDArray[np.int32]) -> None:
        threads, self._streams = trace.columns("threads"), trace.columns("streams")
        self._stream = stream_of.tolist()
        self._rank: list[int] = threads["rank"].tolist()
        own = int(trace.info.get("process") or 0)
        wanted = [own if pid < 0 else pid for pid in threads["process"].tolist()]
        # Processes of two machines, or of two containers, may have one number.
        self._host = list(zip(threads["process_row"].tolist(), wanted, strict=True))
        of_trace = trace.columns("processes")
        hosts = {
            (row, int(pid) if pid >= 0 else own): int(rank)
            for row, (pid, rank) in enumerate(zip(of_trace["pid"], of_trace["rank"], strict=True))
        }
        of_threads = zip(self._host, self._rank, self._stream, strict=True)
        hosts.update((key, rank) for key, rank, stream in of_threads if stream < 0)
        if len(of_trace) == 0:
            hosts.setdefault((-1, own), -1)
        described = _described(trace)
        told = {entry.get("process"): entry for entry in described}
        self._name = str(told.get(own, {}).get("name") or trace.info.get("process_name") or "python")
        self._found: dict[tuple[int, int, int], Process] = {}
        self._number: dict[tuple[int, int], int] = {}
        self._taken: set[int] = {pid for _, pid in hosts}
        given: set[int] = set()
        for (row, wanted_pid), rank in hosts.items():
            pid = max(self._taken) + 1 if wanted_pid in given else wanted_pid
            given.add(pid)
            self._taken.add(pid)
            self._number[row, wanted_pid] = pid
            known = described[row] if 0 <= row < len(described) else told.get(wanted_pid, {})
            label = known.get("labels") or ("CPU" if rank < 0 else f"CPU of rank {rank}")
            self._found[_HOST, row, pid] = Process(pid, str(known.get("name") or self._name), str(label), pid)
        first = next(iter(self._number.values()))
        self._of_process = [
            next((pid for (row, _), pid in self._number.items() if row == one), first)
            for one in range(len(of_trace))
        ]
        self._of_process.append(self._number.get((-1, own), first))

    def pid_of_process(self) -> NDArray[np.int64]:
        """The number of each row of `processes`, and at the end that of the trace's own."""
        return np.array(self._of_process, np.int64)

    def of(self, thread: int) -> int:
        """The number of the process that the thread of a row belongs to."""
        stream = self._stream[thread]
        if stream < 0:
            return self._number[self._host[thread]]
        index, kind = int(self._streams["device_index"][stream]), int(self._streams["device_type"][stream])
        rank = self._rank[thread]
        if (known := self._found.get((kind, index, rank))) is not None:
            return known.pid
        pid = index if index >= 0 and index not in self._taken else max(self._taken) + 1
        self._taken.add(pid)
        label = f"{_DEVICE_NAMES.get(kind, 'Device')} {index}" + ("" if rank < 0 else f" of rank {rank}")
        self._found[kind, index, rank] = Process(pid, self._name, label, _DEVICE_SORT_INDEX + pid)
        return pid

    def in_order(self) -> list[Process]:
        """All processes: the hosts in the order of their threads, then the devices."""
        return sorted(self._found.values(), key=lambda process: process.sort_index >= _DEVICE_SORT_INDEX)


def _described(trace: Trace) -> list[dict[str, Any]]:
    """What a file that was read said of its processes."""
    told = trace.info.get("processes")
    return [entry for entry in told if isinstance(entry, dict)] if isinstance(told, list) else []


def _without_duplicates(wanted: list[tuple[int, int]]) -> list[int]:
    """Each wanted number at most once in its process, and a new one above all others where it is taken or below 0.

    Perfetto takes number 0 for the main thread, which has the number of the process.
    """
    taken: set[tuple[int, int]] = set()
    unused = max((number for _, number in wanted), default=0) + 1
    given = [_NEW] * len(wanted)
    for place in sorted(range(len(wanted)), key=lambda place: wanted[place][1] == 0):
        process, number = wanted[place]
        key = (process, number or process)
        if number < 0 or key in taken:
            number, unused = unused, unused + 1
        else:
            taken.add(key)
        given[place] = number
    return given


def _process_events(process: Process) -> Iterator[dict[str, Any]]:
    """The three events that introduce a process."""
    yield _metadata("process_name", process.pid, 0, {"name": process.name})
    yield _metadata("process_labels", process.pid, 0, {"labels": process.label})
    yield _metadata("process_sort_index", process.pid, 0, {"sort_index": process.sort_index})


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    """One metadata event."""
    return {"ph": "M", "name": name, "ts": 0, "pid": pid, "tid": tid, "args": args}
