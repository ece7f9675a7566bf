// Columns that grow row by row and take little memory: missing values, and values that repeat in many rows,
// cost nothing.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "../chrome/limits.h"
#include "column.h"

namespace kinetoscope {

// Zeroed memory directly from the system, so that it is returned at once when a column is freed: the
// allocator's heap would be fragmented.
class ChunkMemory {
 public:
  ChunkMemory() = default;
  explicit ChunkMemory(std::size_t bytes) : bytes_(bytes) {
    void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    start_ = start;
  }
  ChunkMemory(ChunkMemory&& other) noexcept
      : start_(std::exchange(other.start_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ChunkMemory& operator=(ChunkMemory&& other) noexcept {
    std::swap(start_, other.start_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ChunkMemory() {
    if (start_ != nullptr) munmap(start_, bytes_);
  }
  bool there() const { return start_ != nullptr; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(start_);
  }

 private:
  void* start_ = nullptr;
  std::size_t bytes_ = 0;
};

// Rows that were never set, or set to `none`, read as `none`; a chunk without any other row has no memory.
template <typename T>
class GrowingColumn {
 public:
  explicit GrowingColumn(T none) : none_(none) {}

  void set(std::size_t row, T value) {
    const std::size_t chunk = row / kChunkRows;
    if (chunk >= chunks_.size()) chunks_.resize(chunk + 1);
    if (!chunks_[chunk].there()) {
      if (value == none_) return;
      chunks_[chunk] = ChunkMemory(kChunkRows * sizeof(T));
      if (none_ != T{}) std::fill_n(chunks_[chunk].template as<T>(), kChunkRows, none_);
      bytes_ += kChunkRows * sizeof(T);
    }
    chunks_[chunk].template as<T>()[row % kChunkRows] = value;
  }
  T operator[](std::size_t row) const {
    const std::size_t chunk = row / kChunkRows;
    return chunk < chunks_.size() && chunks_[chunk].there()
               ? chunks_[chunk].template as<const T>()[row % kChunkRows]
               : none_;
  }
  T none() const { return none_; }
  bool empty() const { return bytes_ == 0; }
  std::size_t bytes() const { return bytes_; }
  void clear() {
    chunks_.clear();
    bytes_ = 0;
  }

 private:
  T none_;
  std::vector<ChunkMemory> chunks_;
  std::size_t bytes_ = 0;
};

// Integers in packed blocks: each row takes as many bits as the range of its block needs, and none in a block
// of equal numbers. The block that is being appended to is not packed yet; rows of others can still be set,
// more slowly.
class PackedColumn {
 public:
  explicit PackedColumn(int64_t none) : none_(none) {}

  void set(std::size_t row, int64_t value) {
    if (row / kPackedRows == open_block_) {
      (*open_)[row % kPackedRows] = value;
    } else if (value != none_ || row / kPackedRows < blocks_.size()) {
      set_elsewhere(row, value);
    }
  }
  int64_t operator[](std::size_t row) const {
    const std::size_t number = row / kPackedRows;
    if (number >= blocks_.size()) {
      return number == open_block_ ? (*open_)[row % kPackedRows] : none_;
    }
    return unpacked(blocks_[number], row % kPackedRows);
  }
  int64_t none() const { return none_; }
  // Whether no row was ever set to anything but `none`.
  bool empty() const { return open_block_ == kNoBlock && blocks_.empty(); }
  std::size_t bytes() const {
    return (chunks_.size() * kChunkUnits - free_units_) * kUnitBytes + blocks_.capacity() * sizeof(Block) +
           (open_ == nullptr ? 0 : sizeof(Rows));
  }
  void clear() {
    chunks_.clear();
    blocks_.clear();
    blocks_.shrink_to_fit();
    open_.reset();
    open_block_ = kNoBlock;
    free_units_ = 0;
    given_back_ = {};
  }

 private:
  using Rows = std::array<int64_t, kPackedRows>;
  // Differences from the base or, with 64 bits, the numbers themselves. All bits set means `none`.
  struct Block {
    int64_t base;
    uint32_t place;  // of its bits, in units, from the start of the first chunk
    uint8_t width;
  };
  static constexpr std::size_t kNoBlock = SIZE_MAX;
  static constexpr uint32_t kNowhere = UINT32_MAX;
  // A block of `width` bits a row takes `width` units.
  static constexpr std::size_t kUnitBytes = kPackedRows / 8;
  static constexpr std::size_t kChunkUnits = kPackedChunkBytes / kUnitBytes;
  static_assert(kPackedRows % 64 == 0 && kChunkUnits >= 64);

  static constexpr uint64_t mask_of_width(unsigned width) { return ~uint64_t{0} >> (64 - width); }

  uint64_t* words_at(uint32_t place) const {
    return chunks_[place / kChunkUnits].as<uint64_t>() +
           place % kChunkUnits * (kUnitBytes / sizeof(uint64_t));
  }
  static uint64_t code_at(const uint64_t* words, std::size_t at, unsigned width) {
    const std::size_t bit = at * width;
    const unsigned shift = bit % 64;
    uint64_t code = words[bit / 64] >> shift;
    if (shift + width > 64) code |= words[bit / 64 + 1] << (64 - shift);
    return code & mask_of_width(width);
  }
  static void set_code(uint64_t* words, std::size_t at, unsigned width, uint64_t code) {
    const std::size_t bit = at * width;
    const unsigned shift = bit % 64;
    uint64_t* const word = words + bit / 64;
    word[0] = (word[0] & ~(mask_of_width(width) << shift)) | code << shift;
    if (shift + width > 64) {
      word[1] = (word[1] & ~(mask_of_width(width) >> (64 - shift))) | code >> (64 - shift);
    }
  }

  int64_t unpacked(const Block& block, std::size_t at) const {
    if (block.width == 0) return block.base;
    const uint64_t code = code_at(words_at(block.place), at, block.width);
    if (block.width == 64) return static_cast<int64_t>(code);
    return code == mask_of_width(block.width)
               ? none_
               : static_cast<int64_t>(static_cast<uint64_t>(block.base) + code);
  }
  Rows unpacked(const Block& block) const {
    Rows rows;
    for (std::size_t at = 0; at < kPackedRows; ++at) rows[at] = unpacked(block, at);
    return rows;
  }

  Block packed(const Rows& rows, bool with_slack) {
    int64_t least = INT64_MAX, most = INT64_MIN;
    bool some_none = false;
    for (const int64_t value : rows) {
      if (value == none_) {
        some_none = true;
        continue;
      }
      least = std::min(least, value);
      most = std::max(most, value);
    }
    if (least > most) return {none_, kNowhere, 0};
    if (least == most && !some_none) return {least, kNowhere, 0};
    // The range is one larger than the largest difference, so that all bits set is free for `none`.
    const uint64_t range = static_cast<uint64_t>(most) - static_cast<uint64_t>(least);
    unsigned width = range >= UINT64_MAX - 1 ? 64 : static_cast<unsigned>(std::bit_width(range + 1));
    if (with_slack) width = (width + 7) / 8 * 8;
    Block made{width == 64 ? 0 : least, taken(width), static_cast<uint8_t>(width)};
    uint64_t* words = words_at(made.place);
    uint64_t word = 0;
    unsigned used = 0;
    for (const int64_t value : rows) {
      const uint64_t code = width == 64      ? static_cast<uint64_t>(value)
                            : value == none_ ? mask_of_width(width)
                                             : static_cast<uint64_t>(value) - static_cast<uint64_t>(least);
      word |= code << used;
      used += width;
      if (used >= 64) {
        *words++ = word;
        used -= 64;
        word = used == 0 ? 0 : code >> (width - used);
      }
    }
    return made;
  }

  // The position of this many units, reused or new.
  uint32_t taken(unsigned units) {
    uint32_t& last = given_back_[units];
    if (last != 0) {
      const uint32_t place = last - 1;
      last = static_cast<uint32_t>(*words_at(place));
      return place;
    }
    if (free_units_ < units) {
      chunks_.emplace_back(kPackedChunkBytes);
      free_units_ = kChunkUnits;
    }
    const std::size_t place = chunks_.size() * kChunkUnits - free_units_;
    if (place >= kNowhere) throw std::bad_alloc();
    free_units_ -= units;
    return static_cast<uint32_t>(place);
  }
  void give_back(const Block& block) {
    if (block.width == 0) return;
    *words_at(block.place) = given_back_[block.width];
    given_back_[block.width] = block.place + 1;
  }

  void pack_open() {
    blocks_.resize(open_block_, Block{none_, kNowhere, 0});
    blocks_.push_back(packed(*open_, false));
  }

  void set_elsewhere(std::size_t row, int64_t value) {
    const std::size_t number = row / kPackedRows, at = row % kPackedRows;
    if (number < blocks_.size()) return set_packed(blocks_[number], at, value);
    if (open_block_ != kNoBlock && number < open_block_) {
      // Between the packed blocks and the open one, all rows are `none`.
      blocks_.resize(number + 1, Block{none_, kNowhere, 0});
      return set_packed(blocks_[number], at, value);
    }
    if (open_block_ != kNoBlock) pack_open();
    if (open_ == nullptr) open_ = std::make_unique_for_overwrite<Rows>();
    open_->fill(none_);
    open_block_ = number;
    (*open_)[at] = value;
  }
  void set_packed(Block& block, std::size_t at, int64_t value) {
    if (unpacked(block, at) == value) return;
    const uint64_t distance = static_cast<uint64_t>(value) - static_cast<uint64_t>(block.base);
    if (block.width == 64) return set_code(words_at(block.place), at, 64, static_cast<uint64_t>(value));
    if (block.width > 0 && value == none_) {
      return set_code(words_at(block.place), at, block.width, mask_of_width(block.width));
    }
    if (block.width > 0 && value >= block.base && distance < mask_of_width(block.width)) {
      return set_code(words_at(block.place), at, block.width, distance);
    }
    Rows rows = unpacked(block);
    rows[at] = value;
    give_back(block);
    block = packed(rows, true);
  }

  int64_t none_;
  std::unique_ptr<Rows> open_;
  std::size_t open_block_ = kNoBlock;
  std::vector<Block> blocks_;
  std::vector<ChunkMemory> chunks_;
  std::size_t free_units_ = 0;                // at the end of the last chunk
  std::array<uint32_t, 65> given_back_ = {};  // by units: one more than the place of the last ones, 0 without
};

// Floating-point numbers: those with few decimals are packed as multiples of the last decimal; others are
// stored unchanged.
class PackedReals {
 public:
  explicit PackedReals(double none) : others_(none) {}

  void set(std::size_t row, double value) {
    const int64_t code = code_of(value);
    codes_.set(row, code);
    if (code == kNoCode) others_.set(row, value);
  }
  double operator[](std::size_t row) const {
    const int64_t code = codes_[row];
    if (code == kNoCode) return others_[row];
    return static_cast<double>(code >> kScaleBits) / kScales[code & ((1 << kScaleBits) - 1)];
  }
  double none() const { return others_.none(); }
  bool empty() const { return codes_.empty() && others_.empty(); }
  std::size_t bytes() const { return codes_.bytes() + others_.bytes(); }

 private:
  static constexpr int64_t kNoCode = INT64_MIN;
  static constexpr unsigned kScaleBits = 2;
  static constexpr double kScales[] = {1, 1e3, 1e6};
  // Up to here every integer is exactly a double, so that the quotient is the double nearest to the decimal
  // text.
  static constexpr double kMostWhole = 0x1p53;

  static int64_t code_of(double value) {
    for (int64_t scale = 0; scale < std::ssize(kScales); ++scale) {
      const double scaled = std::nearbyint(value * kScales[scale]);
      if (!(std::abs(scaled) <= kMostWhole)) break;
      // That would lose the sign of a negative zero.
      if (scaled / kScales[scale] == value && (scaled != 0 || !std::signbit(value))) {
        return static_cast<int64_t>(scaled) * (1 << kScaleBits) + scale;
      }
    }
    return kNoCode;
  }

  PackedColumn codes_{kNoCode};
  GrowingColumn<double> others_;
};

}  // namespace kinetoscope
