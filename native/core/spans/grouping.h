// Dense groups of equal rows, and sums over them.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "../columns/column.h"

namespace kinetoscope {

using KeyColumn = std::variant<std::span<const int32_t>, std::span<const int64_t>>;

struct Grouping {
  Column<int32_t> group_of;   // by row; -1 for rows left out
  Column<int32_t> first_row;  // by group, in the order in which groups are first seen
};

// Rows belong together when they are equal in every key. `where` is empty or says which rows take part.
// Throws BadColumns without keys or on unequal lengths.
Grouping group_rows(std::span<const KeyColumn> keys, std::span<const bool> where);

enum class Reduction { Count, Sum, Least, Most };

// Reduces `values` (not read for Count) of each group; rows of group -1 and rows whose `skip` (empty: none)
// is not zero do not count. Groups without rows give 0. Sums wrap. Throws BadColumns on unequal lengths or a
// group >= groups.
Column<int64_t> reduce_groups(Reduction reduction, std::span<const int32_t> group_of, std::size_t groups,
                              std::span<const int64_t> values, std::span<const uint8_t> skip);

// The median of the values of each group, the lower of both whole numbers around it; -1 for a group without
// any. Otherwise the same.
Column<int64_t> group_medians(std::span<const int32_t> group_of, std::size_t groups,
                              std::span<const int64_t> values);

// 1 for rows that have an ancestor with the same key. Parents come before their children.
// Throws BadColumns on unequal lengths or another order.
Column<uint8_t> descends_from_same(std::span<const int32_t> parent, std::span<const int32_t> key);

}  // namespace kinetoscope
