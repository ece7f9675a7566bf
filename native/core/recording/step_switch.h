// How a flight recorder switches recording on and off for single steps: the recorder gives these functions to
// `_core`, which calls them between two steps without a line of Python. Both are compiled with this header.
#pragma once

#include <cstdint>

namespace kinetoscope {

struct StepSwitch {
  // Whether the session that was given this is the only one: written by the recorder, read by everybody with
  // the GIL. 0: the functions do nothing.
  uint32_t allowed;
  // [GIL] Ends a pause, and begins the mark of a step, which `mark` identifies, and which is expected to take
  // so long. False, with nothing changed, if that needs the usual way.
  bool (*on)(const void* mark, int64_t number, int64_t expected_ns) noexcept;
  // [GIL] Ends the mark of a step, unless that is null, and begins a pause. False, with nothing changed, as
  // above.
  bool (*off)(const void* mark) noexcept;
  // [GIL] Begins the mark of a step while recording is on. False if that needs the usual way.
  bool (*begin)(const void* mark, int64_t number) noexcept;
  // [any thread] Ends the mark.
  void (*end)(const void* mark) noexcept;
};

}  // namespace kinetoscope
