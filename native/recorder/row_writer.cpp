#include "row_writer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "clock.h"
#include "maintenance_thread.h"

namespace kinetoscope {

bool RowWriter::make_room(uint64_t bytes) {
  const uint64_t share = file_->rows_bytes();
  if (bytes > share) return false;
  for (;;) {
    uint64_t used = 0;
    Table* largest = nullptr;
    for (auto& [name, table] : tables_) {
      used += table.bytes;
      if (!table.full.empty() && (largest == nullptr || table.bytes > largest->bytes)) largest = &table;
    }
    if (used + bytes <= share) return true;
    if (largest == nullptr) return false;
    ChunkHeader* oldest = largest->full.front();
    const uint64_t freed = uint64_t{oldest->units} * kUnitBytes;
    if (!file_->recycle_chunk(oldest)) return false;
    largest->full.pop_front();
    largest->bytes -= freed;
  }
}

std::byte* RowWriter::room_for(Table& table, uint32_t session, size_t bytes) {
  RecordingFile::Chunk& chunk = table.chunk;
  const bool same = chunk.header != nullptr && chunk.header->thread == session;
  if (!same || chunk.header->committed + bytes > chunk.payload_bytes) {
    const bool ring = file_->rows_bytes() != 0;
    // In a ring, chunks are as short as possible, so that few rows are overwritten at once.
    const size_t before_bytes = same && !ring ? chunk.payload_bytes : 0;
    if (chunk.header != nullptr) {
      file_->retire_chunk(chunk.header);
      if (ring) {
        table.full.push_back(chunk.header);
        // Without what was left of it.
        table.bytes -= sizeof(ChunkHeader) + chunk.payload_bytes - uint64_t{chunk.header->units} * kUnitBytes;
      }
    }
    chunk = {};
    const uint64_t units = (sizeof(ChunkHeader) + bytes + kUnitBytes - 1) / kUnitBytes;
    if (ring && !make_room(units * kUnitBytes)) return nullptr;
    chunk = file_->take_chunk(ChunkKind::Rows, session, before_bytes, bytes);
    maintenance_thread::wake();
    if (chunk.header == nullptr) return nullptr;
    table.bytes += chunk.payload_bytes + sizeof(ChunkHeader);
  }
  return reinterpret_cast<std::byte*>(chunk.header + 1) + chunk.header->committed;
}

void RowWriter::append(uint32_t session, std::string_view table, uint32_t rows, uint16_t flags,
                       std::string_view json) {
  RowsHeader header{.tick = read_tick(),
                    .rows = rows,
                    .json_bytes = static_cast<uint32_t>(json.size()),
                    .name_bytes = static_cast<uint16_t>(table.size()),
                    .flags = flags,
                    .reserved = 0};
  const bool fits = table.size() <= std::numeric_limits<uint16_t>::max() && json.size() <= kMostRowsBytes;
  const size_t bytes = bytes_of_rows(header);
  auto at = tables_.find(table);
  if (fits && at == tables_.end()) at = tables_.emplace(table, Table{}).first;
  std::byte* room = fits ? room_for(at->second, session, bytes) : nullptr;
  if (room == nullptr) {
    file_->count_dropped(ChunkKind::Rows, rows);
    return;
  }
  std::memcpy(room, &header, sizeof(header));
  room = std::copy_n(reinterpret_cast<const std::byte*>(table.data()), table.size(), room + sizeof(header));
  std::copy_n(reinterpret_cast<const std::byte*>(json.data()), json.size(), room);
  ChunkHeader* chunk = at->second.chunk.header;
  std::atomic_ref(chunk->committed).store(chunk->committed + bytes, std::memory_order_release);
}

}  // namespace kinetoscope
