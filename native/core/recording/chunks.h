// Finds the chunks of a recording file, and their complete records.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <span>
#include <type_traits>
#include <vector>

#include "format.h"

namespace kinetoscope {

// Copies memory that a running recorder may be writing, word by word: each word is consistent, and what it
// publishes, such as a number of records, is visible to later loads.
template <typename T>
T load_shared(const std::byte* bytes) {
  static_assert(sizeof(T) % sizeof(uint64_t) == 0 && std::is_trivially_copyable_v<T>);
  uint64_t words[sizeof(T) / sizeof(uint64_t)];
  for (std::size_t at = 0; at < std::size(words); ++at) {
    __atomic_load(reinterpret_cast<const uint64_t*>(bytes) + at, &words[at], __ATOMIC_ACQUIRE);
  }
  return std::bit_cast<T>(words);
}

// Whether the chunk at `bytes` is still the one of this kind and order: a ring may have freed it or reused
// its space. If it is, everything that was copied from it before is valid.
bool is_still_there(const std::byte* bytes, uint32_t kind, uint64_t order);

// Complete records of a chunk, or bytes of Rows; `thread` is 0 in chunks of the whole process, and the
// session in Rows.
struct RecordChunk {
  uint32_t thread;
  uint64_t order;
  const std::byte* payload;
  std::size_t records;
  uint32_t version;  // of the format
};

// The tick at which a span began, by where its record is.
inline uint64_t start_tick_of(const std::byte* record, uint32_t version) {
  uint64_t start;
  std::memcpy(&start, record, sizeof(start));
  return version < 7 ? start
                     : CompactSpan{.start = start, .end = 0, .site = 0, .sequence_low = 0}.start_tick();
}

// A live span, in registers: words that are stored one by one and then loaded together wait for each other.
inline CompactSpan load_compact(const std::byte* bytes) {
  const auto word = [bytes](std::size_t at) {
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(bytes) + at, __ATOMIC_ACQUIRE);
  };
  const uint64_t start = word(0), end = word(1), rest = word(2);
  static_assert(std::endian::native == std::endian::little && offsetof(CompactSpan, sequence_low) == 20);
  return {.start = start,
          .end = end,
          .site = static_cast<uint32_t>(rest),
          .sequence_low = static_cast<uint32_t>(rest >> 32)};
}

// The span in a row of a chunk of spans, by the `sites` of the dictionary. A live span may end while it is
// read. One whose site found no room in the dictionary has an unknown name; one whose site is missing, none.
inline SpanRecord load_span(const RecordChunk& chunk, std::size_t row, std::span<const SpanSite> sites) {
  if (chunk.version < 7) return load_shared<SpanRecord>(chunk.payload + row * sizeof(SpanRecord));
  const CompactSpan span = load_compact(chunk.payload + row * sizeof(CompactSpan));
  // Every site has a name.
  if (span.site - 1u < sites.size() && sites[span.site - 1u].name != 0)
    return span_at(span, sites[span.site - 1u]);
  SpanRecord record = span_at(span, SpanSite{});
  record.sequence = -1;
  if (span.site == kUnknownId) record.name = record.stack = record.shapes = kUnknownId;
  if ((span.flags() & kSpanIsCall) != 0) record.scope = kScopePython;
  return record;
}

struct ChunkList {
  std::vector<RecordChunk> spans, allocations, notes, samples, rows;  // by (thread, order)
  std::vector<std::span<const std::byte>> dictionary;                 // by order; committed bytes
  std::vector<std::vector<std::byte>> copies;                         // memory that texts of a ring refer to
  uint64_t damaged = 0;                                               // missing or damaged chunks
  uint64_t missing_records = 0;  // committed, but beyond the chunk's or the file's end
};

// The state of a recording, without reading its contents.
struct RecordingProgress {
  bool stopped = false;
  uint32_t process = 0;
  // Changes whenever records or dictionary entries are added or lost; not with clock readings, or when an
  // open span ends.
  uint64_t position = 0;
};

// A copy of the file's header. Throws RefusedRecording.
FileHeader read_header(std::span<const std::byte> file);

// A chunk that was handed out, or freed.
struct FoundChunk {
  const std::byte* bytes;  // where it begins in the file
  std::size_t present;     // how many bytes of the file there are from there
  ChunkHeader header;      // as it was when it was found
  std::size_t units;
};

// The headers of all chunks in a file.
struct ChunkWalk {
  FileHeader header{};
  std::vector<FoundChunk> chunks;  // in the order of the file, freed ones, too
  uint64_t units = 0;              // how many are in use and in the file
  uint64_t units_beyond_file = 0;  // the file has grown since it was mapped, or was cut short
  uint64_t holes = 0;              // gaps without a header that can be read
  // Nothing was handed out or freed during the walk. Otherwise a chunk may be none any more, and a gap may be
  // none.
  bool settled = false;
  // A chunk is just being freed: it is counted as freed before it is.
  bool one_too_many = false;
};

// Walks over a file that may be written meanwhile, again and again until a walk has `settled`, or there were
// very many.
ChunkWalk walk_chunks(std::span<const std::byte> file);

// Whether to read a chunk, by its header and its complete records, which are not checked yet.
using ChunkFilter =
    std::function<bool(const ChunkHeader& chunk, const std::byte* payload, std::size_t records)>;

// All chunks that were handed out and lie within the file, at least in part. Chunks of a running ring are
// copied, without those that were overwritten meanwhile. With a filter, only the selected ones; others are
// not read. Ids are dense, even if the dictionary was collected; two calls for a running recording may assign
// different ids to the same text.
ChunkList list_chunks(std::span<const std::byte> file, const FileHeader& header,
                      const ChunkFilter& wanted = nullptr);

// Reads the headers only. The file may be growing meanwhile. Throws RefusedRecording.
RecordingProgress progress_of(std::span<const std::byte> file);

}  // namespace kinetoscope
