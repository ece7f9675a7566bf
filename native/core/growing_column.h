// Columns that grow row by row, in chunks: nothing is ever moved, and what is not there costs nothing.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "chrome_limits.h"
#include "column.h"

namespace kinetoscope {

// The rows of one chunk. Straight from the system, so that it has them back at once when a column is let go
// of: the allocator would keep them among others that are still in use.
template <typename T>
class ChunkMemory {
 public:
  ChunkMemory() = default;
  explicit ChunkMemory(T fill) {
    void* rows = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (rows == MAP_FAILED) throw std::bad_alloc();
    rows_ = static_cast<T*>(rows);
    if (fill != T{}) std::fill_n(rows_, kChunkRows, fill);
  }
  ChunkMemory(ChunkMemory&& other) noexcept : rows_(std::exchange(other.rows_, nullptr)) {}
  ChunkMemory& operator=(ChunkMemory&& other) noexcept {
    std::swap(rows_, other.rows_);
    return *this;
  }
  ~ChunkMemory() {
    if (rows_ != nullptr) munmap(rows_, kBytes);
  }
  bool there() const { return rows_ != nullptr; }
  T& operator[](std::size_t at) { return rows_[at]; }
  T operator[](std::size_t at) const { return rows_[at]; }

 private:
  static constexpr std::size_t kBytes = kChunkRows * sizeof(T);
  T* rows_ = nullptr;
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
      chunks_[chunk] = ChunkMemory<T>(none_);
      bytes_ += kChunkRows * sizeof(T);
    }
    chunks_[chunk][row % kChunkRows] = value;
  }
  T operator[](std::size_t row) const {
    const std::size_t chunk = row / kChunkRows;
    return chunk < chunks_.size() && chunks_[chunk].there() ? chunks_[chunk][row % kChunkRows] : none_;
  }
  bool empty() const { return bytes_ == 0; }
  std::size_t bytes() const { return bytes_; }
  void clear() {
    chunks_.clear();
    bytes_ = 0;
  }

 private:
  T none_;
  std::vector<ChunkMemory<T>> chunks_;
  std::size_t bytes_ = 0;
};

// Whole numbers, of which those of a chunk mostly lie close together: two bytes each then, four or eight
// where not.
class NarrowColumn {
 public:
  explicit NarrowColumn(int64_t none) : none_(none) {}

  void set(std::size_t row, int64_t value) {
    const std::size_t number = row / kChunkRows, at = row % kChunkRows;
    if (number >= chunks_.size()) chunks_.resize(number + 1);
    Chunk& chunk = chunks_[number];
    if (!chunk.there()) {
      if (value == none_) return;
      chunk.base = value;
      chunk.two = ChunkMemory<int16_t>(kNone<int16_t>);
      bytes_ += kChunkRows * sizeof(int16_t);
    }
    while (!put(chunk, at, value)) widen(chunk);
  }
  int64_t operator[](std::size_t row) const {
    const std::size_t number = row / kChunkRows, at = row % kChunkRows;
    return number < chunks_.size() ? get(chunks_[number], at) : none_;
  }
  bool empty() const { return bytes_ == 0; }
  std::size_t bytes() const { return bytes_; }
  void clear() {
    chunks_.clear();
    bytes_ = 0;
  }

 private:
  template <typename T>
  static constexpr T kNone = std::numeric_limits<T>::min();
  // Distances from the base in one of three widths, of which one is there; eight bytes are the value itself.
  struct Chunk {
    int64_t base = 0;
    ChunkMemory<int16_t> two;
    ChunkMemory<int32_t> four;
    ChunkMemory<int64_t> eight;
    bool there() const { return two.there() || four.there() || eight.there(); }
  };

  template <typename T>
  bool put_distance(const Chunk& chunk, ChunkMemory<T>& rows, std::size_t at, int64_t value) const {
    if (value == none_) {
      rows[at] = kNone<T>;
      return true;
    }
    int64_t distance;
    if (__builtin_sub_overflow(value, chunk.base, &distance) || distance > std::numeric_limits<T>::max() ||
        distance <= kNone<T>) {
      return false;
    }
    rows[at] = static_cast<T>(distance);
    return true;
  }
  bool put(Chunk& chunk, std::size_t at, int64_t value) const {
    if (chunk.two.there()) return put_distance(chunk, chunk.two, at, value);
    if (chunk.four.there()) return put_distance(chunk, chunk.four, at, value);
    chunk.eight[at] = value;
    return true;
  }
  int64_t get(const Chunk& chunk, std::size_t at) const {
    if (chunk.two.there()) return chunk.two[at] == kNone<int16_t> ? none_ : chunk.base + chunk.two[at];
    if (chunk.four.there()) return chunk.four[at] == kNone<int32_t> ? none_ : chunk.base + chunk.four[at];
    return chunk.eight.there() ? chunk.eight[at] : none_;
  }

  void widen(Chunk& chunk) {
    Chunk wider;
    wider.base = chunk.base;
    if (chunk.two.there()) {
      wider.four = ChunkMemory<int32_t>(0);
      bytes_ += kChunkRows * (sizeof(int32_t) - sizeof(int16_t));
    } else {
      wider.eight = ChunkMemory<int64_t>(0);
      bytes_ += kChunkRows * (sizeof(int64_t) - sizeof(int32_t));
    }
    for (std::size_t at = 0; at < kChunkRows; ++at) put(wider, at, get(chunk, at));
    chunk = std::move(wider);
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
