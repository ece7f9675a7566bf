#include "rows.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace kinetoscope {

uint64_t read_rows(Recording& recording, const ChunkList& chunks, const TickClock& clock,
                   uint64_t start_tick) {
  uint64_t last_tick = start_tick;
  for (const RecordChunk& chunk : chunks.rows) {
    std::span<const std::byte> rest(chunk.payload, chunk.records);
    while (!rest.empty()) {
      RowsHeader header{};
      if (rest.size() >= sizeof(header)) std::memcpy(&header, rest.data(), sizeof(header));
      const std::size_t bytes = bytes_of_rows(header);
      if (rest.size() < bytes || header.name_bytes == 0) {
        ++recording.losses.damaged_entries;
        break;
      }
      const auto* name = reinterpret_cast<const char*>(rest.data() + sizeof(header));
      recording.rows.push_back({.table = {name, header.name_bytes},
                                .session = chunk.thread,
                                .buffered = (header.flags & kRowsBuffered) != 0,
                                .time_ns = clock.to_ns(header.tick),
                                .rows = header.rows,
                                .json = {name + header.name_bytes, header.json_bytes}});
      last_tick = std::max(last_tick, header.tick);
      rest = rest.subspan(bytes);
    }
  }
  return last_tick;
}

}  // namespace kinetoscope
