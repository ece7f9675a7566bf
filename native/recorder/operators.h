// The RecordFunction callback: every operator, backward function and user range of every thread.
#pragma once

#include <cstdint>

namespace kinetoscope {

class Session;

// [between sessions] Registers the callback with torch; it sees inputs only when asked, because boxing them
// is dear.
void add_operator_callback(uint32_t what);
// [stop] Takes it back. Ranges still open may yet end; their contexts know that the session is over.
void remove_operator_callback();

}  // namespace kinetoscope
