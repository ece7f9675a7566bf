// Texts that are read in order, in compressed blocks: text that repeats a part shortly before it takes little
// memory.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "../chrome/limits.h"

namespace kinetoscope {

// A block is a sequence of steps: some literal bytes, then a copy of earlier bytes. A step is one byte with
// both lengths in its halves, then further bytes of long lengths, the literal bytes, and the distance of the
// copied bytes. After the last literal bytes there is no copy.
class BytePacking {
 public:
  static void pack(std::string_view raw, std::string& packed) {
    packed.clear();
    // One more than the last position of four bytes with this hash; 0 without one.
    std::array<uint32_t, kPlaces> places{};
    const char* const text = raw.data();
    std::size_t plain = 0, at = 0;
    while (at + kLeastCopied <= raw.size()) {
      uint32_t& place = places[hash(word_at(text + at))];
      const std::size_t before = place - std::size_t{1};
      const bool same =
          place != 0 && at - before <= kFarthest && word_at(text + before) == word_at(text + at);
      place = static_cast<uint32_t>(at + 1);
      if (!same) {
        // In data that does not repeat, fewer positions are tried.
        at += 1 + (at - plain) / kPatience;
        continue;
      }
      std::size_t length = kLeastCopied;
      while (at + length < raw.size() && text[before + length] == text[at + length]) ++length;
      append_step(raw.substr(plain, at - plain), length, at - before, packed);
      plain = at += length;
    }
    append_step(raw.substr(plain), 0, 0, packed);
  }

  // `raw` has exactly the size of the original.
  static void unpack(const char* packed, char* raw, std::size_t size) {
    char* const end = raw + size;
    while (true) {
      const uint8_t lengths = static_cast<uint8_t>(*packed++);
      const std::size_t plain = length_of(lengths >> 4, packed);
      const std::size_t copied = length_of(lengths & kHalf, packed) + kLeastCopied;
      if (plain > 0) std::memcpy(raw, packed, plain);
      raw += plain;
      packed += plain;
      if (raw == end) return;
      uint16_t distance;
      std::memcpy(&distance, packed, sizeof distance);
      packed += sizeof distance;
      const char* const from = raw - distance;
      if (distance >= copied) {
        std::memcpy(raw, from, copied);
      } else {
        // The copied range may overlap the bytes that this writes.
        for (std::size_t byte = 0; byte < copied; ++byte) raw[byte] = from[byte];
      }
      raw += copied;
    }
  }

 private:
  static constexpr std::size_t kPlaces = std::size_t{1} << 12, kLeastCopied = 4, kPatience = 64;
  static constexpr std::size_t kFarthest = UINT16_MAX;
  static constexpr std::size_t kHalf = 15;

  static uint32_t word_at(const char* at) {
    uint32_t word;
    std::memcpy(&word, at, sizeof word);
    return word;
  }
  static std::size_t hash(uint32_t word) { return word * 0x9E3779B1u >> (32 - std::countr_zero(kPlaces)); }

  static void append_length(std::size_t length, std::string& packed) {
    if (length < kHalf) return;
    for (length -= kHalf; length >= UINT8_MAX; length -= UINT8_MAX) packed += static_cast<char>(UINT8_MAX);
    packed += static_cast<char>(length);
  }
  static std::size_t length_of(std::size_t half, const char*& packed) {
    if (half < kHalf) return half;
    uint8_t more;
    do {
      more = static_cast<uint8_t>(*packed++);
      half += more;
    } while (more == UINT8_MAX);
    return half;
  }
  static void append_step(std::string_view plain, std::size_t copied, std::size_t distance,
                          std::string& packed) {
    const std::size_t more = copied == 0 ? 0 : copied - kLeastCopied;
    packed += static_cast<char>(std::min(plain.size(), kHalf) << 4 | std::min(more, kHalf));
    append_length(plain.size(), packed);
    append_length(more, packed);
    packed += plain;
    if (copied == 0) return;
    const uint16_t short_distance = static_cast<uint16_t>(distance);
    packed.append(reinterpret_cast<const char*>(&short_distance), sizeof short_distance);
  }
};

class PackedTexts {
 public:
  void append(std::string_view text) {
    std::size_t length = text.size();
    for (; length >= kMore; length >>= kLengthBits) open_ += static_cast<char>(length % kMore | kMore);
    open_ += static_cast<char>(length);
    open_ += text;
    ++rows_;
    if (open_.size() >= kTextBlockBytes) pack_open();
  }
  std::size_t size() const { return rows_; }
  // Approximate memory in use.
  std::size_t bytes() const { return packed_bytes_ + blocks_.capacity() * sizeof(Block) + open_.capacity(); }

  // Calls `look` with each text, in the order in which they were appended; it is valid during the call.
  template <typename Look>
  void each(Look look) const {
    std::string raw;
    for (const Block& block : blocks_) {
      raw.resize(block.raw_bytes);
      BytePacking::unpack(block.packed.get(), raw.data(), raw.size());
      each_in(raw, look);
    }
    each_in(open_, look);
  }

 private:
  struct Block {
    std::unique_ptr<char[]> packed;
    std::size_t raw_bytes;
  };
  // Each text follows its length, seven bits of it in each byte, the lowest first.
  static constexpr unsigned kLengthBits = 7;
  static constexpr std::size_t kMore = std::size_t{1} << kLengthBits;

  void pack_open() {
    BytePacking::pack(open_, scratch_);
    Block made{std::make_unique_for_overwrite<char[]>(scratch_.size()), open_.size()};
    std::memcpy(made.packed.get(), scratch_.data(), scratch_.size());
    packed_bytes_ += scratch_.size();
    blocks_.push_back(std::move(made));
    // A single large text must not keep its buffer allocated.
    if (open_.capacity() > 2 * kTextBlockBytes) open_.shrink_to_fit();
    open_.clear();
  }

  template <typename Look>
  static void each_in(std::string_view raw, const Look& look) {
    for (std::size_t at = 0; at < raw.size();) {
      std::size_t length = 0;
      for (unsigned shift = 0;; shift += kLengthBits) {
        const std::size_t part = static_cast<uint8_t>(raw[at++]);
        length |= part % kMore << shift;
        if (part < kMore) break;
      }
      look(raw.substr(at, length));
      at += length;
    }
  }

  std::vector<Block> blocks_;
  std::string open_, scratch_;
  std::size_t rows_ = 0, packed_bytes_ = 0;
};

}  // namespace kinetoscope
