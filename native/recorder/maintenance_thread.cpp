#include "maintenance_thread.h"

#include <sched.h>
#include <semaphore.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "clock.h"
#include "dictionary_collection.h"
#include "helper_thread.h"
#include "session.h"

namespace kinetoscope::maintenance_thread {
namespace {

struct State {
  State() { sem_init(&signal, 0, 0); }
  std::mutex mutex;  // guards watched, dropped and in_use
  std::shared_ptr<RecordingFile> watched;
  std::shared_ptr<Session> session;  // of the file
  std::vector<std::shared_ptr<void>> dropped;
  std::atomic<size_t> to_drop{0};             // those in `dropped`, and those that are being dropped
  std::vector<std::shared_ptr<void>> in_use;  // dropped, but a thread may still be writing there
  bool (*left)() = nullptr;                   // whether no thread is writing there any more
  sem_t signal;
};

// Leaked on purpose: the thread outlives static destruction.
std::mutex start_mutex;
State* state = nullptr;

// If more recordings than this are waiting to be freed, release() frees the next one itself.
constexpr size_t kMaxBacklog = 16;
constexpr int64_t kFirstWaitNs = 1'000'000;
constexpr int64_t kLongestWaitNs = 1'000'000'000;
constexpr int64_t kLookAgainNs = 50'000'000;
constexpr int64_t kCollectionPatienceNs = 20'000'000;
// The pause between collections is at least this many times the duration of the last one.
constexpr int64_t kLeastCollectionPause = 20;
constexpr int64_t kAgainNs = 1'000'000;

// Waits for a wake-up, or until the time has come for the next clock pair.
void wait(State& self, int64_t nanoseconds) {
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  const int64_t total = until.tv_nsec + nanoseconds;
  until.tv_sec += total / 1'000'000'000;
  until.tv_nsec = total % 1'000'000'000;
  sem_timedwait(&self.signal, &until);
}

void* run(void* argument) {
  State& self = *static_cast<State*>(argument);
  RecordingFile* seen = nullptr;
  int64_t pair_every = kFirstWaitNs;
  int64_t next_pair = 0;
  int64_t next_collection = 0;
  for (;;) {
    std::shared_ptr<RecordingFile> file;
    std::shared_ptr<Session> session;
    std::vector<std::shared_ptr<void>> over, in_use;
    bool (*left)() = nullptr;
    {
      std::lock_guard lock(self.mutex);
      over.swap(self.dropped);
      in_use.swap(self.in_use);
      left = self.left;
      file = self.watched;
      session = self.session;
    }
    // Unmapping millions of pages takes long: not while holding the mutex, which stop() needs.
    const size_t count = over.size();
    over.clear();
    self.to_drop.fetch_sub(count, std::memory_order_release);
    bool look_again = false;
    if (!in_use.empty() && !left()) {
      std::lock_guard lock(self.mutex);
      std::move(in_use.begin(), in_use.end(), std::back_inserter(self.in_use));
      look_again = true;
    }
    in_use.clear();
    const int64_t now = read_clock(CLOCK_MONOTONIC);
    if (file.get() != seen) {
      seen = file.get();
      pair_every = kFirstWaitNs;
      next_pair = now + pair_every;
    }
    if (file == nullptr) {
      if (look_again) {
        wait(self, kLookAgainNs);
      } else {
        while (sem_wait(&self.signal) != 0) {
        }
      }
      continue;
    }
    file->prepare_space();
    if (now >= next_pair) {
      file->add_clock_pair(read_clock_pair());
      // Frequent clock pairs at first, so that a recording that is killed early has a rate; then fewer and
      // fewer.
      pair_every = std::min(pair_every * 2, kLongestWaitNs);
      next_pair = now + pair_every;
    }
    int64_t next = next_pair;
    if (session != nullptr && session->dictionary().asks_for_collection()) {
      if (now >= next_collection) {
        const bool done = collect_dictionary(*session, kCollectionPatienceNs);
        const int64_t took = read_clock(CLOCK_MONOTONIC) - now;
        next_collection = now + std::max(took * kLeastCollectionPause, done ? kAgainNs : kLookAgainNs);
      }
      next = std::min(next, next_collection);
    }
    session.reset();
    file.reset();
    wait(self, std::max<int64_t>(next - now, 100'000));
  }
  return nullptr;
}

}  // namespace

bool ensure_running() { return ensure_started(start_mutex, state, run, "kinetoscope"); }

void watch(std::shared_ptr<RecordingFile> file, std::shared_ptr<Session> session) {
  if (state == nullptr) return;
  {
    std::lock_guard lock(state->mutex);
    state->watched = std::move(file);
    state->session = std::move(session);
  }
  sem_post(&state->signal);
}

void release(std::shared_ptr<RecordingFile> file, std::shared_ptr<void> with, bool (*left)()) {
  if (state == nullptr) {
    // There is no thread to wait for its last writer: leak it.
    if (left != nullptr) new std::pair(std::move(file), std::move(with));
    return;
  }
  {
    std::lock_guard lock(state->mutex);
    if (state->watched == file) {
      state->watched.reset();
      state->session.reset();
    }
    if (left == nullptr && state->dropped.size() >= kMaxBacklog) return;
    if (left != nullptr) state->left = left;
    if (left == nullptr) state->to_drop.fetch_add(2, std::memory_order_relaxed);
    std::vector<std::shared_ptr<void>>& place = left == nullptr ? state->dropped : state->in_use;
    place.push_back(std::move(with));
    place.push_back(std::move(file));
  }
  sem_post(&state->signal);
}

void settle(int64_t patience_ns) {
  const int64_t give_up = read_clock(CLOCK_MONOTONIC) + patience_ns;
  while (state != nullptr && state->to_drop.load(std::memory_order_acquire) != 0 &&
         read_clock(CLOCK_MONOTONIC) < give_up) {
    sched_yield();
  }
}

void wake() {
  if (state != nullptr) sem_post(&state->signal);
}

void reset_after_fork() {
  // The mutex may have been held by a thread that does not exist in the child: the old state is leaked.
  new (&start_mutex) std::mutex;
  state = nullptr;
}

}  // namespace kinetoscope::maintenance_thread
