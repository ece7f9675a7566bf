#include "tracks.h"

#include "../spans/nesting.h"
#include "fields.h"
#include "texts.h"

namespace kinetoscope {
namespace {

namespace field = perfetto;

void add_clock(uint64_t id, uint64_t time_ns, bool incremental, ProtobufBuffer& snapshot) {
  ProtobufBuffer clock;
  clock.number(field::clock_snapshot::kClockId, id);
  clock.number(field::clock_snapshot::kTimestamp, time_ns);
  if (incremental) clock.number(field::clock_snapshot::kIsIncremental, 1);
  snapshot.message(field::clock_snapshot::kClock, clock);
}

void add_process(const PerfettoTrack& track, ProtobufBuffer& descriptor) {
  ProtobufBuffer process;
  process.number(field::track::kProcessPid, static_cast<uint64_t>(track.process));
  process.bytes(field::track::kProcessName, strict_utf8(track.name));
  descriptor.message(field::track::kProcess, process);
}

void add_thread(const PerfettoTrack& track, ProtobufBuffer& descriptor) {
  ProtobufBuffer thread;
  thread.number(field::track::kThreadPid, static_cast<uint64_t>(track.process));
  thread.number(field::track::kThreadTid, static_cast<uint64_t>(track.thread));
  if (track.order >= 0) thread.number(field::track::kThreadSortIndex, static_cast<uint64_t>(track.order));
  thread.bytes(field::track::kThreadName, strict_utf8(track.name));
  descriptor.message(field::track::kThread, thread);
}

void add_counter(const PerfettoTrack& track, ProtobufBuffer& descriptor) {
  ProtobufBuffer counter;
  if (track.unit == "bytes") {
    counter.number(field::track::kCounterUnit, field::track::kBytesUnit);
  } else if (!track.unit.empty()) {
    counter.bytes(field::track::kCounterUnitName, strict_utf8(track.unit));
  }
  descriptor.message(field::track::kCounter, counter);
}

}  // namespace

void write_tracks(std::span<const PerfettoTrack> tracks, uint64_t identity, uint32_t sequence,
                  ProtobufBuffer& out) {
  ProtobufBuffer packet, descriptor;
  for (std::size_t row = 0; row < tracks.size(); ++row) {
    const PerfettoTrack& track = tracks[row];
    descriptor.clear();
    descriptor.number(field::track::kUuid, track_uuid(identity, row));
    if (track.parent >= 0) {
      const auto parent = static_cast<std::size_t>(track.parent);
      if (parent >= row)
        throw BadColumns("PerfettoWriter: track " + std::to_string(row) + " comes before its parent");
      descriptor.number(field::track::kParentUuid, track_uuid(identity, parent));
    }
    if (track.kind == PerfettoTrack::Kind::Process) {
      add_process(track, descriptor);
    } else if (track.kind == PerfettoTrack::Kind::Thread) {
      add_thread(track, descriptor);
    } else {
      descriptor.bytes(field::track::kName, strict_utf8(track.name));
      if (track.order >= 0)
        descriptor.number(field::track::kSiblingOrder, static_cast<uint64_t>(track.order));
      if (track.kind == PerfettoTrack::Kind::Counter) add_counter(track, descriptor);
    }
    descriptor.number(field::track::kChildOrdering, field::track::kExplicitOrder);
    if (!track.note.empty()) descriptor.bytes(field::track::kDescription, strict_utf8(track.note));
    packet.clear();
    packet.number(field::packet::kSequenceId, sequence);
    packet.message(field::packet::kTrackDescriptor, descriptor);
    out.message(field::kTracePacket, packet);
  }
}

void write_clocks(int64_t realtime_ns, uint32_t sequence, ProtobufBuffer& out) {
  ProtobufBuffer snapshot, packet;
  // The boot time is unknown: for the viewer, the machine was started when the trace begins.
  add_clock(field::clock_snapshot::kBoottime, 0, false, snapshot);
  if (realtime_ns > 0)
    add_clock(field::clock_snapshot::kRealtime, static_cast<uint64_t>(realtime_ns), false, snapshot);
  packet.message(field::packet::kClockSnapshot, snapshot);
  packet.number(field::packet::kSequenceId, sequence);
  packet.number(field::packet::kSequenceFlags, field::packet::kStateCleared);
  packet.number(field::packet::kFirstOnSequence, 1);
  out.message(field::kTracePacket, packet);
}

void write_metadata(std::span<const std::pair<std::string, std::string>> metadata, uint32_t sequence,
                    ProtobufBuffer& out) {
  if (metadata.empty()) return;
  ProtobufBuffer entry, events, packet;
  for (const auto& [name, text] : metadata) {
    entry.clear();
    entry.bytes(field::metadata::kName, strict_utf8(name));
    entry.bytes(field::metadata::kText, strict_utf8(text));
    events.message(field::metadata::kEntry, entry);
  }
  packet.message(field::packet::kChromeEvents, events);
  packet.number(field::packet::kSequenceId, sequence);
  out.message(field::kTracePacket, packet);
}

void write_sequence_start(uint64_t track_uuid, uint32_t sequence, ProtobufBuffer& out) {
  ProtobufBuffer snapshot, event_defaults, defaults, packet;
  add_clock(field::clock_snapshot::kOfSequence, 0, true, snapshot);
  add_clock(field::clock_snapshot::kBoottime, 0, false, snapshot);
  event_defaults.number(field::defaults::kTrackUuid, track_uuid);
  defaults.number(field::defaults::kClockId, field::clock_snapshot::kOfSequence);
  defaults.message(field::defaults::kTrackEvent, event_defaults);
  packet.message(field::packet::kClockSnapshot, snapshot);
  packet.message(field::packet::kDefaults, defaults);
  packet.number(field::packet::kSequenceId, sequence);
  packet.number(field::packet::kSequenceFlags, field::packet::kStateCleared);
  packet.number(field::packet::kFirstOnSequence, 1);
  out.message(field::kTracePacket, packet);
}

}  // namespace kinetoscope
