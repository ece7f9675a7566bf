// Reads memory of this process, or of another one, without faults: reading unmapped memory fails instead of
// crashing.
//
// A system call does the copying. Memory is copied in blocks, which are cached, so that adjacent data, such
// as the frames of a thread, needs few calls and is consistent; and the blocks of one round are copied by one
// call in the next.
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
  // Reads another process, of the same user, by process_vm_readv().
  explicit MemoryReader(pid_t process);
  ~MemoryReader();
  MemoryReader(const MemoryReader&) = delete;
  MemoryReader& operator=(const MemoryReader&) = delete;

  // The method that works on this system.
  Way way() const { return way_; }

  // Copies `bytes` from `address` of the process; false where not all of them can be read.
  bool read(const void* address, void* into, size_t bytes);
  template <typename Value>
  bool read(const void* address, Value& into) {
    return read(address, &into, sizeof(into));
  }
  // Starts a round: copies the blocks that the last round has used.
  void refresh();
  // Starts a round without copying any blocks in advance.
  void forget() { ++round_; }

  // Stops reading; all later reads fail.
  void close();

 private:
  static constexpr size_t kBlockBytes = 1024;  // divides the page of every system: a block is there or not
  static constexpr size_t kBlocks = 256;

  struct Block {
    uintptr_t address = 0;
    uint64_t round = 0;  // when it was copied
    uint64_t used = 0;   // the last round that has read it
  };

  // The copy of the block at `address`; nullptr if a part of it is not mapped.
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
