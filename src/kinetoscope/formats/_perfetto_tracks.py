"""Which track of a Perfetto trace each thread, stream, lane and counter gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kinetoscope.trace._shown import rank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

# Perfetto keeps ids of processes and threads in 32 bits, and means the idle thread by 0.
_MOST_ID = 2**31 - 1
# torch's device types.
_DEVICE_LABELS = {
    0: "CPU",
    1: "GPU",
    6: "GPU",
    9: "TPU",
    12: "XPU",
    13: "MPS",
    15: "HPU",
    17: "LazyTensor",
    19: "MTIA",
}


class Track(NamedTuple):
    """One track, as the native writer takes it."""

    kind: str
    name: str
    parent: int = -1
    process: int = 0
    thread: int = 0
    order: int = -1
    unit: str = ""
    note: str = ""


class _Host(NamedTuple):
    """A process of the host: its row of `processes`, its rank, and its number; -1 for those of the whole trace."""

    row: int
    rank: int
    number: int


class _Device(NamedTuple):
    """A device of a rank (-1 where there is only one)."""

    rank: int
    type: int
    number: int


@dataclass
class PerfettoTracks:
    """The layout: thread row `t` has the tracks from `first_of_thread[t]` on, one for each of its lanes.

    Attributes:
        tracks: All tracks, parents first.
        first_of_thread: For each row of `threads` the track of its lane 0.
    """

    tracks: list[Track]
    first_of_thread: NDArray[np.int32]
    process: int = -1
    _devices: dict[_Device, int] = field(default_factory=dict)
    _hosts: dict[_Host, int] = field(default_factory=dict)

    def add_counter(
        self, name: str, device: tuple[int, int] | None, unit: str = "", *, process: int = -1, rank: int = -1
    ) -> int:
        """Add the track of a counter, of a (device type, device index) or of a process.

        Args:
            name: What it is called.
            device: The device; None for a counter of the process.
            unit: The unit of its values.
            process: The row of `processes` of whose it is, -1 for the whole trace.
            rank: The rank of that.

        Returns:
            The row of the track.
        """
        parent = next((row for key, row in self._hosts.items() if key.row == process), self.process)
        if device is not None and device[0] != 0:
            devices = {key: row for key, row in self._devices.items() if key[1:] == device}
            parent = next((row for key, row in devices.items() if key.rank == rank), parent)
            if rank < 0:
                parent = next(iter(devices.values()), parent)
        self.tracks.append(Track("counter", name, parent, unit=unit, order=0))
        return len(self.tracks) - 1


def lay_out(trace: Trace, slices: Mapping[str, NDArray[Any]]) -> PerfettoTracks:
    """Give every process, device, thread, stream and lane a track; `slices` are what will lie on these."""
    threads, streams = trace.columns("threads"), trace.columns("streams")
    stream_of, lanes = _streams_and_lanes(trace, slices)
    ranks = threads["rank"].tolist()
    layout = PerfettoTracks([], np.zeros(len(threads), np.int32))
    tracks = layout.tracks
    processes = _processes(trace, stream_of)
    for key, number in processes.items():
        tracks.append(Track("process", _process_name(trace, key.rank), process=number, note=_note(trace)))
        layout.process = max(layout.process, 0)
    rows = layout._hosts
    rows.update((key, row) for row, key in enumerate(processes))
    ids = _thread_ids(trace, stream_of)
    for row, (stream, name) in enumerate(zip(stream_of.tolist(), threads["name"], strict=True)):
        if stream < 0:
            key = _process_key(trace, row)
            layout.first_of_thread[row] = len(tracks)
            number = int(threads["os_tid"][row])
            label = name or (f"thread {number}" if ids[row] == number else f"thread {number} (as {ids[row]})")
            tracks.append(Track("thread", label, rows[key], processes[key], ids[row], row))
        else:
            device = _Device(
                ranks[row], int(streams["device_type"][stream]), int(streams["device_index"][stream])
            )
            if device not in layout._devices:
                layout._devices[device] = len(tracks)
                tracks.append(Track("group", _device_name(trace, device), order=len(layout._devices)))
            layout.first_of_thread[row] = len(tracks)
            label = streams["name"][stream] or f"stream {int(streams['number'][stream])}"
            tracks.append(Track("group", label, layout._devices[device], order=row + 1))
        parent = int(layout.first_of_thread[row])
        # Tracks of one parent and name are shown as one, with a line for each.
        tracks.extend(Track("group", "overlapping", parent, order=0) for _ in range(1, int(lanes[row])))
    return layout


def _streams_and_lanes(
    trace: Trace, slices: Mapping[str, NDArray[Any]]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """For each thread the stream whose spans it has, -1 for the host's, and how many lanes its slices lie in."""
    spans, count = trace.columns("spans"), len(trace.columns("threads"))
    stream_of = np.full(count, -1, np.int32)
    on_device = np.flatnonzero(spans["stream"] >= 0)
    stream_of[spans["thread"][on_device]] = spans["stream"][on_device]
    lanes = np.ones(count, np.int32)
    beside = np.flatnonzero(slices["lane"] > 0)
    np.maximum.at(lanes, slices["thread"][beside], slices["lane"][beside] + 1)
    return stream_of, lanes


def _process_key(trace: Trace, thread: int) -> _Host:
    """The process that a thread says it is of."""
    threads = trace.columns("threads")
    process, whole = int(threads["process"][thread]), trace.info.get("process")
    row = int(threads["process_row"][thread])
    return _Host(row, int(threads["rank"][thread]), -1 if process == whole else process)


def _processes(trace: Trace, stream_of: NDArray[np.int32]) -> dict[_Host, int]:
    """For each process of the host the number it has in the file: its own, or a free one where that is taken or none."""
    whole = trace.info.get("process")
    wanted = {
        key: None for row in np.flatnonzero(stream_of < 0).tolist() for key in [_process_key(trace, row)]
    }
    if not wanted:
        wanted = {_Host(-1, -1, -1): None}
    numbers = [(whole if key.number < 0 else key.number) for key in wanted]
    return dict(
        zip(wanted, _unique([number if isinstance(number, int) else 0 for number in numbers]), strict=True)
    )


def _thread_ids(trace: Trace, stream_of: NDArray[np.int32]) -> list[int]:
    """For each thread a number that no other has: the system's, unless that is taken or no id; 0 for streams."""
    of_host = np.flatnonzero(stream_of < 0).tolist()
    ids = [0] * len(stream_of)
    wanted = [int(trace.column("threads", "os_tid")[row]) for row in of_host]
    for row, number in zip(of_host, _unique(wanted), strict=True):
        ids[row] = number
    return ids


def _unique(wanted: list[int]) -> list[int]:
    """Each id at most once, and a new one above all others where it is taken or cannot be one."""
    taken: set[int] = set()
    free = max((number for number in wanted if number < _MOST_ID // 2), default=0)
    given = []
    for number in wanted:
        if not 0 < number <= _MOST_ID or number in taken:
            free = max(free, 0) + 1
            while free in taken:
                free += 1
            number = free
        taken.add(number)
        given.append(number)
    return given


def _process_name(trace: Trace, of_rank: int) -> str:
    """What a process is called."""
    number = of_rank if of_rank >= 0 else rank(trace)
    return "python" if number is None else f"python, rank {number}"


def _note(trace: Trace) -> str:
    """What a person should know before anything else."""
    if trace.complete:
        return ""
    return "Incomplete. " + " ".join(
        f"{loss['count']:,} {loss['what']}: {loss['why']}" for loss in trace.losses
    )


def _device_name(trace: Trace, device: _Device) -> str:
    """What a device is called: kind and index, its model where that is known, and its rank where there are several."""
    name = f"{_DEVICE_LABELS.get(device.type, 'Device')} {device.number}"
    properties = trace.info.get("deviceProperties")
    for known in properties if isinstance(properties, list) else ():
        if (
            isinstance(known, dict)
            and known.get("id") == device.number
            and isinstance(known.get("name"), str)
        ):
            name += f" ({known['name'].strip()})"
            break
    return name if device.rank < 0 else f"rank {device.rank}: {name}"
