#include "sampler.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "clock.h"
#include "dictionary_collection.h"
#include "helper_thread.h"
#include "live.h"
#include "session.h"

namespace kinetoscope {
namespace {

constexpr int kAttempts = 3;
// A pause is at least so many times as long as the round before it took of a processor, with waking up: more
// so once a recording's samples have taken kDenseNs. A short recording has many, one that stays on is cheap.
constexpr int64_t kLeastPause = 100, kLeastPauseLater = 300;
constexpr int64_t kDenseNs = 50'000'000;
// Limits our use of the program's file descriptors.
constexpr size_t kMostFiles = 64;
constexpr char kTimes[] = "schedstat";
// Forked processes are listed in one round of so many.
constexpr uint64_t kRoundsOfList = 16;
constexpr size_t kMostForked = 64;
// Other programs that this one started cannot be read.
constexpr uint32_t kMostFailures = 50;

// Opens a file of /proc about a thread of this process; -1 if it does not exist.
int open_of_task(uint32_t system, const char* name) {
  char path[48];
  std::snprintf(path, sizeof(path), "/proc/self/task/%u/%s", system, name);
  return open(path, O_RDONLY | O_CLOEXEC);
}

// The system's id of the calling thread.
uint32_t own_id() {
  static thread_local const auto id = static_cast<uint32_t>(gettid());
  return id;
}

constexpr size_t kCallArguments = 6;

// What somebody who waits for this file of the process waits for. It may be closed meanwhile, or be another
// one: fstat() neither waits nor changes anything.
SampleWait wait_for_file(int file) {
  struct stat about{};
  if (fstat(file, &about) != 0) return SampleWait::Other;
  if (S_ISSOCK(about.st_mode)) return SampleWait::Socket;
  if (S_ISFIFO(about.st_mode)) return SampleWait::Pipe;
  if (S_ISREG(about.st_mode) || S_ISDIR(about.st_mode) || S_ISBLK(about.st_mode)) return SampleWait::File;
  return isatty(file) != 0 ? SampleWait::Terminal : SampleWait::Events;
}

// The same of several files.
class WaitForFiles {
 public:
  void add(int file) {
    if (file < 0) return;
    const SampleWait one = wait_for_file(file);
    wait_ = any_ && wait_ != one ? SampleWait::Events : one;
    any_ = true;
  }
  // Without any file, a thread only waits for time to pass.
  SampleWait wait() const { return any_ ? wait_ : SampleWait::Sleep; }

 private:
  bool any_ = false;
  SampleWait wait_ = SampleWait::Sleep;
};

// More files are not looked at.
constexpr uint64_t kMostPolled = 16, kMostSelected = 1024;

SampleWait wait_in_poll(MemoryReader& memory, uint64_t address, uint64_t count) {
  if (count > kMostPolled) return SampleWait::Events;
  pollfd polled[kMostPolled];
  if (count != 0 && !memory.read(reinterpret_cast<const void*>(address), polled, count * sizeof(pollfd)))
    return SampleWait::Events;
  WaitForFiles files;
  for (uint64_t at = 0; at < count; ++at) files.add(polled[at].fd);
  return files.wait();
}

// `sets` are the addresses of the sets of files to read, to write, and with exceptions; 0 for none.
SampleWait wait_in_select(MemoryReader& memory, uint64_t count, const uint64_t* sets) {
  if (count > kMostSelected) return SampleWait::Events;
  WaitForFiles files;
  for (int set = 0; set < 3; ++set) {
    unsigned char bits[kMostSelected / 8];
    const size_t bytes = (count + 7) / 8;
    if (sets[set] == 0 || bytes == 0) continue;
    if (!memory.read(reinterpret_cast<const void*>(sets[set]), bits, bytes)) return SampleWait::Events;
    for (uint64_t file = 0; file < count; ++file)
      if ((bits[file / 8] >> (file % 8) & 1) != 0) files.add(static_cast<int>(file));
  }
  return files.wait();
}

// What a thread waits for that is blocked in a system call; -1 for none: a page is read for it.
SampleWait wait_in(MemoryReader& memory, long call, const uint64_t* given) {
  switch (call) {
    case -1:
      return SampleWait::Memory;
    case SYS_futex:
      return SampleWait::Lock;
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
      return SampleWait::Sleep;
    case SYS_wait4:
    case SYS_waitid:
      return SampleWait::Process;
    case SYS_read:
    case SYS_write:
    case SYS_readv:
    case SYS_writev:
    case SYS_pread64:
    case SYS_pwrite64:
    case SYS_preadv:
    case SYS_pwritev:
      return wait_for_file(static_cast<int>(given[0]));
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_openat:
    case SYS_getdents64:
    case SYS_statx:
    case SYS_flock:
    case SYS_ftruncate:
    case SYS_fallocate:
    case SYS_unlinkat:
      return SampleWait::File;
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_connect:
    case SYS_accept:
    case SYS_accept4:
      return SampleWait::Socket;
    case SYS_ppoll:
#ifdef SYS_poll
    case SYS_poll:
#endif
      return wait_in_poll(memory, given[0], given[1]);
    case SYS_pselect6:
#ifdef SYS_select
    case SYS_select:
#endif
      return wait_in_select(memory, given[0], given + 1);
    case SYS_epoll_pwait:
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
#endif
      return SampleWait::Events;
    default:
      return SampleWait::Other;
  }
}

void set_waited(SampleRecord& record, uint32_t waited) {
  for (size_t place = 0; place < sizeof(record.waited); ++place)
    record.waited[place] = static_cast<uint8_t>(waited >> (8 * place));
}

// Whether there was anything to read.
bool read_text(int file, char* into, size_t bytes) {
  const ssize_t got = file < 0 ? 0 : pread(file, into, bytes - 1, 0);
  into[got > 0 ? got : 0] = '\0';
  return got > 0;
}

}  // namespace

Sampler::Sampler(Session& session, const kinetoscope_interpreter& interpreter, const void* module_call)
    : session_(session),
      interpreter_(interpreter),
      module_call_(module_call),
      view_(interpreter),
      children_record_(std::getenv("KINETOSCOPE_CHILDREN") != nullptr),
      since_tick_(read_tick()) {
  KnownThread main;
  main.system = static_cast<uint32_t>(getpid());
  tells_waits_ = times_of(main).waited_ns >= 0;
  close_files_of(main);
}

Sampler::~Sampler() {
  for (auto& [number, known] : known_threads_) close_files_of(known);
}

void Sampler::skip_round() {
  since_tick_ = read_tick();
  // Else the next sample says that all the waiting until then was in its own period.
  for (auto& [number, known] : known_threads_) known.times = {};
  for (const auto& forked : forked_) forked->since_tick = since_tick_;
}

int64_t Sampler::round(const std::atomic<bool>& leave) {
  ++rounds_;
  uint64_t torn = 0;
  if (const uint32_t now = session_.dictionary().epoch(); now != dictionary_epoch_) {
    calls_.clear();
    // Stacks of the last round must not be reused either, because their ids may be invalid.
    for (auto& [number, known] : known_threads_) known.rests = false;
    for (const auto& forked : forked_) forked->calls.clear();
    dictionary_epoch_ = now;
  }
  // Before anything is read, so that a code object that is freed from here on is noticed.
  uint32_t epoch = live.code_epoch.load(std::memory_order_acquire);
  const uint64_t tick = read_tick();
  const auto again = [&] {
    epoch = live.code_epoch.load(std::memory_order_acquire);
    view_.memory().forget();
  };
  bool whole = find_threads();
  for (int attempt = 1; attempt < kAttempts && !whole; ++attempt) {
    again();
    whole = find_threads();
  }
  for (const PythonThread& thread : threads_) {
    if (leave.load(std::memory_order_relaxed)) break;
    Outcome outcome = sample(thread, tick, epoch);
    for (int attempt = 1; attempt < kAttempts && outcome == Outcome::Torn; ++attempt) {
      again();
      outcome = sample(thread, tick, epoch);
    }
    torn += outcome == Outcome::Torn;
  }
  since_tick_ = tick;
  // The number of threads after the break is unknown: at least one.
  torn += !whole;
  if (torn != 0)
    std::atomic_ref(session_.file().header().torn_samples).fetch_add(torn, std::memory_order_relaxed);
  if (whole) forget_ended_threads();
  if (children_record_ || leave.load(std::memory_order_relaxed)) return 0;
  return sample_forked_processes(tick, whole);
}

int64_t Sampler::sample_forked_processes(uint64_t tick, bool threads_are_known) {
  const int64_t before_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
  if (threads_are_known && rounds_ % kRoundsOfList == 1) list_forked_processes(tick);
  const int64_t now_ns = read_clock(CLOCK_MONOTONIC);
  const bool is_due = !forked_.empty() && now_ns >= forked_due_ns_;
  if (is_due) sample_next_forked(tick);
  const int64_t cost_ns = read_clock(CLOCK_THREAD_CPUTIME_ID) - before_ns;
  if (is_due) forked_due_ns_ = now_ns + cost_ns * kLeastPauseLater;
  return cost_ns;
}

void Sampler::sample_next_forked(uint64_t tick) {
  ForkedProcess& forked = *forked_[forked_turn_++ % forked_.size()];
  if (forked.failures >= kMostFailures) return;
  forked.view.memory().refresh();
  bool sampled = sample_forked(forked, tick);
  for (int attempt = 1; attempt < kAttempts && !sampled; ++attempt) {
    forked.view.memory().forget();
    sampled = sample_forked(forked, tick);
  }
  forked.failures = sampled ? 0 : forked.failures + 1;
}

void Sampler::list_forked_processes(uint64_t tick) {
  for (const auto& forked : forked_) forked->exists = false;
  for (const PythonThread& thread : threads_) {
    char text[1024];
    const int file = open_of_task(thread.system, "children");
    const bool any = read_text(file, text, sizeof(text));
    if (file >= 0) close(file);
    char* end = nullptr;
    for (char* at = text; any; at = end) {
      const auto process = static_cast<uint32_t>(std::strtoul(at, &end, 10));
      // The last number may be cut off: a process that does not exist cannot be read.
      if (end == at) break;
      const auto known = std::find_if(forked_.begin(), forked_.end(),
                                      [process](const auto& forked) { return forked->process == process; });
      if (known != forked_.end())
        (*known)->exists = true;
      else if (forked_.size() < kMostForked)
        forked_.push_back(std::make_unique<ForkedProcess>(interpreter_, process, tick));
    }
  }
  std::erase_if(forked_, [this](const auto& forked) {
    if (!forked->exists) session_.forget_thread(forked->process);
    return !forked->exists;
  });
}

bool Sampler::sample_forked(ForkedProcess& forked, uint64_t tick) {
  if (!forked.view.threads(forked_threads_)) return false;
  const auto main =
      std::find_if(forked_threads_.begin(), forked_threads_.end(),
                   [&forked](const PythonThread& thread) { return thread.system == forked.process; });
  if (main == forked_threads_.end() || !forked.view.frames(*main, kMaxDepth, frames_) || frames_.empty())
    return false;
  SampleRecord record{};
  for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame)
    if ((record.stack = stack_in(forked, *frame, record.stack)) == 0) return false;
  if (forked.index == 0) forked.index = session_.index_of_thread(forked.process);
  record.tick = tick;
  record.since_tick = std::exchange(forked.since_tick, tick);
  record.thread = forked.index;
  session_.add_sample(record);
  return true;
}

void Sampler::refresh() {
  if (refreshed_round_ == rounds_) return;
  refreshed_round_ = rounds_;
  view_.memory().refresh();
}

bool Sampler::find_threads() {
  if (main_.state != nullptr && view_.is_only_thread(main_.state)) {
    threads_.assign(1, main_);
    return true;
  }
  refresh();
  if (!view_.threads(threads_)) return false;
  if (main_.state != nullptr) return true;
  for (const PythonThread& thread : threads_) {
    if ((main_state_ = find_main_thread(thread.state)) == nullptr) continue;
    main_ = thread;
    break;
  }
  return true;
}

bool Sampler::place_of_operator(const PythonThread& thread, SampleRecord& record) {
  if (main_.state == nullptr || thread.state != main_.state) return false;
  const auto current = [&] { return view_.frame_of_main(main_.state); };
  return main_state_->held.read(session_.generation(), current, record.stack, record.module) &&
         record.stack != 0;
}

void Sampler::forget_ended_threads() {
  for (auto at = known_threads_.begin(); at != known_threads_.end();) {
    KnownThread& known = at->second;
    if (known.round == rounds_) {
      ++at;
      continue;
    }
    // A thread that has not run yet has the system id of the thread that created it.
    const auto is_same = [&known](const PythonThread& thread) { return thread.system == known.system; };
    if (std::none_of(threads_.begin(), threads_.end(), is_same)) session_.forget_thread(known.system);
    close_files_of(known);
    at = known_threads_.erase(at);
  }
}

void Sampler::close_files_of(KnownThread& known) {
  for (int* file : {&known.times_file, &known.call_file}) {
    if (*file < 0) continue;
    close(*file);
    *file = -1;
    --open_files_;
  }
}

bool Sampler::read_of_task(const KnownThread& known, const char* name, int& file, char* into, size_t bytes) {
  if (file >= 0) return read_text(file, into, bytes);
  const int opened = open_of_task(known.system, name);
  const bool there = read_text(opened, into, bytes);
  if (there && open_files_ < kMostFiles) {
    file = opened;
    ++open_files_;
  } else if (opened >= 0) {
    close(opened);
  }
  return there;
}

Sampler::TaskTimes Sampler::times_of(KnownThread& known) {
  char text[96];
  if (!read_of_task(known, kTimes, known.times_file, text, sizeof(text))) return {};
  // How long it ran, how long it waited, both in nanoseconds, and how often it ran.
  TaskTimes times;
  char* at = text;
  for (int64_t* number : {&times.ran_ns, &times.waited_ns, &times.runs}) {
    char* end = nullptr;
    *number = std::strtoll(at, &end, 10);
    if (end == at) return {};
    at = end;
  }
  return times;
}

Sampler::Outcome Sampler::sample(const PythonThread& thread, uint64_t tick, uint32_t epoch) {
  KnownThread& known = known_threads_[thread.number];
  known.round = rounds_;
  if (known.system != thread.system) {
    // Until it runs, a thread has the system id of the one that created it.
    close_files_of(known);
    known.index = 0;
    known.system = thread.system;
    known.times = {};
    known.off_processor = known.rests = false;
  }
  // Once more after the round that finds it off its processor: that one's memory may be older than its times.
  const bool stayed_off = !update_times(known) && known.off_processor;
  if (stayed_off && known.rests) {
    SampleRecord record = known.last;
    record.tick = tick;
    record.since_tick = since_tick_;
    set_waited(record, known.waited);
    session_.add_sample(record);
    return Outcome::Sampled;
  }
  known.off_processor = known.rests = false;
  SampleRecord record{};
  record.tick = tick;
  record.since_tick = since_tick_;
  if (!place_of_operator(thread, record)) {
    refresh();
    record.stack = record.module = 0;
    if (!view_.frames(thread, kMaxDepth, frames_)) return Outcome::Torn;
    if (frames_.empty()) return Outcome::NoPython;
    if (!place(epoch, record)) return Outcome::Torn;
  }
  SampleWait wait = SampleWait::Unknown;
  const SampleState state = state_of(thread, known, wait);
  record.state =
      static_cast<uint8_t>(static_cast<uint8_t>(state) | static_cast<uint8_t>(wait) << kSampleStateBits);
  set_waited(record, known.waited);
  if (known.index == 0) known.index = session_.index_of_thread(thread.system);
  record.thread = known.index;
  session_.add_sample(record);
  known.last = record;
  // Had it been on its processor when its times were read, leaving it would have changed them. Of itself, a
  // thread reads that it is in a system call.
  known.off_processor =
      (state == SampleState::Blocked || state == SampleState::WaitingForGil) && known.system != own_id();
  known.rests = stayed_off && known.off_processor;
  return Outcome::Sampled;
}

bool Sampler::place(uint32_t epoch, SampleRecord& record) {
  for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
    record.stack = stack_of(*frame, record.stack, epoch);
    if (record.stack == 0) return false;
    if (frame->code != module_call_) continue;
    if (const uint32_t module = session_.modules().find(frame->first_local); module != 0)
      record.module = module;
  }
  return std::none_of(frames_.begin(), frames_.end(),
                      [epoch](const SeenFrame& frame) { return code_went_since(epoch, frame.code); });
}

uint32_t Sampler::stack_of(const SeenFrame& frame, uint32_t parent, uint32_t epoch) {
  const CallKey key{frame.code, frame.instruction, parent};
  SampledCall& known = calls_.at(key);
  if (known.stack != 0 && known.epoch == epoch && live.code_is_watched) return known.stack;
  SeenCode code;
  if (!view_.code(frame, code)) return 0;
  if (code_went_since(epoch, frame.code)) return 0;
  const uint64_t fingerprint = code.fingerprint();
  if (known.stack != 0 && known.fingerprint == fingerprint) {
    known.epoch = epoch;
    return known.stack;
  }
  const uint32_t stack = add_stack(code, parent);
  calls_.insert(key, {fingerprint, stack, epoch});
  return stack;
}

uint32_t Sampler::stack_in(ForkedProcess& forked, const SeenFrame& frame, uint32_t parent) {
  const uint64_t identity = forked.view.identity(frame);
  if (identity == 0) return 0;
  const CallKey key{frame.code, frame.instruction, parent};
  const SampledCall known = forked.calls.find(key);
  if (known.stack != 0 && known.fingerprint == identity) return known.stack;
  SeenCode code;
  if (!forked.view.code(frame, code)) return 0;
  const uint32_t stack = add_stack(code, parent);
  forked.calls.insert(key, {identity, stack, 0});
  return stack;
}

uint32_t Sampler::add_stack(const SeenCode& code, uint32_t parent) {
  Dictionary& dictionary = session_.dictionary();
  std::lock_guard lock(dictionary.mutex());
  return dictionary.stack(parent, dictionary.frame(code.function, code.file, code.line, code.first_line));
}

bool Sampler::update_times(KnownThread& known) {
  if (!tells_waits_) {
    known.waited = kWaitedUnknown;
    return true;
  }
  if (known.times_round == rounds_) return true;
  const TaskTimes before = known.times;
  known.times_round = rounds_;
  known.times = times_of(known);
  if (before.waited_ns < 0 || known.times.waited_ns < before.waited_ns) {
    known.waited = 0;
    return true;
  }
  const int64_t microseconds = (known.times.waited_ns - before.waited_ns) / 1000;
  known.waited = static_cast<uint32_t>(std::min<int64_t>(microseconds + kWaitedFrom, kMostWaited));
  // A system without these counters always returns 0.
  return before.ran_ns <= 0 || before.runs <= 0 || known.times != before;
}

SampleState Sampler::state_of(const PythonThread& thread, KnownThread& known, SampleWait& wait) {
  char text[256];
  if (read_of_task(known, "syscall", known.call_file, text, sizeof(text))) {
    if (std::strncmp(text, "running", 7) == 0) return SampleState::Running;
    // The number of the system call, and what it was given.
    char* at = nullptr;
    const long call = std::strtol(text, &at, 10);
    if (at == text) return SampleState::Blocked;
    uint64_t given[kCallArguments] = {};
    for (uint64_t& argument : given) argument = std::strtoull(at, &at, 16);
    if (call == SYS_futex && view_.is_in_gil(given[0])) return SampleState::WaitingForGil;
    wait = wait_in(view_.memory(), call, given);
    return SampleState::Blocked;
  }
  const int file = open_of_task(thread.system, "stat");
  const bool has_state = read_text(file, text, sizeof(text));
  if (file >= 0) close(file);
  // The thread's name, in parentheses, may have spaces and parentheses in it.
  const char* name_end = has_state ? std::strrchr(text, ')') : nullptr;
  if (name_end == nullptr || name_end[1] == '\0') return SampleState::Unknown;
  if (name_end[2] == 'R') return SampleState::Running;
  return view_.gil_is_elsewhere(thread) ? SampleState::Unknown : SampleState::Blocked;
}

namespace sampling {
namespace {

// The sampler's thread: one for the process, which waits between recordings.
struct Service {
  Service() { init_monotonic(changed); }
  std::mutex mutex;  // held during a round; guards what follows
  pthread_cond_t changed;
  std::unique_ptr<Sampler> sampler;
  std::atomic<int64_t> interval_ns{0};
  uint64_t starts = 0;
  std::atomic<bool> leave{false};
};

// Leaked on purpose: the thread outlives static destruction.
std::mutex start_mutex;
Service* service = nullptr;

int64_t least_of_varied(int64_t nanoseconds) { return nanoseconds * 3 / 4; }

// A pause of `nanoseconds` on average.
int64_t varied(int64_t nanoseconds, uint64_t& random) {
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  return least_of_varied(nanoseconds) +
         static_cast<int64_t>(random % static_cast<uint64_t>(nanoseconds / 2 + 1));
}

void* run(void* argument) {
  Service& self = *static_cast<Service*>(argument);
  uint64_t random = 0x9E3779B97F4A7C15ull ^ read_tick();
  std::unique_lock lock(self.mutex);
  uint64_t seen = 0;
  int64_t due_ns = 0, pause_ns = 0, before_ns = 0, spent_ns = 0;
  for (;;) {
    if (self.sampler == nullptr) {
      pthread_cond_wait(&self.changed, self.mutex.native_handle());
      continue;
    }
    if (seen != self.starts) {
      seen = self.starts;
      pause_ns = self.interval_ns;
      due_ns = read_clock(CLOCK_MONOTONIC) + varied(pause_ns, random);
      before_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
      spent_ns = 0;
    }
    if (read_clock(CLOCK_MONOTONIC) < due_ns) {
      const timespec until{due_ns / 1'000'000'000, due_ns % 1'000'000'000};
      pthread_cond_timedwait(&self.changed, self.mutex.native_handle(), &until);
      continue;
    }
    if ((live.what.load(std::memory_order_relaxed) & kPaused) != 0) {
      pthread_cond_wait(&self.changed, self.mutex.native_handle());
      // The time in between does not belong to the samples that follow.
      if (self.sampler != nullptr) self.sampler->skip_round();
      due_ns = read_clock(CLOCK_MONOTONIC) + varied(pause_ns, random);
      continue;
    }
    int64_t forked_ns = 0;
    try {
      forked_ns = self.sampler->round(self.leave);
    } catch (const std::exception&) {
      // Out of memory: this round is missing, the job goes on.
      self.sampler->skip_round();
    }
    const int64_t after_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
    const int64_t cost_ns = after_ns - std::exchange(before_ns, after_ns) - forked_ns;
    spent_ns += cost_ns;
    const int64_t least_ns = cost_ns * (spent_ns < kDenseNs ? kLeastPause : kLeastPauseLater);
    // A single slow round, such as the first, must not delay later ones for long.
    pause_ns = std::max(self.interval_ns.load(), (pause_ns + least_ns) / 2);
    due_ns = read_clock(CLOCK_MONOTONIC) + varied(pause_ns, random);
  }
  return nullptr;
}

// Returns once the round in progress, if any, has ended: the next one sees what was changed before.
void let_round_end() {
  if (service == nullptr) return;
  std::lock_guard lock(service->mutex);
}

}  // namespace

std::string start(Session& session, const kinetoscope_interpreter& interpreter, const void* module_call,
                  int64_t interval_ns) {
  auto sampler = std::make_unique<Sampler>(session, interpreter, module_call);
  if (std::string problem = sampler->view().problem(); !problem.empty()) return problem;
  if (!ensure_started(start_mutex, service, run, "kscope sampler"))
    return "the system refuses another thread";
  wait_for_sampler(let_round_end);
  {
    std::lock_guard lock(service->mutex);
    service->sampler = std::move(sampler);
    service->interval_ns = interval_ns;
    service->leave.store(false, std::memory_order_relaxed);
    ++service->starts;
  }
  pthread_cond_signal(&service->changed);
  return {};
}

void resume(int64_t expected_ns) {
  // Waking a thread costs more than all the rest of switching recording on.
  if (service == nullptr || expected_ns < least_of_varied(service->interval_ns.load())) return;
  // Under the mutex, so that it is either seen before the sampler waits, or wakes it.
  std::lock_guard lock(service->mutex);
  pthread_cond_signal(&service->changed);
}

void stop() {
  if (service == nullptr) return;
  service->leave.store(true, std::memory_order_relaxed);
  std::lock_guard lock(service->mutex);
  service->sampler.reset();
}

void before_fork() {
  if (service != nullptr) service->mutex.lock();
}

void after_fork_in_parent() {
  if (service != nullptr) service->mutex.unlock();
}

void after_fork_in_child() {
  // Its thread does not exist in the child. Leaked, with its mutex locked, except for the files.
  if (service != nullptr) service->sampler.reset();
  new (&start_mutex) std::mutex;
  service = nullptr;
}

}  // namespace sampling
}  // namespace kinetoscope
