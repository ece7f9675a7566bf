// The RecordFunction callback: every operator, backward function and user range of every thread.
#pragma once

#include <cstdint>

namespace kinetoscope {

class Session;

// [between sessions] Registers the callback with torch; it gets inputs only if needed, because boxing them is
// expensive.
void add_operator_callback(uint32_t what);
// [while recording] Replaces the callback for another set; every operator of any thread is recorded exactly
// once.
void replace_operator_callback(uint32_t what);
// [pause, stop] Unregisters it. Open spans may still end: in a pause they do; after the session their context
// knows that it has ended. Disabling it instead would not be enough for a pause: torch also iterates over
// disabled callbacks at every node of a backward pass.
void remove_operator_callback();
// [while recording] Registers it again if it was taken back.
void resume_operator_callback(uint32_t what);

// [any thread] The session, by number plus 1, that owns step marks that the calling thread opens from now on;
// 0: the program itself.
void own_steps(uint32_t owner);

// Whether the callback is registered.
bool has_operator_callback();

// Whether torch's own profiler records the calling thread.
bool torch_profiles_this_thread();

// [any thread, hot] Begins a span like a RecordFunction, with less overhead; `span` is an address that
// identifies it for end_span(). False, without beginning a span, if a RecordFunction is needed: for inputs
// and ids, and for torch's profiler.
bool begin_span(const void* span, const char* name);
// [any thread, hot] Ends it.
void end_span(const void* span);
// [any thread] Begins the mark of a step, of the session with this number, as a user's range would; ended by
// end_span(). False if a range is needed, as above, or the number has no place in a record.
bool begin_step_mark(const void* mark, int64_t number, uint32_t session);
// [any thread, hot] Begins a user's range without inputs; ended by end_span(). False as above.
bool begin_mark(const void* mark, const char* name);

}  // namespace kinetoscope
