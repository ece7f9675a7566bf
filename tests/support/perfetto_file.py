"""Reads a Perfetto trace with Perfetto's own protocol buffers, as its format says: sequences, interned texts, clocks."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    ClockSnapshot,
    DebugAnnotation,
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

import kinetoscope
from kinetoscope.formats.perfetto import write_perfetto

CLEARED, NEEDED = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED, TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
BOOTTIME, REALTIME = 6, 1


@dataclass
class Slice:
    """A slice, or with `instant` a moment."""

    track: int
    name: str
    category: str
    start_ns: int
    end_ns: int | None
    args: dict[str, Any]
    location: tuple[str, str, int] | None
    flows: list[tuple[int, bool]]
    instant: bool = False
    depth: int = 0

    @property
    def duration_ns(self) -> int:
        """How long it is; fails for a slice without an end."""
        assert self.end_ns is not None
        return self.end_ns - self.start_ns


@dataclass
class PerfettoFile:
    """What a file says.

    Attributes:
        slices: Slices and moments in the order in which they begin on their tracks.
        samples: For each counter's track its (time, value) in order.
        tracks: The descriptors by number.
        metadata: What is known of the run.
        clocks: The first snapshot, time by clock.
        packets: How many there are.
    """

    slices: list[Slice] = field(default_factory=list)
    samples: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    tracks: dict[int, TrackDescriptor] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)
    packets: int = 0

    def named(self, name: str) -> list[Slice]:
        """The slices of one name."""
        return [one for one in self.slices if one.name == name]

    def path(self, track: int) -> tuple[str, ...]:
        """What the viewer shows above and at a track, outermost first."""
        shown = []
        while track:
            descriptor = self.tracks[track]
            shown.append(descriptor.name or descriptor.process.process_name or descriptor.thread.thread_name)
            track = descriptor.parent_uuid
        return tuple(reversed(shown))

    def arrows(self) -> list[tuple[Slice, Slice]]:
        """The slices that each arrow leads from and to, in the order of time as the viewer draws them."""
        ends: dict[int, list[tuple[int, bool, Slice]]] = {}
        for one in self.slices:
            for number, ending in one.flows:
                ends.setdefault(number, []).append((one.start_ns, ending, one))
        assert all(len(pair) == 2 for pair in ends.values())
        pairs = [sorted(pair, key=lambda end: end[:2]) for _, pair in sorted(ends.items())]
        assert all(not first for ((_, first, _), _) in pairs), "an arrow ends before it begins"
        return [(first[2], second[2]) for first, second in pairs]


@dataclass
class _Sequence:
    """What packets of one sequence may lean on."""

    texts: dict[str, dict[int, Any]] = field(default_factory=dict)
    clocks: dict[int, tuple[int, bool]] = field(default_factory=dict)
    boottime_less: dict[int, int] = field(default_factory=dict)
    default_track: int = 0
    default_clock: int = BOOTTIME
    last_ns: int = 0


def read_perfetto(source: Path | bytes) -> PerfettoFile:
    """Reads a whole file; every rule of the format that it breaks is an AssertionError."""
    raw = source if isinstance(source, bytes) else source.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    trace = Trace()
    trace.ParseFromString(raw)
    found = PerfettoFile(packets=len(trace.packet))
    sequences: dict[int, _Sequence] = {}
    open_slices: dict[int, list[Slice]] = {}
    for packet in trace.packet:
        number = packet.trusted_packet_sequence_id
        assert number > 0
        if packet.sequence_flags & CLEARED:
            assert packet.first_packet_on_sequence == (number not in sequences)
            sequences[number] = _Sequence()
        sequence = sequences[number]
        if packet.HasField("clock_snapshot"):
            _take_clocks(packet.clock_snapshot, sequence, found)
        if packet.HasField("trace_packet_defaults"):
            sequence.default_track = packet.trace_packet_defaults.track_event_defaults.track_uuid
            sequence.default_clock = packet.trace_packet_defaults.timestamp_clock_id
        for descriptor, entries in packet.interned_data.ListFields():
            known = sequence.texts.setdefault(descriptor.name, {})
            for entry in entries:
                assert entry.iid not in known, "a number is given out twice"
                known[entry.iid] = entry
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in found.tracks
            assert not track.parent_uuid or track.parent_uuid in found.tracks
            found.tracks[track.uuid] = track
        for entry in packet.chrome_events.metadata:
            assert entry.name not in found.metadata
            found.metadata[entry.name] = entry.string_value
        if packet.HasField("track_event"):
            assert packet.sequence_flags & NEEDED
            assert packet.HasField("timestamp")
            time_ns = _time(packet, sequence)
            _take_event(packet.track_event, time_ns, sequence, found, open_slices)
    assert not any(open_slices.values()), "a slice has no end"
    return found


def written(trace: kinetoscope.Trace, folder: Path, name: str = "trace.pftrace") -> PerfettoFile:
    """The file of a trace, read back."""
    write_perfetto(trace, folder / name)
    return read_perfetto(folder / name)


def _take_clocks(snapshot: ClockSnapshot, sequence: _Sequence, found: PerfettoFile) -> None:
    times = {clock.clock_id: clock.timestamp for clock in snapshot.clocks}
    found.clocks = found.clocks or times
    for clock in snapshot.clocks:
        if clock.clock_id >= 64:
            assert clock.is_incremental
            sequence.last_ns = clock.timestamp
            sequence.boottime_less[clock.clock_id] = times[BOOTTIME] - clock.timestamp


def _time(packet: TracePacket, sequence: _Sequence) -> int:
    clock = packet.timestamp_clock_id or sequence.default_clock
    sequence.last_ns += packet.timestamp
    return sequence.last_ns + sequence.boottime_less[clock]


def _take_event(
    event: TrackEvent,
    time_ns: int,
    sequence: _Sequence,
    found: PerfettoFile,
    open_slices: dict[int, list[Slice]],
) -> None:
    track = event.track_uuid or sequence.default_track
    descriptor = found.tracks[track]
    assert descriptor.HasField("counter") == (event.type == TrackEvent.TYPE_COUNTER)
    if event.type == TrackEvent.TYPE_COUNTER:
        value = event.counter_value if event.HasField("counter_value") else event.double_counter_value
        found.samples.setdefault(track, []).append((time_ns, value))
        return
    around = open_slices.setdefault(track, [])
    if event.type == TrackEvent.TYPE_SLICE_END:
        around.pop().end_ns = time_ns
        return
    one = Slice(
        track,
        sequence.texts["event_names"][event.name_iid].name,
        ",".join(sequence.texts["event_categories"][iid].name for iid in event.category_iids),
        time_ns,
        None,
        {},
        _location(event, sequence),
        [(number, False) for number in event.flow_ids]
        + [(number, True) for number in event.terminating_flow_ids],
        instant=event.type == TrackEvent.TYPE_INSTANT,
        depth=len(around),
    )
    for annotation in event.debug_annotations:
        name = sequence.texts["debug_annotation_names"][annotation.name_iid].name
        assert name not in one.args, f"{name} stands twice in {one.name}"
        one.args[name] = _value(annotation, sequence)
    found.slices.append(one)
    if one.instant:
        one.end_ns = time_ns
    else:
        around.append(one)


def _location(event: TrackEvent, sequence: _Sequence) -> tuple[str, str, int] | None:
    if not event.source_location_iid:
        return None
    place = sequence.texts["source_locations"][event.source_location_iid]
    return place.file_name, place.function_name, place.line_number


def _value(annotation: DebugAnnotation, sequence: _Sequence) -> Any:
    kind = annotation.WhichOneof("value")
    if kind == "string_value_iid":
        return sequence.texts["debug_annotation_string_values"][annotation.string_value_iid].str.decode()
    return getattr(annotation, kind)
