// The tracks of a Perfetto trace, and its first packets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "protobuf_buffer.h"

namespace kinetoscope {

// A track of slices, of a counter, or of others.
struct PerfettoTrack {
  enum class Kind : uint8_t { Process, Thread, Group, Counter };

  Kind kind;
  std::string name;
  int32_t parent = -1;              // row of tracks, above this one
  int64_t process = 0, thread = 0;  // the ids of processes and threads
  int32_t order = -1;               // among its siblings, if they have an order
  std::string unit;                 // of a counter
  std::string note;                 // a description for the user
};

// The number of a track in the file. Files that are merged need different identities.
inline uint64_t track_uuid(uint64_t identity, std::size_t track) { return identity + 1 + track; }

// Appends the packets that describe tracks. Throws BadColumns where a parent does not come before its child.
void write_tracks(std::span<const PerfettoTrack> tracks, uint64_t identity, uint32_t sequence,
                  ProtobufBuffer& out);

// Appends the first packet of the file: its time 0, with the wall-clock time if `realtime_ns` is not 0.
void write_clocks(int64_t realtime_ns, uint32_t sequence, ProtobufBuffer& out);

// Appends the metadata of the run, as names and texts.
void write_metadata(std::span<const std::pair<std::string, std::string>> metadata, uint32_t sequence,
                    ProtobufBuffer& out);

// Appends the first packet of a sequence with a clock that counts from packet to packet, and with a default
// track for its events.
void write_sequence_start(uint64_t track_uuid, uint32_t sequence, ProtobufBuffer& out);

}  // namespace kinetoscope
