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
  int64_t hang_ns;     // a step that takes longer hangs; 0: none does
  int64_t most_bytes;  // resident memory from which the program is about to be killed; 0: unknown
  int64_t steps;       // how many are logged, in all
  // Written by the watcher:
  int64_t hung_since_ns;    // when the step that hangs began; 0: none does
  int64_t noticed_ns;       // when that was noticed
  int64_t memory_readings;  // in all
  int64_t memory_noticed_ns;
  // Written by Python at the start: where the process can be seen by its id.
  int64_t process_namespace;  // 0: unknown
  int64_t boot;               // of the machine; 0: unknown
  int64_t reserved;
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
};
static_assert(sizeof(StepLog) == 128 + 32 * kLoggedSteps + 16 * kLoggedMemory + 184 + kEndBytes);

namespace step_watch {

// Creates the file at `path`, which must not be there, and watches it until stop(). Where a step hangs, the
// ring of the recording is frozen, once a few samples of all threads were taken, and `signal`, an eventfd,
// becomes readable, as it does when memory runs short. Throws std::runtime_error.
StepLog* start(const char* path, std::weak_ptr<RecordingFile> recording, int signal);
// Ends that, and unmaps the file, to which nobody may write any more.
void stop();

void before_fork();
void after_fork_in_parent();
// In a forked child, which has no such thread. The parent's file is forgotten.
void after_fork_in_child();

}  // namespace step_watch
}  // namespace kinetoscope
