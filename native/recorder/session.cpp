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

bool Session::take_span_chunk(ThreadState& thread) {
  if (thread.span_chunk != nullptr) file_->retire_chunk(thread.span_chunk);
  thread.span_chunk = file_->take_chunk(ChunkKind::Spans, thread.index);
  room_keeper::wake();
  if (thread.span_chunk == nullptr) {
    thread.next_span = thread.span_end = nullptr;
    std::atomic_ref(file_->header().dropped_spans).fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  thread.next_span = reinterpret_cast<SpanRecord*>(thread.span_chunk + 1);
  thread.span_end = thread.next_span + file_->span_capacity();
  return true;
}

bool Session::take_allocation_chunk(ThreadState& thread) {
  if (thread.allocation_chunk != nullptr) file_->retire_chunk(thread.allocation_chunk);
  thread.allocation_chunk = file_->take_chunk(ChunkKind::Allocations, thread.index);
  room_keeper::wake();
  if (thread.allocation_chunk == nullptr) {
    thread.next_allocation = thread.allocation_end = nullptr;
    std::atomic_ref(file_->header().dropped_allocations).fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  thread.next_allocation = reinterpret_cast<AllocationRecord*>(thread.allocation_chunk + 1);
  thread.allocation_end = thread.next_allocation + file_->allocation_capacity();
  return true;
}

void Session::add_allocation(ThreadState& thread, const AllocationRecord& record) {
  if (thread.next_allocation == thread.allocation_end && !take_allocation_chunk(thread)) return;
  *thread.next_allocation++ = record;
  std::atomic_ref committed(thread.allocation_chunk->committed);
  committed.store(committed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

bool Session::take_note_chunk(ThreadState& thread, uint32_t count) {
  if (thread.note_chunk != nullptr) file_->retire_chunk(thread.note_chunk);
  thread.note_chunk = file_->take_chunk(ChunkKind::Notes, thread.index);
  room_keeper::wake();
  if (thread.note_chunk == nullptr) {
    thread.next_note = thread.note_end = nullptr;
    std::atomic_ref(file_->header().dropped_notes).fetch_add(count, std::memory_order_relaxed);
    return false;
  }
  thread.next_note = reinterpret_cast<NoteRecord*>(thread.note_chunk + 1);
  thread.note_end = thread.next_note + file_->note_capacity();
  return true;
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
      std::atomic_ref(found->record->end_tick).store(orphan.tick, std::memory_order_relaxed);
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
