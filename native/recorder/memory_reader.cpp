#include "memory_reader.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace kinetoscope {

MemoryReader::MemoryReader() : MemoryReader(Way::OtherProcess) {}

MemoryReader::MemoryReader(Way best) : process_(getpid()), copies_(new std::byte[kBlocks * kBlockBytes]) {
  const uint64_t written = 0x6b696e65746f7363;
  const auto works = [&](Way way) {
    way_ = way;
    uint64_t seen = 0;
    return copy(reinterpret_cast<uintptr_t>(&written), &seen, sizeof(seen)) && seen == written;
  };
  if (best == Way::OtherProcess && works(Way::OtherProcess)) return;
  if (best != Way::None) {
    file_ = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    if (file_ >= 0 && works(Way::MemoryFile)) return;
  }
  close();
}

MemoryReader::MemoryReader(pid_t process)
    : way_(Way::OtherProcess), process_(process), copies_(new std::byte[kBlocks * kBlockBytes]) {}

MemoryReader::~MemoryReader() { close(); }

void MemoryReader::close() {
  way_ = Way::None;
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

bool MemoryReader::copy(uintptr_t address, void* into, size_t bytes) const {
  if (way_ == Way::OtherProcess) {
    const iovec local{into, bytes};
    const iovec remote{reinterpret_cast<void*>(address), bytes};
    return process_vm_readv(process_, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
  }
  return way_ == Way::MemoryFile &&
         pread(file_, into, bytes, static_cast<off_t>(address)) == static_cast<ssize_t>(bytes);
}

const std::byte* MemoryReader::block_at(uintptr_t address) {
  const size_t slot = address / kBlockBytes % kBlocks;
  std::byte* const copied = copies_.get() + slot * kBlockBytes;
  Block& block = blocks_[slot];
  if (block.address != address || block.round != round_) {
    block.round = 0;
    if (!copy(address, copied, kBlockBytes)) return nullptr;
    block = {address, round_, 0};
  }
  block.used = round_;
  return copied;
}

void MemoryReader::refresh() {
  const uint64_t before = round_++;
  if (way_ != Way::OtherProcess) return;
  iovec local[kBlocks], remote[kBlocks];
  Block* wanted[kBlocks];
  size_t pieces = 0, count = 0;
  for (size_t slot = 0; slot < kBlocks; ++slot) {
    Block& block = blocks_[slot];
    if (block.used != before) continue;
    if (count != 0 && wanted[count - 1] + 1 == &block &&
        wanted[count - 1]->address + kBlockBytes == block.address) {
      local[pieces - 1].iov_len += kBlockBytes;
      remote[pieces - 1].iov_len += kBlockBytes;
    } else {
      local[pieces] = {copies_.get() + slot * kBlockBytes, kBlockBytes};
      remote[pieces++] = {reinterpret_cast<void*>(block.address), kBlockBytes};
    }
    wanted[count++] = &block;
  }
  if (count == 0) return;
  // It stops at the first that is not there any more.
  const ssize_t copied = process_vm_readv(process_, local, pieces, remote, pieces, 0);
  const size_t whole = copied > 0 ? static_cast<size_t>(copied) / kBlockBytes : 0;
  for (size_t at = 0; at < whole; ++at) wanted[at]->round = round_;
}

bool MemoryReader::read(const void* address, void* into, size_t bytes) {
  auto from = reinterpret_cast<uintptr_t>(address);
  auto* to = static_cast<std::byte*>(into);
  if (bytes > UINTPTR_MAX - from) return false;
  while (bytes > 0) {
    const uintptr_t offset = from % kBlockBytes;
    const size_t part = std::min(bytes, kBlockBytes - offset);
    const std::byte* block = block_at(from - offset);
    if (block == nullptr) return false;
    std::memcpy(to, block + offset, part);
    from += part;
    to += part;
    bytes -= part;
  }
  return true;
}

}  // namespace kinetoscope
