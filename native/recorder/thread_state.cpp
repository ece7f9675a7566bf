#include "thread_state.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "call_state.h"
#include "clock.h"
#include "dictionary_collection.h"
#include "live.h"
#include "session.h"

namespace kinetoscope {

constinit thread_local ThreadState* this_state = nullptr;

namespace {

// Leaked on purpose: threads end after static destruction too.
struct Register {
  std::mutex mutex;
  std::vector<ThreadState*> threads;
  std::vector<ThreadState*> unused;  // of threads that ended
  pthread_key_t key{};
};

Register& the_register() {
  static Register* only = new Register;
  return *only;
}

void thread_ended(void* argument) {
  auto* state = static_cast<ThreadState*>(argument);
  {
    BusyGuard busy(*state);
    if (Session* session = Session::current();
        session != nullptr && session->generation() == state->generation) {
      session->thread_ended(*state);
    }
    state->leave();
  }
  this_state = nullptr;
  Register& all = the_register();
  std::lock_guard lock(all.mutex);
  std::erase(all.threads, state);
  all.unused.push_back(state);
}

// How long a thread waits for others to leave their callbacks, to get space for names.
constexpr int64_t kHelpPatienceNs = 200'000'000;

long membarrier(int command) { return syscall(__NR_membarrier, command, 0, 0); }

}  // namespace

void prepare_quiescence() {
  Register& all = the_register();
  pthread_key_create(&all.key, thread_ended);
  if (!live.fence_in_callbacks) {
    live.fence_in_callbacks = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0;
  }
}

ThreadState* make_this_thread() {
  Register& all = the_register();
  ThreadState* state = nullptr;
  {
    std::lock_guard lock(all.mutex);
    if (!all.unused.empty()) {
      state = all.unused.back();
      all.unused.pop_back();
    } else {
      state = new (std::nothrow) ThreadState;
      if (state == nullptr) return nullptr;
    }
    all.threads.push_back(state);
  }
  pthread_setspecific(all.key, state);
  this_state = state;
  return state;
}

void forget_other_threads() {
  Register& all = the_register();
  new (&all.mutex) std::mutex;
  all.threads.clear();
  if (this_state != nullptr) {
    this_state->leave();
    all.threads.push_back(this_state);
  }
}

const ThreadState* find_main_thread(const void* python) {
  Register& all = the_register();
  std::lock_guard lock(all.mutex);
  const auto found = std::find_if(all.threads.begin(), all.threads.end(), [python](const ThreadState* state) {
    return state->main_python == python;
  });
  return found == all.threads.end() ? nullptr : *found;
}

bool wait_until_idle(int64_t patience_ns) {
  if (live.fence_in_callbacks) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  } else {
    membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  }
  const int64_t give_up = read_clock(CLOCK_MONOTONIC) + patience_ns;
  // Checking each thread once is enough: a thread that was outside sees no session at its next callback.
  // Holding the register's mutex blocks no thread inside a callback: threads take it before their first one
  // and after their last.
  Register& all = the_register();
  std::lock_guard lock(all.mutex);
  for (const ThreadState* state : all.threads) {
    // The calling thread itself may be in a callback, if stop() is called in a memory event; it must not wait
    // for itself.
    while (state != this_state && state->busy.load(std::memory_order_acquire) != 0) {
      if (read_clock(CLOCK_MONOTONIC) > give_up) return false;
      sched_yield();
    }
  }
  return true;
}

void for_each_thread(const std::function<void(ThreadState&)>& visit) {
  Register& all = the_register();
  std::lock_guard lock(all.mutex);
  for (ThreadState* state : all.threads) visit(*state);
}

bool ThreadState::catch_up(Session& session) {
  if (generation != session.generation()) {
    join(session);
  } else {
    session.adopt_orphans(*this);
  }
  if (__builtin_expect(session.dictionary().is_nearly_full(), 0)) {
    const std::shared_ptr<Session> held = session.weak_from_this().lock();
    if (held != nullptr) {
      BusyGuard::leave(*this);
      collect_dictionary(*held, kHelpPatienceNs);
      BusyGuard::enter(*this);
      if (Session::current() != &session) return false;
    }
  }
  if (dictionary_epoch != session.dictionary().epoch()) {
    dictionary_epoch = session.dictionary().epoch();
    forget_ids();
    // A ring keeps the names of all records of a chunk that is being written.
    if (session.dictionary().was_crowded()) session.begin_new_chunks(*this);
  }
  keep_up_with_calls(session);
  return true;
}

void ThreadState::keep_up_with_calls(Session& session) {
  if (calls_epoch == live.calls_epoch.load(std::memory_order_acquire)) return;
  if (auto* open_calls = live.open_calls.load(std::memory_order_acquire)) open_calls(*this, session);
}

void ThreadState::forget_ids() {
  walk.path_depth = 0;
  pending_kept = pending_sure = kMaxDepth + 1;
  schema_names.clear();
  text_names.clear();
  calls.clear();
  steps.clear();
  shapes.clear();
  sites.clear();
  for (OpenSpan& span : open) {
    // The stack and module of a span with a record stay valid, also for spans inside it.
    if (span.record != nullptr) continue;
    span.frame = nullptr;
    span.stack = 0;
  }
  forget_call_ids(*this);
}

void ThreadState::forget_chunks() {
  next_span = span_end = nullptr;
  span_chunk = nullptr;
  next_allocation = allocation_end = nullptr;
  allocation_chunk = nullptr;
  next_note = note_end = nullptr;
  note_chunk = nullptr;
}

void ThreadState::join(Session& session) {
  // First: whoever ends the calls of all threads takes these for the session's from here on.
  clear_calls(*this);
  generation = session.generation();
  forget_chunks();
  open.clear();
  held.reset(generation);
  orphans_seen = live.orphans_posted.load(std::memory_order_relaxed);
  walk.path_depth = 0;
  pending_kept = pending_sure = kMaxDepth + 1;
  schema_names.clear();
  text_names.clear();
  calls.clear();
  steps.clear();
  modules.clear();
  parameters.clear();
  shapes.clear();
  sites.clear();
  dictionary_epoch = session.dictionary().epoch();
  index = session.register_thread();
  calls_epoch = 0;
  keep_up_with_calls(session);
}

}  // namespace kinetoscope
