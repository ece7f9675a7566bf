// Sets of time, as sorted intervals that are not empty and do not touch.
#pragma once

#include <cstdint>
#include <span>

#include "../columns/column.h"

namespace kinetoscope {

// Intervals [start_ns, end_ns).
struct Stretches {
  std::span<const int64_t> start_ns, end_ns;
};

struct Moments {
  Column<int64_t> start_ns, end_ns;
};

// All functions throw BadColumns where starts and ends have different lengths.

// The union of intervals in any order; empty and reversed ones are ignored.
Moments unite(const Stretches& stretches);

// The union, intersection or difference of two sets.
Moments join(const Stretches& one, const Stretches& other);
Moments intersect(const Stretches& one, const Stretches& other);
Moments subtract(const Stretches& one, const Stretches& other);

// Which of several layers of stretches has each moment of some windows: the first one that has it. The
// stretches of a layer are in order and do not overlap; windows are in any order.
struct LayeredMoments {
  Column<int64_t> window;
  Column<int64_t> stretch;  // counted through all layers; -1 where none has the moment
  Column<int64_t> start_ns, end_ns;
};
LayeredMoments first_layers(const Stretches& windows, std::span<const Stretches> layers);

// The length of the part of a set before each time.
Column<int64_t> length_before(const Stretches& set, std::span<const int64_t> time_ns);

}  // namespace kinetoscope
