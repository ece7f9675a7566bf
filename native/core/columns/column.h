// One column of a table: an owned, uninitialized block of memory that Python can take over without a copy.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace kinetoscope {

// Large blocks are aligned so that the kernel can back them with huge pages: filling a new column then costs
// one page fault for 2 MiB, and page faults are most of its cost.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

inline void* allocate_column(std::size_t bytes) {
  if (bytes < kHugePageBytes) {
    void* small = std::malloc(bytes == 0 ? 1 : bytes);
    if (small == nullptr) throw std::bad_alloc();
    return small;
  }
  const std::size_t rounded = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  void* large = std::aligned_alloc(kHugePageBytes, rounded);
  if (large == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  // Only a hint: without huge pages everything works, a little slower.
  static_cast<void>(madvise(large, rounded, MADV_HUGEPAGE));
#endif
  return large;
}

template <typename T>
class Column {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Column() = default;
  explicit Column(std::size_t size)
      : data_(static_cast<T*>(allocate_column(size * sizeof(T)))), size_(size) {}
  Column(std::size_t size, T value) : Column(size) { fill(value); }
  Column(Column&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Column& operator=(Column&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  Column(const Column&) = delete;
  Column& operator=(const Column&) = delete;
  ~Column() { std::free(data_); }

  void fill(T value) {
    for (std::size_t row = 0; row < size_; ++row) data_[row] = value;
  }
  // Only drops the other rows; the block keeps its size.
  void shrink(std::size_t size) { size_ = size; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t row) { return data_[row]; }
  const T& operator[](std::size_t row) const { return data_[row]; }
  operator std::span<const T>() const { return {data_, size_}; }

  // Hands the memory to the caller, who frees it with std::free.
  T* release() {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace kinetoscope
