// The C interface of the recorder. It is loaded with ctypes.PyDLL: every function is called with the GIL
// held.
#include "recorder.h"

#include <Python.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "../core/recording/range_marks.h"
#include "../core/recording/step_switch.h"
#include "call_hooks.h"
#include "call_state.h"
#include "clock.h"
#include "collector_guard.h"
#include "cpu_allocator.h"
#include "fast_ranges.h"
#include "kernel_calls.h"
#include "maintenance_thread.h"
#include "operators.h"
#include "parameters.h"
#include "python_calls.h"
#include "python_walk.h"
#include "sampler.h"
#include "session.h"
#include "step_watch.h"
#include "storage_ids.h"
#include "tensor_reader.h"
#include "tensor_versions.h"

namespace kinetoscope {
namespace {

// How long stop() waits for threads to leave their callbacks.
constexpr int64_t kPatienceNs = 200'000'000;

bool step_on(const void* mark, int64_t number, int64_t expected_ns) noexcept;
bool step_off(const void* mark) noexcept;
bool step_begin(const void* mark, int64_t number) noexcept;
void step_end(const void* mark) noexcept;
StepSwitch step_switch{.allowed = 0, .on = step_on, .off = step_off, .begin = step_begin, .end = step_end};

bool range_begin(const void* range, const char* name) noexcept { return begin_mark(range, name); }
void range_end(const void* range) noexcept { end_span(range); }
constexpr RangeMarks kRangeMarks{.begin = range_begin, .end = range_end};

// Guards starting and stopping; the GIL does too, but fork handlers run without it. Recursive: naming modules
// may run the garbage collector, and with it any code of the job, fork included.
std::recursive_mutex control;
std::shared_ptr<Session> recording;
bool stopped = false;       // stop() has ended it; close() has not
bool stopped_all = false;   // every thread has left the recording that stop() ended
uint32_t wanted_calls = 0;  // of the recording in progress: what it has of kCalls while it is not paused
uint32_t generations = 0;
bool loaded = false;
ClockPair at_load{};  // so that a recording killed in its first millisecond has two readings too

// [GIL] Holds `control`. Its holder may run Python code, and so wait for the GIL: it must not be awaited with
// the GIL.
class ControlLock {
 public:
  ControlLock() {
    if (control.try_lock()) return;
    PyThreadState* thread = PyEval_SaveThread();
    control.lock();
    PyEval_RestoreThread(thread);
  }
  ~ControlLock() { control.unlock(); }
  ControlLock(const ControlLock&) = delete;
  ControlLock& operator=(const ControlLock&) = delete;
};

void say(char* message, size_t bytes, const char* text) {
  if (bytes == 0) return;
  std::strncpy(message, text, bytes - 1);
  message[bytes - 1] = '\0';
}

uint64_t ticks_a_microsecond(const ClockPair& then, const ClockPair& now) {
  const int64_t elapsed_ns = now.monotonic_ns - then.monotonic_ns;
  return elapsed_ns > 0 ? static_cast<uint64_t>(static_cast<double>(now.tick - then.tick) * 1000.0 /
                                                static_cast<double>(elapsed_ns))
                        : 1000;
}

// A row of the table of pauses, as kinetoscope/collect/engines/native.py writes it; see also
// kinetoscope/model/pauses.py.
void append_toggle(bool on) {
  constexpr std::string_view kOn = R"({"activity":["CPU"],"enabled":[true]})";
  constexpr std::string_view kOff = R"({"activity":["CPU"],"enabled":[false]})";
  recording->rows().append(0, "toggles", 1, 0, on ? kOn : kOff);
}

// [GIL] `control` for a step switch, which must not wait for it: its holder may need the GIL.
class TriedControlLock {
 public:
  TriedControlLock() : owned_(step_switch.allowed != 0 && control.try_lock()) {}
  ~TriedControlLock() {
    if (owned_) control.unlock();
  }
  TriedControlLock(const TriedControlLock&) = delete;
  TriedControlLock& operator=(const TriedControlLock&) = delete;
  bool may_switch() const { return owned_ && Session::current() != nullptr && wanted_calls == 0; }

 private:
  const bool owned_;
};

// Begins a pause of session 0.
void step_pause() {
  live.what.fetch_or(kPaused, std::memory_order_relaxed);
  remove_operator_callback();
  try {
    append_toggle(false);
  } catch (...) {
    // Out of memory: the recording does not say that it was paused from here on.
    recording->faults.fetch_add(1, std::memory_order_relaxed);
  }
}

bool step_on(const void* mark, int64_t number, int64_t expected_ns) noexcept {
  const TriedControlLock lock;
  if (!lock.may_switch()) return false;
  const uint32_t before = live.what.fetch_and(~kPaused, std::memory_order_relaxed);
  try {
    resume_operator_callback(before);
    append_toggle(true);
    if ((before & kPaused) != 0) sampling::resume(expected_ns);
    if (begin_step_mark(mark, number, 0)) return true;
  } catch (...) {
    // Out of memory.
    recording->faults.fetch_add(1, std::memory_order_relaxed);
  }
  step_pause();
  return false;
}

bool step_off(const void* mark) noexcept {
  const TriedControlLock lock;
  if (!lock.may_switch()) return false;
  if (mark != nullptr) end_span(mark);
  step_pause();
  return true;
}

bool step_begin(const void* mark, int64_t number) noexcept {
  return step_switch.allowed != 0 && begin_step_mark(mark, number, 0);
}

void step_end(const void* mark) noexcept { end_span(mark); }

void before_fork() {
  control.lock();
  step_watch::before_fork();
  sampling::before_fork();
  if (recording != nullptr) recording->dictionary().mutex().lock();
}

void after_fork_in_parent() {
  if (recording != nullptr) recording->dictionary().mutex().unlock();
  sampling::after_fork_in_parent();
  step_watch::after_fork_in_parent();
  control.unlock();
}

// The child shares the file but not its pages (MADV_DONTFORK): it takes no part in the parent's recording.
void after_fork_in_child() {
  Session::set_current(nullptr);
  if (recording != nullptr) {
    recording->dictionary().mutex().unlock();
    recording->file().abandon();
    FaultGuard::forget_all();
    start_naming(nullptr);
    // Leaked on purpose: destroying it would release weak references, and access files of the parent.
    new std::shared_ptr<Session>(std::move(recording));
  }
  sampling::after_fork_in_child();
  storage_ids::after_fork_in_child();
  step_watch::after_fork_in_child();
  step_switch.allowed = 0;
  maintenance_thread::reset_after_fork();
  reset_calls_after_fork();
  forget_other_threads();
  // A thread other than the main one may have forked: its state is now the main thread's.
  if (ThreadState* thread = this_thread()) thread->main_python = PyGILState_GetThisThreadState();
  // Constructed again instead of unlocked: its owner is a thread that does not exist in the child.
  new (&control) std::recursive_mutex;
}

// If sampling is not possible, the reason is stored in the recording.
void start_samples(Session& session, uint32_t samples_per_second) {
  const int64_t interval_ns = 1'000'000'000 / std::max(samples_per_second, 1u);
  const std::string problem =
      sampling::start(session, kinetoscope_interpreter_here(), module_call_code(), interval_ns);
  std::lock_guard lock(session.dictionary().mutex());
  if (problem.empty()) {
    session.dictionary().info("sample_interval_ns", std::to_string(interval_ns));
  } else {
    session.dictionary().info("samples_missing", '"' + problem + '"');
  }
}

// Lets nothing more be recorded.
void end_recording(Session& session) {
  step_switch.allowed = 0;
  sampling::stop();
  const uint64_t now = read_tick();
  Session::set_current(nullptr);
  remove_operator_callback();
  stop_calls();
  stopped_all = wait_until_idle(kPatienceNs);
  if (stopped_all) {
    session.settle_orphans();
    cut_calls(session, now);
  }
  storage_ids::forget();
  session.dictionary().end_collections();
  session.file().add_clock_pair(read_clock_pair());
  session.file().header().stop_tick = now;
  stopped = true;
}

// Frees an ended recording. Its tables may have millions of entries, and its mapping millions of pages, so
// the helper thread frees them, once no thread is inside a callback that may still write.
void release_recording(std::shared_ptr<Session>& over) {
  std::shared_ptr<Session> session = std::move(over);
  session->modules().drop_references();
  std::shared_ptr<RecordingFile> file = session->shared_file();
  // These are moved: the last owner frees them.
  maintenance_thread::release(
      std::move(file), std::move(session), stopped_all ? nullptr : +[] { return wait_until_idle(0); });
}

}  // namespace
}  // namespace kinetoscope

using namespace kinetoscope;

extern "C" {

uint32_t kinetoscope_recorder_version() { return KINETOSCOPE_RECORDER_VERSION; }

int kinetoscope_recorder_load(PyObject* module_call, char* message, size_t bytes) {
  const ControlLock lock;
  if (loaded) return 0;
  if (!prepare_walk(module_call)) {
    say(message, bytes, "the recorder was built for another version of Python");
    return -1;
  }
  prepare_quiescence();
  if (getpid() == gettid()) {
    if (ThreadState* thread = this_thread()) thread->main_python = PyGILState_GetThisThreadState();
  }
  active_clock = choose_clock();
  at_load = read_clock_pair();
  if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) {
    say(message, bytes, "cannot register the fork handlers");
    return -1;
  }
  loaded = true;
  return 0;
}

int kinetoscope_recorder_start(const char* path, uint32_t what, uint64_t ring_bytes, int64_t keep_since_ns,
                               uint32_t samples_per_second, char* message, size_t bytes) {
  const ControlLock lock;
  if (!loaded || recording != nullptr) {
    say(message, bytes, loaded ? "a recording is already in progress" : "the recorder is not loaded");
    return -1;
  }
  say(message, bytes, "");
  try {
    if (samples_per_second != 0) what |= kRecordSamples;
    wanted_calls = what & kCalls;
    if ((what & kRecordMemory) != 0) wrap_cpu_allocator();
    maintenance_thread::ensure_running();
    auto file = std::make_shared<RecordingFile>(path, ring_bytes);
    // Generation 0 is that of threads without a session.
    if (++generations == 0) ++generations;
    recording = std::make_shared<Session>(file, generations, what & ~kCalls);
    stopped = stopped_all = false;
    start_naming(&recording->modules());
    file->add_clock_pair(at_load);
    file->add_clock_pair(read_clock_pair());
    file->header().start_tick = read_tick();
    maintenance_thread::watch(file, recording);
    know_microsecond(ticks_a_microsecond(at_load, read_clock_pair()));
    forget_lost_calls();
    Session::set_current(recording.get());
    add_operator_callback(what);
    std::string no_calls;
    wanted_calls = switch_calls(*recording, wanted_calls, file->header().start_tick, no_calls);
    say(message, bytes, no_calls.c_str());
    if (samples_per_second != 0) start_samples(*recording, samples_per_second);
    // Last, because it may replace an older recording.
    file->publish(keep_since_ns);
    return 0;
  } catch (const std::exception& error) {
    say(message, bytes, error.what());
    if (recording != nullptr) {
      end_recording(*recording);
      release_recording(recording);
    }
    return -1;
  }
}

int kinetoscope_recorder_change(uint32_t what, uint32_t samples_per_second, char* message, size_t bytes) {
  const ControlLock lock;
  say(message, bytes, "");
  if (recording == nullptr || Session::current() == nullptr) {
    say(message, bytes, "nothing is being recorded");
    return -1;
  }
  constexpr uint32_t kCallback = kRecordShapes | kRecordMemory | kRecordFunctionIds | kRecordTensorVersions;
  constexpr uint32_t kPlaces = kRecordStacks | kRecordModules;
  const uint32_t before = live.what.load(std::memory_order_relaxed);
  const bool paused = (before & kPaused) != 0;
  const uint32_t calls = what & kCalls;
  what &= ~kCalls;
  try {
    if ((what & kRecordMemory) != 0) wrap_cpu_allocator();
    // In a pause no callback is registered; resume() registers the current one.
    if (((what ^ before) & kCallback) != 0 && !paused) replace_operator_callback(what);
    constexpr uint32_t kState = kPaused | kCallbackReplaced | kCalls;
    live.what.store(what | (live.what.load(std::memory_order_relaxed) & kState), std::memory_order_seq_cst);
    std::string no_calls;
    wanted_calls = paused ? calls : switch_calls(*recording, calls, 0, no_calls);
    say(message, bytes, no_calls.c_str());
    if ((what & ~before & kPlaces) != 0) complete_calls(*recording);
    const bool sampled = (before & kRecordSamples) != 0, samples = (what & kRecordSamples) != 0;
    if (samples && !sampled) start_samples(*recording, samples_per_second);
    if (!samples && sampled) sampling::stop();
    return 0;
  } catch (const std::exception& error) {
    say(message, bytes, error.what());
    return -1;
  }
}

int kinetoscope_recorder_position(uint64_t* numbers, size_t count) {
  const ControlLock lock;
  if (recording == nullptr) return -1;
  const RecordingPosition position = position_in(recording->file().header(), read_tick());
  std::memcpy(numbers, &position, std::min(sizeof(position), count * sizeof(uint64_t)));
  return 0;
}

uint64_t kinetoscope_recorder_operators_with_versions() { return operators_with_versions(); }

int kinetoscope_recorder_free_before(uint64_t tick) {
  const ControlLock lock;
  if (recording == nullptr || stopped) return -1;
  recording->file().free_before(tick);
  return 0;
}

int kinetoscope_recorder_path(char* path, size_t bytes) {
  const ControlLock lock;
  if (recording == nullptr) return -1;
  say(path, bytes, recording->file().path().c_str());
  return 0;
}

int kinetoscope_recorder_stop(kinetoscope_recorder_stopped* told) {
  const ControlLock lock;
  std::memset(told, 0, sizeof(*told));
  if (recording == nullptr) return -1;
  Session* session = recording.get();
  // The recording may have been stopped at Python's exit already.
  if (!stopped) end_recording(*session);
  told->unnamed_modules = session->modules().resolve({});
  told->faults = session->faults.load(std::memory_order_relaxed);
  told->idle = stopped_all ? 1 : 0;
  told->call_threads_lost = static_cast<uint32_t>(lost_call_threads());
  told->file_lost = session->file().lost() ? 1 : 0;
  return 0;
}

int kinetoscope_recorder_pause() {
  const ControlLock lock;
  if (Session::current() == nullptr) return -1;
  live.what.fetch_or(kPaused, std::memory_order_relaxed);
  remove_operator_callback();
  std::string no_calls;
  switch_calls(*recording, 0, 0, no_calls);
  return 0;
}

int kinetoscope_recorder_resume(char* message, size_t bytes) {
  const ControlLock lock;
  say(message, bytes, "");
  if (Session::current() == nullptr) return -1;
  const uint32_t what = live.what.fetch_and(~kPaused, std::memory_order_relaxed);
  resume_operator_callback(what);
  if ((what & kPaused) != 0) sampling::resume();
  std::string no_calls;
  switch_calls(*recording, wanted_calls, 0, no_calls);
  say(message, bytes, no_calls.c_str());
  return 0;
}

const void* kinetoscope_recorder_step_switch() { return &step_switch; }

const void* kinetoscope_recorder_range_marks() { return &kRangeMarks; }

int kinetoscope_recorder_allow_step_switch(int allowed) {
  const ControlLock lock;
  step_switch.allowed = allowed != 0 && recording != nullptr && !stopped && wanted_calls == 0 ? 1 : 0;
  return has_operator_callback() ? 0 : 1;
}

uint32_t kinetoscope_recorder_hooked_threads() {
  const ControlLock lock;
  return static_cast<uint32_t>(call_hooks::installed());
}

uint32_t kinetoscope_recorder_lost_call_threads() {
  const ControlLock lock;
  return recording != nullptr ? static_cast<uint32_t>(lost_call_threads()) : 0;
}

int kinetoscope_forget_sessions_before(uint32_t number) {
  const ControlLock lock;
  if (recording == nullptr) return -1;
  recording->forget_sessions_before(number);
  return 0;
}

void* kinetoscope_recorder_watch_steps(const char* path, int signal, char* message, size_t bytes) {
  const ControlLock lock;
  if (recording == nullptr || stopped) {
    say(message, bytes, "nothing is being recorded");
    return nullptr;
  }
  try {
    return step_watch::start(path, recording->shared_file(), signal);
  } catch (const std::exception& error) {
    say(message, bytes, error.what());
    return nullptr;
  }
}

void kinetoscope_recorder_unwatch_steps() {
  const ControlLock lock;
  step_watch::stop();
}

int kinetoscope_recorder_modules(PyObject* into) {
  const ControlLock lock;
  if (recording == nullptr || !PyList_Check(into)) return -1;
  return recording->modules().list_living(into) ? 0 : -1;
}

size_t kinetoscope_recorder_watch_tensors(PyObject* tensors) {
  if (!PyList_Check(tensors)) return 0;
  const ControlLock lock;
  wrap_cpu_allocator();
  size_t watched = 0;
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(tensors); ++at) {
    c10::StorageImpl* storage = storage_behind(PyList_GET_ITEM(tensors, at));
    if (storage != nullptr && watch_storage(*storage)) ++watched;
  }
  return watched;
}

size_t kinetoscope_recorder_resolve(PyObject* modules) {
  const ControlLock lock;
  if (recording == nullptr || !PyList_Check(modules)) return 0;
  std::vector<PyObject*> alive;
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(modules); ++at) alive.push_back(PyList_GET_ITEM(modules, at));
  return recording->modules().resolve(alive);
}

void kinetoscope_recorder_add_info(const char* key, const char* json) {
  // As in kinetoscope_recorder_append().
  Py_BEGIN_ALLOW_THREADS;
  {
    std::lock_guard<std::recursive_mutex> lock(control);
    if (recording != nullptr) {
      std::lock_guard dictionary(recording->dictionary().mutex());
      recording->dictionary().info(key, json);
    }
  }
  Py_END_ALLOW_THREADS;
}

int kinetoscope_recorder_append(uint32_t session, const char* table, uint32_t rows, uint32_t flags,
                                const char* json, size_t bytes) {
  int result = -1;
  // Threads of sources call this at any time, also while the owner of `control` waits for the GIL.
  Py_BEGIN_ALLOW_THREADS;
  {
    std::lock_guard<std::recursive_mutex> lock(control);
    if (recording != nullptr) {
      recording->rows().append(session, table, rows, static_cast<uint16_t>(flags), {json, bytes});
      result = 0;
    }
  }
  Py_END_ALLOW_THREADS;
  return result;
}

void kinetoscope_recorder_own_steps(uint32_t owner) { own_steps(owner); }

int kinetoscope_recorder_close() {
  const ControlLock lock;
  if (recording == nullptr) return -1;
  recording->file().mark_stopped();
  release_recording(recording);
  return 0;
}

void kinetoscope_recorder_settle() { maintenance_thread::settle(kPatienceNs); }

PyObject* kinetoscope_recorder_prepare_calls(const char* prefixes) {
  know_own_code(prefixes);
  PyObject* hook = call_hooks::for_new_threads();
  Py_INCREF(hook);
  return hook;
}

void kinetoscope_recorder_forget_calls() {
  const ControlLock lock;
  if (recording == nullptr) forget_calls();
}

void kinetoscope_recorder_before_collector() { collector_guard::before_collector(); }

void kinetoscope_recorder_after_collector() { collector_guard::after_collector(); }

void kinetoscope_recorder_collector_stopped() { collector_guard::collector_stopped(); }

PyObject* kinetoscope_recorder_observed_kernel(PyObject* kernel, PyObject* name) {
  return observed_kernel(kernel, name);
}

PyObject* kinetoscope_recorder_fast_range_class(PyObject* theirs) {
  return Py_XNewRef(fast_range_class(theirs));
}

PyObject* kinetoscope_recorder_tensor_reader_class() { return tensor_reader_class(); }

int kinetoscope_recorder_is_recording() {
  const ControlLock lock;
  return recording != nullptr ? 1 : 0;
}
}
