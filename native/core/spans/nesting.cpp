#include "nesting.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace kinetoscope {
namespace {

constexpr int64_t kFree = std::numeric_limits<int64_t>::min();

// Lanes beside the exactly nested one, each with the end of its last span. A tree of minima finds the first
// lane that is free at a time in logarithmic time: a thread with many asynchronous spans may need very many
// lanes.
class SideLanes {
 public:
  void clear() {
    std::fill(tree_.begin(), tree_.end(), kFree);
    lanes_ = 0;
  }

  // Takes the first lane that is free from `start_ns` on until `end_ns`; returns its number from 0.
  std::size_t take(int64_t start_ns, int64_t end_ns) {
    if (tree_.empty()) tree_.assign(2, kFree);
    if (tree_[1] > start_ns) grow();
    std::size_t node = 1;
    while (node < leaves()) {
      node *= 2;
      if (tree_[node] > start_ns) ++node;
    }
    const std::size_t lane = node - leaves();
    tree_[node] = end_ns;
    for (node /= 2; node >= 1; node /= 2) tree_[node] = std::min(tree_[2 * node], tree_[2 * node + 1]);
    lanes_ = std::max(lanes_, lane + 1);
    return lane;
  }

 private:
  std::size_t leaves() const { return tree_.size() / 2; }

  void grow() {
    const std::size_t old_leaves = leaves(), new_leaves = 2 * old_leaves;
    std::vector<int64_t> bigger(2 * new_leaves, kFree);
    std::copy(tree_.begin() + static_cast<std::ptrdiff_t>(old_leaves), tree_.end(),
              bigger.begin() + static_cast<std::ptrdiff_t>(new_leaves));
    for (std::size_t node = new_leaves - 1; node >= 1; --node) {
      bigger[node] = std::min(bigger[2 * node], bigger[2 * node + 1]);
    }
    tree_ = std::move(bigger);
  }

  // tree_[1] is the root, the leaves are the second half.
  std::vector<int64_t> tree_;
  std::size_t lanes_ = 0;
};

int64_t end_of(int64_t start_ns, int64_t duration_ns) {
  int64_t end_ns;
  if (__builtin_add_overflow(start_ns, duration_ns, &end_ns)) return std::numeric_limits<int64_t>::max();
  return end_ns;
}

struct OpenSpan {
  int64_t end_ns;
  int32_t row;
};

// The rows of a forest in an order in which parents come before their children: usually as they stand.
class TopDown {
 public:
  TopDown(std::span<const int32_t> parent, std::span<const int32_t> depth) : rows_(parent.size()) {
    bool in_order = true;
    for (std::size_t row = 0; row < rows_; ++row) {
      if (parent[row] < -1 || parent[row] >= static_cast<int64_t>(rows_))
        throw BadColumns("row " + std::to_string(row) + " has a parent that is no row");
      in_order &= parent[row] < static_cast<int64_t>(row);
    }
    if (!in_order) sort_by(depth);
  }

  template <typename Visit>
  void down(const Visit& visit) const {
    for (std::size_t place = 0; place < rows_; ++place) visit(row_at(place));
  }

  template <typename Visit>
  void up(const Visit& visit) const {
    for (std::size_t place = rows_; place-- > 0;) visit(row_at(place));
  }

 private:
  std::size_t row_at(std::size_t place) const { return order_.empty() ? place : order_[place]; }

  void sort_by(std::span<const int32_t> depth) {
    order_.resize(rows_);
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [depth](std::size_t one, std::size_t other) { return depth[one] < depth[other]; });
  }

  std::size_t rows_;
  std::vector<std::size_t> order_;
};

void check_lengths(const char* function, std::size_t parents, std::size_t depths, std::size_t values) {
  if (parents != depths || parents != values)
    throw BadColumns(std::string(function) + ": the columns have different lengths");
}

}  // namespace

Nesting nest(std::span<const int32_t> thread, std::span<const int64_t> start_ns,
             std::span<const int64_t> duration_ns) {
  const std::size_t rows = thread.size();
  if (start_ns.size() != rows || duration_ns.size() != rows) {
    throw BadColumns("nest: thread, start_ns and duration_ns have different lengths");
  }
  if (rows > static_cast<std::size_t>(std::numeric_limits<int32_t>::max()))
    throw BadColumns("nest: too many spans");
  Nesting result{Column<int32_t>(rows), Column<int32_t>(rows), Column<int32_t>(rows), Column<int64_t>(rows)};
  std::vector<OpenSpan> open;
  SideLanes side;
  bool side_used = false;
  for (std::size_t row = 0; row < rows; ++row) {
    if (row > 0 && thread[row] != thread[row - 1]) {
      if (thread[row] < thread[row - 1])
        throw BadColumns("nest: row " + std::to_string(row) + " is not sorted by thread");
      open.clear();
      if (side_used) side.clear();
      side_used = false;
    } else if (row > 0 && start_ns[row] < start_ns[row - 1]) {
      throw BadColumns("nest: row " + std::to_string(row) + " starts before the previous row");
    }
    const int64_t start = start_ns[row];
    const int64_t end = end_of(start, std::max<int64_t>(duration_ns[row], 0));
    const int64_t duration = end - start;
    while (!open.empty() && open.back().end_ns <= start) open.pop_back();
    if (!open.empty() && end > open.back().end_ns) {
      side_used = true;
      result.lane[row] = static_cast<int32_t>(1 + side.take(start, end));
      result.parent[row] = -1;
      result.depth[row] = 0;
      result.self_ns[row] = 0;
      continue;
    }
    const int32_t parent = open.empty() ? -1 : open.back().row;
    if (parent >= 0) result.self_ns[static_cast<std::size_t>(parent)] -= duration;
    result.parent[row] = parent;
    result.depth[row] = static_cast<int32_t>(open.size());
    result.lane[row] = 0;
    result.self_ns[row] = duration;
    open.push_back({end, static_cast<int32_t>(row)});
  }
  return result;
}

Column<int32_t> nearest_marked(std::span<const int32_t> parent, std::span<const int32_t> depth,
                               std::span<const bool> marked) {
  check_lengths("nearest_marked", parent.size(), depth.size(), marked.size());
  Column<int32_t> nearest(parent.size(), -1);
  TopDown(parent, depth).down([&](std::size_t row) {
    if (marked[row]) {
      nearest[row] = static_cast<int32_t>(row);
    } else if (parent[row] >= 0) {
      nearest[row] = nearest[static_cast<std::size_t>(parent[row])];
    }
  });
  return nearest;
}

Column<bool> lies_in(std::span<const int32_t> thread, std::span<const int64_t> start_ns,
                     std::span<const int64_t> duration_ns, std::span<const int64_t> rows) {
  check_lengths("lies_in", thread.size(), start_ns.size(), duration_ns.size());
  Column<bool> inside(start_ns.size(), false);
  int64_t reach_ns = 0;
  for (std::size_t at = 0; at < rows.size(); ++at) {
    const auto around = static_cast<std::size_t>(rows[at]);
    if (rows[at] < 0 || around >= start_ns.size()) throw BadColumns("lies_in: a row is out of range");
    if (at > 0 && rows[at] < rows[at - 1]) throw BadColumns("lies_in: rows are not in ascending order");
    const int64_t end_ns = end_of(start_ns[around], duration_ns[around]);
    const bool same_thread = at > 0 && thread[around] == thread[static_cast<std::size_t>(rows[at - 1])];
    reach_ns = same_thread ? std::max(reach_ns, end_ns) : end_ns;
    inside[around] = true;
    const std::size_t next = at + 1 < rows.size()
                                 ? std::min(static_cast<std::size_t>(rows[at + 1]), start_ns.size())
                                 : start_ns.size();
    for (std::size_t row = around + 1;
         row < next && thread[row] == thread[around] && start_ns[row] < reach_ns; ++row)
      inside[row] = end_of(start_ns[row], duration_ns[row]) <= reach_ns;
  }
  return inside;
}

Column<int64_t> sums_below(std::span<const int32_t> parent, std::span<const int32_t> depth,
                           std::span<const int64_t> own) {
  check_lengths("sums_below", parent.size(), depth.size(), own.size());
  Column<int64_t> total(parent.size());
  std::copy(own.begin(), own.end(), total.data());
  TopDown(parent, depth).up([&](std::size_t row) {
    if (parent[row] < 0) return;
    int64_t& above = total[static_cast<std::size_t>(parent[row])];
    above = static_cast<int64_t>(static_cast<uint64_t>(above) + static_cast<uint64_t>(total[row]));
  });
  return total;
}

Column<int64_t> running_at(const RunningSpans& spans, std::span<const int64_t> time_ns) {
  const auto& [start_ns, duration_ns, parent, rows] = spans;
  check_lengths("running_at", start_ns.size(), duration_ns.size(), parent.size());
  const auto count = static_cast<int64_t>(start_ns.size());
  if (std::any_of(rows.begin(), rows.end(), [count](int64_t row) { return row < 0 || row >= count; }))
    throw BadColumns("running_at: a row is out of range");
  const auto start_of = [&](std::size_t place) { return start_ns[static_cast<std::size_t>(rows[place])]; };
  Column<int64_t> running(time_ns.size());
  std::size_t begun = 0;
  for (std::size_t at = 0; at < time_ns.size(); ++at) {
    const int64_t time = time_ns[at];
    if (begun > 0 && start_of(begun - 1) > time) begun = 0;
    // Doubling strides from where the last moment was, then halving: short for moments close together.
    std::size_t stride = 1;
    for (; begun + stride <= rows.size() && start_of(begun + stride - 1) <= time; stride *= 2)
      begun += stride;
    for (; stride > 0; stride /= 2) {
      if (begun + stride <= rows.size() && start_of(begun + stride - 1) <= time) begun += stride;
    }
    int64_t row = begun == 0 ? -1 : rows[begun - 1];
    // The last one that began may have ended: then one of those around it is the innermost.
    while (row >= 0) {
      const auto place = static_cast<std::size_t>(row);
      if (end_of(start_ns[place], duration_ns[place]) > time) break;
      row = parent[place] < row ? parent[place] : -1;
    }
    running[at] = row;
  }
  return running;
}

}  // namespace kinetoscope
