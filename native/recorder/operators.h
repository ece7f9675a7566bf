// The RecordFunction callback: every operator, backward function and user range of every thread.
#pragma once

#include <cstdint>

namespace kinetoscope {

class Session;

// [between sessions] Registers the callback with torch; it sees inputs only when asked, because boxing them
// is dear.
void add_operator_callback(uint32_t what);
// [while recording] The same for another set; no operator of any thread is missed, and none is seen twice.
void replace_operator_callback(uint32_t what);
// [pause, stop] Takes it back. What is open may yet end: in a pause it does, and else its context knows that
// the session is over. Disabling it would not do for a pause: torch looks through disabled callbacks, too, at
// every node of a backward pass.
void remove_operator_callback();
// [while recording] Registers it again if it was taken back.
void resume_operator_callback(uint32_t what);

// [any thread] Whose marks of steps are those that the calling thread begins from now on: the number of a
// session, plus 1; 0: the program's own.
void own_steps(uint32_t owner);

// Whether torch's own profiler records the calling thread.
bool torch_profiles_this_thread();

// [any thread, hot] Begins a span as a RecordFunction would, at a part of its cost; `span` is an address to
// end it by. False, and nothing has begun, where it takes a RecordFunction: for inputs and ids, and for
// torch's profiler.
bool begin_span(const void* span, const char* name);
// [any thread, hot] Ends it.
void end_span(const void* span);

}  // namespace kinetoscope
