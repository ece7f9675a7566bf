// Recordings in memory, laid out byte by byte for the tests of the reader. They are as version 6 was, unless
// a test says otherwise: its spans say all themselves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "core/recording/format.h"

namespace kinetoscope::testing {

class RecordingImage {
 public:
  RecordingImage(uint32_t chunk_bytes, std::size_t chunks)
      : bytes_(kHeaderBytes + chunk_bytes * chunks), chunk_bytes_(chunk_bytes) {
    FileHeader header = {};
    std::memcpy(header.magic, kMagic, sizeof(kMagic));
    header.version = 6;
    header.chunk_bytes = chunk_bytes;
    header.state = static_cast<uint32_t>(FileState::Stopped);
    header.start_tick = kStart;
    header.stop_tick = kStart + 1'000'000;
    header.chunks = chunks;
    std::memcpy(bytes_.data(), &header, sizeof(header));
  }

  static constexpr uint64_t kStart = 1000;

  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte>& storage() { return bytes_; }
  FileHeader& header() { return *reinterpret_cast<FileHeader*>(bytes_.data()); }
  ChunkHeader& chunk(std::size_t at) {
    return *reinterpret_cast<ChunkHeader*>(bytes_.data() + kHeaderBytes + at * chunk_bytes_);
  }
  std::byte* payload(std::size_t at) {
    return reinterpret_cast<std::byte*>(&chunk(at)) + sizeof(ChunkHeader);
  }

  void begin_chunk(std::size_t at, ChunkKind kind, uint32_t thread, uint64_t order) {
    chunk(at) = {.magic = kChunkMagic,
                 .kind = static_cast<uint32_t>(kind),
                 .thread = thread,
                 .units = 1,
                 .order = order,
                 .committed = 0,
                 .checksum = 0,
                 .padding = {}};
  }
  SpanRecord& add_span(std::size_t at, uint64_t start, uint64_t end) {
    SpanRecord& record = reinterpret_cast<SpanRecord*>(payload(at))[chunk(at).committed++];
    record = {};
    record.start_tick = kStart + start;
    record.end_tick = end == 0 ? 0 : kStart + end;
    return record;
  }
  // One of version 7.
  void add_compact_span(std::size_t at, const SpanRecord& span, uint32_t site) {
    reinterpret_cast<CompactSpan*>(payload(at))[chunk(at).committed++] = compact(span, site);
  }
  void add_site(std::size_t at, uint32_t id, const SpanSite& site) {
    add_entry(at, Entry::Site,
              {id, site.name, site.stack, site.shapes, site.module, site.parameter, site.scope_and_sequence});
  }
  void add_entry(std::size_t at, Entry type, std::initializer_list<uint32_t> fields,
                 std::string_view text = {}) {
    const EntryHeader header{static_cast<uint32_t>(type),
                             static_cast<uint32_t>(fields.size() * sizeof(uint32_t) + text.size())};
    std::byte* out = payload(at) + chunk(at).committed;
    std::memcpy(out, &header, sizeof(header));
    std::byte* rest = out + sizeof(header);
    for (const uint32_t field : fields) {
      std::memcpy(rest, &field, sizeof(field));
      rest += sizeof(field);
    }
    std::copy(text.begin(), text.end(), reinterpret_cast<char*>(rest));
    chunk(at).committed += sizeof(header) + (header.bytes + 7) / 8 * 8;
  }

 private:
  std::vector<std::byte> bytes_;
  uint32_t chunk_bytes_;
};

}  // namespace kinetoscope::testing
