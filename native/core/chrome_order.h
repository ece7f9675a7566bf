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
  NarrowColumn own_stack{-1}, own_module{-1};     // by row of the trace
  std::vector<int32_t> stack_parent, stack_name;  // the innermost call's name
  std::vector<int32_t> module_caller, module_name;
};

ChromeStacks stack_spans(const ChromeSpanRows& spans, const ChromeOrder& order);

}  // namespace kinetoscope
