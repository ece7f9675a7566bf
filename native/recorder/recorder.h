// The C interface that kinetoscope/collect/recorder/library.py loads with ctypes. Any change needs a new
// version.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define KINETOSCOPE_RECORDER_VERSION 16u

struct _object;

#ifdef __cplusplus
extern "C" {
#endif

#define KINETOSCOPE_EXPORT __attribute__((visibility("default")))

// What stop() returns directly; everything else is in the file.
struct kinetoscope_recorder_stopped {
  uint64_t faults;             // operators lost to faults inside a callback
  uint64_t unnamed_modules;    // instances whose names are still unknown
  uint32_t idle;               // 0: a thread did not leave its callback in time
  uint32_t call_threads_lost;  // threads whose calls are missing since another profiler replaced our hook
  uint32_t file_lost;          // 1: another program truncated the file during the recording
  uint32_t reserved;
};

KINETOSCOPE_EXPORT uint32_t kinetoscope_recorder_version();

// Once per process. `module_call` is the code object of nn.Module's call, which must never be freed. Returns
// 0, or -1 with the reason in `message`, as do all functions that return int.
KINETOSCOPE_EXPORT int kinetoscope_recorder_load(struct _object* module_call, char* message, size_t bytes);

// Starts a recording in a new file at `path`, or at a path next to it: see RecordingFile::publish(), also for
// `keep_since_ns`. `what` is a set of kinetoscope::Recorded; `ring_bytes` is 0 for no ring;
// `samples_per_second` is 0 for no samples. On success `message` is which Python calls cannot be recorded,
// and why; empty if all can. On failure nothing is changed.
KINETOSCOPE_EXPORT int kinetoscope_recorder_start(const char* path, uint32_t what, uint64_t ring_bytes,
                                                  int64_t keep_since_ns, uint32_t samples_per_second,
                                                  char* message, size_t bytes);

// Changes what the current recording contains from now on, including Python and module calls that are running
// already. On success `message` is which calls cannot be recorded, and why; empty if all can.
KINETOSCOPE_EXPORT int kinetoscope_recorder_change(uint32_t what, uint32_t samples_per_second, char* message,
                                                   size_t bytes);

// The current position in the recording: the numbers of kinetoscope::RecordingPosition.
KINETOSCOPE_EXPORT int kinetoscope_recorder_position(uint64_t* numbers, size_t count);

// How many operators have begun while versions of tensors were recorded, since the recorder was loaded.
KINETOSCOPE_EXPORT uint64_t kinetoscope_recorder_operators_with_versions();

// Frees the space of records from before this tick, except rows, names, and calls that ended later. Does
// nothing in a ring.
KINETOSCOPE_EXPORT int kinetoscope_recorder_free_before(uint64_t tick);

// The path of the current recording.
KINETOSCOPE_EXPORT int kinetoscope_recorder_path(char* path, size_t bytes);

// Ends recording. The dictionary stays open for resolve() and add_info() until close().
KINETOSCOPE_EXPORT int kinetoscope_recorder_stop(struct kinetoscope_recorder_stopped* stopped);

// Operators that begin between these two are not recorded; those that began before still get their end.
// Python and module calls end at the pause, and those that are running at its end begin again. On success
// `message` is why calls cannot be recorded from then on; empty if they can.
KINETOSCOPE_EXPORT int kinetoscope_recorder_pause();
KINETOSCOPE_EXPORT int kinetoscope_recorder_resume(char* message, size_t bytes);

// The functions by which a flight recorder pauses and resumes session 0 from step to step: a
// kinetoscope::StepSwitch, valid for ever.
KINETOSCOPE_EXPORT const void* kinetoscope_recorder_step_switch();
// 1: they may be called, as session 0 is the only one and has no calls; 0: no more. Returns whether recording
// is paused now.
KINETOSCOPE_EXPORT int kinetoscope_recorder_allow_step_switch(int allowed);

// The functions that open and close ranges without torch: a kinetoscope::RangeMarks, valid for ever.
KINETOSCOPE_EXPORT const void* kinetoscope_recorder_range_marks();

// Number of threads with our hooks for calls; 1 if they are installed for all threads at once.
KINETOSCOPE_EXPORT uint32_t kinetoscope_recorder_hooked_threads();

// Number of threads whose calls are missing in the current recording, because another profiler replaced our
// hook.
KINETOSCOPE_EXPORT uint32_t kinetoscope_recorder_lost_call_threads();

// Drops the metadata of sessions with lower numbers from the current recording: keys "kinetoscope.session.N"
// and "kinetoscope.session.N.*". Numbers must not decrease.
KINETOSCOPE_EXPORT int kinetoscope_forget_sessions_before(uint32_t number);

// Creates a log of steps at `path`, and watches it until kinetoscope_recorder_unwatch_steps(): see
// step_watch.h. Returns the log, to be written by the caller, or nullptr with the reason in `message`.
KINETOSCOPE_EXPORT void* kinetoscope_recorder_watch_steps(const char* path, int signal, char* message,
                                                          size_t bytes);
KINETOSCOPE_EXPORT void kinetoscope_recorder_unwatch_steps();

// Appends (id, instance) to the list `into` for every known live module. On failure a Python exception is
// set.
KINETOSCOPE_EXPORT int kinetoscope_recorder_modules(struct _object* into);

// A new reference to the class TensorReader, see tensor_reader.h; nullptr with an exception set.
KINETOSCOPE_EXPORT struct _object* kinetoscope_recorder_tensor_reader_class();

// Makes sure that frees of these tensors' memory are recorded, even if it was allocated before the allocator
// was wrapped. Returns the number of blocks for which that is new.
KINETOSCOPE_EXPORT size_t kinetoscope_recorder_watch_tensors(struct _object* tensors);

// Finds the names of modules in this list of live instances. Returns how many are left without a name.
KINETOSCOPE_EXPORT size_t kinetoscope_recorder_resolve(struct _object* modules);

// Writes metadata to the current recording.
KINETOSCOPE_EXPORT void kinetoscope_recorder_add_info(const char* key, const char* json);

// Appends rows to a table of the current recording, see RowWriter::append(); `json` has `bytes` bytes. Rows
// without space are counted as lost in the file. Returns -1 if nothing is being recorded.
KINETOSCOPE_EXPORT int kinetoscope_recorder_append(uint32_t session, const char* table, uint32_t rows,
                                                   uint32_t flags, const char* json, size_t bytes);

// Sets the session, by number plus 1, that owns step marks that the calling thread opens from now on; 0: the
// program itself.
KINETOSCOPE_EXPORT void kinetoscope_recorder_own_steps(uint32_t owner);

// Waits for a short time until the files of earlier recordings are complete, including their checksums.
KINETOSCOPE_EXPORT void kinetoscope_recorder_settle();

// Marks the file as complete, and closes it.
KINETOSCOPE_EXPORT int kinetoscope_recorder_close();

// `prefixes` says whose code is, see know_own_code(); Kinetoscope's calls are not recorded. Returns the
// argument for threading.setprofile() while calls are recorded, or None.
KINETOSCOPE_EXPORT struct _object* kinetoscope_recorder_prepare_calls(const char* prefixes);

// In a forked child: removes the inherited hooks for calls.
KINETOSCOPE_EXPORT void kinetoscope_recorder_forget_calls();

KINETOSCOPE_EXPORT int kinetoscope_recorder_is_recording();

// A new reference to the class of fast ranges that replaces `theirs`, torch's own; nullptr with an exception
// set.
KINETOSCOPE_EXPORT struct _object* kinetoscope_recorder_fast_range_class(struct _object* theirs);

// For torch's collector, on its thread: before and after it begins to call its callbacks, and when it has
// stopped; see collector_guard.h.
KINETOSCOPE_EXPORT void kinetoscope_recorder_before_collector();
KINETOSCOPE_EXPORT void kinetoscope_recorder_after_collector();
KINETOSCOPE_EXPORT void kinetoscope_recorder_collector_stopped();

// A new reference to a callable that calls `kernel` inside a range called `name`; nullptr with an exception
// set.
KINETOSCOPE_EXPORT struct _object* kinetoscope_recorder_observed_kernel(struct _object* kernel,
                                                                        struct _object* name);

#ifdef __cplusplus
}
#endif
