// Reads of this process's own memory that cannot fault: what is not there any more is an answer, not a crash.
//
// The system copies, and says so when there is nothing to copy. Memory is copied in blocks that are kept, so
// that what lies side by side, as the frames of a thread do, costs few calls and is of one moment; and what
// was read last time is copied in one call next time.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace kinetoscope {

class MemoryReader {
 public:
  enum class Way { None, OtherProcess, MemoryFile };

  // Tries process_vm_readv(), which some containers forbid, and /proc/self/mem after that.
  MemoryReader();
  // The same, without the first or without both.
  explicit MemoryReader(Way best);
  ~MemoryReader();
  MemoryReader(const MemoryReader&) = delete;
  MemoryReader& operator=(const MemoryReader&) = delete;

  // Which way works here.
  Way way() const { return way_; }

  // Copies `bytes` from `address` of this process; false where not all of them can be read.
  bool read(const void* address, void* into, size_t bytes);
  template <typename Value>
  bool read(const void* address, Value& into) {
    return read(address, &into, sizeof(into));
  }
  // Reads anew from here on; what was read since the last time is copied at once.
  void refresh();
  // Reads anew from here on, as little as possible.
  void forget() { ++round_; }

  // Reads nothing from here on.
  void close();

 private:
  static constexpr size_t kBlockBytes = 1024;  // divides the page of every system: a block is there or not
  static constexpr size_t kBlocks = 256;

  struct Block {
    uintptr_t address = 0;
    uint64_t round = 0;  // when it was copied
    uint64_t used = 0;   // the last round that has read it
  };

  // Where the block at `address` was copied to; nullptr where it is not all there.
  const std::byte* block_at(uintptr_t address);
  bool copy(uintptr_t address, void* into, size_t bytes) const;

  Way way_ = Way::None;
  int file_ = -1;
  const pid_t process_;
  uint64_t round_ = 1;
  std::array<Block, kBlocks> blocks_;
  const std::unique_ptr<std::byte[]> copies_;  // of the blocks; pages that are not used cost nothing
};

}  // namespace kinetoscope
