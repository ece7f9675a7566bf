// Sets of moments: stretches of time in order, none empty, none touching another.
#pragma once

#include <cstdint>
#include <span>

#include "../columns/column.h"

namespace kinetoscope {

// Stretches from start_ns up to, not at, end_ns.
struct Stretches {
  std::span<const int64_t> start_ns, end_ns;
};

struct Moments {
  Column<int64_t> start_ns, end_ns;
};

// All functions throw BadColumns where starts and ends have different lengths.

// The moments in any of some stretches, in any order; empty and backward ones count for nothing.
Moments unite(const Stretches& stretches);

// Of two sets: the moments in either, those in both, or those in the first and not in the second.
Moments join(const Stretches& one, const Stretches& other);
Moments intersect(const Stretches& one, const Stretches& other);
Moments subtract(const Stretches& one, const Stretches& other);

// How long the part of a set before each moment is.
Column<int64_t> length_before(const Stretches& set, std::span<const int64_t> time_ns);

}  // namespace kinetoscope
