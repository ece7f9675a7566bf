"""Perfetto's own format: the protocol buffers that ui.perfetto.dev and its trace processor read fastest.

Every thread of the host is a track of its process, every stream a track of its device, and spans that nest with
nothing lie on tracks of their own beside these. A span is a slice that shows what is known of it as debug annotations,
under the names that Kineto gives these facts; arrows lead from calls to the device work that they launched, and from
forward operators to their backward functions. Allocations are instants named `[memory]`, and counters show the memory
of each device and what else was sampled. What is known of the run, and what is missing, is in the trace's metadata.

Times count from the start of the trace; a snapshot of clocks leads from there to the time on the wall.
Texts stand in the file once for each thread. Shapes and other lists are JSON texts.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import kinetoscope._core as _core
from kinetoscope.formats.chrome.slices import shown_spans
from kinetoscope.formats.chrome.write import CATEGORIES, DEVICE_CATEGORIES
from kinetoscope.model.kinds import is_call
from kinetoscope.model.names import module_classes
from kinetoscope.model.schema import FLAG_ASYNC, FLAG_BEGUN_BEFORE, FLAG_INSTANT, FLAG_UNFINISHED, SpanKind
from kinetoscope.storage.atomic_write import write_blocks
from kinetoscope.tables.host.rebuilt_calls import shown_stacks
from kinetoscope.tables.stored import rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from kinetoscope.formats.chrome.slices import ShownSpans
    from kinetoscope.model.columns import Columns
    from kinetoscope.model.trace_data import TraceData
    from kinetoscope.tables.host.rebuilt_calls import ShownStacks


# Which track of a Perfetto trace each thread, stream, lane and counter gets.

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


def lay_out(trace: TraceData, slices: Mapping[str, NDArray[Any]]) -> PerfettoTracks:
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
    trace: TraceData, slices: Mapping[str, NDArray[Any]]
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


def _process_key(trace: TraceData, thread: int) -> _Host:
    """The process that a thread says it is of."""
    threads = trace.columns("threads")
    process, whole = int(threads["process"][thread]), trace.run_info.process
    row = int(threads["process_row"][thread])
    return _Host(row, int(threads["rank"][thread]), -1 if process == whole else process)


def _processes(trace: TraceData, stream_of: NDArray[np.int32]) -> dict[_Host, int]:
    """For each process of the host the number it has in the file: its own, or a free one where that is taken or none."""
    whole = trace.run_info.process
    wanted = {
        key: None for row in np.flatnonzero(stream_of < 0).tolist() for key in [_process_key(trace, row)]
    }
    if not wanted:
        wanted = {_Host(-1, -1, -1): None}
    numbers = [(whole if key.number < 0 else key.number) for key in wanted]
    return dict(
        zip(wanted, _unique([number if isinstance(number, int) else 0 for number in numbers]), strict=True)
    )


def _thread_ids(trace: TraceData, stream_of: NDArray[np.int32]) -> list[int]:
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


def _process_name(trace: TraceData, of_rank: int) -> str:
    """What a process is called."""
    number = of_rank if of_rank >= 0 else rank(trace)
    return "python" if number is None else f"python, rank {number}"


def _note(trace: TraceData) -> str:
    """What a person should know before anything else."""
    if trace.complete:
        return ""
    return "Incomplete. " + " ".join(
        f"{loss['count']:,} {loss['what']}: {loss['why']}" for loss in trace.losses
    )


def _device_name(trace: TraceData, device: _Device) -> str:
    """What a device is called: kind and index, its model where that is known, and its rank where there are several."""
    name = f"{_DEVICE_LABELS.get(device.type, 'Device')} {device.number}"
    for known in trace.run_info.device_properties:
        if known.index == device.number and known.name:
            name += f" ({known.name})"
            break
    return name if device.rank < 0 else f"rank {device.rank}: {name}"


# The columns of everything that a Perfetto trace shows as slices.

_NATIVE = ("start_ns", "duration_ns", "name", "thread", "lane")


@dataclass(frozen=True)
class Slices:
    """Slices in the order of the file: the same spans and rebuilt calls that a Chrome trace shows.

    Attributes:
        shown: What both formats show, as columns with a row for each slice.
        native: What the native writer takes of spans.
        categories: The names of the categories that `native` has rows of.
    """

    shown: ShownSpans
    native: dict[str, NDArray[Any]]
    categories: list[str]

    def of_spans(self, values: NDArray[Any]) -> NDArray[Any]:
        """A column of `spans` with a row for each slice; -1 for rebuilt calls."""
        if self.shown.moved is None:
            return np.ascontiguousarray(values)
        spread = np.full(len(self.native["start_ns"]), -1, values.dtype)
        spread[self.shown.moved[:-1]] = values
        return spread


def chosen_slices(trace: TraceData, stacks: ShownStacks) -> Slices:
    """Choose what is shown as slices.

    Args:
        trace: The trace.
        stacks: Its stacks as slices show them.

    Returns:
        The slices.
    """
    shown = shown_spans(trace, stacks)
    columns = shown.columns
    native = {name: columns[name] for name in _NATIVE}
    native["category"], categories = _categories(shown)
    instant = (columns["flags"] & FLAG_INSTANT != 0).astype(np.uint8)
    if instant.any():
        native["instant"] = instant
    frame = np.append(trace.column("stacks", "frame"), np.int32(-1)).astype(np.int32)
    native["location"] = frame[columns["stack"]]
    if (calls := is_call(columns["kind"])).any():
        # Which calls are around a call is what its track shows.
        columns["stack"] = np.where(calls, np.int32(-1), columns["stack"])
    return Slices(shown, native, categories)


def _categories(shown: ShownSpans) -> tuple[NDArray[np.int32], list[str]]:
    """The category of each slice: what its source called it, or what Kineto calls its kind."""
    names = [CATEGORIES[kind] for kind in SpanKind]
    category = shown.columns["kind"].astype(np.int32)
    if "stream" in shown.columns:
        category[shown.columns["stream"] >= 0] += np.int32(len(names))
        names += [DEVICE_CATEGORIES.get(kind, CATEGORIES[kind]) for kind in SpanKind]
    if "category" in shown.columns:
        given = shown.columns["category"]
        used, place = np.unique(given, return_inverse=True)
        category = np.where(given > 0, place.astype(np.int32) + np.int32(len(names)), category)
        names += [shown.strings[string] for string in used.tolist()]
    return category, names


# What the slices and the allocations of a Perfetto trace show of themselves, by the names that Kineto gives these facts.

# (name, kind, values) or (name, kind, rows, texts): see the kinds in native/core/perfetto_annotations.h.
Fact = tuple[str, str, "NDArray[Any]"] | tuple[str, str, "NDArray[Any]", list[str]]
# Of these slices, None for all.
Facts = tuple["NDArray[np.int32] | None", list[Fact]]

_NUMBERS = (
    ("external_id", "External id"),
    ("record_function", "Record function id"),
    ("sequence", "Sequence number"),
    ("correlation", "correlation"),
)
_SHAPES = (
    ("concrete", "Concrete Inputs"),
    ("types", "Input type"),
    ("dims", "Input Dims"),
    ("strides", "Input Strides"),
)
_STATES = (
    (FLAG_UNFINISHED, "Unfinished"),
    (FLAG_BEGUN_BEFORE, "Begun before"),
    (FLAG_ASYNC, "Asynchronous"),
)
_KERNELS = (
    ("registers", "registers per thread"),
    ("shared_bytes", "shared memory"),
    ("blocks_per_sm", "blocks per SM"),
    ("warps_per_sm", "warps per SM"),
    ("occupancy_percent", "est. achieved occupancy %"),
    ("context", "context"),
    ("graph", "graph id"),
    ("graph_node", "graph node id"),
)
_COPIES = (
    ("bytes", "bytes"),
    ("context", "context"),
    ("graph", "graph id"),
    ("graph_node", "graph node id"),
)


def span_facts(trace: TraceData, slices: Slices) -> list[Facts]:
    """Return what slices show.

    Args:
        trace: The trace.
        slices: The slices.

    Returns:
        Groups of facts, each with the slices it speaks of.
    """
    return [
        (None, list(_of_every_slice(trace, slices))),
        *_of_streams(trace, slices),
        *_of_table(trace, slices, "kernels", _KERNELS),
        *_of_table(trace, slices, "copies", _COPIES),
        *_of_source(slices),
    ]


def _of_every_slice(trace: TraceData, slices: Slices) -> Iterator[Fact]:
    """Facts that any slice may have; those that none has are left out."""
    spans, shapes, modules = (trace.columns(name) for name in ("spans", "shapes", "modules"))
    shown = slices.shown.columns
    for column, name in _NUMBERS:
        if column in shown and (shown[column] >= 0).any():
            yield name, "number", shown[column]
    if (shown["forward_thread"] >= 0).any():
        number = np.append(trace.column("threads", "torch_tid"), -1)
        yield "Fwd thread id", "number", number[shown["forward_thread"]]
    if spans["overload"].any():
        yield "Overload", "string", slices.of_spans(spans["overload"])
    for column, name in _SHAPES if len(shapes) else ():
        if any(shapes[column]):
            yield name, "text", shown["shapes"], list(shapes[column])
    if len(modules):
        yield "Module", "text", shown["module"], list(modules["path"])
        yield "Module class", "text", shown["module"], module_classes(trace)
    if len(trace.columns("parameters")):
        yield "Parameter", "text", slices.of_spans(spans["parameter"]), _parameters(trace)
    if (shown["stack"] >= 0).any():
        yield "Call stack", "stack", shown["stack"]
    for flag, name in _STATES:
        if (shown["flags"] & flag).any():
            yield name, "flag", (shown["flags"] & flag != 0).astype(np.uint8)


def _of_streams(trace: TraceData, slices: Slices) -> Iterator[Facts]:
    """Where on which device something ran."""
    spans, streams = trace.columns("spans"), trace.columns("streams")
    rows = np.flatnonzero(spans["stream"] >= 0).astype(np.int32)
    if len(rows):
        stream = spans["stream"][rows]
        facts: list[Fact] = [
            ("device", "number", streams["device_index"][stream]),
            ("stream", "number", streams["number"][stream]),
        ]
        yield _in_order(slices, rows, facts)


def _of_table(
    trace: TraceData, slices: Slices, table: str, columns: tuple[tuple[str, str], ...]
) -> Iterator[Facts]:
    """Facts from a table that has rows for some spans."""
    known = trace.columns(table)
    if len(known) == 0:
        return
    facts: list[Fact] = []
    if table == "kernels":
        facts += [_sizes(known, "grid"), _sizes(known, "block")]
    facts += [(name, "number", known[column]) for column, name in columns if (known[column] != -1).any()]
    yield _in_order(slices, known["span"], facts)


def _sizes(kernels: Columns, of: str) -> Fact:
    """The three sizes of a grid or block as one JSON text, each distinct one once."""
    sizes = [np.ascontiguousarray(kernels[f"{of}_{axis}"]) for axis in "xyz"]
    group, first = _core.group(sizes)
    texts = [_json_list(row) for row in zip(*(size[first].tolist() for size in sizes), strict=True)]
    return of, "text", group, texts


def _json_list(sizes: tuple[int, ...]) -> str:
    """Sizes as a JSON list; nothing where none is known."""
    return "" if max(sizes) < 0 else f"[{','.join(map(str, sizes))}]"


def _of_source(slices: Slices) -> Iterator[Facts]:
    """What a source said that has no column, and what is known of calls between ranks: what has a name already gives way."""
    if "arguments" in slices.shown.columns:
        yield None, [("arguments", "object", slices.shown.columns["arguments"], slices.shown.arguments)]


def _in_order(slices: Slices, rows: NDArray[np.int32], facts: list[Fact]) -> Facts:
    """Facts of some spans as facts of the slices that show them, in the order of these."""
    places = slices.shown.rows(rows)
    order = np.argsort(places, kind="stable")
    ordered: list[Any] = [
        (name, kind, np.ascontiguousarray(values[order]), *texts) for name, kind, values, *texts in facts
    ]
    return np.ascontiguousarray(places[order]), ordered


def _parameters(trace: TraceData) -> list[str]:
    """The dotted name of every parameter, with the path of the module that owns it."""
    parameters, paths = trace.columns("parameters"), trace.columns("modules")["path"]
    return [
        f"{paths[module]}.{trace.strings[name]}" if module >= 0 else trace.strings[name]
        for module, name in zip(parameters["module"].tolist(), parameters["name"].tolist(), strict=True)
    ]


def allocation_facts(trace: TraceData, stacks: ShownStacks, rows: slice) -> list[Fact]:
    """Return what allocations and frees show; a free has the size of its block, negative.

    Args:
        trace: The trace.
        stacks: Its stacks without the frames that are not shown.
        rows: Which rows of `allocations`.

    Returns:
        The facts of these rows.
    """
    own = trace.columns("allocations")
    size, match = own["bytes"], own["match"]
    freed = np.where(match >= 0, np.append(size, 0)[match], own["freed_bytes"])
    facts: list[tuple[str, str, NDArray[Any]]] = [
        ("Bytes", "always", np.where(size > 0, size, -freed)),
        ("Addr", "pointer", own["address"]),
        ("Device Type", "always", own["device_type"]),
        ("Device Id", "always", own["device_index"]),
        (
            "Total Allocated",
            "number",
            np.where(own["allocated_bytes"] >= 0, own["allocated_bytes"], own["total_bytes"]),
        ),
    ]
    if (own["reserved_bytes"] >= 0).any():
        facts.append(("Total Reserved", "number", own["reserved_bytes"]))
    if (own["stack"] >= 0).any():
        facts.append(("Call stack", "stack", stacks.row[own["stack"]]))
    return [(name, how, values[rows]) for name, how, values in facts]


# The counters of a Perfetto trace: the memory of each device, and what else was sampled.

Series = tuple[int, "NDArray[np.int64]", "NDArray[Any]"]

_MEMORY = (
    ("total_bytes", "memory in use"),
    ("allocated_bytes", "memory allocated, as the allocator counts"),
    ("reserved_bytes", "memory reserved"),
)


def counter_series(trace: TraceData, tracks: PerfettoTracks) -> list[Series]:
    """Return every counter as (track, times, values), adding the tracks.

    Args:
        trace: The trace.
        tracks: The layout, to which the counters' tracks are added.

    Returns:
        The series, each in order of time.
    """
    return [*_memory(trace, tracks), *_sampled(trace, tracks)]


def _memory(trace: TraceData, tracks: PerfettoTracks) -> list[Series]:
    """The live bytes of each device after each allocation and free, and what its allocator said."""
    allocations = trace.columns("allocations")
    if len(allocations) == 0:
        return []
    kind, index = allocations["device_type"], allocations["device_index"].astype(np.int64)
    process = trace.column("threads", "process_row").astype(np.int64)[allocations["thread"]]
    if len(trace.columns("threads")) == 0:
        process = np.full(len(allocations), -1, np.int64)
    ranks = _ranks(trace)
    key = ((process + 1) << 32) + kind * np.int64(256) + index * (kind > 0)
    series = []
    for one in np.unique(key).tolist():
        rows = np.flatnonzero(key == one)
        device = (int(kind[rows[0]]), int(index[rows[0]]))
        for column, label in _MEMORY:
            values = allocations[column][rows]
            known = values != -1 if column != "total_bytes" else np.ones(len(rows), np.bool_)
            if known.any():
                name = f"CPU {label}" if device[0] == 0 else label
                whose = int(process[rows[0]])
                track = tracks.add_counter(name, device, "bytes", process=whose, rank=ranks[whose])
                # What was live when a window of a longer trace began is what the counter begins with.
                series.append((track, np.maximum(allocations["time_ns"][rows][known], 0), values[known]))
    return series


def _sampled(trace: TraceData, tracks: PerfettoTracks) -> list[Series]:
    """The table `counters`, a series for each name of each process."""
    counters = trace.columns("counters")
    if len(counters) == 0:
        return []
    order = np.lexsort((counters["time_ns"], counters["name"], counters["process_row"]))
    name, process = counters["name"][order], counters["process_row"][order]
    changes = np.flatnonzero((np.diff(name) != 0) | (np.diff(process) != 0)) + 1
    edges = [0, *changes.tolist(), len(name)]
    return [
        (
            tracks.add_counter(trace.strings[int(name[first])], None, process=int(process[first])),
            counters["time_ns"][order[first:last]],
            counters["value"][order[first:last]],
        )
        for first, last in pairwise(edges)
    ]


def _ranks(trace: TraceData) -> list[int]:
    """The rank of each row of `processes`, and at the end that of the whole trace: -1, for its threads say none."""
    return [*trace.column("processes", "rank").tolist(), -1]


_BLOCK_BYTES = 4 << 20
# Perfetto's trace processor of 2025 writes over its memory where a name of metadata is some ten thousand bytes long.
_LONGEST_KEY = 200


def write_perfetto(trace: TraceData, path: str | os.PathLike[str]) -> None:
    """Write a trace for Perfetto.

    Args:
        trace: The trace.
        path: The file; a name that ends in `.gz` is compressed, and Perfetto opens it so. It appears under its name
            only when it is whole.

    Raises:
        OSError: The file cannot be written; nothing is left of it.
    """
    write_blocks(perfetto_writer(trace), path)


def perfetto_writer(trace: TraceData, block_bytes: int = _BLOCK_BYTES) -> _core.PerfettoWriter:
    """Return what makes the file of a trace, block by block.

    Args:
        trace: The trace.
        block_bytes: How long blocks are at least.

    Returns:
        The native writer: an iterator of bytes.
    """
    stacks = shown_stacks(trace)
    slices = chosen_slices(trace, stacks)
    rows = slices.shown.rows
    tracks = lay_out(trace, slices.native)
    counters = counter_series(trace, tracks)
    frames, allocations = trace.columns("frames"), trace.columns("allocations")
    moments: dict[str, Any] = {"name": "[memory]", "category": "cpu_instant_event"}
    # What was live when a window of a longer trace began has no moment to be shown at.
    shown = slice(int(np.searchsorted(allocations["time_ns"], 0)), None)
    if len(allocations):
        moments |= {name: allocations[name][shown] for name in ("time_ns", "thread")}
    launches, forward = trace.columns("launches"), trace.column("spans", "forward")
    caused = np.flatnonzero(forward >= 0).astype(np.int32)
    return _core.PerfettoWriter(
        spans=slices.native,
        span_facts=span_facts(trace, slices),
        moments=moments,
        moment_facts=allocation_facts(trace, stacks, shown) if len(allocations) else [],
        counters=counters,
        arrows=[
            (rows(launches["host"]), rows(launches["device"])),
            (rows(forward[caused]), rows(caused)),
        ],
        strings=slices.shown.strings,
        categories=slices.categories,
        stacks={
            "parent": stacks.parent,
            "frame": np.ascontiguousarray(trace.column("stacks", "frame")),
            "function": frames["function"],
            "file": stacks.file,
            "line": frames["line"],
        },
        tracks=tracks.tracks,
        thread_first_track=tracks.first_of_thread,
        metadata=_metadata(trace),
        realtime_ns=_realtime_ns(trace),
        identity=_identity(trace),
        block_bytes=block_bytes,
    )


def _metadata(trace: TraceData) -> list[tuple[str, str]]:
    """What is known of the run and what is missing, as texts."""
    known = {str(key): value for key, value in trace.info.items()}
    if not trace.complete:
        known["losses"] = trace.losses
    return [
        (key[:_LONGEST_KEY], value if isinstance(value, str) else _json(value))
        for key, value in known.items()
    ]


def _realtime_ns(trace: TraceData) -> int:
    """The time on the wall at the start of the trace; 0 where it is not known or cannot be."""
    return trace.run_info.start_realtime_ns or 0


def _identity(trace: TraceData) -> int:
    """A number from which the tracks of this trace are counted, and those of another, such as another rank's, are not."""
    known = [
        trace.info.get(key) for key in ("host", "process", "start_realtime_ns", "distributedInfo", "trace_id")
    ]
    digest = hashlib.blake2b(repr(known).encode("utf-8", "replace"), digest_size=6).digest()
    return int.from_bytes(digest, "little")


def _json(value: Any) -> str:
    """Compact JSON of any value; what has no JSON becomes text."""
    try:
        return json.dumps(value, default=str, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return str(value)
