// Sorts the spans of a Chrome trace as a trace stores them, and finds the calls around each span.
#pragma once

#include <cstdint>
#include <vector>

#include "../columns/growing_column.h"
#include "events.h"

namespace kinetoscope {

// For each row of a table the row in which it was read. Takes no memory if these are the same.
class RowOrder {
 public:
  // Rows are set one after the other, from the first.
  void append(int64_t taken) {
    const std::size_t row = rows_++;
    if (same_ && taken == static_cast<int64_t>(row)) return;
    if (same_) {
      same_ = false;
      for (std::size_t before = 0; before < row; ++before) taken_.set(before, static_cast<int64_t>(before));
    }
    taken_.set(row, taken);
  }
  int64_t operator[](std::size_t row) const { return same_ ? static_cast<int64_t>(row) : taken_[row]; }

 private:
  PackedColumn taken_{0};
  std::size_t rows_ = 0;
  bool same_ = true;
};

struct ChromeOrder {
  // For each thread as it was met, its row among the threads of the trace: hosts first, by process and
  // number.
  std::vector<int32_t> thread_rows;
  // For each row among the threads of the trace its first span, and behind the last one the number of all.
  std::vector<std::size_t> first_rows;
  // For each row of the trace the row in which the span was read.
  RowOrder order;

  std::size_t rows() const { return first_rows.back(); }
};

// By thread, start, longer ones first, then by what usually encloses the other, then in the order of the
// file.
ChromeOrder order_spans(const ChromeEvents& events);

// Python calls and module calls as stacks: the calls around each span, itself included.
struct ChromeStacks {
  PackedColumn own_stack{-1}, own_module{-1};     // by row of the trace
  std::vector<int32_t> stack_parent, stack_name;  // the innermost call's name
  std::vector<int32_t> module_caller, module_name;
};

ChromeStacks stack_spans(const ChromeSpanRows& spans, const ChromeOrder& order);

}  // namespace kinetoscope
