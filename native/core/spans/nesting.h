// Nests spans: parents, depths and self times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "../columns/column.h"

namespace kinetoscope {

// Columns that break a function's stated precondition: unequal lengths, wrong order, a row out of range.
class BadColumns : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// Lane 0 of a thread nests exactly: children within parents, siblings disjoint, self_ns = duration minus the
// children's durations, never negative; the sum of self_ns is the sum of the roots' durations. Spans that
// would partly overlap lie in lanes 1, 2, ..: in each of these spans are disjoint, have no parent (-1), depth
// 0 and self_ns 0, and are nobody's parent.
struct Nesting {
  Column<int32_t> parent, depth, lane;
  Column<int64_t> self_ns;
};

// Spans are sorted by (thread, start), an enclosing span before what it encloses; a negative duration counts
// as zero. Throws BadColumns on unequal lengths or another order.
Nesting nest(std::span<const int32_t> thread, std::span<const int64_t> start_ns,
             std::span<const int64_t> duration_ns);

// For each row of a forest itself, or the nearest of its ancestors, that is marked; -1 without. `depth` says
// how many ancestors a row has; it is only read where a parent comes after its child. Throws BadColumns on
// unequal lengths or a row out of range.
Column<int32_t> nearest_marked(std::span<const int32_t> parent, std::span<const int32_t> depth,
                               std::span<const bool> marked);

// For each moment the innermost of some spans in lane 0 of one thread, -1 outside all. `rows` are those of
// the spans, ascending, and `parent` is by row the nearest of them around each. Times that ascend are found
// fastest. Throws BadColumns on unequal lengths or a row out of range.
struct RunningSpans {
  std::span<const int64_t> start_ns, duration_ns;
  std::span<const int32_t> parent;
  std::span<const int64_t> rows;
};
Column<int64_t> running_at(const RunningSpans& spans, std::span<const int64_t> time_ns);

// Which spans lie in some of them on their thread, those themselves included. Spans are sorted as for `nest`;
// `rows` are those of the ones around, ascending. Throws BadColumns on unequal lengths, another order or a
// row out of range.
Column<bool> lies_in(std::span<const int32_t> thread, std::span<const int64_t> start_ns,
                     std::span<const int64_t> duration_ns, std::span<const int64_t> rows);

// For each row of a forest its value and those of all rows below it added up; sums wrap. Otherwise the same.
Column<int64_t> sums_below(std::span<const int32_t> parent, std::span<const int32_t> depth,
                           std::span<const int64_t> own);

}  // namespace kinetoscope
