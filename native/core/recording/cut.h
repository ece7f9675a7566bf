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

// When a session recorded, and what. In a recording it is the value of the key "kinetoscope.session.N": a
// JSON array of whole numbers, `what`, those of `begin`, `to_tick`, and the two of each pause.
struct RecordingWindow {
  uint32_t what = 0;  // set of Recorded
  RecordingPosition begin{};
  uint64_t to_tick = 0;  // 0: it still records
  // Of a window of time, whose ends cut the spans that cross them; 0: it is none. Several ticks may be one
  // nanosecond: what ends up to the first of these has ended before it, and up to the second one in it.
  uint64_t ended_before_tick = 0, ended_within_tick = 0;
  std::vector<std::pair<uint64_t, uint64_t>> pauses;  // [from, to), in order; `to` 0: still paused
};

// Reads the value of a key "kinetoscope.session.N"; nullopt if it is none.
std::optional<RecordingWindow> parse_window(std::string_view json);

// A window of time of a session, in nanoseconds since its part began: [from, to).
struct CutTimes {
  int64_t from_ns = 0;
  int64_t to_ns = INT64_MAX;
  // Becomes the key "first_step": the number of the step that the window begins with, where steps are counted
  // and not marked; -1 for none.
  int64_t first_step = -1;
};

// Writes what session `session` of the recording in `file` has recorded to the new file `target`. `file` may
// be growing. Without a key "kinetoscope.session.N" that is all of it.
//
// With `times` only what is within them: a span that is open at one of its ends is cut there, and marked so.
// What a ring has overwritten is lost to that part only if it is as late as `from_ns`.
//
// Throws RefusedRecording where `file` is no recording, std::system_error where `target` cannot be written.
void cut_recording(std::span<const std::byte> file, uint32_t session, const std::string& target,
                   const std::optional<CutTimes>& times = std::nullopt);

}  // namespace kinetoscope
