#include "chunks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "dense_ids.h"
#include "reader.h"

namespace kinetoscope {
namespace {

constexpr uint32_t kLeastChunkBytes = 2 * sizeof(ChunkHeader);
constexpr uint32_t kMostChunkBytes = uint32_t{1} << 30;

uint64_t chunks_in_file(std::span<const std::byte> file, const FileHeader& header, uint64_t handed_out) {
  if (file.size() <= kHeaderBytes) return 0;
  const uint64_t room = file.size() - kHeaderBytes;
  return std::min<uint64_t>(handed_out, (room + header.chunk_bytes - 1) / header.chunk_bytes);
}

// How many of the chunks that were handed out are neither among those found in the file, with these `orders`,
// nor freed by a ring; never more than there are `units`.
uint64_t missing_chunks(std::span<const std::byte> file, const FileHeader& header,
                        std::vector<uint64_t> orders, uint64_t units) {
  if (header.version < 4) return 0;
  std::sort(orders.begin(), orders.end());
  orders.erase(std::unique(orders.begin(), orders.end()), orders.end());
  // Chunks above were handed out while the file was read.
  const auto found =
      static_cast<uint64_t>(std::upper_bound(orders.begin(), orders.end(), header.orders) - orders.begin());
  // Read again, for the same reason: chunks that were freed meanwhile are not missing.
  const uint64_t there =
      found + std::max(header.recycled_chunks, load_shared<FileHeader>(file.data()).recycled_chunks);
  return std::min(header.orders - std::min(header.orders, there), units);
}

// How many of the `committed` units of `unit_bytes` lie within the chunk and the file.
std::size_t whole_units(uint64_t committed, std::size_t unit_bytes, std::size_t capacity_bytes,
                        std::size_t present_bytes, ChunkList& list) {
  const std::size_t there = std::min(capacity_bytes, present_bytes) / unit_bytes;
  if (committed <= there) return static_cast<std::size_t>(committed);
  ++list.damaged;
  // A counter above the capacity is damaged, so that the number of missing records is unknown.
  if (unit_bytes > 1 && committed <= capacity_bytes / unit_bytes) list.missing_records += committed - there;
  return there;
}

std::vector<RecordChunk>& records_of(ChunkList& list, ChunkKind kind) {
  switch (kind) {
    case ChunkKind::Spans:
      return list.spans;
    case ChunkKind::Allocations:
      return list.allocations;
    case ChunkKind::Samples:
      return list.samples;
    case ChunkKind::Rows:
      return list.rows;
    default:
      return list.notes;
  }
}

// Copies chunks of a recording in progress that may be used for others at any moment, and leaves out those
// that were.
void copy_all(std::vector<RecordChunk>& chunks, ChunkKind kind, ChunkList& list) {
  const auto number = static_cast<uint32_t>(kind);
  std::erase_if(chunks, [&list, number](RecordChunk& chunk) {
    const std::byte* payload = chunk.payload;
    const std::size_t bytes = chunk.records * bytes_of_record(number, chunk.version);
    std::vector<std::byte> copy(payload, payload + bytes);
    if (!is_still_there(payload - sizeof(ChunkHeader), number, chunk.order)) return true;
    chunk.payload = list.copies.emplace_back(std::move(copy)).data();
    return false;
  });
}

void copy_records(ChunkList& list) {
  copy_all(list.spans, ChunkKind::Spans, list);
  copy_all(list.allocations, ChunkKind::Allocations, list);
  copy_all(list.notes, ChunkKind::Notes, list);
  copy_all(list.samples, ChunkKind::Samples, list);
  copy_all(list.rows, ChunkKind::Rows, list);
}

// How many collections of the dictionary have begun to free its chunks; 0 in earlier versions, whose headers
// have something else there, or nothing.
uint64_t collections_in(const FileHeader& header) {
  return header.version < 7 ? 0 : header.dictionary_collections;
}

}  // namespace

bool is_still_there(const std::byte* bytes, uint32_t kind, uint64_t order) {
  std::atomic_thread_fence(std::memory_order_acquire);
  const auto header = load_shared<ChunkHeader>(bytes);
  return header.magic == kChunkMagic && header.kind == kind && header.order == order;
}

FileHeader read_header(std::span<const std::byte> file) {
  if (file.size() < sizeof(kMagic) || std::memcmp(file.data(), kMagic, sizeof(kMagic)) != 0) {
    throw RefusedRecording("not a Kinetoscope recording: the file begins with other bytes");
  }
  if (file.size() < sizeof(FileHeader)) {
    throw RefusedRecording("the recording ends inside its header, after " + std::to_string(file.size()) +
                           " of " + std::to_string(sizeof(FileHeader)) + " bytes");
  }
  auto header = load_shared<FileHeader>(file.data());
  // The checksum is written last: words that were loaded before it may be older.
  if (header.checksum != 0) header = load_shared<FileHeader>(file.data());
  if (header.version < 1 || header.version > kVersion) {
    throw RefusedRecording("the recording has version " + std::to_string(header.version) +
                           " of the format; this release reads versions 1 to " + std::to_string(kVersion));
  }
  if (header.chunk_bytes < kLeastChunkBytes || header.chunk_bytes > kMostChunkBytes ||
      header.chunk_bytes % sizeof(ChunkHeader) != 0) {
    throw RefusedRecording("the recording has a chunk size of " + std::to_string(header.chunk_bytes) +
                           " bytes; its header is damaged");
  }
  return header;
}

std::size_t used_bytes(std::span<const std::byte> file) {
  const FileHeader header = read_header(file);
  const uint64_t used = kHeaderBytes + chunks_in_file(file, header, header.chunks) * header.chunk_bytes;
  return static_cast<std::size_t>(std::min<uint64_t>(used, file.size()));
}

RecordingProgress progress_of(std::span<const std::byte> file) {
  FileHeader header = read_header(file);
  RecordingProgress progress{.stopped = header.state == static_cast<uint32_t>(FileState::Stopped),
                             .process = header.process};
  header.clock_pairs = 0;
  std::fill(std::begin(header.pairs), std::end(header.pairs), ClockPair{});
  progress.position = checksum_of(&header, sizeof(header));
  const uint64_t chunks = chunks_in_file(file, header, header.chunks);
  uint64_t units = 1;
  for (uint64_t at = 0; at < chunks; at += units) {
    const auto rest = file.subspan(kHeaderBytes + static_cast<std::size_t>(at) * header.chunk_bytes);
    if (rest.size() < sizeof(ChunkHeader)) break;
    const auto chunk = load_shared<ChunkHeader>(rest.data());
    const uint64_t parts[] = {progress.position, checksum_of(&chunk, sizeof(chunk))};
    progress.position = checksum_of(parts, sizeof(parts));
    units = chunk.magic == kChunkMagic ? std::max<uint64_t>(chunk.units, 1) : 1;
  }
  return progress;
}

namespace {

// A walk over the headers of a ring takes some microseconds, and chunks are handed out less often. Unless a
// writer has to wait for a processor in the middle of that, a few walks are enough.
constexpr int kMostWalks = 1000, kFastWalks = 16;
constexpr std::chrono::microseconds kBetweenWalks{50};

// Whether no chunk was handed out or freed, and no clock read, between two reads of the header.
bool is_same(const FileHeader& before, const FileHeader& after) {
  const auto numbers = [](const FileHeader& header) {
    return std::tuple(header.state, header.chunks, header.orders, header.recycled_chunks,
                      header.recycled_spans, header.recycled_allocations, header.recycled_notes,
                      header.recycled_samples, header.recycled_rows, header.clock_pairs,
                      header.dictionary_collections);
  };
  return numbers(before) == numbers(after) &&
         std::memcmp(before.pairs, after.pairs, sizeof(before.pairs)) == 0 &&
         std::memcmp(before.recycled_until, after.recycled_until, sizeof(before.recycled_until)) == 0;
}

ChunkHeader read_chunk_header(const std::byte* bytes) {
  auto header = load_shared<ChunkHeader>(bytes);
  // The checksum is written last: words that were loaded before it may be older.
  if (header.checksum != 0) header = load_shared<ChunkHeader>(bytes);
  return header;
}

ChunkWalk walk_once(std::span<const std::byte> file) {
  ChunkWalk walk;
  walk.header = read_header(file);
  const FileHeader& header = walk.header;
  walk.units = chunks_in_file(file, header, header.chunks);
  walk.units_beyond_file = header.chunks - walk.units;
  std::size_t units = 1;
  uint64_t with_records = 0;
  bool in_hole = false;
  for (std::size_t at = 0; at < walk.units; at += units) {
    const std::span<const std::byte> present = file.subspan(kHeaderBytes + at * header.chunk_bytes);
    units = 1;
    const bool cut = present.size() < sizeof(ChunkHeader);
    const ChunkHeader chunk = cut ? ChunkHeader{} : read_chunk_header(present.data());
    // In version 1 chunks were handed out before their headers were written.
    if (!cut && header.version == 1 && chunk.magic == 0 && chunk.kind == 0 && chunk.committed == 0) continue;
    const bool hole = cut || chunk.magic != kChunkMagic || chunk.units > walk.units - at;
    // Everything from a header that cannot be read to the next one that can counts as one gap.
    walk.holes += hole && !in_hole;
    in_hole = hole;
    if (hole) continue;
    units = std::max<std::size_t>(chunk.units, 1);
    const bool handed_out = header.version < 4 || chunk.order <= header.orders;
    with_records += handed_out && bytes_of_record(chunk.kind, header.version) != 0;
    walk.chunks.push_back({present.data(), present.size(), chunk, units});
  }
  walk.one_too_many = header.version >= 4 && with_records + header.recycled_chunks > header.orders;
  walk.settled = is_same(header, read_header(file));
  return walk;
}

}  // namespace

ChunkWalk walk_chunks(std::span<const std::byte> file) {
  ChunkWalk walk = walk_once(file);
  for (int more = 1; more < kMostWalks && !walk.settled; ++more) {
    // Its writer may be waiting for this processor.
    if (more > kFastWalks) std::this_thread::sleep_for(kBetweenWalks);
    walk = walk_once(file);
  }
  return walk;
}

namespace {

// How often the chunks of a ring are listed again because its dictionary was collected meanwhile.
constexpr int kMostLooks = 20;

ChunkList look_for_chunks(std::span<const std::byte> file, const FileHeader& header,
                          const ChunkFilter& wanted) {
  ChunkList list;
  const ChunkWalk walk = walk_chunks(file);
  std::vector<RecordChunk> dictionary;
  std::vector<uint64_t> orders;
  uint64_t all = 0;
  list.damaged = walk.units_beyond_file;
  for (const FoundChunk& found : walk.chunks) {
    const ChunkHeader& chunk = found.header;
    const std::byte* payload = found.bytes + sizeof(ChunkHeader);
    const std::size_t payload_bytes = found.present - sizeof(ChunkHeader);
    const std::size_t capacity = found.units * header.chunk_bytes - sizeof(ChunkHeader);
    const std::size_t unit_bytes = bytes_of_record(chunk.kind, header.version);
    if (unit_bytes == 0) {
      if (static_cast<ChunkKind>(chunk.kind) != ChunkKind::Free) ++list.damaged;
      continue;
    }
    orders.push_back(chunk.order);
    all = chain(all, chunk);
    const std::size_t whole = whole_units(chunk.committed, unit_bytes, capacity, payload_bytes, list);
    if (wanted != nullptr && !wanted(chunk, payload, whole)) continue;
    if (chunk.checksum != 0 && whole == chunk.committed &&
        chunk.checksum != chunk_checksum(chunk, payload, whole * unit_bytes)) {
      if (!is_still_there(found.bytes, chunk.kind, chunk.order)) continue;
      ++list.damaged;
      if (unit_bytes > 1) list.missing_records += whole;
      continue;
    }
    if (static_cast<ChunkKind>(chunk.kind) == ChunkKind::Dictionary) {
      dictionary.push_back({chunk.thread, chunk.order, payload, whole, header.version});
    } else {
      records_of(list, static_cast<ChunkKind>(chunk.kind))
          .push_back({chunk.thread, chunk.order, payload, whole, header.version});
    }
  }
  list.damaged += std::max(walk.holes, missing_chunks(file, walk.header, std::move(orders), walk.units));
  if (header.version >= 4 && header.checksum != 0 && header.chain != all && list.damaged == 0)
    list.damaged = 1;
  // What looks damaged may have been written during the walk.
  if (!walk.settled) list.damaged = list.missing_records = 0;
  if (header.state == static_cast<uint32_t>(FileState::Recording) &&
      load_shared<FileHeader>(file.data()).recycled_chunks != 0) {
    copy_all(dictionary, ChunkKind::Dictionary, list);
    copy_records(list);
  }
  const auto by_thread_and_order = [](const RecordChunk& a, const RecordChunk& b) {
    return std::tie(a.thread, a.order) < std::tie(b.thread, b.order);
  };
  for (auto* chunks_of_kind : {&list.spans, &list.allocations, &list.notes, &list.samples, &list.rows})
    std::stable_sort(chunks_of_kind->begin(), chunks_of_kind->end(), by_thread_and_order);
  std::stable_sort(dictionary.begin(), dictionary.end(), by_thread_and_order);
  for (const RecordChunk& chunk : dictionary) list.dictionary.emplace_back(chunk.payload, chunk.records);
  return list;
}

// Takes the dictionary as it is now: what records name was written before them, but maybe after the chunk of
// the dictionary that it is in was looked at.
void look_for_dictionary_again(std::span<const std::byte> file, const FileHeader& header, ChunkList& list) {
  ChunkList now = look_for_chunks(file, header, [](const ChunkHeader& chunk, const std::byte*, std::size_t) {
    return static_cast<ChunkKind>(chunk.kind) == ChunkKind::Dictionary;
  });
  list.dictionary = std::move(now.dictionary);
  std::move(now.copies.begin(), now.copies.end(), std::back_inserter(list.copies));
}

}  // namespace

ChunkList list_chunks(std::span<const std::byte> file, const FileHeader& header, const ChunkFilter& wanted) {
  uint64_t before = collections_in(header);
  const bool live = header.state == static_cast<uint32_t>(FileState::Recording);
  ChunkList list = look_for_chunks(file, header, wanted);
  for (int look = 1; live && look < kMostLooks; ++look) {
    look_for_dictionary_again(file, header, list);
    const uint64_t now = collections_in(load_shared<FileHeader>(file.data()));
    if (now == before) break;
    before = now;
    list = look_for_chunks(file, header, wanted);
  }
  if (before != 0) make_ids_dense(list);
  return list;
}

}  // namespace kinetoscope
