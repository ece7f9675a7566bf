// The memory-mapped file a recording grows in, and the helper thread that keeps room ready ahead of the
// writers. No torch and no Python in here.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "../core/fault_guard.h"
#include "../core/recording_format.h"

namespace kinetoscope {

// One open recording file. Chunks are handed out to threads under a mutex, once per some thousand records;
// the pages ahead are allocated and faulted in by the helper thread (see room_keeper.h).
class RecordingFile {
 public:
  // Creates a new file in the folder of `path` and writes its header; it gets its name by publish(). Throws
  // std::runtime_error with the path in its message, for instance when something other than a file is there.
  // `ring_chunks` > 0 bounds how many span, allocation and note chunks exist: the oldest are written again.
  RecordingFile(const std::string& path, uint32_t chunk_bytes, uint64_t ring_chunks);
  // A file that was not published goes.
  ~RecordingFile();
  RecordingFile(const RecordingFile&) = delete;
  RecordingFile& operator=(const RecordingFile&) = delete;

  // Gives the file its name, in place of an older file that nobody is recording into. If somebody is, or if
  // another process made that file at `keep_since_ns` or later, the name gets the number of this process
  // before its suffix. Throws like the constructor.
  void publish(int64_t keep_since_ns);
  // Where the file is; after publish() not always where it was wanted.
  const std::string& path() const { return path_; }

  // [any thread] Whether somebody cut the file short: nothing reaches it any more.
  bool lost() const { return guard_->file_lost(); }

  FileHeader& header() { return *reinterpret_cast<FileHeader*>(base_); }
  uint32_t chunk_bytes() const { return chunk_bytes_; }
  uint64_t span_capacity() const { return (chunk_bytes_ - sizeof(ChunkHeader)) / sizeof(SpanRecord); }
  uint64_t allocation_capacity() const {
    return (chunk_bytes_ - sizeof(ChunkHeader)) / sizeof(AllocationRecord);
  }

  uint64_t note_capacity() const { return (chunk_bytes_ - sizeof(ChunkHeader)) / sizeof(NoteRecord); }

  // [any thread] A chunk of zero `committed`, or nullptr when disk and ring have no room.
  ChunkHeader* take_chunk(ChunkKind kind, uint32_t thread);
  // [any thread] Says that `chunk` gets no further records, so that a ring may write it again.
  void retire_chunk(ChunkHeader* chunk);

  // [any thread] Appends a clock reading; the last slot is rewritten when the table is full.
  void add_clock_pair(const ClockPair& pair);

  // [helper thread] Allocates and faults in what the writers will need next. True if there was work to do.
  bool prepare_room();

  // [once, when stop_tick is written] Marks the books closed.
  void close_books();

  // Forgets the mapping without touching it: for the child of a fork, where the pages are not inherited. The
  // parent alone says that the file is being written.
  void abandon();

 private:
  // [with room_mutex_] Grows the file so that `chunks` chunks have disk blocks. False when there is no room.
  bool reserve(uint64_t chunks);
  // [with mutex_] The oldest retired chunk in which no span is still open.
  ChunkHeader* recycle();
  ChunkHeader* chunk_at(uint64_t index) const;

  // Looks whether the file is as long as it was made. Where it is not, what is written there would get in
  // among what somebody else has written.
  bool cut_short();
  // Whether the file got that name.
  bool take_name(const std::string& name, int64_t keep_since_ns);

  std::string path_;
  std::string wanted_path_;
  bool published_ = false;
  int file_ = -1;
  std::byte* base_ = nullptr;
  std::unique_ptr<FaultGuard> guard_;
  size_t mapped_bytes_ = 0;
  const uint32_t chunk_bytes_;
  const uint64_t ring_chunks_;

  std::mutex mutex_;  // guards handed_out_, ring_in_use_, order_, retired_
  uint64_t handed_out_ = 0;
  uint64_t ring_in_use_ = 0;
  uint64_t order_ = 0;
  std::deque<ChunkHeader*> retired_;

  std::mutex room_mutex_;  // guards reserve(); taken alone or inside mutex_
  std::atomic<uint64_t> reserved_{0};
  uint64_t faulted_ = 0;  // helper thread only
  std::atomic<uint64_t> wanted_{2};
  std::atomic<bool> disk_full_{false};

  std::mutex clock_mutex_;
};

}  // namespace kinetoscope
