// The face that kinetoscope/collect/recorder/library.py loads with ctypes. A change here changes the version.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define KINETOSCOPE_RECORDER_VERSION 12u

struct _object;

#ifdef __cplusplus
extern "C" {
#endif

#define KINETOSCOPE_EXPORT __attribute__((visibility("default")))

// What stop() can say at once; everything else is in the file.
struct kinetoscope_recorder_stopped {
  uint64_t faults;             // operators lost to faults inside a callback
  uint64_t unnamed_modules;    // instances whose names are still unknown
  uint32_t idle;               // 0: a thread did not leave its callback in time
  uint32_t call_threads_lost;  // threads whose calls are missing from when another profiler took them over
  uint32_t file_lost;          // somebody cut the file short while it was recorded into
  uint32_t reserved;
};

KINETOSCOPE_EXPORT uint32_t kinetoscope_recorder_version();

// Once per process. `module_call` is the code object of nn.Module's call; the caller keeps it for ever.
// Returns 0, or -1 with the reason in `message`. So do all that return int.
KINETOSCOPE_EXPORT int kinetoscope_recorder_load(struct _object* module_call, char* message, size_t bytes);

// Begins a recording in a new file at `path`, or beside it: see RecordingFile::publish() for when, and for
// `keep_since_ns`. `what` is a set of kinetoscope::Recorded; `ring_bytes` 0 for no ring; `samples_per_second`
// of every thread's Python stack, 0 for none. On success `message` says which Python calls cannot be recorded
// and why, and is else empty. On failure nothing has changed.
KINETOSCOPE_EXPORT int kinetoscope_recorder_start(const char* path, uint32_t what, uint64_t ring_bytes,
                                                  int64_t keep_since_ns, uint32_t samples_per_second,
                                                  char* message, size_t bytes);

// Lets the recording in progress have `what` and samples from now on. Calls of Python and of modules that run
// already are in it, too. On success `message` says which calls cannot be recorded and why, and is else
// empty.
KINETOSCOPE_EXPORT int kinetoscope_recorder_change(uint32_t what, uint32_t samples_per_second, char* message,
                                                   size_t bytes);

// How far the recording in progress is: the numbers of kinetoscope::RecordingPosition.
KINETOSCOPE_EXPORT int kinetoscope_recorder_position(uint64_t* numbers, size_t count);

// Frees the room of what the recording in progress wrote before this tick of its position, except for rows,
// names, a ring, and calls that ended later.
KINETOSCOPE_EXPORT int kinetoscope_recorder_free_before(uint64_t tick);

// Where the recording in progress is.
KINETOSCOPE_EXPORT int kinetoscope_recorder_path(char* path, size_t bytes);

// Ends recording. The dictionary stays open for resolve() and add_info() until close().
KINETOSCOPE_EXPORT int kinetoscope_recorder_stop(struct kinetoscope_recorder_stopped* stopped);

// Operators that begin between these two are not recorded; those that began before still get their end. Calls
// of Python and of modules are cut at the pause, and what runs at its end begins anew. On success `message`
// says why there are none from there on, and is else empty.
KINETOSCOPE_EXPORT int kinetoscope_recorder_pause();
KINETOSCOPE_EXPORT int kinetoscope_recorder_resume(char* message, size_t bytes);

// On how many threads the interpreter has our hooks for calls; 1 where they are on all.
KINETOSCOPE_EXPORT uint32_t kinetoscope_recorder_hooked_threads();

// On how many threads the calls of the recording in progress are missing, because another profiler has taken
// them over.
KINETOSCOPE_EXPORT uint32_t kinetoscope_recorder_lost_call_threads();

// Says that nobody needs the metadata of the sessions with lower numbers in the recording in progress any
// more: keys "kinetoscope.session.N" and "kinetoscope.session.N.*". Numbers never fall.
KINETOSCOPE_EXPORT int kinetoscope_forget_sessions_before(uint32_t number);

// With 1, the ring of the recording in progress overwrites nothing any more, see RecordingFile::freeze();
// with 0 it does again.
KINETOSCOPE_EXPORT int kinetoscope_recorder_freeze(int frozen);

// Appends (id, instance) to the list `into` for every module that was seen and lives. With an exception set
// when it fails.
KINETOSCOPE_EXPORT int kinetoscope_recorder_modules(struct _object* into);

// A new reference to the class that reads where tensors lie, see tensor_reader.h; nullptr with an exception
// set.
KINETOSCOPE_EXPORT struct _object* kinetoscope_recorder_tensor_reader_class();

// Sees to it that the frees of the memory behind these tensors are recorded, too: it may be older than our
// place in front of the allocator. Returns how many blocks were not seen to before.
KINETOSCOPE_EXPORT size_t kinetoscope_recorder_watch_tensors(struct _object* tensors);

// Names modules that are in this list of live instances. Returns how many stay unnamed.
KINETOSCOPE_EXPORT size_t kinetoscope_recorder_resolve(struct _object* modules);

// Writes `"key": json` into the recording in progress.
KINETOSCOPE_EXPORT void kinetoscope_recorder_add_info(const char* key, const char* json);

// Appends rows of a table to the recording in progress, see RowWriter::append(); `json` has `bytes` bytes.
// What finds no room there is counted in the file. Returns -1 if nothing is being recorded.
KINETOSCOPE_EXPORT int kinetoscope_recorder_append(uint32_t session, const char* table, uint32_t rows,
                                                   uint32_t flags, const char* json, size_t bytes);

// Says whose marks of steps are those that the calling thread begins from now on: the number of a session,
// plus 1; 0: the program's own.
KINETOSCOPE_EXPORT void kinetoscope_recorder_own_steps(uint32_t owner);

// Waits until the file of the recording before is whole, checksums included, but not for long.
KINETOSCOPE_EXPORT void kinetoscope_recorder_settle();

// Marks the file whole and gives everything back.
KINETOSCOPE_EXPORT int kinetoscope_recorder_close();

// `own_folder` holds Kinetoscope's Python files, whose calls are not recorded. Returns what
// threading.setprofile() shall be given while calls are recorded, or None.
KINETOSCOPE_EXPORT struct _object* kinetoscope_recorder_prepare_calls(const char* own_folder);

// In the child of a fork: takes back the hooks for calls that came along.
KINETOSCOPE_EXPORT void kinetoscope_recorder_forget_calls();

KINETOSCOPE_EXPORT int kinetoscope_recorder_is_recording();

// A new reference to the class for quick ranges that can stand in the place of `theirs`, torch's own; nullptr
// with an exception set.
KINETOSCOPE_EXPORT struct _object* kinetoscope_recorder_fast_range_class(struct _object* theirs);

// A new reference to a callable that calls `kernel` inside a range called `name`; nullptr with an exception
// set.
KINETOSCOPE_EXPORT struct _object* kinetoscope_recorder_observed_kernel(struct _object* kernel,
                                                                        struct _object* name);

#ifdef __cplusplus
}
#endif
