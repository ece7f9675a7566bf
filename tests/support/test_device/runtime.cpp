#include "runtime.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <string_view>
#include <thread>
#include <utility>

namespace test_device {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

constexpr int64_t kShiftNs = 300'000;

std::atomic<bool> tracing{false};
std::atomic<int64_t> last_correlation{0};
std::mutex activities_mutex;
std::vector<Activity> activities;
thread_local std::vector<uint64_t> operators;
Work thread_setup = [] {};

// What TEST_DEVICE_FAULT asks the tracer to get wrong: `lose` every tenth kernel, `shift` all times, `crash`
// at its start.
bool has_fault(std::string_view name) {
  const char* asked = std::getenv("TEST_DEVICE_FAULT");
  return asked != nullptr && asked == name;
}

// CUPTI knows threads by the lower half of pthread's number; with TEST_DEVICE_THREADS=pthread so does this
// tracer.
int thread_number() {
  const char* asked = std::getenv("TEST_DEVICE_THREADS");
  if (asked != nullptr && asked == std::string_view("pthread")) return static_cast<int>(pthread_self());
  return static_cast<int>(syscall(SYS_gettid));
}

void keep(Activity activity) {
  if (!tracing) return;
  activity.end_ns = now_ns();
  if (activity.kind == Kind::kKernel && activity.correlation % 10 == 0 && has_fault("lose")) return;
  if (has_fault("shift")) {
    activity.begin_ns += kShiftNs;
    activity.end_ns += kShiftNs;
  }
  std::lock_guard lock(activities_mutex);
  activities.push_back(std::move(activity));
}

// Records a call of the runtime from its construction to its end.
class Call {
 public:
  explicit Call(const char* name, int device = -1, int64_t stream = -1) {
    if (!tracing) return;
    activity_ = {Kind::kCall, name, device, stream};
    activity_.thread = thread_number();
    activity_.correlation = ++last_correlation;
    activity_.operator_id = operators.empty() ? 0 : operators.back();
    activity_.begin_ns = now_ns();
  }
  ~Call() {
    if (activity_.correlation != 0) keep(std::move(activity_));
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // What the work of this call shares with it.
  Activity work(Kind kind, const std::string& name, uint64_t bytes) const {
    Activity made = activity_;
    made.kind = kind;
    made.name = name;
    made.bytes = bytes;
    made.thread = -1;
    return made;
  }

 private:
  Activity activity_{};
};

class Stream {
 public:
  explicit Stream(int device) : device(device), thread_([this] { run(); }) { thread_.detach(); }

  void push(Work work) {
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(work));
    }
    changed_.notify_all();
  }

  bool is_idle() {
    std::lock_guard lock(mutex_);
    return waiting_.empty() && !busy_;
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.empty() && !busy_; });
  }

  const int device;

 private:
  [[noreturn]] void run() {
    thread_setup();
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !waiting_.empty(); });
      Work work = std::move(waiting_.front());
      waiting_.pop_front();
      busy_ = true;
      lock.unlock();
      work();
      work = nullptr;  // what it holds goes before anybody hears that the stream is idle
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> waiting_;
  bool busy_ = false;
  std::thread thread_;
};

std::mutex streams_mutex;

// Streams live as long as the process: their threads may be in the middle of work when it ends.
std::vector<Stream*>& streams() {
  static auto* made = new std::vector<Stream*>{new Stream(0), new Stream(1)};
  return *made;
}

Stream& stream_of(int64_t number) {
  std::lock_guard lock(streams_mutex);
  return *streams().at(static_cast<size_t>(number));
}

const char* call_name(Kind kind) {
  switch (kind) {
    case Kind::kCopy:
      return "testMemcpyAsync";
    case Kind::kFill:
      return "testMemsetAsync";
    default:
      return "testLaunchKernel";
  }
}

}  // namespace

void Event::reset() {
  std::lock_guard lock(mutex_);
  done_ = false;
}

void Event::finish() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
    time_ns_ = now_ns();
  }
  changed_.notify_all();
}

void Event::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
}

bool Event::is_done() const {
  std::lock_guard lock(mutex_);
  return done_;
}

int64_t Event::time_ns() const {
  std::lock_guard lock(mutex_);
  return time_ns_;
}

void set_thread_setup(Work setup) { thread_setup = std::move(setup); }

int64_t new_stream(int device) {
  std::lock_guard lock(streams_mutex);
  streams().push_back(new Stream(device));
  return static_cast<int64_t>(streams().size()) - 1;
}

int64_t default_stream(int device) { return device; }

void launch(int device, int64_t stream, Kind kind, const std::string& name, uint64_t bytes, Work work) {
  Stream& target = stream_of(stream);
  Call call(call_name(kind), device, stream);
  target.push([work = std::move(work), activity = call.work(kind, name, bytes)]() mutable {
    activity.begin_ns = now_ns();
    work();
    // A call that began before the tracer was on has no number, and its work is not the tracer's.
    if (activity.correlation != 0) keep(std::move(activity));
  });
}

void queue(int64_t stream, Work work) { stream_of(stream).push(std::move(work)); }

void record_event(const std::shared_ptr<Event>& event, int device, int64_t stream) {
  Call call("testEventRecord", device, stream);
  event->reset();
  stream_of(stream).push([event] { event->finish(); });
}

void wait_for_event(const std::shared_ptr<Event>& event, int device, int64_t stream) {
  Call call("testStreamWaitEvent", device, stream);
  stream_of(stream).push([event, activity = call.work(Kind::kWait, "Stream Wait Event", 0)]() mutable {
    activity.begin_ns = now_ns();
    event->wait();
    if (activity.correlation != 0) keep(std::move(activity));
  });
}

void synchronize_stream(int device, int64_t stream) {
  Call call("testStreamSynchronize", device, stream);
  stream_of(stream).wait();
}

void synchronize_device(int device) {
  Call call("testDeviceSynchronize", device);
  std::vector<Stream*> all;
  {
    std::lock_guard lock(streams_mutex);
    all = streams();
  }
  for (Stream* stream : all) {
    if (stream->device == device) stream->wait();
  }
}

void synchronize_event(const std::shared_ptr<Event>& event) {
  Call call("testEventSynchronize");
  event->wait();
}

bool is_idle(int64_t stream) { return stream_of(stream).is_idle(); }

void start_tracing() {
  if (has_fault("crash")) std::abort();
  std::lock_guard lock(activities_mutex);
  activities.clear();
  tracing = true;
}

std::vector<Activity> stop_tracing() {
  for (int device = 0; device < kDevices; ++device) synchronize_device(device);
  std::lock_guard lock(activities_mutex);
  tracing = false;
  return std::exchange(activities, {});
}

void push_operator(uint64_t id) { operators.push_back(id); }

void pop_operator() {
  if (!operators.empty()) operators.pop_back();
}

}  // namespace test_device
