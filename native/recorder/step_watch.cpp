#include "step_watch.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>

#include "../core/recording/fault_guard.h"
#include "clock.h"
#include "helper_thread.h"
#include "live.h"
#include "sampler.h"
#include "session.h"

namespace kinetoscope::step_watch {
namespace {

constexpr int64_t kLookEveryNs = 1'000'000'000;
// Samples are taken for as long before the ring is frozen.
constexpr int64_t kSampleNs = 2'500'000'000;

// The watcher's thread: one for the process, which waits while there is nothing to watch.
struct Service {
  Service() { init_monotonic(changed); }
  std::mutex mutex;  // held during a look; guards what follows
  pthread_cond_t changed;
  StepLog* log = nullptr;
  std::unique_ptr<FaultGuard> guard;
  std::weak_ptr<RecordingFile> recording;
  int signal = -1;
  int64_t freeze_at_ns = 0;  // 0: nothing is to be frozen
  bool frozen = false;
};

// Leaked on purpose: the thread outlives static destruction.
std::mutex start_mutex;
Service* service = nullptr;

int64_t get(int64_t& field) { return std::atomic_ref(field).load(std::memory_order_acquire); }
void set(int64_t& field, int64_t value) { std::atomic_ref(field).store(value, std::memory_order_release); }

int64_t resident_bytes() {
  char text[128];
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t got = read(file, text, sizeof(text) - 1);
  close(file);
  if (got <= 0) return 0;
  text[got] = '\0';
  long long all = 0, resident = 0;
  if (std::sscanf(text, "%lld %lld", &all, &resident) != 2) return 0;
  return resident * sysconf(_SC_PAGESIZE);
}

void tell(const Service& self) {
  const uint64_t one = 1;
  if (write(self.signal, &one, sizeof(one)) < 0) return;  // The program may have closed it.
}

void look_at_memory(Service& self, int64_t now_ns) {
  StepLog& log = *self.log;
  const int64_t bytes = resident_bytes();
  const int64_t readings = get(log.memory_readings);
  log.memory[static_cast<uint64_t>(readings) % kLoggedMemory] = {now_ns, bytes};
  set(log.memory_readings, readings + 1);
  const int64_t most = get(log.most_bytes);
  if (most > 0 && bytes >= most && get(log.memory_noticed_ns) == 0) {
    set(log.memory_noticed_ns, now_ns);
    tell(self);
  }
}

void look_at_step(Service& self, int64_t now_ns) {
  StepLog& log = *self.log;
  const int64_t began_ns = get(log.began_ns), limit_ns = get(log.hang_ns), hung_ns = get(log.hung_since_ns);
  if (hung_ns != 0 && hung_ns != began_ns) {
    // The step has ended after all.
    set(log.hung_since_ns, 0);
    self.freeze_at_ns = 0;
    if (self.frozen) {
      if (const auto file = self.recording.lock()) file->thaw();
      self.frozen = false;
    }
    return;
  }
  if (hung_ns == 0 && began_ns != 0 && limit_ns > 0 && now_ns - began_ns > limit_ns) {
    set(log.noticed_ns, now_ns);
    set(log.hung_since_ns, began_ns);
    self.freeze_at_ns = now_ns + kSampleNs;
    // If the step is one that is not recorded, there are no samples: take them now.
    live.what.fetch_and(~kPaused, std::memory_order_relaxed);
    sampling::resume();
  }
  if (self.freeze_at_ns != 0 && now_ns >= self.freeze_at_ns) {
    self.freeze_at_ns = 0;
    if (const auto file = self.recording.lock()) {
      file->freeze();
      self.frozen = true;
    }
    tell(self);
  }
}

void* run(void* argument) {
  Service& self = *static_cast<Service*>(argument);
  std::unique_lock lock(self.mutex);
  int64_t due_ns = 0;
  for (;;) {
    if (self.log == nullptr) {
      pthread_cond_wait(&self.changed, self.mutex.native_handle());
      due_ns = 0;
      continue;
    }
    const int64_t now_ns = read_clock(CLOCK_MONOTONIC);
    if (now_ns < due_ns) {
      const timespec until{due_ns / 1'000'000'000, due_ns % 1'000'000'000};
      pthread_cond_timedwait(&self.changed, self.mutex.native_handle(), &until);
      continue;
    }
    due_ns = now_ns + kLookEveryNs;
    look_at_memory(self, now_ns);
    look_at_step(self, now_ns);
  }
  return nullptr;
}

[[noreturn]] void fail(const char* path, const char* what, int error) {
  throw std::runtime_error(std::string(path) + ": " + what + ": " + std::strerror(error));
}

// Maps a new file of the size of a log.
StepLog* map_new(const char* path) {
  const int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) fail(path, "cannot be created", errno);
  // With its blocks, because a full disk would raise SIGBUS later.
  const int no_room = posix_fallocate(file, 0, sizeof(StepLog));
  void* base = MAP_FAILED;
  if (no_room == 0) base = mmap(nullptr, sizeof(StepLog), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = no_room != 0 ? no_room : errno;
  close(file);
  if (base == MAP_FAILED) {
    unlink(path);
    fail(path, "cannot be written", error);
  }
  return static_cast<StepLog*>(base);
}

}  // namespace

StepLog* start(const char* path, std::weak_ptr<RecordingFile> recording, int signal) {
  stop();
  if (!ensure_started(start_mutex, service, run, "kscope steps"))
    throw std::runtime_error("the system refuses another thread");
  StepLog* log = map_new(path);
  log->process = getpid();
  log->layout = kinetoscope_layout;
  log->interpreter = kinetoscope_interpreter_here();
  log->magic = kStepLogMagic;
  {
    std::lock_guard lock(service->mutex);
    service->guard = std::make_unique<FaultGuard>(log, sizeof(StepLog));
    service->recording = std::move(recording);
    service->signal = signal;
    service->freeze_at_ns = 0;
    service->frozen = false;
    service->log = log;
  }
  pthread_cond_signal(&service->changed);
  return log;
}

void stop() {
  if (service == nullptr) return;
  std::lock_guard lock(service->mutex);
  if (service->log == nullptr) return;
  if (service->frozen) {
    if (const auto file = service->recording.lock()) file->thaw();
  }
  service->guard.reset();
  munmap(service->log, sizeof(StepLog));
  service->log = nullptr;
}

void before_fork() {
  if (service != nullptr) service->mutex.lock();
}

void after_fork_in_parent() {
  if (service != nullptr) service->mutex.unlock();
}

void after_fork_in_child() {
  // Leaked, with its mutex locked: its thread does not exist in the child.
  new (&start_mutex) std::mutex;
  service = nullptr;
}

}  // namespace kinetoscope::step_watch
