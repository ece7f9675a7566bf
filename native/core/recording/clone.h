// A copy of a recording that may be going on: readable, and the same from then on.
#pragma once

#include <string>

namespace kinetoscope {

// Writes what the recording at `source` has at this moment to the new file `target`, as a recording that was
// stopped: with all of its sessions, but only what was committed. Nobody who writes into `source` waits or
// takes any notice. Chunks that a ring uses again while they are copied are left out, and counted as
// overwritten. A span that is open is open in the copy, too, and has no end there.
//
// `stop_tick` is when the copy ends, by the recording's clock; 0 for when the last of its records was
// written.
//
// Throws RefusedRecording where `source` is no recording, std::system_error where it cannot be read or
// `target` cannot be written; what was written of it is then still there.
void clone_recording(const std::string& source, const std::string& target);

}  // namespace kinetoscope
