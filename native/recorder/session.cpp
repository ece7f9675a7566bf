#include "session.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "call_state.h"
#include "clock.h"
#include "room_keeper.h"
#include "torch_threads.h"

namespace kinetoscope {

Live live;

void Session::set_current(Session* session) {
  if (session != nullptr) {
    live.orphans_posted.store(0, std::memory_order_relaxed);
    live.generation.store(session->generation_, std::memory_order_relaxed);
    live.what.store(session->what_, std::memory_order_relaxed);
    live.accumulate_grad_name.store(0, std::memory_order_relaxed);
  }
  live.session.store(session, std::memory_order_seq_cst);
}

Session::Session(std::shared_ptr<RecordingFile> file, uint32_t generation, uint32_t what)
    : file_(std::move(file)),
      dictionary_(file_),
      modules_(dictionary_),
      generation_(generation),
      what_(what) {}

uint32_t Session::register_thread() {
  const uint32_t index = threads_.fetch_add(1, std::memory_order_relaxed) + 1;
  char name[32] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  std::lock_guard lock(dictionary_.mutex());
  dictionary_.thread(index, static_cast<uint32_t>(syscall(SYS_gettid)), torch_thread_id(), name);
  return index;
}

template <typename Record>
bool Session::take_record_chunk(ThreadState& thread, ChunkKind kind, ChunkHeader*& chunk, Record*& next,
                                Record*& end, uint32_t count) {
  size_t before_bytes = 0;
  if (chunk != nullptr) {
    before_bytes =
        static_cast<size_t>(reinterpret_cast<std::byte*>(end) - reinterpret_cast<std::byte*>(chunk + 1));
    file_->retire_chunk(chunk);
  }
  const RecordingFile::Chunk taken =
      file_->take_chunk(kind, thread.index, before_bytes, count * sizeof(Record));
  chunk = taken.header;
  if (chunk == nullptr) {
    next = end = nullptr;
    file_->count_dropped(kind, count);
    return false;
  }
  room_keeper::wake();
  next = reinterpret_cast<Record*>(chunk + 1);
  end = next + taken.payload_bytes / sizeof(Record);
  return true;
}

bool Session::take_span_chunk(ThreadState& thread) {
  return take_record_chunk(thread, ChunkKind::Spans, thread.span_chunk, thread.next_span, thread.span_end, 1);
}

bool Session::take_allocation_chunk(ThreadState& thread) {
  return take_record_chunk(thread, ChunkKind::Allocations, thread.allocation_chunk, thread.next_allocation,
                           thread.allocation_end, 1);
}

void Session::add_allocation(ThreadState& thread, const AllocationRecord& record) {
  if (thread.next_allocation == thread.allocation_end && !take_allocation_chunk(thread)) return;
  *thread.next_allocation++ = record;
  std::atomic_ref committed(thread.allocation_chunk->committed);
  committed.store(committed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

bool Session::take_note_chunk(ThreadState& thread, uint32_t count) {
  return take_record_chunk(thread, ChunkKind::Notes, thread.note_chunk, thread.next_note, thread.note_end,
                           count);
}

void Session::commit_notes(ThreadState& thread, uint32_t count, uint64_t tick) {
  for (uint32_t at = 0; at < count; ++at) thread.next_note[at].span_tick = tick;
  thread.next_note += count;
  std::atomic_ref committed(thread.note_chunk->committed);
  committed.store(committed.load(std::memory_order_relaxed) + count, std::memory_order_release);
}

void Session::thread_ended(ThreadState& thread) {
  if (thread.span_chunk != nullptr) file_->retire_chunk(thread.span_chunk);
  if (thread.allocation_chunk != nullptr) file_->retire_chunk(thread.allocation_chunk);
  if (thread.note_chunk != nullptr) file_->retire_chunk(thread.note_chunk);
  if (thread.call_state != nullptr) thread.call_state->cut(read_tick());
  std::lock_guard lock(orphans_mutex_);
  match_orphans(thread.open);
  left_open_.insert(left_open_.end(), thread.open.begin(), thread.open.end());
  thread.open.clear();
}

void Session::end_elsewhere(const void* function, uint64_t tick) {
  std::lock_guard lock(orphans_mutex_);
  orphans_.push_back({function, tick});
  live.orphans_posted.fetch_add(1, std::memory_order_release);
}

void Session::match_orphans(std::vector<OpenSpan>& open) {
  std::erase_if(orphans_, [&](const Orphan& orphan) {
    // The oldest that began before: an address is used again once its span has ended.
    const auto found = std::find_if(open.begin(), open.end(), [&](const OpenSpan& span) {
      return span.function == orphan.function &&
             (span.record == nullptr || span.record->start_tick <= orphan.tick);
    });
    if (found == open.end()) return false;
    if (found->record != nullptr) {
      found->record->flags |= kSpanAsync;
      // The helper thread takes a chunk without open spans for finished.
      std::atomic_ref(found->record->end_tick).store(orphan.tick, std::memory_order_release);
    }
    open.erase(found);
    return true;
  });
}

void Session::adopt_orphans(ThreadState& thread) {
  std::lock_guard lock(orphans_mutex_);
  thread.orphans_seen = live.orphans_posted.load(std::memory_order_relaxed);
  match_orphans(thread.open);
}

void Session::settle_orphans() {
  std::lock_guard lock(orphans_mutex_);
  if (orphans_.empty()) return;
  match_orphans(left_open_);
  for_each_thread([this](ThreadState& thread) {
    if (thread.generation == generation_) match_orphans(thread.open);
  });
}

}  // namespace kinetoscope
