// The runtime of a device that the tests bring along: streams are threads of this process, kernels are
// functions.
//
// What such a runtime has elsewhere it has here: work is queued on streams and runs in order, events tie
// streams together, calls return before the work is done, and a tracer sees calls and work with numbers that
// link them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace test_device {

constexpr int kDevices = 2;

enum class Kind { kCall, kKernel, kCopy, kFill, kWait };

// One thing that happened: a call on a thread of the host, or work on a stream.
struct Activity {
  Kind kind;
  std::string name;
  int device = -1;
  int64_t stream = -1;
  int thread = -1;
  int64_t begin_ns = 0;  // since 1970
  int64_t end_ns = 0;
  int64_t correlation = 0;   // the same for a call and the work that it queued
  uint64_t operator_id = 0;  // the number that a profiler gave to the operator around the call; 0 without
  uint64_t bytes = 0;
};

class Event {
 public:
  void reset();
  void finish();
  void wait();
  bool is_done() const;
  int64_t time_ns() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = true;
  int64_t time_ns_ = 0;
};

using Work = std::function<void()>;

// Runs once on each thread that carries a stream, before its first work.
void set_thread_setup(Work setup);

int64_t new_stream(int device);
int64_t default_stream(int device);

// Queue work on a stream and record both, if a tracer is on. The name of the call is made from `kind`.
void launch(int device, int64_t stream, Kind kind, const std::string& name, uint64_t bytes, Work work);
// Queue work that no tracer sees.
void queue(int64_t stream, Work work);
void record_event(const std::shared_ptr<Event>& event, int device, int64_t stream);
void wait_for_event(const std::shared_ptr<Event>& event, int device, int64_t stream);
void synchronize_stream(int device, int64_t stream);
void synchronize_device(int device);
void synchronize_event(const std::shared_ptr<Event>& event);
bool is_idle(int64_t stream);

// The tracer: from start to stop it keeps all calls and work that end.
void start_tracing();
std::vector<Activity> stop_tracing();
void push_operator(uint64_t id);
void pop_operator();

}  // namespace test_device
