// The spans of a Chrome trace in the order that a trace keeps them in, and what lies around each of them.
#pragma once

#include <cstdint>
#include <vector>

#include "chrome_events.h"
#include "column.h"

namespace kinetoscope {

struct ChromeOrder {
  // For each thread as it was met, its row among the threads of the trace: hosts first, by process and
  // number.
  std::vector<int32_t> thread_rows;
  // For each row of the trace the row in which the span was taken.
  Column<int32_t> order;
};

// By thread, start, the longer first, then what usually lies around the other, then as they were taken.
ChromeOrder order_spans(const ChromeEvents& events);

// Python calls and module calls as stacks: what each span has around it, itself included.
struct ChromeStacks {
  Column<int32_t> own_stack, own_module;          // by row of the trace
  std::vector<int32_t> stack_parent, stack_name;  // the innermost call's name
  std::vector<int32_t> module_caller, module_name;
};

// `thread`, `start_ns` ... are columns of the trace, ordered as order_spans says.
ChromeStacks stack_spans(std::span<const int32_t> thread, std::span<const int64_t> start_ns,
                         std::span<const int64_t> duration_ns, std::span<const int32_t> name,
                         std::span<const uint8_t> kind);

}  // namespace kinetoscope
