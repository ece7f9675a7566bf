// How `_core` records the marks of requests: the recorder gives it these functions, which open and close a
// user's range with less overhead than torch's own. Both are compiled with this header.
#pragma once

namespace kinetoscope {

struct RangeMarks {
  // [any thread] Begins a range on this thread, which the address identifies. False, with nothing changed, if
  // torch has to open it: nothing is recorded, or torch's profiler records this thread.
  bool (*begin)(const void* range, const char* name) noexcept;
  // [any thread] Ends it.
  void (*end)(const void* range) noexcept;
};

}  // namespace kinetoscope
