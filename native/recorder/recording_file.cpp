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
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "clock.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kinetoscope {
namespace {

// Address space is reserved once, so that growing never moves a record; only pages below the file's end
// exist.
constexpr size_t kAddressSpace[] = {size_t{1} << 38, size_t{1} << 35, size_t{1} << 32, size_t{1} << 28};
// Chunks grow from one unit to this, and each is so many times as long as the one before.
constexpr uint64_t kLargestUnits = 256;
constexpr uint64_t kGrowth = 4;
// Space that is prepared ahead of the writers: half of what they have used, within these bounds.
constexpr uint64_t kLeastAheadUnits = 64;
constexpr uint64_t kMostAheadUnits = 4096;
// The file grows by its current size, within kLeastAheadUnits and this: larger pieces cost less for each
// page.
constexpr uint64_t kLargestPieceUnits = 1024;
constexpr uint64_t kPageBytes = 4096;
// A dictionary of this size has some million entries, which are also in tables in memory.
constexpr uint64_t kMostDictionaryBytes = uint64_t{256} << 20;
// The recording must not fill the program's disk: with less free space than this, or this fraction of what
// was free at its start, the file stops growing, and records are counted as dropped.
constexpr uint64_t kKeepFreeBytes = uint64_t{64} << 20;
constexpr uint64_t kKeepFreeShare = 4;
constexpr unsigned kMostNames = 1000;
// At most this fraction of a full ring is free, see find_room().
constexpr uint64_t kMostFreeShare = 16;
// This fraction of a frozen ring is left to the dictionary, because threads cache that there was no space for
// a name.
constexpr uint64_t kFrozenShare = 32;
// The share of each kind of records of a ring.
struct Share {
  ChunkKind kind;
  uint64_t parts;
};
constexpr Share kShares[] = {
    {ChunkKind::Spans, 6}, {ChunkKind::Notes, 3}, {ChunkKind::Allocations, 3}, {ChunkKind::Samples, 1}};
constexpr uint64_t kAllParts = 13;
// The share of each kind has space for at least this many chunks.
constexpr uint64_t kLeastChunksOfAKind = 8;
// The fraction of a ring for rows of named tables.
constexpr uint64_t kRowsShare = 8;

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

void refuse_unless_file(const std::string& path, const struct stat& status) {
  if (S_ISREG(status.st_mode)) return;
  const char* what = S_ISDIR(status.st_mode)                              ? "a folder"
                     : S_ISLNK(status.st_mode)                            ? "a symbolic link"
                     : S_ISFIFO(status.st_mode)                           ? "a named pipe"
                     : S_ISSOCK(status.st_mode)                           ? "a socket"
                     : S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode) ? "a device"
                                                                          : "not a regular file";
  throw std::runtime_error(path + " is " + what + "; a recording needs a regular file: choose another path");
}

constexpr uint32_t bit_of(ChunkKind kind) { return uint32_t{1} << static_cast<uint32_t>(kind); }

bool has_open_span(ChunkHeader* chunk) {
  if (chunk->kind != static_cast<uint32_t>(ChunkKind::Spans)) return false;
  auto* spans = reinterpret_cast<CompactSpan*>(chunk + 1);
  const uint64_t most = (uint64_t{chunk->units} * kUnitBytes - sizeof(ChunkHeader)) / sizeof(CompactSpan);
  // A truncated file may read as anything.
  const uint64_t records = std::min(std::atomic_ref(chunk->committed).load(std::memory_order_acquire),
                                    chunk->units == 0 ? 0 : most);
  return std::any_of(spans, spans + records, [](CompactSpan& span) {
    return (std::atomic_ref(span.end).load(std::memory_order_acquire) & CompactSpan::kEndMask) == 0;
  });
}

// When the last call in a chunk of spans ended; 0 if it has none.
uint64_t last_end_of_calls(const ChunkHeader* chunk) {
  uint64_t last = 0;
  const auto* records = reinterpret_cast<const CompactSpan*>(chunk + 1);
  for (const CompactSpan* record = records; record != records + chunk->committed; ++record)
    if ((record->flags() & kSpanIsCall) != 0) last = std::max(last, record->end_tick());
  return last;
}

// When the last record of a chunk was written; UINT64_MAX of a chunk that has none, or of another kind.
uint64_t last_tick(const ChunkHeader* chunk) {
  const size_t record = bytes_of_record(chunk->kind);
  if (record == 0 || chunk->committed == 0 || chunk->units == 0 ||
      sizeof(ChunkHeader) + chunk->committed * record > uint64_t{chunk->units} * kUnitBytes)
    return UINT64_MAX;
  const auto* last = reinterpret_cast<const std::byte*>(chunk + 1) + (chunk->committed - 1) * record;
  switch (static_cast<ChunkKind>(chunk->kind)) {
    case ChunkKind::Spans:
      return reinterpret_cast<const CompactSpan*>(last)->start_tick();
    case ChunkKind::Allocations:
      return reinterpret_cast<const AllocationRecord*>(last)->tick;
    case ChunkKind::Notes:
      return reinterpret_cast<const NoteRecord*>(last)->span_tick;
    case ChunkKind::Samples:
      return reinterpret_cast<const SampleRecord*>(last)->tick;
    default:
      return UINT64_MAX;
  }
}

// The counters of a kind of records.
uint64_t& recycled_of(FileHeader& head, ChunkKind kind) {
  return kind == ChunkKind::Spans     ? head.recycled_spans
         : kind == ChunkKind::Notes   ? head.recycled_notes
         : kind == ChunkKind::Samples ? head.recycled_samples
         : kind == ChunkKind::Rows    ? head.recycled_rows
                                      : head.recycled_allocations;
}
uint64_t& dropped_of(FileHeader& head, ChunkKind kind) {
  return kind == ChunkKind::Spans     ? head.dropped_spans
         : kind == ChunkKind::Notes   ? head.dropped_notes
         : kind == ChunkKind::Samples ? head.dropped_samples
         : kind == ChunkKind::Rows    ? head.dropped_rows
                                      : head.dropped_allocations;
}
uint64_t& ring_dropped_of(FileHeader& head, ChunkKind kind) {
  return kind == ChunkKind::Spans     ? head.ring_dropped_spans
         : kind == ChunkKind::Notes   ? head.ring_dropped_notes
         : kind == ChunkKind::Samples ? head.ring_dropped_samples
         : kind == ChunkKind::Rows    ? head.ring_dropped_rows
                                      : head.ring_dropped_allocations;
}

// Calls `visit(record)` with where each record of a chunk begins, or what was appended at once to a chunk of
// rows.
template <typename Visit>
void for_each_record(ChunkHeader* chunk, Visit visit) {
  const uint64_t bytes =
      std::atomic_ref(chunk->committed).load(std::memory_order_acquire) * bytes_of_record(chunk->kind);
  const auto* payload = reinterpret_cast<const std::byte*>(chunk + 1);
  const bool rows = chunk->kind == static_cast<uint32_t>(ChunkKind::Rows);
  const size_t least = rows ? sizeof(RowsHeader) : bytes_of_record(chunk->kind);
  for (uint64_t at = 0, taken = 0; at + least <= bytes; at += taken) {
    visit(payload + at);
    RowsHeader header{};
    if (rows) std::memcpy(&header, payload + at, sizeof(header));
    taken = rows ? bytes_of_rows(header) : least;
  }
}

// How many records a chunk holds: it counts its bytes if it holds rows.
uint64_t records_in(ChunkHeader* chunk) {
  if (chunk->kind != static_cast<uint32_t>(ChunkKind::Rows))
    return std::atomic_ref(chunk->committed).load(std::memory_order_acquire);
  uint64_t rows = 0;
  for_each_record(chunk, [&rows](const std::byte* record) {
    RowsHeader header;
    std::memcpy(&header, record, sizeof(header));
    rows += header.rows;
  });
  return rows;
}

// When the last of the records in a chunk began, or were written.
uint64_t last_tick_in(ChunkHeader* chunk) {
  if (chunk->kind == static_cast<uint32_t>(ChunkKind::Dictionary)) return 0;
  uint64_t last = 0;
  // All: calls of Python that began before their thread was recorded are not in order.
  for_each_record(chunk, [&last](const std::byte* record) {
    uint64_t tick;
    std::memcpy(&tick, record, sizeof(tick));
    last = std::max(last, tick);
  });
  if (chunk->kind == static_cast<uint32_t>(ChunkKind::Spans)) last >>= CompactSpan::kFlagBits;
  return last;
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

RecordingFile::RecordingFile(const std::string& path, uint64_t ring_bytes)
    : wanted_path_(path),
      ring_units_(ring_bytes == 0 ? 0
                                  : (std::max(ring_bytes, kLeastRingBytes) - kHeaderBytes) / kPageBytes *
                                        (kPageBytes / kUnitBytes)) {
  struct stat there{};
  if (lstat(path.c_str(), &there) == 0) refuse_unless_file(path, there);
  path_ = folder_of(path) + ".kinetoscope-XXXXXX";
  file_ = mkostemp(path_.data(), O_CLOEXEC);
  if (file_ < 0) throw std::system_error(errno, std::generic_category(), "cannot create " + path);
  // Held while records are written: the lock shows other processes that this file is in use.
  flock(file_, LOCK_EX | LOCK_NB);
  const auto give_up = [this, &path](int reason, const char* what) {
    close(file_);
    unlink(path_.c_str());
    throw std::system_error(reason, std::generic_category(), what + path);
  };
  struct statvfs disk{};
  if (fstatvfs(file_, &disk) == 0)
    keep_free_bytes_ = std::min(kKeepFreeBytes, uint64_t{disk.f_bavail} * disk.f_frsize / kKeepFreeShare);
  // A ring gets all of its space now, so that it holds what was promised however full the disk becomes.
  if (!reserve(std::max(ring_units_, kLeastAheadUnits))) give_up(errno, "cannot reserve disk space for ");
  void* mapped = MAP_FAILED;
  for (const size_t bytes : kAddressSpace) {
    mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
    if (mapped != MAP_FAILED) {
      mapped_bytes_ = bytes;
      break;
    }
  }
  if (mapped == MAP_FAILED) give_up(errno, "cannot map ");
  // A forked child must not write to its parent's recording.
  madvise(mapped, mapped_bytes_, MADV_DONTFORK);
  base_ = static_cast<std::byte*>(mapped);
  guard_ = std::make_unique<FaultGuard>(mapped, mapped_bytes_);

  FileHeader& head = header();
  head.version = kVersion;
  head.chunk_bytes = kUnitBytes;
  head.state = static_cast<uint32_t>(FileState::Recording);
  head.clock = static_cast<uint32_t>(active_clock);
  head.process = static_cast<uint32_t>(getpid());
  // The magic is written last, so that a reader does not take an incomplete header for a recording.
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
}

RecordingFile::~RecordingFile() {
  if (base_ != nullptr && header().state == static_cast<uint32_t>(FileState::Stopped)) seal();
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
                           " numbered variants of it are in use by other recordings: choose another path");
}

bool RecordingFile::take_name(const std::string& name, int64_t keep_since_ns) {
  // Every further iteration means that another process has changed the folder meanwhile.
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
    // File systems without locks return another error; then it is unknown whether another process is writing.
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

ChunkHeader* RecordingFile::chunk_at(uint64_t unit) const {
  return reinterpret_cast<ChunkHeader*>(base_ + kHeaderBytes + unit * kUnitBytes);
}

uint64_t RecordingFile::unit_of(const ChunkHeader* chunk) const {
  return static_cast<uint64_t>(reinterpret_cast<const std::byte*>(chunk) - base_ - kHeaderBytes) / kUnitBytes;
}

uint64_t RecordingFile::rows_bytes() const {
  return ring_units_ == 0 ? 0 : std::max<uint64_t>(ring_units_ / kRowsShare, 1) * kUnitBytes;
}

uint64_t RecordingFile::dictionary_bytes() const {
  return ring_units_ == 0 ? kMostDictionaryBytes : ring_units_ * kUnitBytes / 2;
}

bool RecordingFile::cut_short() {
  if (lost()) return true;
  // Read first: it may grow meanwhile.
  const uint64_t units = reserved_.load(std::memory_order_acquire);
  struct stat now{};
  if (fstat(file_, &now) != 0 || static_cast<uint64_t>(now.st_size) >= kHeaderBytes + units * kUnitBytes) {
    return false;
  }
  guard_->lose_file();
  return true;
}

bool RecordingFile::reserve(uint64_t units) {
  const uint64_t have = reserved_.load(std::memory_order_relaxed);
  if (units <= have) return true;
  units = (units + kLeastAheadUnits - 1) / kLeastAheadUnits * kLeastAheadUnits;
  if (ring_units_ != 0) units = std::min(units, ring_units_);
  if (have != 0 && cut_short()) {
    errno = EIO;
    return false;
  }
  const uint64_t from = have == 0 ? 0 : kHeaderBytes + have * kUnitBytes;
  const uint64_t to = kHeaderBytes + units * kUnitBytes;
  if (mapped_bytes_ != 0 && to > mapped_bytes_) {
    errno = ENOMEM;
    return false;
  }
  struct statvfs disk{};
  if (have != 0 && fstatvfs(file_, &disk) == 0 &&
      uint64_t{disk.f_bavail} * disk.f_frsize < (to - from) + keep_free_bytes_) {
    errno = ENOSPC;
    return false;
  }
  // Allocate blocks now, so that a full disk is an error here, and not a SIGBUS in the program later.
  int failure = EINTR;
  while (failure == EINTR) {
    failure = posix_fallocate(file_, static_cast<off_t>(from), static_cast<off_t>(to - from));
  }
  if (failure != 0) {
    errno = failure;
    return false;
  }
  reserved_.store(units, std::memory_order_release);
  return true;
}

uint64_t RecordingFile::find_room(ChunkKind kind, uint64_t want, uint64_t least, uint64_t& got) {
  const auto take_from = [&](UnitRun run) {
    got = std::min(want, run.units);
    free_.take_at(run.first);
    // Before the first part gets a length of its own: until then it covers both.
    if (got < run.units) free_run(run.first + got, run.units - got);
    return run.first;
  };
  if (frozen_) {
    want = std::min(want, units_of_frozen(kind));
    if (want < least) {
      if (least == 1) no_records_.store(true, std::memory_order_relaxed);
      got = 0;
      return 0;
    }
  }
  if (const UnitRun run = free_.shortest_of(want); run.units != 0) return take_from(run);
  // Half the length is enough: otherwise the remaining pieces would become smaller and smaller.
  const uint64_t enough = std::max(least, (want + 1) / 2);
  if (const UnitRun run = free_.longest(); run.units >= enough) return take_from(run);
  const uint64_t beyond = ring_units_ == 0 ? want : std::min(want, ring_units_ - handed_out_);
  if (beyond >= least) {
    bool there = handed_out_ + beyond <= reserved_.load(std::memory_order_acquire);
    if (!there && !disk_full_.load(std::memory_order_relaxed)) {
      std::lock_guard room(room_mutex_);
      there = reserve(handed_out_ + beyond);
      if (!there) disk_full_.store(true, std::memory_order_relaxed);
    }
    if (there) {
      got = beyond;
      return handed_out_;
    }
  }
  if (ring_units_ != 0 && !frozen_) {
    // Short pieces are also handed out when there are many of them: recycling for every chunk that needs a
    // longer one would leave a ring that consists of free pieces only.
    const bool many_pieces = free_.units() > ring_units_ / kMostFreeShare;
    if (!many_pieces || free_.longest().units < least) recycle(kind, want, enough, least);
  }
  const UnitRun run = free_.longest();
  if (run.units >= least) return take_from(run);
  got = 0;
  return 0;
}

RecordingFile::Chunk RecordingFile::take_chunk(ChunkKind kind, uint32_t thread, size_t before_bytes,
                                               size_t least_bytes) {
  // Without the mutex, because every record gets here until there is space again.
  if (no_records_.load(std::memory_order_relaxed) && kind != ChunkKind::Dictionary) return {};
  std::lock_guard lock(mutex_);
  if (lost()) return {};
  const uint64_t least = (sizeof(ChunkHeader) + least_bytes + kUnitBytes - 1) / kUnitBytes;
  uint64_t most = kLargestUnits;
  // All chunks in use together are limited to half of the ring.
  if (ring_units_ != 0) {
    most = std::clamp<uint64_t>(ring_units_ / (2 * (in_use_ + 1) * (in_use_ + 2)), 1, longest_chunk(kind));
  }
  const uint64_t larger = before_bytes == 0 ? 1 : kGrowth * (before_bytes + sizeof(ChunkHeader)) / kUnitBytes;
  uint64_t units = 0;
  const uint64_t first = find_room(kind, std::max(std::min(larger, most), least), least, units);
  // Not if the file was truncated: growing or writing it might overwrite the data of another program.
  if (units == 0 || cut_short()) return {};
  ChunkHeader* chunk = chunk_at(first);
  chunk->units = static_cast<uint32_t>(units);
  std::atomic_ref(chunk->committed).store(0, std::memory_order_relaxed);
  chunk->checksum = 0;
  chunk->thread = thread;
  chunk->order = ++order_;
  std::atomic_ref(chunk->kind).store(static_cast<uint32_t>(kind), std::memory_order_release);
  std::atomic_ref(chunk->magic).store(kChunkMagic, std::memory_order_release);
  if (first == handed_out_) {
    handed_out_ += units;
    std::atomic_ref(header().chunks).store(handed_out_, std::memory_order_release);
    const uint64_t wanted =
        handed_out_ + std::clamp<uint64_t>(handed_out_ / 2, kLeastAheadUnits, kMostAheadUnits);
    wanted_.store(ring_units_ == 0 ? wanted : std::min(wanted, ring_units_), std::memory_order_relaxed);
  }
  // Last, because a reader expects every chunk that is counted here.
  std::atomic_ref(header().orders).store(order_, std::memory_order_release);
  if (kind != ChunkKind::Dictionary) ++in_use_;
  units_[static_cast<size_t>(kind)] += units;
  // A reader that copies what was here before, and meets a word of what is written now, sees the new order.
  std::atomic_thread_fence(std::memory_order_release);
  return {chunk, units * kUnitBytes - sizeof(ChunkHeader)};
}

void RecordingFile::retire_chunk(ChunkHeader* chunk) {
  std::lock_guard lock(mutex_);
  if (lost()) return;
  --in_use_;
  const uint64_t used_bytes =
      sizeof(ChunkHeader) +
      std::atomic_ref(chunk->committed).load(std::memory_order_relaxed) * bytes_of_record(chunk->kind);
  const uint64_t used = (used_bytes + kUnitBytes - 1) / kUnitBytes;
  if (used < chunk->units) {
    const uint64_t rest = chunk->units - used;
    free_run(unit_of(chunk) + used, rest);
    units_[chunk->kind % kChunkKinds] -= rest;
    chunk->units = static_cast<uint32_t>(used);
  }
  if (ring_units_ == 0) {
    unsealed_.push_back(chunk);
  } else if (chunk->kind != static_cast<uint32_t>(ChunkKind::Rows)) {
    retired_[chunk->kind % kChunkKinds].push_back({chunk, ++ages_});
  }
}

void RecordingFile::free_run(uint64_t first, uint64_t units) {
  // A file that somebody cut short reads as zeros.
  if (units == 0) return;
  units += free_.take_at(first + units).units;
  ChunkHeader* chunk = chunk_at(first);
  // A reader must not take the old contents for records: the length is written last, since it is shorter
  // until then.
  std::atomic_ref(chunk->kind).store(static_cast<uint32_t>(ChunkKind::Free), std::memory_order_release);
  std::atomic_ref(chunk->units).store(static_cast<uint32_t>(units), std::memory_order_release);
  std::atomic_ref(chunk->magic).store(kChunkMagic, std::memory_order_release);
  const UnitRun before = free_.take_before(first);
  if (before.units != 0) {
    std::atomic_ref(chunk_at(before.first)->units)
        .store(static_cast<uint32_t>(before.units + units), std::memory_order_release);
    first = before.first;
  }
  free_.add({first, before.units + units});
  no_records_.store(false, std::memory_order_relaxed);
}

uint64_t RecordingFile::units_of_frozen(ChunkKind kind) const {
  const uint64_t left = free_.units() + ring_units_ - handed_out_;
  const uint64_t kept = kind == ChunkKind::Dictionary ? 0 : ring_units_ / kFrozenShare;
  return left - std::min(left, kept);
}

void RecordingFile::freeze() {
  std::lock_guard lock(mutex_);
  if (ring_units_ == 0 || frozen_ || lost()) return;
  while (free_.units() + ring_units_ - handed_out_ < ring_units_ / kFrozenShare) {
    ChunkHeader* chunk = next_to_recycle(ChunkKind::Dictionary, 0);
    if (chunk == nullptr) break;
    recycle_locked(chunk);
  }
  frozen_ = true;
}

void RecordingFile::thaw() {
  std::lock_guard lock(mutex_);
  frozen_ = false;
  no_records_.store(false, std::memory_order_relaxed);
}

bool RecordingFile::is_frozen() {
  std::lock_guard lock(mutex_);
  return frozen_;
}

uint64_t RecordingFile::longest_chunk(ChunkKind kind) const {
  for (const Share& share : kShares) {
    if (share.kind != kind) continue;
    return std::clamp<uint64_t>(ring_units_ * share.parts / (kAllParts * kLeastChunksOfAKind), 1,
                                kLargestUnits);
  }
  return kLargestUnits;
}

uint32_t RecordingFile::kinds_above_their_share(ChunkKind wanting, uint64_t want) const {
  const auto units_of = [&](ChunkKind kind) {
    return units_[static_cast<size_t>(kind)] + (kind == wanting ? want : 0);
  };
  uint64_t rest =
      ring_units_ - std::min(ring_units_, units_of(ChunkKind::Dictionary) + units_of(ChunkKind::Rows) +
                                              ring_units_ / kMostFreeShare);
  uint64_t parts = 0;
  uint32_t above = 0;
  for (const Share& share : kShares) {
    parts += share.parts;
    above |= bit_of(share.kind);
  }
  // The unused share of a kind is distributed among the others, in the same proportion.
  for (bool settled = false; !settled;) {
    settled = true;
    for (const Share& share : kShares) {
      const uint64_t units = units_of(share.kind);
      if ((above & bit_of(share.kind)) == 0 || units * parts > rest * share.parts) continue;
      above &= ~bit_of(share.kind);
      parts -= share.parts;
      rest -= units;
      settled = false;
    }
  }
  return above;
}

void RecordingFile::put_aside_open_spans() {
  std::deque<Retired>& spans = retired_[static_cast<size_t>(ChunkKind::Spans)];
  // Set aside, so that they are not checked again for every chunk that is handed out.
  while (!spans.empty() && has_open_span(spans.front().chunk)) {
    open_.push_back(spans.front());
    spans.pop_front();
  }
}

void RecordingFile::recheck_open_spans() {
  if (open_.empty()) return;
  const Retired one = open_.front();
  open_.pop_front();
  if (has_open_span(one.chunk)) {
    open_.push_back(one);
  } else {
    retired_[static_cast<size_t>(ChunkKind::Spans)].push_front(one);
  }
}

ChunkHeader* RecordingFile::next_to_recycle(ChunkKind wanting, uint64_t want) {
  put_aside_open_spans();
  const auto oldest_of = [this](uint32_t kinds) {
    std::deque<Retired>* oldest = nullptr;
    for (const Share& share : kShares) {
      std::deque<Retired>& retired = retired_[static_cast<size_t>(share.kind)];
      if ((kinds & bit_of(share.kind)) == 0 || retired.empty()) continue;
      if (oldest == nullptr || retired.front().age < oldest->front().age) oldest = &retired;
    }
    return oldest;
  };
  std::deque<Retired>* oldest = oldest_of(kinds_above_their_share(wanting, want));
  // All of their chunks are in use: take the oldest of the own kind, or of any.
  if (oldest == nullptr) oldest = oldest_of(bit_of(wanting));
  if (oldest == nullptr) oldest = oldest_of(~uint32_t{0});
  if (oldest == nullptr) return nullptr;
  ChunkHeader* chunk = oldest->front().chunk;
  oldest->pop_front();
  return chunk;
}

void RecordingFile::recycle(ChunkKind wanting, uint64_t want, uint64_t enough, uint64_t least) {
  recheck_open_spans();
  for (uint64_t freed = 0; freed < want || free_.longest().units < least;) {
    if (free_.longest().units >= enough) return;
    ChunkHeader* chunk = next_to_recycle(wanting, want);
    if (chunk == nullptr) return;
    freed += chunk->units;
    recycle_locked(chunk);
  }
}

void RecordingFile::recycle_a_quarter() {
  std::lock_guard lock(mutex_);
  if (ring_units_ == 0 || frozen_ || lost()) return;
  uint64_t units = 0;
  for (const Share& share : kShares) units += units_[static_cast<size_t>(share.kind)];
  for (uint64_t freed = 0; freed < units / 4;) {
    ChunkHeader* chunk = next_to_recycle(ChunkKind::Dictionary, 0);
    if (chunk == nullptr) return;
    freed += chunk->units;
    recycle_locked(chunk);
  }
}

bool RecordingFile::recycle_chunk(ChunkHeader* chunk) {
  std::lock_guard lock(mutex_);
  if (frozen_) return false;
  if (!lost()) recycle_locked(chunk);
  return true;
}

void RecordingFile::recycle_locked(ChunkHeader* chunk) {
  FileHeader& head = header();
  uint64_t& until = head.recycled_until[chunk->kind % kChunkKinds];
  std::atomic_ref(until).store(std::max(until, last_tick_in(chunk)), std::memory_order_relaxed);
  // Before it is free: a process killed in between has one chunk more than it should, never one less. And
  // before its records are counted: a clone sees by the number of chunks that one is being freed.
  std::atomic_ref(head.recycled_chunks).fetch_add(1, std::memory_order_relaxed);
  std::atomic_ref(recycled_of(head, static_cast<ChunkKind>(chunk->kind)))
      .fetch_add(records_in(chunk), std::memory_order_release);
  units_[chunk->kind % kChunkKinds] -= chunk->units;
  free_run(unit_of(chunk), chunk->units);
}

void RecordingFile::free_before(uint64_t tick) {
  std::lock_guard lock(mutex_);
  if (ring_units_ != 0 || cut_short()) return;
  uint64_t units = 1;
  for (uint64_t at = 0; at < handed_out_; at += units) {
    ChunkHeader* chunk = chunk_at(at);
    units = std::max<uint64_t>(chunk->units, 1);
    // Only chunks that are finished, and whose spans have all ended, have a checksum.
    if (std::atomic_ref(chunk->checksum).load(std::memory_order_acquire) == 0) continue;
    if (last_tick(chunk) >= tick) continue;
    // A session also contains calls that were running when it began.
    if (static_cast<ChunkKind>(chunk->kind) == ChunkKind::Spans && last_end_of_calls(chunk) >= tick) continue;
    free_uncounted(chunk);
    freed_before_.store(true, std::memory_order_relaxed);
  }
}

void RecordingFile::free_uncounted(ChunkHeader* chunk) {
  std::atomic_ref(header().recycled_chunks).fetch_add(1, std::memory_order_relaxed);
  units_[chunk->kind % kChunkKinds] -= chunk->units;
  free_run(unit_of(chunk), chunk->units);
}

void RecordingFile::for_each_chunk(
    const std::function<void(const ChunkHeader& chunk, uint64_t records)>& see) {
  const auto holds_records = [](const ChunkHeader& chunk) {
    return bytes_of_record(chunk.kind) > 1 && chunk.units != 0;
  };
  std::vector<std::pair<ChunkHeader*, uint64_t>> found;
  {
    std::lock_guard lock(mutex_);
    if (lost()) return;
    uint64_t units = 1;
    for (uint64_t at = 0; at < handed_out_; at += units) {
      ChunkHeader* chunk = chunk_at(at);
      units = std::max<uint64_t>(chunk->units, 1);
      if (holds_records(*chunk)) found.emplace_back(chunk, chunk->order);
    }
  }
  // Lock for each chunk, because other threads may need chunks.
  for (const auto& [chunk, order] : found) {
    std::lock_guard lock(mutex_);
    if (lost()) return;
    if (chunk->magic != kChunkMagic || !holds_records(*chunk) || chunk->order != order) continue;
    const uint64_t most =
        (uint64_t{chunk->units} * kUnitBytes - sizeof(ChunkHeader)) / bytes_of_record(chunk->kind);
    see(*chunk, std::min(std::atomic_ref(chunk->committed).load(std::memory_order_acquire), most));
  }
}

bool RecordingFile::free_dictionary(const std::vector<ChunkHeader*>& chunks) {
  std::lock_guard lock(mutex_);
  if (frozen_) return false;
  if (lost()) return true;
  // A reader that finds the same number before and after has met no chunk that was freed.
  std::atomic_ref(header().dictionary_collections).fetch_add(1, std::memory_order_release);
  for (ChunkHeader* chunk : chunks) free_uncounted(chunk);
  return true;
}

void RecordingFile::count_dropped(ChunkKind kind, uint64_t records) {
  const bool ring = ring_units_ != 0 && !disk_full_.load(std::memory_order_relaxed);
  std::atomic_ref(ring ? ring_dropped_of(header(), kind) : dropped_of(header(), kind))
      .fetch_add(records, std::memory_order_relaxed);
}

bool RecordingFile::prepare_space() {
  if (cut_short()) return false;
  std::deque<ChunkHeader*> retired;
  {
    std::lock_guard lock(mutex_);
    retired.swap(unsealed_);
  }
  std::erase_if(retired, seal_chunk);
  if (!retired.empty()) {
    // Chunks with an open span are left for the next time.
    std::lock_guard lock(mutex_);
    unsealed_.insert(unsealed_.end(), retired.begin(), retired.end());
  }
  const uint64_t wanted = std::max(wanted_.load(std::memory_order_relaxed), kLeastAheadUnits);
  uint64_t room = reserved_.load(std::memory_order_acquire);
  if (disk_full_.load(std::memory_order_relaxed)) return false;
  if (wanted > room) {
    std::lock_guard lock(room_mutex_);
    room = reserved_.load(std::memory_order_relaxed);
    while (room < wanted) {
      if (!reserve(room + std::clamp(room, kLeastAheadUnits, kLargestPieceUnits))) return false;
      room = reserved_.load(std::memory_order_relaxed);
    }
  }
  // Not all of a ring at once: its pages take memory only as they are used. But in pieces, because each call
  // wakes this thread.
  uint64_t prepared = prepared_.load(std::memory_order_relaxed);
  while (prepared < wanted) prepared += std::clamp(prepared, kLeastAheadUnits, kLargestPieceUnits);
  room = std::min(room, prepared);
  prepared_.store(room, std::memory_order_relaxed);
  const uint64_t end = (kHeaderBytes + room * kUnitBytes) / kPageBytes * kPageBytes;
  if (faulted_ >= end) return false;
  while (faulted_ < end) {
    const uint64_t bytes = std::min(end - faulted_, kLargestPieceUnits * kUnitBytes);
    // Older kernels do not know this advice; then the writers fault the pages in themselves.
    if (madvise(base_ + faulted_, bytes, MADV_POPULATE_WRITE) != 0) {
      faulted_ = end;
      break;
    }
    faulted_ += bytes;
  }
  return true;
}

bool RecordingFile::seal_chunk(ChunkHeader* chunk) {
  const size_t record = bytes_of_record(chunk->kind);
  if (record == 0 || has_open_span(chunk)) return false;
  const uint64_t most = (uint64_t{chunk->units} * kUnitBytes - sizeof(ChunkHeader)) / record;
  const uint64_t records = std::min(chunk->committed, most);
  std::atomic_ref(chunk->checksum)
      .store(chunk_checksum(*chunk, chunk + 1, records * record), std::memory_order_release);
  return true;
}

void RecordingFile::seal() {
  if (cut_short()) return;
  uint64_t units = 1, all = 0;
  for (uint64_t at = 0; at < handed_out_; at += units) {
    ChunkHeader* chunk = chunk_at(at);
    units = std::max<uint64_t>(chunk->units, 1);
    // Spans that are open now stay open.
    const size_t record = bytes_of_record(chunk->kind);
    if (record != 0 && chunk->checksum == 0 && units <= handed_out_ - at) {
      const uint64_t most = (units * kUnitBytes - sizeof(ChunkHeader)) / record;
      std::atomic_ref(chunk->checksum)
          .store(chunk_checksum(*chunk, chunk + 1, std::min(chunk->committed, most) * record),
                 std::memory_order_release);
    }
    if (record != 0) all = chain(all, *chunk);
  }
  FileHeader& head = header();
  head.chain = all;
  std::atomic_ref(head.checksum).store(header_checksum(head), std::memory_order_release);
}

void RecordingFile::add_clock_pair(const ClockPair& pair) {
  std::lock_guard lock(clock_mutex_);
  FileHeader& head = header();
  const uint32_t used = head.clock_pairs;
  const uint32_t slot = std::min(used, kMaxClockPairs - 1);
  head.pairs[slot] = pair;
  std::atomic_ref(head.clock_pairs).store(slot + 1, std::memory_order_release);
}

void RecordingFile::mark_stopped() {
  std::atomic_ref(header().state).store(static_cast<uint32_t>(FileState::Stopped), std::memory_order_release);
  flock(file_, LOCK_UN);
}

}  // namespace kinetoscope
