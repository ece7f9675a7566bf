// Columns that grow row by row, in chunks: nothing is ever moved, and what is not there costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "column.h"

namespace kinetoscope {

inline constexpr std::size_t kChunkRows = std::size_t{1} << 16;

// Rows that were never set, or set to `none`, read as `none`; a chunk without any other row has no memory.
template <typename T>
class GrowingColumn {
 public:
  explicit GrowingColumn(T none) : none_(none) {}

  void set(std::size_t row, T value) {
    const std::size_t chunk = row / kChunkRows;
    if (chunk >= chunks_.size()) chunks_.resize(chunk + 1);
    if (chunks_[chunk] == nullptr) {
      if (value == none_) return;
      chunks_[chunk] = std::make_unique_for_overwrite<T[]>(kChunkRows);
      std::fill_n(chunks_[chunk].get(), kChunkRows, none_);
      bytes_ += kChunkRows * sizeof(T);
    }
    chunks_[chunk][row % kChunkRows] = value;
  }
  T operator[](std::size_t row) const {
    const std::size_t chunk = row / kChunkRows;
    return chunk < chunks_.size() && chunks_[chunk] != nullptr ? chunks_[chunk][row % kChunkRows] : none_;
  }
  bool empty() const { return bytes_ == 0; }
  std::size_t bytes() const { return bytes_; }
  void clear() {
    chunks_.clear();
    bytes_ = 0;
  }

 private:
  T none_;
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::size_t bytes_ = 0;
};

// 64-bit numbers, of which those of a chunk mostly lie close together: four bytes each then.
class NarrowColumn {
 public:
  explicit NarrowColumn(int64_t none) : none_(none) {}

  void set(std::size_t row, int64_t value) {
    const std::size_t number = row / kChunkRows, at = row % kChunkRows;
    if (number >= chunks_.size()) chunks_.resize(number + 1);
    Chunk& chunk = chunks_[number];
    if (chunk.wide != nullptr) {
      chunk.wide[at] = value;
      return;
    }
    if (chunk.narrow == nullptr) {
      if (value == none_) return;
      chunk.narrow = std::make_unique_for_overwrite<int32_t[]>(kChunkRows);
      std::fill_n(chunk.narrow.get(), kChunkRows, kNone);
      chunk.base = value;
      bytes_ += kChunkRows * sizeof(int32_t);
    }
    if (value == none_) {
      chunk.narrow[at] = kNone;
      return;
    }
    int64_t distance;
    if (__builtin_sub_overflow(value, chunk.base, &distance) ||
        distance > std::numeric_limits<int32_t>::max() || distance <= kNone) {
      widen(chunk);
      chunk.wide[at] = value;
      return;
    }
    chunk.narrow[at] = static_cast<int32_t>(distance);
  }
  int64_t operator[](std::size_t row) const {
    const std::size_t number = row / kChunkRows, at = row % kChunkRows;
    if (number >= chunks_.size()) return none_;
    const Chunk& chunk = chunks_[number];
    if (chunk.narrow != nullptr) {
      const int32_t distance = chunk.narrow[at];
      return distance == kNone ? none_ : chunk.base + distance;
    }
    return chunk.wide != nullptr ? chunk.wide[at] : none_;
  }
  bool empty() const { return bytes_ == 0; }
  std::size_t bytes() const { return bytes_; }
  void clear() {
    chunks_.clear();
    bytes_ = 0;
  }

 private:
  static constexpr int32_t kNone = std::numeric_limits<int32_t>::min();
  struct Chunk {
    int64_t base = 0;
    std::unique_ptr<int32_t[]> narrow;
    std::unique_ptr<int64_t[]> wide;
  };

  void widen(Chunk& chunk) {
    auto wide = std::make_unique_for_overwrite<int64_t[]>(kChunkRows);
    for (std::size_t at = 0; at < kChunkRows; ++at) {
      wide[at] = chunk.narrow[at] == kNone ? none_ : chunk.base + chunk.narrow[at];
    }
    chunk.narrow.reset();
    chunk.wide = std::move(wide);
    bytes_ += kChunkRows * (sizeof(int64_t) - sizeof(int32_t));
  }

  int64_t none_;
  std::vector<Chunk> chunks_;
  std::size_t bytes_ = 0;
};

// The rows of a growing column in another order.
template <typename T, typename Growing>
Column<T> gathered(const Growing& column, std::span<const int32_t> order) {
  Column<T> made(order.size());
  for (std::size_t row = 0; row < order.size(); ++row) {
    made[row] = static_cast<T>(column[static_cast<std::size_t>(order[row])]);
  }
  return made;
}

}  // namespace kinetoscope
