// The part of a recording that belongs to one of the sessions that share it, as a recording of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dictionary.h"
#include "format.h"

namespace kinetoscope {

// The window of a session, and what it recorded. In a recording it is the value of the key
// "kinetoscope.session.N": a JSON array of integers, `what`, those of `begin`, `to_tick`, and the two of each
// pause.
struct RecordingWindow {
  uint32_t what = 0;  // set of Recorded
  RecordingPosition begin{};
  uint64_t to_tick = 0;  // 0: it still records
  // For a time window, which clips spans at its ends; 0 without. Several ticks may be the same nanosecond: a
  // span that ends up to the first of these ended before the window, and up to the second one inside it.
  uint64_t ended_before_tick = 0, ended_within_tick = 0;
  std::vector<std::pair<uint64_t, uint64_t>> pauses;  // [from, to), in order; `to` 0: still paused
};

// Parses the value of a key "kinetoscope.session.N"; nullopt if it is not valid.
std::optional<RecordingWindow> parse_window(std::string_view json);

// A window of time of a session, in nanoseconds since its part began: [from, to).
struct CutTimes {
  int64_t from_ns = 0;
  int64_t to_ns = INT64_MAX;
  // The value of the key "first_step": the number of the first step in the window, if steps are counted
  // rather than marked; -1 for none.
  int64_t first_step = -1;
};

// Writes the part of session `session` of the recording in `file` to the new file `target`. `file` may be
// growing. Without a key "kinetoscope.session.N" the part is the whole recording.
//
// With `times`, only that window: spans that cross its ends are clipped and flagged. Records that a ring has
// overwritten count as lost only from `from_ns` on.
//
// Throws RefusedRecording if `file` is not a recording, std::system_error if `target` cannot be written.
void cut_recording(std::span<const std::byte> file, uint32_t session, const std::string& target,
                   const std::optional<CutTimes>& times = std::nullopt);

}  // namespace kinetoscope
