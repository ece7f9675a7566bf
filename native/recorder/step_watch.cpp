#include "step_watch.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../core/recording/fault_guard.h"
#include "clock.h"
#include "helper_thread.h"
#include "interpreter_view.h"
#include "live.h"
#include "sampler.h"
#include "session.h"

namespace kinetoscope::step_watch {
namespace {

constexpr int64_t kLookEveryNs = 1'000'000'000;
// Samples are taken for as long before the ring is frozen.
constexpr int64_t kSampleNs = 2'500'000'000;
constexpr uint32_t kMostFrames = 200;
// Python judges once a second. Where it does not for so long, a step hangs whose thread does not run for as
// long.
constexpr int64_t kSilentNs = 8'000'000'000;
// For so long a crash waits for its place to be noted, and a program that goes on after all has not crashed.
constexpr int64_t kCrashWaitNs = 200'000'000, kSurvivedNs = 3'000'000'000;
constexpr timespec kShortly{0, 500'000};
constexpr int kFatal[] = {SIGSEGV, SIGABRT, SIGFPE, SIGILL};

// The watcher's thread: one for the process, which waits while there is nothing to watch.
struct Service {
  std::mutex mutex;  // held during a look; guards what follows
  StepLog* log = nullptr;
  std::unique_ptr<FaultGuard> guard;
  std::weak_ptr<RecordingFile> recording;
  int signal = -1;
  int64_t freeze_at_ns = 0;  // 0: nothing is to be frozen
  bool frozen = false;
  int64_t ran_ns = 0;                   // when the thread of a step that is overdue was last seen to run
  std::optional<InterpreterView> view;  // empty if this Python cannot be read
  std::vector<PythonThread> threads;
  std::vector<SeenFrame> frames;
};

// What a handler of signals shares with the watcher, which waits on `wakes`.
struct Crash {
  std::atomic<uint32_t> wakes{0};
  std::atomic<StepLog*> log{nullptr};
  std::atomic<pid_t> process{0};
  std::atomic<bool> begun{false};
  std::atomic<pid_t> thread{0};  // of which the place is wanted; 0: of none
};
constinit Crash crash;
struct Handler {
  bool installed = false;
  struct sigaction before = {};
};
constinit Handler handlers[std::size(kFatal)];

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

// [signal handler] Has the watcher look.
void wake() {
  crash.wakes.fetch_add(1);
  syscall(SYS_futex, &crash.wakes, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

// Waits until somebody wakes the watcher who had not before `seen` was read, or for so long; without end if
// that is -1.
void wait(uint32_t seen, int64_t for_ns) {
  if (for_ns == -1) {
    syscall(SYS_futex, &crash.wakes, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  } else if (for_ns > 0) {
    const timespec time{for_ns / 1'000'000'000, for_ns % 1'000'000'000};
    syscall(SYS_futex, &crash.wakes, FUTEX_WAIT_PRIVATE, seen, &time, nullptr, 0);
  }
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

// What the system says that a thread of this process does, as a letter; ? if it does not.
char state_of(uint32_t thread) {
  char path[48], text[256];
  std::snprintf(path, sizeof(path), "/proc/self/task/%u/stat", thread);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return '?';
  const ssize_t got = read(file, text, sizeof(text) - 1);
  close(file);
  text[got > 0 ? got : 0] = '\0';
  const char* name_end = std::strrchr(text, ')');
  return name_end != nullptr && name_end[1] == ' ' ? name_end[2] : '?';
}

// Whether Python does not judge the step that is overdue, and its thread does not run.
bool is_silent(Service& self, int64_t now_ns) {
  StepLog& log = *self.log;
  const int64_t thread = get(log.thread) != 0 ? get(log.thread) : log.process;
  const char state = state_of(static_cast<uint32_t>(thread));
  if (state == 'R' || state == 't' || get(log.judged_ns) > self.ran_ns) self.ran_ns = now_ns;
  return now_ns - self.ran_ns > kSilentNs;
}

void look_at_step(Service& self, int64_t now_ns) {
  StepLog& log = *self.log;
  const int64_t began_ns = get(log.began_ns), limit_ns = get(log.hang_ns), hung_ns = get(log.hung_since_ns);
  const bool overdue = began_ns != 0 && limit_ns > 0 && now_ns - began_ns > limit_ns;
  if (!overdue || get(log.noticed_ns) < began_ns) set(log.noticed_ns, overdue ? now_ns : 0);
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
  if (overdue && get(log.noticed_ns) == now_ns) {
    self.ran_ns = now_ns;
    tell(self);
  } else if (overdue && hung_ns == 0 && is_silent(self, now_ns)) {
    set(log.hung_since_ns, began_ns);
  }
  if (get(log.hung_since_ns) == began_ns && began_ns != 0 && self.freeze_at_ns == 0 && !self.frozen) {
    self.freeze_at_ns = now_ns + kSampleNs;
    // If the step is one that is not recorded, there are no samples: take them now.
    live.what.fetch_and(~kPaused, std::memory_order_relaxed);
    sampling::resume();
  }
  if (self.freeze_at_ns != 0 && now_ns >= self.freeze_at_ns) {
    self.freeze_at_ns = 0;
    if (const auto file = self.recording.lock()) file->freeze();
    self.frozen = true;
    tell(self);
  }
}

// Notes where a thread is, or the one that marks the steps if that one runs no Python. False if it changed
// meanwhile.
bool note_place(Service& self, uint32_t thread, bool crashed) {
  StepLog& log = *self.log;
  InterpreterView& view = *self.view;
  view.memory().refresh();
  if (!view.threads(self.threads)) return false;
  const auto main = static_cast<uint32_t>(get(log.thread) != 0 ? get(log.thread) : log.process);
  const PythonThread* wanted = nullptr;
  for (const PythonThread& one : self.threads)
    if (one.system == thread || (one.system == main && wanted == nullptr)) wanted = &one;
  if (wanted == nullptr || !view.frames(*wanted, kMostFrames, self.frames)) return false;
  const int64_t now_ns = read_clock(CLOCK_MONOTONIC);
  StepLog::Place& place = log.place[get(log.place[0].time_ns) <= get(log.place[1].time_ns) ? 0 : 1];
  set(place.time_ns, 0);
  size_t used = 0;
  SeenCode code;
  for (const SeenFrame& frame : self.frames) {
    if (!view.code(frame, code)) return false;
    const std::string line = code.file + '\t' + std::to_string(code.line) + '\t' + code.function + '\n';
    if (used + line.size() >= sizeof(place.stack)) break;
    std::memcpy(place.stack + used, line.data(), line.size());
    used += line.size();
  }
  place.stack[used] = '\0';
  place.step = get(log.began_ns) != 0 ? get(log.number) : -1;
  place.thread = wanted->system;
  place.state = crashed && wanted->system == thread ? 'X' : state_of(wanted->system);
  set(place.time_ns, now_ns);
  return true;
}

void look_at_place(Service& self, uint32_t thread, bool crashed) {
  constexpr int kAttempts = 3;
  for (int attempt = 0; self.view && attempt < kAttempts; ++attempt) {
    if (note_place(self, thread, crashed)) return;
    self.view->memory().forget();
  }
}

// [signal handler] Only calls the system, and waits for a thread that needs nothing of this one for long.
void on_crash(int number, siginfo_t* info, void* context) {
  const int error = errno;
  if (StepLog* log = crash.log.load();
      log != nullptr && crash.process.load() == getpid() && !crash.begun.exchange(true)) {
    set(log->signal, number);
    crash.thread.store(gettid());
    wake();
    const int64_t until_ns = read_clock(CLOCK_MONOTONIC) + kCrashWaitNs;
    while (crash.thread.load() != 0 && read_clock(CLOCK_MONOTONIC) < until_ns) nanosleep(&kShortly, nullptr);
  }
  for (size_t at = 0; at < std::size(kFatal); ++at)
    if (kFatal[at] == number) hand_on(handlers[at].before, number, info, context);
  errno = error;
}

// Whether a handler is none, or in the same file as Python: other runtimes take faults for what they are not.
bool is_of_python(const struct sigaction& action, const void* of_python) {
  if ((action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN) return false;
  if ((action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL) return true;
  Dl_info python{}, other{};
  return dladdr(of_python, &python) != 0 &&
         dladdr(reinterpret_cast<const void*>(action.sa_handler), &other) != 0 &&
         python.dli_fbase == other.dli_fbase;
}

void catch_crashes(const void* of_python) {
  for (size_t at = 0; at < std::size(kFatal); ++at) {
    struct sigaction now = {};
    // Whoever came after us may hand on to us: put in front of him, each would hand on to the other.
    if (sigaction(kFatal[at], nullptr, &now) != 0 || handlers[at].installed || !is_of_python(now, of_python))
      continue;
    struct sigaction ours = {};
    ours.sa_sigaction = on_crash;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&ours.sa_mask);
    handlers[at].before = now;
    handlers[at].installed = sigaction(kFatal[at], &ours, nullptr) == 0;
  }
}

// Puts back what was there, where nobody has come after us.
void leave_crashes() {
  for (size_t at = 0; at < std::size(kFatal); ++at) {
    struct sigaction now = {};
    if (!handlers[at].installed || sigaction(kFatal[at], nullptr, &now) != 0) continue;
    if ((now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction != on_crash) continue;
    handlers[at].installed = sigaction(kFatal[at], &handlers[at].before, nullptr) != 0;
  }
}

void* run(void* argument) {
  Service& self = *static_cast<Service*>(argument);
  std::unique_lock lock(self.mutex);
  int64_t due_ns = 0, crashed_ns = 0;
  for (;;) {
    const uint32_t wakes = crash.wakes.load();
    const int64_t now_ns = read_clock(CLOCK_MONOTONIC);
    if (self.log == nullptr) due_ns = 0;
    if (const pid_t thread = crash.thread.load(); thread != 0 && self.log != nullptr) {
      look_at_place(self, static_cast<uint32_t>(thread), true);
      crash.thread.store(0);
      crashed_ns = now_ns;
    } else if (self.log != nullptr && now_ns >= due_ns) {
      due_ns = now_ns + kLookEveryNs;
      if (crashed_ns != 0 && now_ns - crashed_ns > kSurvivedNs) {
        crashed_ns = 0;
        set(self.log->signal, 0);
        crash.begun.store(false);
      }
      look_at_memory(self, now_ns);
      if (crashed_ns == 0) look_at_place(self, 0, false);
      look_at_step(self, now_ns);
    }
    const bool watches = self.log != nullptr;
    lock.unlock();
    wait(wakes, watches ? due_ns - read_clock(CLOCK_MONOTONIC) : -1);
    lock.lock();
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
    service->view.emplace(log->interpreter);
    if (!service->view->problem().empty()) service->view.reset();
    service->log = log;
  }
  crash.process.store(getpid());
  crash.log.store(log);
  catch_crashes(log->interpreter.code_type);
  wake();
  return log;
}

void stop() {
  if (service == nullptr) return;
  std::lock_guard lock(service->mutex);
  if (service->log == nullptr) return;
  if (service->frozen) {
    if (const auto file = service->recording.lock()) file->thaw();
  }
  leave_crashes();
  crash.log.store(nullptr);
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
  crash.log.store(nullptr);
  crash.thread.store(0);
  crash.begun.store(false);
}

}  // namespace kinetoscope::step_watch
