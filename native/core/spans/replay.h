// Replays the collectives of many ranks with other durations between them.
#pragma once

#include <cstdint>
#include <span>

#include "../columns/column.h"

namespace kinetoscope {

// Ranks at collectives, those of a collective in a row.
struct CollectiveVisits {
  std::span<const int64_t> collective;   // of each visit
  std::span<const int64_t> before;       // the visit of the same rank that it follows, -1 for its first one
  std::span<const int64_t> own_ns;       // how long the rank takes from one to the other
  std::span<const int64_t> first_visit;  // of each collective, and at the end the number of visits
  std::span<const int64_t> transfer_ns;  // of each collective, once its last rank has arrived
};

// When each collective ends, from 0; -1 for those that wait for each other. Throws BadColumns on unequal
// lengths or an index out of range.
Column<int64_t> replay_collectives(const CollectiveVisits& visits);

}  // namespace kinetoscope
