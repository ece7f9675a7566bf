// A recording in progress: its file, dictionary and modules, and what is recorded.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dictionary.h"
#include "live.h"
#include "module_registry.h"
#include "recording_file.h"
#include "row_writer.h"
#include "thread_state.h"

namespace kinetoscope {

// Set in Live::what between pause() and resume().
inline constexpr uint32_t kPaused = uint32_t{1} << 31;
// Set in Live::what once another operator callback has replaced the first one: an operator that begins
// meanwhile may be reported by both.
inline constexpr uint32_t kCallbackReplaced = uint32_t{1} << 30;

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<RecordingFile> file, uint32_t generation, uint32_t what);

  // [any thread, hot] The current recording, or nullptr. Valid as long as the caller's BusyGuard exists.
  static Session* current() { return live.session.load(std::memory_order_acquire); }
  static void set_current(Session* session);

  uint32_t generation() const { return generation_; }
  RecordingFile& file() { return *file_; }
  const std::shared_ptr<RecordingFile>& shared_file() const { return file_; }
  Dictionary& dictionary() { return dictionary_; }
  ModuleRegistry& modules() { return modules_; }
  RowWriter& rows() { return rows_; }

  // [any thread] Writes the calling thread's dictionary entry; returns its index, from 1.
  uint32_t register_thread();
  // [any thread] The index of a thread by the system's id; one that is not known yet gets an entry.
  uint32_t index_of_thread(uint32_t system);
  // [any thread] Called when a thread has ended: the system may reuse its id.
  void forget_thread(uint32_t system);

  // [any thread] Adds the indices of all threads that may still write.
  void add_living_threads(IdSet& threads);

  // [any thread] Nobody needs the metadata of the sessions with lower numbers any more: the keys
  // "kinetoscope.session.N" and those that begin with it and a dot.
  void forget_sessions_before(uint32_t number) { first_session_.store(number, std::memory_order_release); }
  // [any thread] The lowest number of a session whose metadata somebody needs.
  uint32_t first_session() const { return first_session_.load(std::memory_order_acquire); }

  // [any thread] Returns how often it was called with this name before.
  int64_t count_of(std::string_view name);

  // [owner thread, hot] The id of a span's site.
  uint32_t site(ThreadState& thread, const SpanSite& site) {
    const uint32_t known = thread.sites.find(site);
    return __builtin_expect(known != 0, 1) ? known : new_site(thread, site);
  }
  // [owner thread] The next free record; nullptr (and a drop counted) when there is no room.
  CompactSpan* next_span(ThreadState& thread) {
    if (__builtin_expect(thread.next_span == thread.span_end, 0) && !take_span_chunk(thread)) return nullptr;
    return thread.next_span;
  }
  // [owner thread] Commits the record of next_span(): readers of the file see it from now on.
  static void commit_span(ThreadState& thread) {
    ++thread.next_span;
    std::atomic_ref committed(thread.span_chunk->committed);
    committed.store(committed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  // [owner thread] Removes `record`, if it is the last one of its thread.
  static bool take_back_span(ThreadState& thread, const CompactSpan* record) {
    if (thread.next_span != record + 1) return false;
    std::atomic_ref committed(thread.span_chunk->committed);
    committed.store(committed.load(std::memory_order_relaxed) - 1, std::memory_order_release);
    --thread.next_span;
    return true;
  }
  // [owner thread] Retires the chunks that the thread writes into, so that a ring can overwrite them. The
  // next ones are short.
  void begin_new_chunks(ThreadState& thread);
  // [owner thread] Writes one allocation or free.
  void add_allocation(ThreadState& thread, const AllocationRecord& record);

  // [owner thread] Space for this many notes about the next span; nullptr, counted as dropped, if there is
  // none. Readers of the file see them after commit_notes().
  NoteRecord* room_for_notes(ThreadState& thread, uint32_t count) {
    if (static_cast<uint64_t>(thread.note_end - thread.next_note) < count && !take_note_chunk(thread, count))
      return nullptr;
    return thread.next_note;
  }
  // [owner thread] Ties the first `count` of them to the span that began at `tick`.
  static void commit_notes(ThreadState& thread, uint32_t count, uint64_t tick);

  // [sampler] Writes one sample.
  void add_sample(const SampleRecord& record);

  // [owner thread] Called when the thread ends: returns its chunks. Its open spans may still end on other
  // threads.
  void thread_ended(ThreadState& thread);

  // [any thread] Called when a span of another thread ends on this one: its owner thread, or stop(), writes
  // the end.
  void end_elsewhere(const void* function, uint64_t tick);
  // [owner thread] Closes those of its open spans that ended elsewhere.
  void adopt_orphans(ThreadState& thread);
  // [stop, when every thread is idle] The same for every thread, and for those that ended.
  void settle_orphans();

  // Faults inside callbacks that were caught; the operators they belong to are missing.
  std::atomic<uint64_t> faults{0};

 private:
  uint32_t new_site(ThreadState& thread, const SpanSite& site);
  bool take_span_chunk(ThreadState& thread);
  bool take_allocation_chunk(ThreadState& thread);
  bool take_note_chunk(ThreadState& thread, uint32_t count);
  // Hands a full chunk of a thread (0: of the process) back, takes the next one with room for `count`
  // records, and counts them as dropped where there is none.
  template <typename Record>
  bool take_record_chunk(uint32_t thread, ChunkKind kind, ChunkHeader*& chunk, Record*& next, Record*& end,
                         uint32_t count);

  // A span's end, seen on a thread that did not begin it.
  struct Orphan {
    const void* function;
    uint64_t tick;
  };
  // [with orphans_mutex_] Ends the spans in `open` that an orphan belongs to, and removes both.
  void match_orphans(OpenSpans& open);

  std::shared_ptr<RecordingFile> file_;
  Dictionary dictionary_;
  ModuleRegistry modules_;
  RowWriter rows_;
  const uint32_t generation_;
  const uint32_t what_;

  // Guarded by the dictionary's mutex.
  uint32_t threads_ = 0;
  std::unordered_map<uint32_t, uint32_t> index_of_thread_;                      // by the system's id
  std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>> counts_;  // by name

  std::atomic<uint32_t> first_session_{0};

  // Of the sampler.
  SampleRecord* next_sample_ = nullptr;
  SampleRecord* sample_end_ = nullptr;
  ChunkHeader* sample_chunk_ = nullptr;

  std::mutex orphans_mutex_;  // guards the two below
  std::vector<Orphan> orphans_;
  OpenSpans left_open_;  // by threads that ended
};

}  // namespace kinetoscope
