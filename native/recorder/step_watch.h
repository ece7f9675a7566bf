// Notices that a step does not end, from a thread that never needs the GIL: the program itself may hold it
// for ever.
#pragma once

#include <cstdint>
#include <memory>

#include "frame_layout.h"
#include "recording_file.h"

namespace kinetoscope {

inline constexpr uint64_t kStepLogMagic = 0x315350455453534bull;  // "KSSTEPS1"
inline constexpr uint32_t kLoggedSteps = 1024;
inline constexpr uint32_t kLoggedMemory = 512;
inline constexpr uint32_t kEndBytes = 4096;
inline constexpr uint32_t kPlaceBytes = 4096;
inline constexpr uint32_t kJudgementBytes = 1016;

// A file beside a recording, with the last steps of the program, whether they were recorded or not. Python
// writes it (kinetoscope/flight/step_log.py has the same layout), except for what is marked. All times are of
// CLOCK_MONOTONIC.
struct StepLog {
  uint64_t magic;
  int64_t process;
  int64_t stopped;     // 1: the recorder has stopped; 2: and its ring is to be kept
  int64_t number;      // of the step under way
  int64_t began_ns;    // of that step; 0: none has begun
  int64_t recorded;    // 1: it is recorded
  int64_t hang_ns;     // a step that takes longer is overdue; 0: none is
  int64_t most_bytes;  // resident memory from which the program is about to be killed; 0: unknown
  int64_t steps;       // how many are logged, in all
  // Written by the watcher:
  int64_t hung_since_ns;    // when the step that hangs began; 0: none does. Python may write it, too
  int64_t noticed_ns;       // when the step was noticed to be overdue; 0: it is not
  int64_t memory_readings;  // in all
  int64_t memory_noticed_ns;
  // Written by Python at the start: where the process can be seen by its id.
  int64_t process_namespace;  // 0: unknown
  int64_t boot;               // of the machine; 0: unknown
  // Written by the handler of fatal signals: the one that ends the process; 0: none.
  int64_t signal;
  struct Step {
    int64_t number, began_ns, duration_ns, recorded;
  } step[kLoggedSteps];
  struct Memory {
    int64_t time_ns, resident_bytes;
  } memory[kLoggedMemory];
  // Where another process finds the stacks of Python in this one's memory
  // (kinetoscope/flight/live_stacks.py).
  kinetoscope_frame_layout layout;
  kinetoscope_interpreter interpreter;
  // JSON of the incident that has no whole copy of the ring, ended by a 0: here it needs no room on the disk.
  char end[kEndBytes];
  int64_t thread;  // that marks the steps, by the system's id; 0: unknown
  // Written by Python: when it last judged whether the step that is overdue hangs, and as JSON what it said.
  int64_t judged_ns;
  char judgement[kJudgementBytes];
  // Where that thread was, or the one that crashed, as the watcher sees it once a second: of the two, the
  // one with the later time. 0 while it is written.
  struct Place {
    int64_t time_ns;
    int64_t step;  // the one under way
    int64_t thread;
    int64_t state;  // the letter that the system has for what the thread does; X: it has crashed
    char stack[kPlaceBytes - 32];  // lines of file, line and function with tabs between, the innermost first
  } place[2];
};
static_assert(sizeof(StepLog) == 128 + 32 * kLoggedSteps + 16 * kLoggedMemory + 184 + kEndBytes + 8 +
                                     2 * kPlaceBytes + 8 + kJudgementBytes);

namespace step_watch {

// Creates the file at `path`, which must not be there, and watches it until stop(). Where a step is overdue,
// `signal`, an eventfd, becomes readable, so that Python judges whether it hangs; where Python is silent, as
// its lock is held, the step hangs if its thread does not run. Then the ring of the recording is frozen, once
// a few samples of all threads were taken, and `signal` becomes readable again, as it does when memory runs
// short. Where the process crashes by a signal that nobody else handles, or only Python, the place is noted
// before that goes on. Throws std::runtime_error. [GIL]
StepLog* start(const char* path, std::weak_ptr<RecordingFile> recording, int signal);
// Ends that, and unmaps the file, to which nobody may write any more.
void stop();

void before_fork();
void after_fork_in_parent();
// In a forked child, which has no such thread. The parent's file is forgotten.
void after_fork_in_child();

}  // namespace step_watch
}  // namespace kinetoscope
