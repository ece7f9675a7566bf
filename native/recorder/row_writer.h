// Appends rows of named tables to a recording, for sources that are no part of the hot path: counters,
// pauses.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "recording_file.h"

namespace kinetoscope {

// Each chunk has rows of one table. In a ring they share RecordingFile::rows_bytes(): when these are full,
// the oldest rows of the table that has most are overwritten, so that no table can push out another one.
class RowWriter {
 public:
  explicit RowWriter(std::shared_ptr<RecordingFile> file) : file_(std::move(file)) {}

  // [one thread at a time] Writes rows of a table at once, whole or, where there is no room, not at all,
  // which is counted in the file. `json` has them as columns, see RowsHeader. `flags` is a set of RowsFlag.
  void append(uint32_t session, std::string_view table, uint32_t rows, uint16_t flags, std::string_view json);

 private:
  struct Table {
    // Of the session that wrote last: one that writes after another one begins a chunk.
    RecordingFile::Chunk chunk;
    // Of a ring.
    std::deque<ChunkHeader*> full;
    uint64_t bytes = 0;  // of all its chunks
  };

  // Where that many bytes of a session can be written; nullptr if there is no room.
  std::byte* room_for(Table& table, uint32_t session, size_t bytes);
  // Of a ring: overwrites the oldest rows until a chunk of that many bytes finds room. False if it cannot.
  bool make_room(uint64_t bytes);

  std::shared_ptr<RecordingFile> file_;
  std::map<std::string, Table, std::less<>> tables_;
};

}  // namespace kinetoscope
