// Appends rows of named tables to a recording, for sources outside of the hot path, such as counters and
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

// Each chunk has rows of one table. In a ring all tables share RecordingFile::rows_bytes(): if these are
// full, the oldest rows of the largest table are overwritten, so that no table can displace another one.
class RowWriter {
 public:
  explicit RowWriter(std::shared_ptr<RecordingFile> file) : file_(std::move(file)) {}

  // [one thread at a time] Writes rows of a table; if there is no space for all, none is written, and they
  // are counted as lost. `json` has them as columns, see RowsHeader. `flags` is a set of RowsFlag.
  void append(uint32_t session, std::string_view table, uint32_t rows, uint16_t flags, std::string_view json);

 private:
  struct Table {
    // Of the session that wrote last: one that writes after another one begins a chunk.
    RecordingFile::Chunk chunk;
    // Of a ring.
    std::deque<ChunkHeader*> full;
    uint64_t bytes = 0;  // of all its chunks
  };

  // Space for that many bytes of a session; nullptr if there is none.
  std::byte* room_for(Table& table, uint32_t session, size_t bytes);
  // In a ring: overwrites the oldest rows until there is space for a chunk of that many bytes. False if that
  // fails.
  bool make_room(uint64_t bytes);

  std::shared_ptr<RecordingFile> file_;
  std::map<std::string, Table, std::less<>> tables_;
};

}  // namespace kinetoscope
