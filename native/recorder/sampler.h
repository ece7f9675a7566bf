// The sampler: a thread that reads the Python stacks of all threads many times a second.
//
// It does not take the GIL, sends no signals, and changes nothing in the program: see interpreter_view.h. A
// stack that changes while it is read is read again, and then counted as torn. The intervals between rounds
// vary randomly, so that they cannot be in phase with the program, and grow with the cost of a round.
//
// In some rounds it also reads the main thread of a process that this one has forked, such as a worker of a
// data loader: its memory is laid out as ours. Such a thread has the id of that process.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "interpreter_view.h"
#include "probing_table.h"
#include "thread_state.h"

namespace kinetoscope {

class Session;

// One recording as the sampler sees it.
class Sampler {
 public:
  // `module_call` is the code object of nn.Module's call.
  Sampler(Session& session, const kinetoscope_interpreter& interpreter, const void* module_call);

  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  InterpreterView& view() { return view_; }

  // [sampler] Reads every thread once, unless `leave` says to stop. Returns the processor time of it that
  // forked processes took, which have a budget of their own.
  int64_t round(const std::atomic<bool>& leave);
  // [sampler] Skips a round: the next samples do not account for the time until now.
  void skip_round();

 private:
  // A thread's processor time, and its time of being ready to run without a processor, from the system.
  struct TaskTimes {
    int64_t ran_ns = -1;  // -1: not read
    int64_t waited_ns = -1;
    int64_t runs = -1;  // how often it was given a processor
    bool operator==(const TaskTimes&) const = default;
  };
  struct KnownThread {
    uint32_t index = 0;
    uint32_t system = 0;
    uint64_t round = 0;   // the last that has seen it
    int times_file = -1;  // kept open: opening costs ten times as much as reading
    int call_file = -1;   // which says in what system call it is
    TaskTimes times;
    uint64_t times_round = 0;
    uint32_t waited = 0;  // what a sample of that round says
    // Whether it was off its processor after these times were read: until they change, it stays there.
    bool off_processor = false;
    // Whether it was there also when its stack was read for `last`: until they change, its stack is the same.
    bool rests = false;
    SampleRecord last{};
  };
  // What is known of one call step; in a later epoch the fingerprint of the code object must be compared.
  struct SampledCall {
    uint64_t fingerprint = 0;
    uint32_t stack = 0;
    uint32_t epoch = 0;
    friend bool is_empty(const SampledCall& call) { return call.stack == 0; }
  };

  // A process that this one has forked.
  struct ForkedProcess {
    ForkedProcess(const kinetoscope_interpreter& interpreter, uint32_t id, uint64_t tick)
        : process(id), view(interpreter, static_cast<pid_t>(id)), since_tick(tick) {}
    const uint32_t process;
    InterpreterView view;
    uint64_t since_tick;  // of its last sample
    bool exists = true;
    uint32_t index = 0;  // of its thread; 0 before its first sample
    uint32_t failures = 0;
    ProbingTable<CallKey, SampledCall> calls{kMostCached};
  };

  enum class Outcome { Sampled, NoPython, Torn };

  // What is read of memory is of this round from here on.
  void refresh();
  // Fills in `threads_`; false when they changed meanwhile.
  bool find_threads();
  Outcome sample(const PythonThread& thread, uint64_t tick, uint32_t epoch);
  // Stack and module of the main thread while it is inside an operator; false if it is not, or runs another
  // frame.
  bool place_of_operator(const PythonThread& thread, SampleRecord& record);
  void forget_ended_threads();
  // Returns the processor time that it took.
  int64_t sample_forked_processes(uint64_t tick, bool threads_are_known);
  void list_forked_processes(uint64_t tick);
  // They are sampled one at a time, in turns.
  void sample_next_forked(uint64_t tick);
  // False where it has no Python of ours, cannot be read, or changed meanwhile.
  bool sample_forked(ForkedProcess& forked, uint64_t tick);
  void close_files_of(KnownThread& known);
  // Reads a file of the system about a thread, which stays open in `file` if there are not too many; false
  // where there is nothing to read.
  bool read_of_task(const KnownThread& known, const char* name, int& file, char* into, size_t bytes);
  TaskTimes times_of(KnownThread& known);
  // Stack and module of what is in `frames_`; false where a code object went meanwhile.
  bool place(uint32_t epoch, SampleRecord& record);
  uint32_t stack_of(const SeenFrame& frame, uint32_t parent, uint32_t epoch);
  uint32_t stack_in(ForkedProcess& forked, const SeenFrame& frame, uint32_t parent);
  // The stack in the dictionary with a line below `parent`.
  uint32_t add_stack(const SeenCode& code, uint32_t parent);
  // Also what it waits for, if it is blocked.
  SampleState state_of(const PythonThread& thread, KnownThread& known, SampleWait& wait);
  // Reads a thread's times, and what a sample says of how long it waited for a processor since the round
  // before. False if it had none since then.
  bool update_times(KnownThread& known);

  Session& session_;
  const kinetoscope_interpreter interpreter_;
  const void* const module_call_;
  InterpreterView view_;
  const bool children_record_;  // each child process records itself
  bool tells_waits_ = false;    // the system tells how long a thread waited for a processor
  uint64_t since_tick_;
  uint64_t rounds_ = 0;
  uint64_t refreshed_round_ = 0;
  PythonThread main_{};  // all nulls until it is found
  const ThreadState* main_state_ = nullptr;
  size_t open_files_ = 0;
  uint32_t dictionary_epoch_ = 0;  // of the stacks in `calls_`
  std::vector<PythonThread> threads_;
  std::vector<SeenFrame> frames_;
  std::unordered_map<uint64_t, KnownThread> known_threads_;  // by PythonThread::number
  ProbingTable<CallKey, SampledCall> calls_{kMostCached};
  std::vector<PythonThread> forked_threads_;
  std::vector<std::unique_ptr<ForkedProcess>> forked_;
  size_t forked_turn_ = 0;
  int64_t forked_due_ns_ = 0;
};

namespace sampling {

// [GIL, session current] Starts sampling at an average interval. Returns why that is not possible; empty on
// success.
std::string start(Session& session, const kinetoscope_interpreter& interpreter, const void* module_call,
                  int64_t interval_ns);
// [any thread] After a pause, in which the sampler sleeps, for a time that is expected to be so long: if no
// sample would be taken within, it sleeps on.
void resume(int64_t expected_ns = std::numeric_limits<int64_t>::max());
// [any thread] Returns once the sampler has left the session.
void stop();
// Before a fork, and before the dictionary's mutex is taken: the child inherits no open files of a running
// round.
void before_fork();
void after_fork_in_parent();
// In a forked child, which has no sampler thread.
void after_fork_in_child();

}  // namespace sampling
}  // namespace kinetoscope
