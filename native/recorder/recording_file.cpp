#include "recording_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "clock.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kinetoscope {
namespace {

// Address space is reserved once, so that growing never moves a record; only pages below the file's end
// exist.
constexpr size_t kAddressSpace[] = {size_t{1} << 38, size_t{1} << 35, size_t{1} << 32, size_t{1} << 28};
constexpr uint64_t kMaxChunksAhead = 16;
constexpr uint64_t kReserveStep = 16;
// The disk of the profiled job is not ours to fill: below this much free space we stop growing and count
// drops.
constexpr uint64_t kKeepFreeBytes = uint64_t{64} << 20;

}  // namespace

RecordingFile::RecordingFile(const std::string& path, uint32_t chunk_bytes, uint64_t ring_chunks)
    : path_(path), chunk_bytes_(chunk_bytes), ring_chunks_(ring_chunks) {
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file_ < 0) throw std::system_error(errno, std::generic_category(), "cannot create " + path);
  if (!reserve(2)) {
    const int reason = errno;
    close(file_);
    unlink(path.c_str());
    throw std::system_error(reason, std::generic_category(), "no room for a recording in " + path);
  }
  void* mapped = MAP_FAILED;
  for (const size_t bytes : kAddressSpace) {
    mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
    if (mapped != MAP_FAILED) {
      mapped_bytes_ = bytes;
      break;
    }
  }
  if (mapped == MAP_FAILED) {
    const int reason = errno;
    close(file_);
    unlink(path.c_str());
    throw std::system_error(reason, std::generic_category(), "cannot map " + path);
  }
  // A forked child must never write its parent's recording.
  madvise(mapped, mapped_bytes_, MADV_DONTFORK);
  base_ = static_cast<std::byte*>(mapped);

  FileHeader& head = header();
  head.version = kVersion;
  head.chunk_bytes = chunk_bytes_;
  head.state = static_cast<uint32_t>(FileState::Recording);
  head.clock = static_cast<uint32_t>(active_clock);
  head.process = static_cast<uint32_t>(getpid());
  // The magic comes last: a reader never takes a half-written header for a recording.
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
}

RecordingFile::~RecordingFile() {
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
  if (file_ >= 0) close(file_);
}

ChunkHeader* RecordingFile::chunk_at(uint64_t index) const {
  return reinterpret_cast<ChunkHeader*>(base_ + kHeaderBytes + index * chunk_bytes_);
}

bool RecordingFile::reserve(uint64_t chunks) {
  const uint64_t have = reserved_.load(std::memory_order_relaxed);
  if (chunks <= have) return true;
  const uint64_t from = have == 0 ? 0 : kHeaderBytes + have * chunk_bytes_;
  const uint64_t to = kHeaderBytes + chunks * chunk_bytes_;
  if (mapped_bytes_ != 0 && to > mapped_bytes_) {
    errno = ENOMEM;
    return false;
  }
  struct statvfs disk{};
  if (have != 0 && fstatvfs(file_, &disk) == 0 &&
      uint64_t{disk.f_bavail} * disk.f_frsize < (to - from) + kKeepFreeBytes) {
    errno = ENOSPC;
    return false;
  }
  // Blocks are claimed here, so that a full disk is an error number now and not a SIGBUS in the job later.
  const int failure = posix_fallocate(file_, static_cast<off_t>(from), static_cast<off_t>(to - from));
  if (failure != 0) {
    errno = failure;
    return false;
  }
  reserved_.store(chunks, std::memory_order_release);
  return true;
}

ChunkHeader* RecordingFile::take_chunk(ChunkKind kind, uint32_t thread) {
  std::lock_guard lock(mutex_);
  const bool in_ring = ring_chunks_ != 0 && kind != ChunkKind::Dictionary;
  ChunkHeader* chunk = nullptr;
  if (in_ring && ring_in_use_ >= ring_chunks_) {
    chunk = recycle();
    if (chunk == nullptr) return nullptr;
  } else {
    if (handed_out_ >= reserved_.load(std::memory_order_acquire)) {
      if (disk_full_.load(std::memory_order_relaxed)) return nullptr;
      std::lock_guard room(room_mutex_);
      if (!reserve(handed_out_ + 1)) {
        disk_full_.store(true, std::memory_order_relaxed);
        return nullptr;
      }
    }
    chunk = chunk_at(handed_out_++);
    if (in_ring) ++ring_in_use_;
  }
  std::atomic_ref(chunk->committed).store(0, std::memory_order_relaxed);
  chunk->kind = static_cast<uint32_t>(kind);
  chunk->thread = thread;
  chunk->order = ++order_;
  std::atomic_ref(chunk->magic).store(kChunkMagic, std::memory_order_release);
  std::atomic_ref(header().chunks).store(handed_out_, std::memory_order_release);
  wanted_.store(handed_out_ + std::min(kMaxChunksAhead, handed_out_), std::memory_order_relaxed);
  return chunk;
}

void RecordingFile::retire_chunk(ChunkHeader* chunk) {
  if (ring_chunks_ == 0) return;
  std::lock_guard lock(mutex_);
  retired_.push_back(chunk);
}

ChunkHeader* RecordingFile::recycle() {
  for (auto at = retired_.begin(); at != retired_.end(); ++at) {
    ChunkHeader* chunk = *at;
    const uint64_t records = std::atomic_ref(chunk->committed).load(std::memory_order_acquire);
    if (chunk->kind == static_cast<uint32_t>(ChunkKind::Spans)) {
      auto* spans = reinterpret_cast<SpanRecord*>(chunk + 1);
      const bool open = std::any_of(spans, spans + records, [](SpanRecord& span) {
        return std::atomic_ref(span.end_tick).load(std::memory_order_relaxed) == 0;
      });
      if (open) continue;
      std::atomic_ref(header().recycled_spans).fetch_add(records, std::memory_order_relaxed);
    } else if (chunk->kind == static_cast<uint32_t>(ChunkKind::Notes)) {
      std::atomic_ref(header().recycled_notes).fetch_add(records, std::memory_order_relaxed);
    } else {
      std::atomic_ref(header().recycled_allocations).fetch_add(records, std::memory_order_relaxed);
    }
    retired_.erase(at);
    return chunk;
  }
  return nullptr;
}

bool RecordingFile::prepare_room() {
  const uint64_t wanted = wanted_.load(std::memory_order_relaxed);
  if (faulted_ >= wanted || disk_full_.load(std::memory_order_relaxed)) return false;
  {
    std::lock_guard room(room_mutex_);
    if (wanted > reserved_.load(std::memory_order_relaxed) && !reserve(wanted + kReserveStep)) {
      return false;
    }
  }
  for (; faulted_ < wanted; ++faulted_) {
    // Older kernels do not know this advice; then the writers fault the pages in themselves.
    if (madvise(base_ + kHeaderBytes + faulted_ * chunk_bytes_, chunk_bytes_, MADV_POPULATE_WRITE) != 0) {
      faulted_ = wanted;
      break;
    }
  }
  return true;
}

void RecordingFile::add_clock_pair(const ClockPair& pair) {
  std::lock_guard lock(clock_mutex_);
  FileHeader& head = header();
  const uint32_t used = head.clock_pairs;
  const uint32_t slot = std::min(used, kMaxClockPairs - 1);
  head.pairs[slot] = pair;
  std::atomic_ref(head.clock_pairs).store(slot + 1, std::memory_order_release);
}

void RecordingFile::close_books(uint64_t stop_tick) {
  header().stop_tick = stop_tick;
  std::atomic_ref(header().state).store(static_cast<uint32_t>(FileState::Stopped), std::memory_order_release);
}

}  // namespace kinetoscope
