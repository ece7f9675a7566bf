// Copies a recording that may be running.
#pragma once

#include <string>

namespace kinetoscope {

// Writes the current contents of the recording at `source` to the new file `target`, as a stopped recording,
// with all sessions and all committed records. Writers of `source` are not blocked or affected. Chunks that a
// ring reuses while they are copied are left out, and counted as overwritten. Open spans have no end in the
// copy.
//
// `stop_tick` is when the copy ends, by the recording's clock; 0 for when the last of its records was
// written.
//
// Throws RefusedRecording if `source` is not a recording; std::system_error if it cannot be read, or `target`
// cannot be written, of which an incomplete file is then left.
void clone_recording(const std::string& source, const std::string& target);

}  // namespace kinetoscope
