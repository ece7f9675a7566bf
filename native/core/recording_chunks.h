// Finds the chunks of a recording file and what in them is whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "recording_format.h"

namespace kinetoscope {

// Whole records of one thread's chunk.
struct RecordChunk {
  uint32_t thread;
  uint64_t order;
  const std::byte* payload;
  std::size_t records;
};

struct ChunkList {
  std::vector<RecordChunk> spans, allocations;         // by (thread, order)
  std::vector<std::span<const std::byte>> dictionary;  // by order; committed bytes
  uint64_t damaged = 0;
  uint64_t missing_records = 0;  // committed, but beyond the chunk's or the file's end
};

// A copy of the file's header. Throws RefusedRecording.
FileHeader read_header(std::span<const std::byte> file);

// All chunks that were handed out and lie within the file, at least in part.
ChunkList list_chunks(std::span<const std::byte> file, const FileHeader& header);

}  // namespace kinetoscope
