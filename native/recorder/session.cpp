#include "session.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "call_state.h"
#include "clock.h"
#include "maintenance_thread.h"
#include "torch_threads.h"

namespace kinetoscope {

Live live;
std::atomic<const void*> gone_codes[kGoneCodes];

namespace {

// The system's name of a thread of this process; empty if it has ended.
std::string name_of_task(uint32_t system) {
  char path[48], name[32];
  std::snprintf(path, sizeof(path), "/proc/%u/comm", system);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t got = read(file, name, sizeof(name));
  close(file);
  std::string text(name, got > 0 ? static_cast<size_t>(got) : 0);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

void Session::set_current(Session* session) {
  if (session != nullptr) {
    live.orphans_posted.store(uint64_t{session->generation_} << 32, std::memory_order_relaxed);
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
      rows_(file_),
      generation_(generation),
      what_(what) {}

uint32_t Session::register_thread() {
  char name[32] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  const auto system = static_cast<uint32_t>(syscall(SYS_gettid));
  const uint64_t torch_thread = torch_thread_id();
  std::lock_guard lock(dictionary_.mutex());
  // The sampler may have seen it before.
  const auto [known, fresh] = index_of_thread_.try_emplace(system, threads_ + 1);
  if (fresh) ++threads_;
  dictionary_.thread(known->second, system, torch_thread, name);
  return known->second;
}

uint32_t Session::index_of_thread(uint32_t system) {
  std::lock_guard lock(dictionary_.mutex());
  const auto [known, fresh] = index_of_thread_.try_emplace(system, threads_ + 1);
  if (fresh) {
    dictionary_.thread(++threads_, system, 0, name_of_task(system));
  }
  return known->second;
}

void Session::add_living_threads(IdSet& threads) {
  {
    std::lock_guard lock(dictionary_.mutex());
    for (const auto& [system, index] : index_of_thread_) threads.insert(index);
  }
  for_each_thread(
      [&threads](ThreadState& thread) { threads.insert(thread.index.load(std::memory_order_relaxed)); });
}

int64_t Session::count_of(std::string_view name) {
  std::lock_guard lock(dictionary_.mutex());
  const auto known = counts_.find(name);
  return known != counts_.end() ? known->second++ : counts_.emplace(name, 1).first->second - 1;
}

void Session::forget_thread(uint32_t system) {
  std::lock_guard lock(dictionary_.mutex());
  index_of_thread_.erase(system);
}

template <typename Record>
bool Session::take_record_chunk(uint32_t thread, ChunkKind kind, ChunkHeader*& chunk, Record*& next,
                                Record*& end, uint32_t count) {
  size_t before_bytes = 0;
  if (chunk != nullptr) {
    before_bytes =
        static_cast<size_t>(reinterpret_cast<std::byte*>(end) - reinterpret_cast<std::byte*>(chunk + 1));
    file_->retire_chunk(chunk);
  }
  const RecordingFile::Chunk taken = file_->take_chunk(kind, thread, before_bytes, count * sizeof(Record));
  chunk = taken.header;
  if (chunk == nullptr) {
    next = end = nullptr;
    file_->count_dropped(kind, count);
    return false;
  }
  if (file_->wants_space()) maintenance_thread::wake();
  next = reinterpret_cast<Record*>(chunk + 1);
  end = next + taken.payload_bytes / sizeof(Record);
  return true;
}

uint32_t Session::new_site(ThreadState& thread, const SpanSite& site) {
  uint32_t id = 0;
  {
    std::lock_guard lock(dictionary_.mutex());
    id = dictionary_.site(site);
  }
  thread.sites.insert(site, id);
  return id;
}

bool Session::take_span_chunk(ThreadState& thread) {
  return take_record_chunk(thread.index, ChunkKind::Spans, thread.span_chunk, thread.next_span,
                           thread.span_end, 1);
}

bool Session::take_allocation_chunk(ThreadState& thread) {
  return take_record_chunk(thread.index, ChunkKind::Allocations, thread.allocation_chunk,
                           thread.next_allocation, thread.allocation_end, 1);
}

void Session::add_allocation(ThreadState& thread, const AllocationRecord& record) {
  if (thread.next_allocation == thread.allocation_end && !take_allocation_chunk(thread)) return;
  *thread.next_allocation++ = record;
  std::atomic_ref committed(thread.allocation_chunk->committed);
  committed.store(committed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void Session::add_sample(const SampleRecord& record) {
  if (next_sample_ == sample_end_ &&
      !take_record_chunk(0, ChunkKind::Samples, sample_chunk_, next_sample_, sample_end_, 1)) {
    return;
  }
  *next_sample_++ = record;
  std::atomic_ref committed(sample_chunk_->committed);
  committed.store(committed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

bool Session::take_note_chunk(ThreadState& thread, uint32_t count) {
  return take_record_chunk(thread.index, ChunkKind::Notes, thread.note_chunk, thread.next_note,
                           thread.note_end, count);
}

void Session::commit_notes(ThreadState& thread, uint32_t count, uint64_t tick) {
  for (uint32_t at = 0; at < count; ++at) thread.next_note[at].span_tick = tick;
  thread.next_note += count;
  std::atomic_ref committed(thread.note_chunk->committed);
  committed.store(committed.load(std::memory_order_relaxed) + count, std::memory_order_release);
}

void Session::begin_new_chunks(ThreadState& thread) {
  for (ChunkHeader* chunk : {thread.span_chunk, thread.allocation_chunk, thread.note_chunk}) {
    if (chunk != nullptr) file_->retire_chunk(chunk);
  }
  thread.forget_chunks();
}

void Session::thread_ended(ThreadState& thread) {
  begin_new_chunks(thread);
  {
    std::lock_guard calls(open_calls_mutex);
    if (thread.call_state != nullptr) thread.call_state->cut(kCalls, read_tick());
  }
  forget_thread(static_cast<uint32_t>(syscall(SYS_gettid)));
  thread.held.set(nullptr);
  std::lock_guard lock(orphans_mutex_);
  match_orphans(thread.open);
  for (const OpenSpan& span : thread.open) left_open_.push(span.function) = span;
  thread.open.clear();
}

void Session::end_elsewhere(const void* function, uint64_t tick) {
  std::lock_guard lock(orphans_mutex_);
  orphans_.push_back({function, tick});
  live.orphans_posted.fetch_add(1, std::memory_order_release);
}

void Session::match_orphans(OpenSpans& open) {
  std::erase_if(orphans_, [&](const Orphan& orphan) {
    // The oldest span that began before, since an address may be reused when its span has ended.
    const auto found = std::find_if(open.begin(), open.end(), [&](const OpenSpan& span) {
      return span.function == orphan.function && (span.record == nullptr || span.start_tick <= orphan.tick);
    });
    if (found == open.end()) return false;
    if (found->record != nullptr) {
      found->record->start |= kSpanAsync;
      // For the helper thread, a chunk without open spans is complete.
      std::atomic_ref(found->record->end).store(found->end_word(orphan.tick), std::memory_order_release);
    }
    open.erase(found);
    return true;
  });
}

void Session::adopt_orphans(ThreadState& thread) {
  std::lock_guard lock(orphans_mutex_);
  thread.orphans_seen = live.orphans_posted.load(std::memory_order_relaxed);
  match_orphans(thread.open);
  thread.held.set(nullptr);
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
