// Reconstructs Python calls from the stacks of operators.
#pragma once

#include <cstdint>
#include <span>

#include "../columns/column.h"

namespace kinetoscope {

// Operators, grouped by thread, in order of time within a thread. One with a negative duration only shows
// which calls were running then: a call without any other operator is not returned.
struct CallSources {
  std::span<const int32_t> thread;
  std::span<const int64_t> start_ns, duration_ns;
  std::span<const int32_t> path;
  std::span<const uint16_t> kept;  // as the column `kept` of spans
};

// The calls around operators, outermost first: path p has the steps path_begin[p] to path_begin[p + 1].
struct CallPaths {
  std::span<const int32_t> path_begin;
  std::span<const int32_t> key;     // equal where two steps may be one call
  std::span<const int32_t> frames;  // how many frames are around the call
};

// One row for each call, in the order in which they end.
struct Calls {
  Column<int32_t> thread;
  Column<int64_t> start_ns, duration_ns;
  Column<int32_t> step;   // the step of its first operator's path
  Column<int32_t> depth;  // how many calls are around it
  Column<uint8_t> unsure;
};

// A call lasts from its first operator to the end of its last one, but ends before the next operator outside
// of it. Throws BadColumns on unequal lengths or a path that does not exist.
Calls rebuild_calls(const CallSources& operators, const CallPaths& paths);

}  // namespace kinetoscope
