"""Write Perfetto's native format, the protocol buffers that ui.perfetto.dev and its trace processor read fastest.

Each host thread is a track of its process, and each stream a track of its device; spans that nest with nothing get tracks
of their own next to these. A span is a slice with debug annotations, named as in Kineto's files. Arrows lead from launches
to device work, and from forward operators to backward functions. Allocations are instants named `[memory]`; counters show
the memory of each device and the sampled counters. The metadata of the run and its losses are in the trace's metadata.

Times are relative to the start of the trace; a clock snapshot maps them to Unix time. Strings are interned per thread.
Shapes and other lists are JSON strings.
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
from kinetoscope.model.losses import counted
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


# Perfetto stores ids of processes and threads in 32 bits, and 0 is the idle thread.
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
    """One track, as passed to the native writer."""

    kind: str
    name: str
    parent: int = -1
    process: int = 0
    thread: int = 0
    order: int = -1
    unit: str = ""
    note: str = ""


class _Host(NamedTuple):
    """A host process: its row in `processes`, its rank and its id, each -1 for the trace's own process."""

    row: int
    rank: int
    number: int


class _Device(NamedTuple):
    """A device of a rank, -1 without ranks."""

    rank: int
    type: int
    number: int


@dataclass
class PerfettoTracks:
    """The tracks of a file: one per lane, those of thread row `t` starting at `first_of_thread[t]`.

    Attributes:
        tracks: All tracks, parents first.
        first_of_thread: The track of lane 0 of each row of `threads`.
    """

    tracks: list[Track]
    first_of_thread: NDArray[np.int32]
    process: int = -1
    _devices: dict[_Device, int] = field(default_factory=dict)
    _hosts: dict[_Host, int] = field(default_factory=dict)

    def add_counter(
        self, name: str, device: tuple[int, int] | None, unit: str = "", *, process: int = -1, rank: int = -1
    ) -> int:
        """Add the track of a counter.

        Args:
            name: Its name.
            device: Its device as (device type, device index); None for a counter of a process.
            unit: The unit of its values.
            process: The row of its process in `processes`, -1 for the whole trace.
            rank: The rank of that process.

        Returns:
            The index of the track.
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
    """Assign a track to each process, device, thread, stream and lane; `slices` has the columns of the slices."""
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
        # Perfetto merges tracks with the same parent and name, with one line each.
        tracks.extend(Track("group", "overlapping", parent, order=0) for _ in range(1, int(lanes[row])))
    return layout


def _streams_and_lanes(
    trace: TraceData, slices: Mapping[str, NDArray[Any]]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return each thread's stream, -1 for host threads, and its number of lanes."""
    spans, count = trace.columns("spans"), len(trace.columns("threads"))
    stream_of = np.full(count, -1, np.int32)
    on_device = np.flatnonzero(spans["stream"] >= 0)
    stream_of[spans["thread"][on_device]] = spans["stream"][on_device]
    lanes = np.ones(count, np.int32)
    overlapping = np.flatnonzero(slices["lane"] > 0)
    np.maximum.at(lanes, slices["thread"][overlapping], slices["lane"][overlapping] + 1)
    return stream_of, lanes


def _process_key(trace: TraceData, thread: int) -> _Host:
    """Return the process of a thread."""
    threads = trace.columns("threads")
    process, own = int(threads["process"][thread]), trace.run_info.process
    row = int(threads["process_row"][thread])
    return _Host(row, int(threads["rank"][thread]), -1 if process == own else process)


def _processes(trace: TraceData, stream_of: NDArray[np.int32]) -> dict[_Host, int]:
    """Return the id in the file of each host process: its own, or an unused one if that is taken or invalid."""
    own = trace.run_info.process
    wanted = {
        key: None for row in np.flatnonzero(stream_of < 0).tolist() for key in [_process_key(trace, row)]
    }
    if not wanted:
        wanted = {_Host(-1, -1, -1): None}
    numbers = [(own if key.number < 0 else key.number) for key in wanted]
    return dict(
        zip(wanted, _unique([number if isinstance(number, int) else 0 for number in numbers]), strict=True)
    )


def _thread_ids(trace: TraceData, stream_of: NDArray[np.int32]) -> list[int]:
    """Return a unique id for each thread, the system's if it is valid and unused; 0 for streams."""
    of_host = np.flatnonzero(stream_of < 0).tolist()
    ids = [0] * len(stream_of)
    wanted = [int(trace.column("threads", "os_tid")[row]) for row in of_host]
    for row, number in zip(of_host, _unique(wanted), strict=True):
        ids[row] = number
    return ids


def _unique(wanted: list[int]) -> list[int]:
    """Return unique ids: the wanted one, or an unused one if that is taken or invalid."""
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
    """Return the name of a process."""
    number = of_rank if of_rank >= 0 else rank(trace)
    return "python" if number is None else f"python, rank {number}"


def _note(trace: TraceData) -> str:
    """Return the losses as a note for the process track, empty if the trace is complete."""
    if trace.complete:
        return ""
    return "Incomplete: " + " ".join(
        f"{counted(loss['what'], loss['count'])}: {loss['why']}" for loss in trace.losses
    )


def _device_name(trace: TraceData, device: _Device) -> str:
    """Return the name of a device: kind and index, model if known, and rank if there are several."""
    name = f"{_DEVICE_LABELS.get(device.type, 'Device')} {device.number}"
    if (properties := trace.run_info.properties_of(device.number)) and properties.name:
        name += f" ({properties.name})"
    return name if device.rank < 0 else f"rank {device.rank}: {name}"


_NATIVE = ("start_ns", "duration_ns", "name", "thread", "lane")


@dataclass(frozen=True)
class Slices:
    """Slices in the order of the file: the same spans and rebuilt calls as in a Chrome trace.

    Attributes:
        shown: The spans that both formats show.
        native: The columns of slices for the native writer.
        categories: The names of the categories in `native`.
    """

    shown: ShownSpans
    native: dict[str, NDArray[Any]]
    categories: list[str]

    def of_spans(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a column of `spans` with one row per slice, -1 for rebuilt calls."""
        if self.shown.moved is None:
            return np.ascontiguousarray(values)
        spread = np.full(len(self.native["start_ns"]), -1, values.dtype)
        spread[self.shown.moved[:-1]] = values
        return spread


def chosen_slices(trace: TraceData, stacks: ShownStacks) -> Slices:
    """Return the slices of a trace.

    Args:
        trace: The trace.
        stacks: Its stacks as shown in slices.
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
        # The stack of a call is visible on its track.
        columns["stack"] = np.where(calls, np.int32(-1), columns["stack"])
    return Slices(shown, native, categories)


def _categories(shown: ShownSpans) -> tuple[NDArray[np.int32], list[str]]:
    """Return the category of each slice: the source file's, else Kineto's for its kind."""
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


# The debug annotations of slices and allocations, named as in Kineto's files: (name, kind, values) or (name, kind, rows,
# texts), with the kinds of native/core/perfetto/annotations.h.
Fact = tuple[str, str, "NDArray[Any]"] | tuple[str, str, "NDArray[Any]", list[str]]
# The slices that have the facts, None for all, and the facts.
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
    """Return the debug annotations of slices, grouped by the slices that have them.

    Args:
        trace: The trace.
        slices: The slices.
    """
    return [
        (None, list(_of_every_slice(trace, slices))),
        *_of_streams(trace, slices),
        *_of_table(trace, slices, "kernels", _KERNELS),
        *_of_table(trace, slices, "copies", _COPIES),
        *_of_source(slices),
    ]


def _of_every_slice(trace: TraceData, slices: Slices) -> Iterator[Fact]:
    """Yield the facts that any slice may have, without those that none has."""
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
    """Yield the device and stream of device spans."""
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
    """Yield the facts in a table about some spans."""
    details = trace.columns(table)
    if len(details) == 0:
        return
    facts: list[Fact] = []
    if table == "kernels":
        facts += [_sizes(details, "grid"), _sizes(details, "block")]
    facts += [(name, "number", details[column]) for column, name in columns if (details[column] != -1).any()]
    yield _in_order(slices, details["span"], facts)


def _sizes(kernels: Columns, of: str) -> Fact:
    """Return the three sizes of grids or blocks as JSON lists."""
    sizes = [np.ascontiguousarray(kernels[f"{of}_{axis}"]) for axis in "xyz"]
    group, first = _core.group(sizes)
    texts = [_json_list(row) for row in zip(*(size[first].tolist() for size in sizes), strict=True)]
    return of, "text", group, texts


def _json_list(sizes: tuple[int, ...]) -> str:
    """Return sizes as a JSON list, empty if none is known."""
    return "" if max(sizes) < 0 else f"[{','.join(map(str, sizes))}]"


def _of_source(slices: Slices) -> Iterator[Facts]:
    """Yield other arguments of the source file and facts about collectives; annotations above override them."""
    if "arguments" in slices.shown.columns:
        yield None, [("arguments", "object", slices.shown.columns["arguments"], slices.shown.arguments)]


def _in_order(slices: Slices, rows: NDArray[np.int32], facts: list[Fact]) -> Facts:
    """Convert facts about spans to facts about slices, in the order of slices."""
    places = slices.shown.rows(rows)
    order = np.argsort(places, kind="stable")
    ordered: list[Any] = [
        (name, kind, np.ascontiguousarray(values[order]), *texts) for name, kind, values, *texts in facts
    ]
    return np.ascontiguousarray(places[order]), ordered


def _parameters(trace: TraceData) -> list[str]:
    """Return the dotted name of each parameter, with the path of its module."""
    parameters, paths = trace.columns("parameters"), trace.columns("modules")["path"]
    return [
        f"{paths[module]}.{trace.strings[name]}" if module >= 0 else trace.strings[name]
        for module, name in zip(parameters["module"].tolist(), parameters["name"].tolist(), strict=True)
    ]


def allocation_facts(trace: TraceData, stacks: ShownStacks, rows: slice) -> list[Fact]:
    """Return the debug annotations of allocations and frees; frees have the negative size of their block.

    Args:
        trace: The trace.
        stacks: Its stacks as shown in slices.
        rows: The rows of `allocations`.
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


# A counter: its track, times in nanoseconds, and values.
Series = tuple[int, "NDArray[np.int64]", "NDArray[Any]"]

_MEMORY = (
    ("total_bytes", "memory in use"),
    ("allocated_bytes", "memory allocated, reported by the allocator"),
    ("reserved_bytes", "memory reserved"),
)


def counter_series(trace: TraceData, tracks: PerfettoTracks) -> list[Series]:
    """Return all counters as series, sorted by time.

    Args:
        trace: The trace.
        tracks: The layout; the counters' tracks are added.
    """
    return [*_memory(trace, tracks), *_sampled(trace, tracks)]


def _memory(trace: TraceData, tracks: PerfettoTracks) -> list[Series]:
    """Return the live bytes of each device after each allocation and free, and its allocator's counts."""
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
            valid = values != -1 if column != "total_bytes" else np.ones(len(rows), np.bool_)
            if valid.any():
                name = f"CPU {label}" if device[0] == 0 else label
                owner = int(process[rows[0]])
                track = tracks.add_counter(name, device, "bytes", process=owner, rank=ranks[owner])
                # Blocks that were live before the start of a window are the counter's first value.
                series.append((track, np.maximum(allocations["time_ns"][rows][valid], 0), values[valid]))
    return series


def _sampled(trace: TraceData, tracks: PerfettoTracks) -> list[Series]:
    """Return the table `counters` as one series per name and process."""
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
    """Return the rank of each row of `processes`, followed by -1 for the whole trace."""
    return [*trace.column("processes", "rank").tolist(), -1]


_BLOCK_BYTES = 4 << 20
# Metadata names of about ten thousand bytes corrupt the memory of Perfetto's trace processor (2025).
_LONGEST_KEY = 200


def write_perfetto(trace: TraceData, path: str | os.PathLike[str]) -> None:
    """Write a trace for Perfetto.

    Args:
        trace: The trace.
        path: The file, compressed if its name ends in `.gz`, which Perfetto can open; it appears under its name only when
            it is complete.

    Raises:
        OSError: The file cannot be written; no partial file remains.
    """
    write_blocks(perfetto_writer(trace), path)


def perfetto_writer(trace: TraceData, block_bytes: int = _BLOCK_BYTES) -> _core.PerfettoWriter:
    """Return the native writer of a trace, an iterator over blocks of bytes.

    Args:
        trace: The trace.
        block_bytes: The minimum size of a block.
    """
    stacks = shown_stacks(trace)
    slices = chosen_slices(trace, stacks)
    rows = slices.shown.rows
    tracks = lay_out(trace, slices.native)
    counters = counter_series(trace, tracks)
    frames, allocations = trace.columns("frames"), trace.columns("allocations")
    moments: dict[str, Any] = {"name": "[memory]", "category": "cpu_instant_event"}
    # Blocks that were live before the start of a window have no event in it.
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
    """Return the metadata of the run, and its losses, as strings."""
    metadata = {str(key): value for key, value in trace.info.items()}
    if not trace.complete:
        metadata["losses"] = trace.losses
    return [
        (key[:_LONGEST_KEY], value if isinstance(value, str) else _json(value))
        for key, value in metadata.items()
    ]


def _realtime_ns(trace: TraceData) -> int:
    """Return the Unix time of the start of the trace in nanoseconds, 0 if unknown."""
    return trace.run_info.start_realtime_ns or 0


def _identity(trace: TraceData) -> int:
    """Return a base for track ids that differs between traces, such as those of different ranks."""
    identity = [
        trace.info.get(key) for key in ("host", "process", "start_realtime_ns", "distributedInfo", "trace_id")
    ]
    digest = hashlib.blake2b(repr(identity).encode("utf-8", "replace"), digest_size=6).digest()
    return int.from_bytes(digest, "little")


def _json(value: Any) -> str:
    """Return a value as compact JSON; values that JSON cannot represent become strings."""
    try:
        return json.dumps(value, default=str, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return str(value)
