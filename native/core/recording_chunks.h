// Finds the chunks of a recording file and what in them is whole.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <type_traits>
#include <vector>

#include "recording_format.h"

namespace kinetoscope {

// Copies what a running recorder may be writing, word by word: each word is whole, and what it publishes (a
// count of records, say) is visible to later loads.
template <typename T>
T load_shared(const std::byte* bytes) {
  static_assert(sizeof(T) % sizeof(uint64_t) == 0 && std::is_trivially_copyable_v<T>);
  uint64_t words[sizeof(T) / sizeof(uint64_t)];
  for (std::size_t at = 0; at < std::size(words); ++at) {
    __atomic_load(reinterpret_cast<const uint64_t*>(bytes) + at, &words[at], __ATOMIC_ACQUIRE);
  }
  return std::bit_cast<T>(words);
}

// Whole records of a chunk; `thread` is 0 in chunks of the whole process.
struct RecordChunk {
  uint32_t thread;
  uint64_t order;
  const std::byte* payload;
  std::size_t records;
};

struct ChunkList {
  std::vector<RecordChunk> spans, allocations, notes, samples;  // by (thread, order)
  std::vector<std::span<const std::byte>> dictionary;           // by order; committed bytes
  uint64_t damaged = 0;          // chunks that are not there, or not as they were written
  uint64_t missing_records = 0;  // committed, but beyond the chunk's or the file's end
};

// A copy of the file's header. Throws RefusedRecording.
FileHeader read_header(std::span<const std::byte> file);

// All chunks that were handed out and lie within the file, at least in part.
ChunkList list_chunks(std::span<const std::byte> file, const FileHeader& header);

}  // namespace kinetoscope
