// The memory-mapped file of a recording. Includes neither torch nor Python.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../core/recording/fault_guard.h"
#include "../core/recording/format.h"
#include "free_runs.h"

namespace kinetoscope {

// A ring is never smaller: a few chunks for each thread and for the dictionary.
inline constexpr uint64_t kLeastRingBytes = 72 * 1024;

// One open recording file. In a ring, each kind of records has a share of the space besides the dictionary
// and rows: a kind may use space that no other kind needs, and returns it to a kind that has less than its
// share. Threads get chunks under a mutex, once per some thousand records: small ones at first, so that many
// short threads need little space. What a thread does not use of its chunk goes to others. Pages are
// allocated and faulted in ahead of the writers by the helper thread (see maintenance_thread.h).
class RecordingFile {
 public:
  // Creates a new file in the folder of `path` and writes its header; it gets its name by publish(). Throws
  // std::runtime_error with the path in its message, for instance when something other than a file is there.
  // `ring_bytes` > 0 bounds the file, but never below kLeastRingBytes: the oldest records are overwritten.
  // All of its space is allocated here.
  explicit RecordingFile(const std::string& path, uint64_t ring_bytes = 0);
  // A file that was not published is removed.
  ~RecordingFile();
  RecordingFile(const RecordingFile&) = delete;
  RecordingFile& operator=(const RecordingFile&) = delete;

  // Gives the file its name, in place of an older file that nobody is recording into. If somebody is, or if
  // another process made that file at `keep_since_ns` or later, the name gets the number of this process
  // before its suffix. Throws like the constructor.
  void publish(int64_t keep_since_ns);
  // The path of the file, which after publish() may differ from the requested one.
  const std::string& path() const { return path_; }

  // [any thread] Whether another program truncated the file, so that nothing can be written any more.
  bool lost() const { return guard_->file_lost(); }

  FileHeader& header() { return *reinterpret_cast<FileHeader*>(base_); }
  // Largest size of the dictionary in bytes.
  uint64_t dictionary_bytes() const;
  // How many bytes of a ring the chunks of rows may take; 0 without a ring.
  uint64_t rows_bytes() const;

  struct Chunk {
    ChunkHeader* header = nullptr;  // nullptr when disk and ring have no room
    size_t payload_bytes = 0;
  };
  // [any thread] A chunk of zero `committed`, larger than the one before it (`before_bytes` of payload; 0:
  // there was none) as far as there is room, but with at least `least_bytes`.
  Chunk take_chunk(ChunkKind kind, uint32_t thread, size_t before_bytes, size_t least_bytes);
  // [any thread] Called when a thread has finished `chunk`: unused space goes to other threads, and a ring
  // may overwrite the rest, except rows, because spans fill a ring much faster and would overwrite all of
  // them.
  void retire_chunk(ChunkHeader* chunk);
  // [any thread] Frees a retired chunk of a ring, and counts its records as overwritten. Does nothing and
  // returns false while the ring is frozen.
  bool recycle_chunk(ChunkHeader* chunk);
  // [any thread] Frees chunks whose records all began before this tick, and whose calls all ended before it,
  // which nobody wants any more: they are not counted as lost. Rows and the dictionary stay. Does nothing in
  // a ring, which frees by itself.
  void free_before(uint64_t tick);
  // [any thread] Calls `see` for each chunk of records, with its number of complete records. A chunk is not
  // freed during the call; new chunks are skipped.
  void for_each_chunk(const std::function<void(const ChunkHeader& chunk, uint64_t records)>& see);
  // [any thread] Lets a ring overwrite the oldest quarter of its records, because there is no space for the
  // names of all. Does nothing while it is frozen.
  void recycle_a_quarter();
  // [any thread] Frees chunks of the dictionary whose entries are not needed any more, or are in other
  // chunks. Does nothing and returns false while the ring is frozen.
  bool free_dictionary(const std::vector<ChunkHeader*>& chunks);
  // [any thread] Whether records were freed, so that their names may not be needed any more.
  bool frees_records() const { return ring_units_ != 0 || freed_before_.load(std::memory_order_relaxed); }

  // [any thread] Counts records without space as dropped, by reason.
  void count_dropped(ChunkKind kind, uint64_t records);

  // [any thread] A ring overwrites nothing from now on until thaw(); records without space are counted as
  // dropped. Frees some space first, so that names can still be written.
  void freeze();
  // [any thread] Lets a ring overwrite its oldest records again.
  void thaw();
  // [any thread] Whether the ring is frozen.
  bool is_frozen();

  // [any thread] Appends a clock reading; when the table is full, the last one is overwritten.
  void add_clock_pair(const ClockPair& pair);

  // [any thread] Whether the helper thread has space to prepare. Its other work can wait until then, since
  // waking it costs as much as a hundred records.
  bool wants_space() const {
    return wanted_.load(std::memory_order_relaxed) > prepared_.load(std::memory_order_relaxed);
  }
  // [helper thread] Allocates and faults in the next pages. True if there was work to do.
  bool prepare_space();

  // [once, when stop_tick is written] Marks the recording as stopped.
  void mark_stopped();
  // [helper thread, after the last write] Writes the checksums of all parts of the file.
  void seal();

  // Forgets the mapping without accessing it: for a forked child, which does not inherit the pages. Only the
  // parent holds the file's lock.
  void abandon();

 private:
  // [with room_mutex_] Grows the file so that `units` units have disk blocks. False when there is no room.
  bool reserve(uint64_t units);
  // [with mutex_] A run of at least `least` units, if possible `want`; its length is in `got`, which is 0 if
  // there is no room.
  uint64_t find_room(ChunkKind kind, uint64_t want, uint64_t least, uint64_t& got);
  // [with mutex_] Frees retired chunks, the oldest first of those that next_to_recycle() allows, until
  // `enough` units are free in one piece, or `want` are in all and `least` in one piece.
  void recycle(ChunkKind wanting, uint64_t want, uint64_t enough, uint64_t least);
  // [with mutex_] Takes the retired chunk that goes next from its list, if a kind wants that many units;
  // nullptr if there is none.
  ChunkHeader* next_to_recycle(ChunkKind wanting, uint64_t want);
  // [with mutex_] Puts aside the chunks with an open span that would go next.
  void put_aside_open_spans();
  // [with mutex_] Puts one of the chunks that had an open span back among the retired ones, if it has none
  // any more.
  void recheck_open_spans();
  // [with mutex_] The kinds of records that have more than their share once `wanting` has got that many
  // units, as a set of bits.
  uint32_t kinds_above_their_share(ChunkKind wanting, uint64_t want) const;
  // [with mutex_] How many units may be handed out to a kind while the ring is frozen.
  uint64_t units_of_frozen(ChunkKind kind) const;
  // [with mutex_] The longest chunk of a kind: some of them must find room in its share.
  uint64_t longest_chunk(ChunkKind kind) const;
  // [with mutex_] Like recycle_chunk().
  void recycle_locked(ChunkHeader* chunk);
  // [with mutex_] Frees a chunk that is no loss to anybody.
  void free_uncounted(ChunkHeader* chunk);
  // [with mutex_] Lets a run of units be handed out again.
  void free_run(uint64_t first, uint64_t units);
  ChunkHeader* chunk_at(uint64_t unit) const;
  uint64_t unit_of(const ChunkHeader* chunk) const;
  // Gives a chunk its checksum, unless a span in it is still open. It must not be handed out meanwhile.
  static bool seal_chunk(ChunkHeader* chunk);

  // Whether the file is shorter than it was made, so that writing to it might overwrite the data of another
  // program.
  bool cut_short();
  // Renames the file, if possible; returns whether it was.
  bool take_name(const std::string& name, int64_t keep_since_ns);

  std::string path_;
  std::string wanted_path_;
  bool published_ = false;
  int file_ = -1;
  std::byte* base_ = nullptr;
  std::unique_ptr<FaultGuard> guard_;
  size_t mapped_bytes_ = 0;
  const uint64_t ring_units_;  // 0: no ring
  uint64_t keep_free_bytes_ = 0;

  std::mutex mutex_;  // guards all down to unsealed_
  uint64_t handed_out_ = 0;
  uint64_t in_use_ = 0;  // chunks of threads that may write more into them
  uint64_t order_ = 0;
  FreeRuns free_;  // below handed_out_
  struct Retired {
    ChunkHeader* chunk;
    uint64_t age;  // rises with every one that is retired
  };
  std::array<std::deque<Retired>, kChunkKinds> retired_;  // of a ring, by kind
  std::deque<Retired> open_;                              // of a ring: a span in it had not ended
  std::array<uint64_t, kChunkKinds> units_{};             // that chunks of each kind have
  uint64_t ages_ = 0;
  bool frozen_ = false;
  std::deque<ChunkHeader*> unsealed_;  // retired, without a ring

  std::mutex room_mutex_;  // guards reserve(); taken alone or inside mutex_
  std::atomic<uint64_t> reserved_{0};
  std::atomic<uint64_t> prepared_{0};  // units that were faulted in
  uint64_t faulted_ = 0;               // bytes; helper thread only
  std::atomic<uint64_t> wanted_{0};
  std::atomic<bool> disk_full_{false};
  std::atomic<bool> no_records_{false};  // frozen, and there is no unit left for records
  std::atomic<bool> freed_before_{false};

  std::mutex clock_mutex_;
};

}  // namespace kinetoscope
