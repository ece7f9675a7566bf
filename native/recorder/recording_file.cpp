#include "recording_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
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
constexpr unsigned kMostNames = 1000;

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

void refuse_unless_file(const std::string& path, const struct stat& status) {
  if (S_ISREG(status.st_mode)) return;
  const char* what = S_ISDIR(status.st_mode)                              ? "a folder"
                     : S_ISLNK(status.st_mode)                            ? "a symbolic link"
                     : S_ISFIFO(status.st_mode)                           ? "a named pipe"
                     : S_ISSOCK(status.st_mode)                           ? "a socket"
                     : S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode) ? "a device"
                                                                          : "no regular file";
  throw std::runtime_error(path + " is " + what + ", and a recording is a regular file: choose another path");
}

struct Descriptor {
  explicit Descriptor(int opened) : number(opened) {}
  ~Descriptor() {
    if (number >= 0) close(number);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int number;
};

// The process whose recording a file is; 0 if it is none.
pid_t recorded_by(int file) {
  FileHeader head{};
  const ssize_t got = pread(file, &head, offsetof(FileHeader, clock_pairs), 0);
  return got == offsetof(FileHeader, clock_pairs) && std::memcmp(head.magic, kMagic, sizeof(kMagic)) == 0
             ? static_cast<pid_t>(head.process)
             : 0;
}

// Renames, unless something has that name already (errno EEXIST).
bool move_to_free_name(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) return false;
  // Some file systems cannot do that, and some of them have no second names either.
  if (link(from.c_str(), to.c_str()) == 0) return unlink(from.c_str()) == 0;
  if (errno == EEXIST) return false;
  return rename(from.c_str(), to.c_str()) == 0;
}

}  // namespace

RecordingFile::RecordingFile(const std::string& path, uint32_t chunk_bytes, uint64_t ring_chunks)
    : wanted_path_(path), chunk_bytes_(chunk_bytes), ring_chunks_(ring_chunks) {
  struct stat there{};
  if (lstat(path.c_str(), &there) == 0) refuse_unless_file(path, there);
  path_ = folder_of(path) + ".kinetoscope-XXXXXX";
  file_ = mkostemp(path_.data(), O_CLOEXEC);
  if (file_ < 0) throw std::system_error(errno, std::generic_category(), "cannot create " + path);
  // Held for as long as records are written: it is what shows others that this file is in use.
  flock(file_, LOCK_EX | LOCK_NB);
  const auto give_up = [this, &path](int reason, const char* what) {
    close(file_);
    unlink(path_.c_str());
    throw std::system_error(reason, std::generic_category(), what + path);
  };
  if (!reserve(2)) give_up(errno, "no room for a recording in ");
  void* mapped = MAP_FAILED;
  for (const size_t bytes : kAddressSpace) {
    mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
    if (mapped != MAP_FAILED) {
      mapped_bytes_ = bytes;
      break;
    }
  }
  if (mapped == MAP_FAILED) give_up(errno, "cannot map ");
  // A forked child must never write its parent's recording.
  madvise(mapped, mapped_bytes_, MADV_DONTFORK);
  base_ = static_cast<std::byte*>(mapped);
  guard_ = std::make_unique<FaultGuard>(mapped, mapped_bytes_);

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
  guard_.reset();
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
  if (file_ >= 0) close(file_);
  if (!published_ && base_ != nullptr) unlink(path_.c_str());
}

void RecordingFile::abandon() {
  base_ = nullptr;
  if (file_ >= 0) close(file_);
  file_ = -1;
}

void RecordingFile::publish(int64_t keep_since_ns) {
  for (unsigned attempt = 0; attempt < kMostNames; ++attempt) {
    std::string name = wanted_path_;
    if (attempt != 0) {
      std::string addition(".p");
      addition.append(std::to_string(getpid()));
      if (attempt > 1) addition.append("-").append(std::to_string(attempt));
      const size_t base = folder_of(name).size();
      const size_t dot = name.rfind('.');
      name.insert(dot == std::string::npos || dot <= base ? name.size() : dot, addition);
    }
    if (!take_name(name, keep_since_ns)) continue;
    path_ = name;
    published_ = true;
    return;
  }
  throw std::runtime_error(wanted_path_ + " and " + std::to_string(kMostNames - 1) +
                           " names like it are all being recorded into: choose another path");
}

bool RecordingFile::take_name(const std::string& name, int64_t keep_since_ns) {
  // Each turn that ends without an answer has seen another process change what is there.
  for (int turn = 0; turn < 100; ++turn) {
    struct stat there{};
    if (lstat(name.c_str(), &there) != 0) {
      if (errno != ENOENT) throw std::system_error(errno, std::generic_category(), "cannot create " + name);
      if (move_to_free_name(path_, name)) return true;
      if (errno != EEXIST) throw std::system_error(errno, std::generic_category(), "cannot create " + name);
      continue;
    }
    refuse_unless_file(name, there);
    const Descriptor old(open(name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (old.number < 0) {
      if (errno == ENOENT) continue;
      throw std::system_error(errno, std::generic_category(), "cannot replace " + name);
    }
    // File systems without locks say something else, and then nobody can be seen to be writing.
    if (flock(old.number, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    struct stat opened{};
    if (fstat(old.number, &opened) != 0 || lstat(name.c_str(), &there) != 0 ||
        opened.st_ino != there.st_ino || opened.st_dev != there.st_dev) {
      continue;
    }
    const int64_t changed_ns = int64_t{opened.st_mtim.tv_sec} * 1'000'000'000 + opened.st_mtim.tv_nsec;
    if (keep_since_ns > 0 && changed_ns >= keep_since_ns && recorded_by(old.number) != getpid()) return false;
    if (rename(path_.c_str(), name.c_str()) == 0) return true;
    throw std::system_error(errno, std::generic_category(), "cannot replace " + name);
  }
  return false;
}

ChunkHeader* RecordingFile::chunk_at(uint64_t index) const {
  return reinterpret_cast<ChunkHeader*>(base_ + kHeaderBytes + index * chunk_bytes_);
}

bool RecordingFile::cut_short() {
  if (lost()) return true;
  // Read first: it may grow meanwhile.
  const uint64_t chunks = reserved_.load(std::memory_order_acquire);
  struct stat now{};
  if (fstat(file_, &now) != 0 || static_cast<uint64_t>(now.st_size) >= kHeaderBytes + chunks * chunk_bytes_) {
    return false;
  }
  guard_->lose_file();
  return true;
}

bool RecordingFile::reserve(uint64_t chunks) {
  const uint64_t have = reserved_.load(std::memory_order_relaxed);
  if (chunks <= have) return true;
  if (have != 0 && cut_short()) {
    errno = EIO;
    return false;
  }
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
  int failure = EINTR;
  while (failure == EINTR) {
    failure = posix_fallocate(file_, static_cast<off_t>(from), static_cast<off_t>(to - from));
  }
  if (failure != 0) {
    errno = failure;
    return false;
  }
  reserved_.store(chunks, std::memory_order_release);
  return true;
}

ChunkHeader* RecordingFile::take_chunk(ChunkKind kind, uint32_t thread) {
  std::lock_guard lock(mutex_);
  // Growing it would write into what somebody else has put there.
  if (cut_short()) return nullptr;
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
  if (cut_short()) return false;
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

void RecordingFile::close_books() {
  std::atomic_ref(header().state).store(static_cast<uint32_t>(FileState::Stopped), std::memory_order_release);
  flock(file_, LOCK_UN);
}

}  // namespace kinetoscope
