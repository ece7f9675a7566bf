#include "grouping.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "nesting.h"

namespace kinetoscope {
namespace {

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

// Numbers codes densely in the order in which they are first seen.
class DenseIds {
 public:
  // Codes are < bound, or anything when bound is kMost.
  DenseIds(uint64_t bound, std::size_t rows) {
    if (bound <= 4 * rows + 1024) {
      direct_.assign(static_cast<std::size_t>(bound), -1);
    } else {
      slots_.resize(1024);
    }
  }

  int32_t id_of(uint64_t code, std::size_t row) {
    if (!direct_.empty()) {
      int32_t& id = direct_[static_cast<std::size_t>(code)];
      if (id < 0) id = add(row);
      return id;
    }
    if (2 * first_row_.size() >= slots_.size()) grow();
    Slot& slot = find(slots_, code);
    if (slot.id < 0) slot = {code, add(row)};
    return slot.id;
  }

  const std::vector<int32_t>& first_row() const { return first_row_; }

 private:
  struct Slot {
    uint64_t code = 0;
    int32_t id = -1;
  };

  static Slot& find(std::vector<Slot>& slots, uint64_t code) {
    const std::size_t mask = slots.size() - 1;
    const uint64_t mixed = (code ^ (code >> 32)) * 0x9e3779b97f4a7c15u;
    std::size_t at = static_cast<std::size_t>(mixed >> 32) & mask;
    while (slots[at].id >= 0 && slots[at].code != code) at = (at + 1) & mask;
    return slots[at];
  }

  void grow() {
    std::vector<Slot> bigger(4 * slots_.size());
    for (const Slot& slot : slots_) {
      if (slot.id >= 0) find(bigger, slot.code) = slot;
    }
    slots_ = std::move(bigger);
  }

  int32_t add(std::size_t row) {
    first_row_.push_back(static_cast<int32_t>(row));
    return static_cast<int32_t>(first_row_.size() - 1);
  }

  std::vector<int32_t> direct_;
  std::vector<Slot> slots_;
  std::vector<int32_t> first_row_;
};

// The values of a key as codes from 0: value - least.
struct KeyRange {
  uint64_t least;
  uint64_t bound;  // one above the largest code; kMost also when it would not fit
};

template <typename T>
KeyRange range_of(std::span<const T> key) {
  if (key.empty()) return {0, 1};
  T least = key[0], most = key[0];
  for (const T value : key) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  const uint64_t distance = static_cast<uint64_t>(int64_t{most}) - static_cast<uint64_t>(int64_t{least});
  return {static_cast<uint64_t>(int64_t{least}), distance == kMost ? kMost : distance + 1};
}

template <typename CodeOf>
Grouping number_rows(std::size_t rows, uint64_t bound, std::span<const bool> where, const CodeOf& code_of) {
  DenseIds ids(bound, rows);
  Grouping result{Column<int32_t>(rows), {}};
  for (std::size_t row = 0; row < rows; ++row) {
    result.group_of[row] = where.empty() || where[row] ? ids.id_of(code_of(row), row) : -1;
  }
  result.first_row = Column<int32_t>(ids.first_row().size());
  if (!ids.first_row().empty()) {
    std::memcpy(result.first_row.data(), ids.first_row().data(), ids.first_row().size() * sizeof(int32_t));
  }
  return result;
}

template <typename T>
Grouping group_one(std::span<const T> key, std::span<const bool> where) {
  const KeyRange range = range_of(key);
  return number_rows(key.size(), range.bound, where,
                     [&](std::size_t row) { return static_cast<uint64_t>(int64_t{key[row]}) - range.least; });
}

// Groups of two groupings' products; the ids of both fit in 31 bits, so their pair fits in 62.
Grouping group_pairs(const Grouping& left, const Grouping& right, std::span<const bool> where) {
  const uint64_t width = std::max<uint64_t>(right.first_row.size(), 1);
  return number_rows(left.group_of.size(), width * std::max<uint64_t>(left.first_row.size(), 1), where,
                     [&](std::size_t row) {
                       return static_cast<uint64_t>(left.group_of[row]) * width +
                              static_cast<uint64_t>(right.group_of[row]);
                     });
}

// The rows from a root down to the one looked at, and how often each key occurs on that path.
class Path {
 public:
  Path(std::span<const int32_t> parent, const Grouping& keys)
      : parent_(parent), keys_(keys), occurrences_(keys.first_row.size(), 0) {}

  // Makes `last` the path's end.
  void end_at(int32_t last) {
    if (!rows_.empty() && last == rows_.back()) return;
    // The usual steps: down to a child of the end, or up to an ancestor.
    if (!rows_.empty() && parent_[static_cast<std::size_t>(last)] == rows_.back()) {
      push(last);
      return;
    }
    // Else walk up from the new end to where the old path is met, if anywhere.
    missing_.clear();
    for (int32_t row = last; row >= 0; row = parent_[static_cast<std::size_t>(row)]) {
      while (!rows_.empty() && rows_.back() > row) pop();
      if (!rows_.empty() && rows_.back() == row) break;
      missing_.push_back(row);
    }
    if (!missing_.empty() && parent_[static_cast<std::size_t>(missing_.back())] < 0) {
      while (!rows_.empty()) pop();
    }
    while (!missing_.empty()) {
      push(missing_.back());
      missing_.pop_back();
    }
  }

  bool has_key_of(std::size_t row) const { return occurrences_[key_of(row)] > 0; }

 private:
  std::size_t key_of(std::size_t row) const { return static_cast<std::size_t>(keys_.group_of[row]); }
  void push(int32_t row) {
    rows_.push_back(row);
    ++occurrences_[key_of(static_cast<std::size_t>(row))];
  }
  void pop() {
    --occurrences_[key_of(static_cast<std::size_t>(rows_.back()))];
    rows_.pop_back();
  }

  std::span<const int32_t> parent_;
  const Grouping& keys_;
  std::vector<int32_t> rows_, missing_;
  std::vector<int32_t> occurrences_;
};

}  // namespace

Grouping group_rows(std::span<const KeyColumn> keys, std::span<const bool> where) {
  if (keys.empty()) throw BadColumns("group: at least one key is needed");
  const auto size_of = [](const KeyColumn& key) {
    return std::visit([](auto values) { return values.size(); }, key);
  };
  const std::size_t rows = size_of(keys[0]);
  for (const KeyColumn& key : keys) {
    if (size_of(key) != rows) throw BadColumns("group: the keys have different lengths");
  }
  if (!where.empty() && where.size() != rows)
    throw BadColumns("group: where and the keys have different lengths");
  if (rows > static_cast<std::size_t>(std::numeric_limits<int32_t>::max()))
    throw BadColumns("group: too many rows");
  const auto group_key = [&](const KeyColumn& key) {
    return std::visit([&](auto values) { return group_one(values, where); }, key);
  };
  Grouping result = group_key(keys[0]);
  for (const KeyColumn& key : keys.subspan(1)) result = group_pairs(result, group_key(key), where);
  return result;
}

Column<int64_t> reduce_groups(Reduction reduction, std::span<const int32_t> group_of, std::size_t groups,
                              std::span<const int64_t> values, std::span<const uint8_t> skip) {
  const std::size_t rows = group_of.size();
  const bool counts = reduction == Reduction::Count;
  if (!counts && values.size() != rows) throw BadColumns("group: values and group_of have different lengths");
  if (!skip.empty() && skip.size() != rows)
    throw BadColumns("group: skip and group_of have different lengths");
  for (const int32_t group : group_of) {
    if (group >= 0 && static_cast<std::size_t>(group) >= groups)
      throw BadColumns("group: group_of has a group >= groups");
  }
  const auto reduce = [&](int64_t initial, const auto& combine) {
    Column<int64_t> result(groups, initial);
    for (std::size_t row = 0; row < rows; ++row) {
      if (group_of[row] < 0 || (!skip.empty() && skip[row] != 0)) continue;
      int64_t& value = result[static_cast<std::size_t>(group_of[row])];
      value = combine(value, row);
    }
    return result;
  };
  switch (reduction) {
    case Reduction::Count:
      return reduce(0, [](int64_t value, std::size_t) { return value + 1; });
    case Reduction::Sum:
      return reduce(0, [&](int64_t value, std::size_t row) {
        return static_cast<int64_t>(static_cast<uint64_t>(value) + static_cast<uint64_t>(values[row]));
      });
    default:
      break;
  }
  const bool least = reduction == Reduction::Least;
  const int64_t none = least ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
  Column<int64_t> result =
      least ? reduce(none, [&](int64_t value, std::size_t row) { return std::min(value, values[row]); })
            : reduce(none, [&](int64_t value, std::size_t row) { return std::max(value, values[row]); });
  const Column<int64_t> counted = reduce(0, [](int64_t value, std::size_t) { return value + 1; });
  for (std::size_t group = 0; group < groups; ++group) {
    if (counted[group] == 0) result[group] = 0;
  }
  return result;
}

Column<int64_t> group_medians(std::span<const int32_t> group_of, std::size_t groups,
                              std::span<const int64_t> values) {
  const Column<int64_t> counts = reduce_groups(Reduction::Count, group_of, groups, {}, {});
  if (values.size() != group_of.size()) throw BadColumns("group: values and group_of have different lengths");
  std::vector<std::size_t> begin(groups + 1, 0);
  for (std::size_t group = 0; group < groups; ++group)
    begin[group + 1] = begin[group] + static_cast<std::size_t>(counts[group]);
  std::vector<int64_t> gathered(begin[groups]);
  std::vector<std::size_t> next(begin.begin(), begin.end() - 1);
  for (std::size_t row = 0; row < values.size(); ++row) {
    if (group_of[row] >= 0) gathered[next[static_cast<std::size_t>(group_of[row])]++] = values[row];
  }
  Column<int64_t> medians(groups, -1);
  for (std::size_t group = 0; group < groups; ++group) {
    const auto first = gathered.begin() + static_cast<std::ptrdiff_t>(begin[group]);
    const auto last = gathered.begin() + static_cast<std::ptrdiff_t>(begin[group + 1]);
    if (first == last) continue;
    const auto high = first + (last - first) / 2;
    std::nth_element(first, high, last);
    const int64_t low = (last - first) % 2 == 0 ? *std::max_element(first, high) : *high;
    medians[group] = static_cast<int64_t>((static_cast<__int128>(low) + *high) >> 1);
  }
  return medians;
}

Column<uint8_t> descends_from_same(std::span<const int32_t> parent, std::span<const int32_t> key) {
  const std::size_t rows = parent.size();
  if (key.size() != rows) throw BadColumns("descends_from_same: parent and key have different lengths");
  const Grouping keys = group_one(key, {});
  Column<uint8_t> result(rows);
  Path path(parent, keys);
  for (std::size_t row = 0; row < rows; ++row) {
    result[row] = 0;
    if (parent[row] < 0) continue;
    if (static_cast<std::size_t>(parent[row]) >= row)
      throw BadColumns("descends_from_same: a parent comes after its child");
    path.end_at(parent[row]);
    result[row] = path.has_key_of(row) ? 1 : 0;
  }
  return result;
}

}  // namespace kinetoscope
