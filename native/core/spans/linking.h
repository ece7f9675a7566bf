// Links backward spans to forward ones, from which they inherit module and stack.
#pragma once

#include <cstdint>
#include <span>

#include "../columns/column.h"

namespace kinetoscope {

// torch's scope of backward functions (at::RecordScope::BACKWARD_FUNCTION).
inline constexpr uint8_t kBackwardScope = 1;

// For each backward span with a sequence number >= 0 and a known forward thread: the row of the last-started
// span on that thread with the same sequence number that did not start after it; else -1. Only spans that are
// neither backward nor name a forward thread themselves count as forward. Spans are sorted by (thread,
// start). Throws BadColumns on unequal lengths.
Column<int32_t> link_backward(std::span<const int32_t> thread, std::span<const int64_t> start_ns,
                              std::span<const uint8_t> scope, std::span<const int64_t> sequence,
                              std::span<const int32_t> forward_thread);

struct SpanOrigins {
  std::span<const int32_t> parent;
  std::span<const int32_t> module;            // as recorded; -1 none
  std::span<const int32_t> stack;             // as recorded; -1 none
  std::span<const int32_t> forward;           // from link_backward
  std::span<const int32_t> parameter;         // AccumulateGrad's; -1 none
  std::span<const int32_t> parameter_module;  // by parameter
  std::span<const uint8_t> scope;
};

struct InheritedModules {
  Column<int32_t> module;
  Column<int32_t> forward_stack;
};

// Where each span belongs:
// - a backward span to the module of its forward span, AccumulateGrad to its parameter's module;
// - the engine's wrapper of a backward span (the parent whose first child it is) to the same module;
// - below a backward span, a module that was recorded for the backward span itself too is only the place that
//   called backward(), and counts as none;
// - every span without a module to its parent's.
// forward_stack is the stack of the forward span, for backward spans, their wrappers and all below them; else
// -1. Links that close a cycle count as none. Throws BadColumns on unequal lengths.
InheritedModules inherit_modules(const SpanOrigins& spans);

}  // namespace kinetoscope
