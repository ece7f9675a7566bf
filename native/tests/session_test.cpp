// Sessions that begin and end while threads are in the middle of recording: nobody writes into a file that is
// gone.
#include "recorder/session.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/recording/mapped_file.h"
#include "core/recording/reader.h"
#include "recorder/clock.h"
#include "recorder/maintenance_thread.h"
#include "recorder/thread_state.h"
#include "torch_threads_without_torch.h"

using namespace kinetoscope;

namespace {

constexpr int64_t kPatienceNs = 10'000'000'000;

// What the operator callback does at a start, without torch and Python. Returns the record, if one was
// written.
CompactSpan* begin(const void* function) {
  ThreadState* thread = this_thread();
  BusyGuard busy(*thread);
  Session* session = Session::current();
  if (session == nullptr) return nullptr;
  thread->keep_up(*session);
  CompactSpan* record = session->next_span(*thread);
  if (record == nullptr) return nullptr;
  OpenSpan& span = thread->open.push(function);
  span.record = record;
  span.start_tick = read_tick();
  *record = compact({.start_tick = span.start_tick}, 0);
  Session::commit_span(*thread);
  return record;
}

void end_here() {
  ThreadState* thread = this_thread();
  BusyGuard busy(*thread);
  Session* session = Session::current();
  if (session == nullptr || thread->generation != session->generation() || thread->open.empty()) return;
  const OpenSpan& span = thread->open.back();
  std::atomic_ref(span.record->end).store(span.end_word(read_tick()), std::memory_order_relaxed);
  thread->open.pop();
}

void end_elsewhere(const void* function) {
  BusyGuard busy(*this_thread());
  if (Session* session = Session::current()) session->end_elsewhere(function, read_tick());
}

struct Running {
  std::string path;
  Session* session;
};

Running start(uint32_t generation) {
  std::string path =
      (std::filesystem::temp_directory_path() / ("kinetoscope-session-" + std::to_string(getpid()))).string();
  auto file = std::make_shared<RecordingFile>(path);
  auto* session = new Session(file, generation, 0);
  file->add_clock_pair(read_clock_pair());
  file->header().start_tick = read_tick();
  maintenance_thread::watch(file);
  file->publish(0);
  Session::set_current(session);
  return {path, session};
}

Recording stop(const Running& running) {
  Session::set_current(nullptr);
  CHECK(wait_until_idle(kPatienceNs));
  running.session->settle_orphans();
  running.session->file().add_clock_pair(read_clock_pair());
  running.session->file().header().stop_tick = read_tick();
  running.session->file().mark_stopped();
  const MappedFile bytes(running.path);
  Recording recording = parse_recording(bytes.bytes());
  maintenance_thread::release(running.session->shared_file(), nullptr);
  delete running.session;
  unlink(running.path.c_str());
  // The texts point into the file that is about to go; these tests look at numbers only.
  recording.dictionary = {};
  return recording;
}

void sessions_come_and_go_beside_writers() {
  std::atomic<bool> going{true};
  std::vector<std::thread> writers;
  for (int number = 0; number < 3; ++number) {
    writers.emplace_back([&going] {
      int function = 0;
      while (going.load(std::memory_order_relaxed)) {
        if (begin(&function) != nullptr) end_here();
      }
    });
  }
  uint64_t seen = 0;
  for (uint32_t generation = 1; generation <= 60; ++generation) {
    const Running running = start(generation);
    int function = 0;
    CHECK(begin(&function) != nullptr);
    end_here();
    const Recording recording = stop(running);
    CHECK(recording.losses.damaged_records == 0);
    CHECK(recording.losses.damaged_chunks == 0);
    CHECK(recording.spans.size() >= 1);
    seen += recording.spans.size();
  }
  going.store(false);
  for (std::thread& writer : writers) writer.join();
  CHECK(seen >= 60);
}

void a_span_ended_elsewhere_is_closed() {
  const Running running = start(100);
  int by_owner = 0;
  int by_stop = 0;
  CompactSpan* first = begin(&by_owner);
  std::thread(end_elsewhere, &by_owner).join();
  CHECK(first->end_tick() == 0);
  CompactSpan* second = begin(&by_stop);  // the owner hears of the first one here
  CHECK(first->end_tick() != 0);
  std::thread(end_elsewhere, &by_stop).join();
  CHECK(second->end_tick() == 0);
  const Recording recording = stop(running);
  CHECK(recording.losses.unfinished_spans == 0);
  CHECK(recording.spans.size() == 2);
  CHECK(recording.spans.flags[0] == kStateAsync && recording.spans.flags[1] == kStateAsync);
}

void a_span_of_a_thread_that_is_gone_is_closed() {
  const Running running = start(101);
  int function = 0;
  std::thread([&function] { CHECK(begin(&function) != nullptr); }).join();
  end_elsewhere(&function);
  const Recording recording = stop(running);
  CHECK(recording.losses.unfinished_spans == 0);
  CHECK(recording.spans.size() == 1);
}

// As when stop() loses patience with a thread that the system does not let run.
void a_recording_stays_for_the_thread_that_is_still_in_it() {
  const Running running = start(102);
  std::atomic<bool> inside{false};
  std::atomic<bool> may_leave{false};
  std::thread writer([&] {
    int function = 0;
    CompactSpan* record = begin(&function);
    BusyGuard busy(*this_thread());
    inside.store(true);
    while (!may_leave.load()) sched_yield();
    std::atomic_ref(record->end)
        .store(CompactSpan::end_of(record->start_tick(), read_tick()), std::memory_order_relaxed);
  });
  while (!inside.load()) sched_yield();
  Session::set_current(nullptr);
  CHECK(!wait_until_idle(1'000'000));
  running.session->file().mark_stopped();
  const std::weak_ptr<RecordingFile> file = running.session->shared_file();
  maintenance_thread::release(
      running.session->shared_file(),
      std::shared_ptr<void>(running.session, [](void* over) { delete static_cast<Session*>(over); }),
      +[] { return wait_until_idle(0); });
  for (int turn = 0; turn < 1000; ++turn) {
    maintenance_thread::wake();
    sched_yield();
  }
  CHECK(!file.expired());
  may_leave.store(true);
  writer.join();
  const int64_t give_up = read_clock(CLOCK_MONOTONIC) + kPatienceNs;
  while (!file.expired() && read_clock(CLOCK_MONOTONIC) < give_up) {
    maintenance_thread::wake();
    sched_yield();
  }
  CHECK(file.expired());
  const MappedFile bytes(running.path);
  CHECK(parse_recording(bytes.bytes()).spans.size() == 1);
  unlink(running.path.c_str());
}

}  // namespace

int main() {
  active_clock = choose_clock();
  prepare_quiescence();
  CHECK(maintenance_thread::ensure_running());
  sessions_come_and_go_beside_writers();
  a_span_ended_elsewhere_is_closed();
  a_span_of_a_thread_that_is_gone_is_closed();
  a_recording_stays_for_the_thread_that_is_still_in_it();
  return testing::checks_failed();
}
