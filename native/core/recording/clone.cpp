#include "clone.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "chunks.h"
#include "format.h"
#include "mapped_file.h"
#include "reader.h"

namespace kinetoscope {
namespace {

constexpr int kMostMappings = 10, kMostCopies = 10;
// How often to wait for a chunk that is being freed, whose writer may be waiting for this processor.
constexpr int kMostFreed = 100;
constexpr std::chrono::microseconds kBeingFreed{50};
// A recording of at most this size, and any ring, is copied before it is written.
constexpr std::size_t kMostHeldBytes = std::size_t{64} << 20;

struct Snapshot {
  FileHeader header{};
  std::vector<FoundChunk> chunks;  // that have records, and are counted in the header
  bool settled = false;            // header and chunks are from one moment
  bool longer_than_file = false;
};

// The header, and the headers of all chunks in use.
Snapshot snapshot_of(std::span<const std::byte> file) {
  ChunkWalk walk = walk_chunks(file);
  for (int more = 0; more < kMostFreed && walk.one_too_many; ++more) {
    std::this_thread::sleep_for(kBeingFreed);
    walk = walk_chunks(file);
  }
  // A chunk that is just being handed out is still empty.
  std::erase_if(walk.chunks, [&header = walk.header](const FoundChunk& found) {
    const bool handed_out = header.version < 4 || found.header.order <= header.orders;
    return bytes_of_record(found.header.kind, header.version) == 0 || !handed_out;
  });
  return {.header = walk.header,
          .chunks = std::move(walk.chunks),
          .settled = walk.settled && !walk.one_too_many,
          .longer_than_file = walk.units_beyond_file != 0};
}

// Whether a span in the file still equals its copy, apart from its end.
bool is_unchanged(const std::byte* in_file, const std::byte* copy, SpanRecord) {
  auto now = load_shared<SpanRecord>(in_file), then = load_shared<SpanRecord>(copy);
  now.end_tick = then.end_tick;
  now.flags = then.flags;
  return std::memcmp(&now, &then, sizeof(now)) == 0;
}
bool is_unchanged(const std::byte* in_file, const std::byte* copy, CompactSpan) {
  const auto now = load_shared<CompactSpan>(in_file), then = load_shared<CompactSpan>(copy);
  return now.start_tick() == then.start_tick() && now.site == then.site &&
         now.sequence_low == then.sequence_low;
}

// How many of the first `count` spans are unchanged: a short call may have been removed, and another one
// written in its place.
template <typename Record>
std::size_t unchanged_spans(const std::byte* in_file, const std::byte* copy, std::size_t count) {
  std::size_t at = 0;
  while (at < count && is_unchanged(in_file + at * sizeof(Record), copy + at * sizeof(Record), Record{}))
    ++at;
  return at;
}

uint64_t& recycled_of(FileHeader& header, ChunkKind kind) {
  switch (kind) {
    case ChunkKind::Spans:
      return header.recycled_spans;
    case ChunkKind::Notes:
      return header.recycled_notes;
    case ChunkKind::Samples:
      return header.recycled_samples;
    default:
      return header.recycled_allocations;
  }
}

// What of a chunk is committed.
struct CopiedChunk {
  ChunkHeader header;
  std::vector<std::byte> payload;
  std::size_t units;
  bool there = false;         // it was not used for another one meanwhile
  bool missing_some = false;  // the file was cut short, or the number of records is none
};

CopiedChunk copy_of(const FoundChunk& found, const FileHeader& file) {
  const std::size_t unit_bytes = file.chunk_bytes;
  const std::size_t record = bytes_of_record(found.header.kind, file.version);
  const std::size_t capacity = std::min(found.units * unit_bytes, found.present) - sizeof(ChunkHeader);
  CopiedChunk copy{.header = found.header, .payload = {}, .units = found.units};
  ChunkHeader& header = copy.header;
  // What records name was written before them, but maybe after this chunk was found.
  if (header.kind == static_cast<uint32_t>(ChunkKind::Dictionary))
    header.committed = std::max(header.committed, load_shared<ChunkHeader>(found.bytes).committed);
  const std::size_t records = std::min<std::size_t>(header.committed, capacity / record);
  const std::byte* in_file = found.bytes + sizeof(ChunkHeader);
  copy.payload.assign(in_file, in_file + records * record);
  std::size_t kept = records;
  // A finished chunk has its checksum, and is copied unchanged, with any damage.
  const bool finished = header.checksum != 0;
  if (header.kind == static_cast<uint32_t>(ChunkKind::Spans) && !finished)
    kept = file.version < 7 ? unchanged_spans<SpanRecord>(in_file, copy.payload.data(), records)
                            : unchanged_spans<CompactSpan>(in_file, copy.payload.data(), records);
  copy.there = is_still_there(found.bytes, header.kind, header.order);
  copy.missing_some = records < header.committed;
  if (finished || !copy.there) return copy;
  copy.payload.resize(kept * record);
  header.committed = kept;
  if (header.units != 0) {
    copy.units = (sizeof(ChunkHeader) + copy.payload.size() + unit_bytes - 1) / unit_bytes;
    header.units = static_cast<uint32_t>(copy.units);
  }
  header.checksum = chunk_checksum(header, copy.payload.data(), copy.payload.size());
  return copy;
}

class Cloning {
 public:
  Cloning(const FileHeader& header, const std::string& target)
      : header_(header), file_(std::fopen(target.c_str(), "wbx"), &std::fclose) {
    if (file_ == nullptr) fail();
    const std::vector<std::byte> room(kHeaderBytes);
    write(room.data(), room.size());
  }

  // Writes a chunk, or counts it as overwritten.
  void add(CopiedChunk chunk) {
    const auto kind = static_cast<ChunkKind>(chunk.header.kind);
    if (!chunk.there) {
      left_out_[chunk.header.kind] = true;
      ++header_.recycled_chunks;
      if (kind != ChunkKind::Dictionary && kind != ChunkKind::Rows)
        recycled_of(header_, kind) += chunk.header.committed;
      return;
    }
    // Then one chunk more is counted as missing.
    header_.orders += chunk.missing_some;
    see_ticks(kind, chunk.payload);
    chain_ = chain(chain_, chunk.header);
    chunk.payload.resize(chunk.units * header_.chunk_bytes - sizeof(ChunkHeader));
    write(&chunk.header, sizeof(chunk.header));
    write(chunk.payload.data(), chunk.payload.size());
    units_ += chunk.units;
  }

  // Ends the file. `now` is the header of the source after all was copied.
  void finish(const FileHeader& now) {
    for (std::size_t kind = 0; kind < kChunkKinds; ++kind) {
      if (left_out_[kind]) header_.recycled_until[kind] = now.recycled_until[kind];
    }
    // The number of records in a chunk is known from the chunk.
    if (left_out_[static_cast<std::size_t>(ChunkKind::Rows)]) header_.recycled_rows = now.recycled_rows;
    // Without a ring, chunks that nobody needs any more are freed, which is not a loss.
    header_.recycled_spans = std::min(header_.recycled_spans, now.recycled_spans);
    header_.recycled_allocations = std::min(header_.recycled_allocations, now.recycled_allocations);
    header_.recycled_notes = std::min(header_.recycled_notes, now.recycled_notes);
    header_.recycled_samples = std::min(header_.recycled_samples, now.recycled_samples);
    const std::size_t pairs = std::min(header_.clock_pairs, kMaxClockPairs);
    for (std::size_t pair = 0; pair < pairs; ++pair)
      last_tick_ = std::max(last_tick_, header_.pairs[pair].tick);
    // After the last record began: a record that begins at the stop is not part of a recording.
    if (header_.stop_tick == 0) header_.stop_tick = last_tick_ + 1;
    header_.state = static_cast<uint32_t>(FileState::Stopped);
    // Missing chunks can only be detected in a file with chunks.
    header_.chunks = std::max<uint64_t>(units_, header_.orders > header_.recycled_chunks ? 1 : 0);
    header_.chain = header_.version >= 4 ? chain_ : 0;
    header_.checksum = 0;
    header_.checksum = header_checksum(header_);
    if (std::fseek(file_.get(), 0, SEEK_SET) != 0) fail();
    write(&header_, sizeof(header_));
    std::FILE* file = file_.release();
    if (std::fclose(file) != 0) fail();
  }

 private:
  [[noreturn]] static void fail() { throw std::system_error(errno, std::generic_category()); }

  void write(const void* bytes, std::size_t size) {
    if (std::fwrite(bytes, 1, size, file_.get()) != size) fail();
  }

  void see_ticks(ChunkKind kind, std::span<const std::byte> payload) {
    if (kind == ChunkKind::Dictionary || kind == ChunkKind::Rows) return;
    const std::size_t bytes = bytes_of_record(static_cast<uint32_t>(kind), header_.version);
    for (std::size_t at = 0; at + bytes <= payload.size(); at += bytes) {
      const std::byte* record = payload.data() + at;
      uint64_t ticks[2];
      std::memcpy(ticks, record, sizeof(ticks));
      if (kind == ChunkKind::Spans && header_.version >= 7) {
        const auto span = load_shared<CompactSpan>(record);
        ticks[0] = span.start_tick();
        ticks[1] = span.end_tick();
      }
      last_tick_ = std::max(last_tick_, ticks[0]);
      if (kind == ChunkKind::Spans) last_tick_ = std::max(last_tick_, ticks[1]);
    }
  }

  FileHeader header_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  bool left_out_[kChunkKinds] = {};
  uint64_t last_tick_ = 0, chain_ = 0, units_ = 0;
};

}  // namespace

void clone_recording(const std::string& source, const std::string& target) {
  auto file = std::make_unique<MappedFile>(source);
  Snapshot seen;
  const auto look = [&] {
    seen = snapshot_of(file->bytes());
    // It grows before its chunks are handed out; what stays missing was cut off.
    for (int more = 0; more < kMostMappings && seen.longer_than_file; ++more) {
      file = std::make_unique<MappedFile>(source);
      seen = snapshot_of(file->bytes());
    }
  };
  look();
  // All chunks of a ring are copied before any is written: that is faster than the ring goes round, unless
  // this thread has to wait for a processor.
  std::vector<CopiedChunk> copies;
  const bool hold = seen.header.recycled_chunks != 0 || file->bytes().size() <= kMostHeldBytes;
  for (int more = 0; hold && more < kMostCopies; ++more) {
    if (more != 0) look();
    copies.clear();
    for (const FoundChunk& chunk : seen.chunks) copies.push_back(copy_of(chunk, seen.header));
    const auto there = std::count_if(copies.begin(), copies.end(), std::mem_fn(&CopiedChunk::there));
    // Or names may be in chunks that have come since.
    if (read_header(file->bytes()).dictionary_collections != seen.header.dictionary_collections) continue;
    if (static_cast<std::size_t>(there) * 4 >= copies.size() * 3) break;
  }
  // Chunks were handed out at every attempt: those that were not found are not missing.
  if (!seen.settled && seen.header.orders > seen.chunks.size())
    seen.header.recycled_chunks =
        std::max(seen.header.recycled_chunks, seen.header.orders - seen.chunks.size());
  Cloning cloning(seen.header, target);
  for (CopiedChunk& chunk : copies) cloning.add(std::move(chunk));
  if (!hold) {
    for (const FoundChunk& chunk : seen.chunks) cloning.add(copy_of(chunk, seen.header));
  }
  cloning.finish(read_header(file->bytes()));
  if (file->file_lost()) throw RefusedRecording("another program truncated the file while it was read");
}

}  // namespace kinetoscope
