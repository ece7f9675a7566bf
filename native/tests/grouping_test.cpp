// group_rows, reduce_groups, descends_from_same and attribute_allocations on random columns.
#include "core/spans/grouping.h"

#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "check.h"
#include "core/spans/allocations.h"
#include "core/spans/nesting.h"

namespace kinetoscope {
namespace {

void groups_are_the_equal_rows() {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t count = random() % 200;
    std::vector<int32_t> narrow(count);
    std::vector<int64_t> wide(count);
    for (std::size_t row = 0; row < count; ++row) {
      narrow[row] = trial % 2 == 0 ? static_cast<int32_t>(random() % 5) : static_cast<int32_t>(random());
      wide[row] = trial % 3 == 0 ? static_cast<int64_t>(random()) : static_cast<int64_t>(random() % 4) - 2;
    }
    const std::vector<KeyColumn> keys{std::span<const int32_t>(narrow), std::span<const int64_t>(wide)};
    const Grouping grouping = group_rows(keys, {});
    std::map<std::pair<int32_t, int64_t>, int32_t> expected;
    for (std::size_t row = 0; row < count; ++row) {
      const auto [at, added] =
          expected.try_emplace({narrow[row], wide[row]}, static_cast<int32_t>(expected.size()));
      CHECK(grouping.group_of[row] == at->second);
      if (added) CHECK(grouping.first_row[static_cast<std::size_t>(at->second)] == static_cast<int32_t>(row));
    }
    CHECK(grouping.first_row.size() == expected.size());
  }
}

void sums_of_anything_are_defined() {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::vector<int32_t> group_of{0, 0, -1, 2};
  const std::vector<int64_t> values{kMost, kMost, 5, -7};
  const std::vector<uint8_t> skip{0, 0, 0, 1};
  const Column<int64_t> sums = reduce_groups(Reduction::Sum, group_of, 3, values, {});
  CHECK(sums[0] == -2 && sums[1] == 0 && sums[2] == -7);
  CHECK(reduce_groups(Reduction::Least, group_of, 3, values, skip)[2] == 0);
  CHECK(reduce_groups(Reduction::Most, group_of, 3, values, {})[0] == kMost);
  CHECK(reduce_groups(Reduction::Count, group_of, 3, {}, skip)[0] == 2);
  CHECK_THROWS(reduce_groups(Reduction::Count, group_of, 2, {}, {}), BadColumns);
  CHECK_THROWS(reduce_groups(Reduction::Sum, group_of, 3, {}, {}), BadColumns);
}

void ancestors_with_the_same_key_are_found() {
  std::mt19937 random(4);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t count = random() % 60;
    std::vector<int32_t> parent(count), key(count);
    for (std::size_t row = 0; row < count; ++row) {
      parent[row] = static_cast<int32_t>(random() % (row + 1)) - 1;
      key[row] = static_cast<int32_t>(random() % 4);
    }
    const Column<uint8_t> descends = descends_from_same(parent, key);
    for (std::size_t row = 0; row < count; ++row) {
      int32_t above = parent[row];
      while (above >= 0 && key[static_cast<std::size_t>(above)] != key[row])
        above = parent[static_cast<std::size_t>(above)];
      CHECK((descends[row] != 0) == (above >= 0));
    }
  }
}

void bytes_of_hostile_events_are_defined() {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 100; ++trial) {
    const std::size_t rows = random() % 40, count = random() % 80;
    std::vector<int32_t> span_thread(rows), parent(rows), lane(rows), thread(count);
    std::vector<int64_t> start_ns(rows), duration_ns(rows), time_ns(count), bytes(count);
    std::vector<int64_t> freed_bytes(trial % 2 == 0 ? 0 : count);
    std::vector<uint64_t> address(count);
    for (std::size_t row = 0; row < rows; ++row) {
      span_thread[row] = static_cast<int32_t>(row / 20);
      start_ns[row] = static_cast<int64_t>(row % 20);
      duration_ns[row] = static_cast<int64_t>(random());
      parent[row] = static_cast<int32_t>(random() % (rows + 5)) - 2;
      lane[row] = static_cast<int32_t>(random() % 2);
    }
    for (std::size_t event = 0; event < count; ++event) {
      time_ns[event] = static_cast<int64_t>(event / 2);
      thread[event] = static_cast<int32_t>(random() % 3);
      address[event] = random() % 6;
      bytes[event] = random() % 2 == 0 ? 0 : static_cast<int64_t>(random());
      if (!freed_bytes.empty()) freed_bytes[event] = static_cast<int64_t>(random());
    }
    const AttributedAllocations attributed = attribute_allocations(
        {span_thread, start_ns, duration_ns, parent, lane}, {time_ns, thread, address, bytes, freed_bytes});
    std::set<int32_t> matched;
    for (std::size_t event = 0; event < count; ++event) {
      const int32_t match = attributed.match[event];
      CHECK(attributed.span[event] < static_cast<int32_t>(rows));
      if (match < 0) continue;
      CHECK(attributed.match[static_cast<std::size_t>(match)] == static_cast<int32_t>(event));
      CHECK(matched.insert(match).second);
    }
  }
}

}  // namespace
}  // namespace kinetoscope

int main() {
  kinetoscope::groups_are_the_equal_rows();
  kinetoscope::sums_of_anything_are_defined();
  kinetoscope::ancestors_with_the_same_key_are_found();
  kinetoscope::bytes_of_hostile_events_are_defined();
  return kinetoscope::testing::checks_failed();
}
