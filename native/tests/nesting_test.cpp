// nest, link_backward and inherit_modules on random spans.
#include "core/spans/nesting.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "check.h"
#include "core/spans/linking.h"

namespace kinetoscope {
namespace {

struct Spans {
  std::vector<int32_t> thread;
  std::vector<int64_t> start_ns, duration_ns;
};

Spans random_spans(std::mt19937& random, std::size_t count) {
  std::vector<std::tuple<int32_t, int64_t, int64_t>> rows;
  for (std::size_t row = 0; row < count; ++row) {
    // The duration is kept negative for the sort: an enclosing span comes first.
    rows.emplace_back(random() % 3, random() % 50, -static_cast<int64_t>(random() % 40));
  }
  std::sort(rows.begin(), rows.end());
  Spans spans;
  for (const auto& [thread, start_ns, negative_ns] : rows) {
    spans.thread.push_back(thread);
    spans.start_ns.push_back(start_ns);
    spans.duration_ns.push_back(-negative_ns);
  }
  return spans;
}

void random_spans_nest() {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const Spans spans = random_spans(random, random() % 80);
    const Nesting nesting = nest(spans.thread, spans.start_ns, spans.duration_ns);
    int64_t roots_ns = 0, selves_ns = 0;
    for (std::size_t row = 0; row < spans.thread.size(); ++row) {
      const int32_t parent = nesting.parent[row];
      CHECK(nesting.self_ns[row] >= 0);
      selves_ns += nesting.self_ns[row];
      if (nesting.lane[row] == 0 && parent < 0) roots_ns += spans.duration_ns[row];
      if (parent < 0) continue;
      const auto above = static_cast<std::size_t>(parent);
      CHECK(above < row);
      CHECK(spans.start_ns[above] <= spans.start_ns[row]);
      CHECK(spans.start_ns[above] + spans.duration_ns[above] >= spans.start_ns[row] + spans.duration_ns[row]);
      CHECK(nesting.depth[row] == nesting.depth[above] + 1);
    }
    CHECK(roots_ns == selves_ns);
    for (std::size_t a = 0; a < spans.thread.size(); ++a) {
      for (std::size_t b = a + 1; b < spans.thread.size(); ++b) {
        const bool siblings = spans.thread[a] == spans.thread[b] && nesting.lane[a] == nesting.lane[b] &&
                              nesting.parent[a] == nesting.parent[b];
        CHECK(!siblings || spans.start_ns[a] + spans.duration_ns[a] <= spans.start_ns[b]);
      }
    }
  }
}

void extreme_times_do_not_overflow() {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
  const std::vector<int32_t> thread(3, 0);
  const std::vector<int64_t> start_ns{kMost - 9, kMost - 2, kMost}, duration_ns{kMost, kMost, kLeast};
  const Nesting nesting = nest(thread, start_ns, duration_ns);
  CHECK(nesting.parent[1] == 0);
  CHECK(nesting.self_ns[0] == 7);
}

void wrong_columns_are_refused() {
  const std::vector<int32_t> threads{0, 0};
  const std::vector<int64_t> starts{5, 4}, one{1};
  CHECK_THROWS(nest(threads, starts, starts), BadColumns);
  CHECK_THROWS(nest(threads, one, starts), BadColumns);
}

void any_links_resolve() {
  std::mt19937 random(2);
  for (int trial = 0; trial < 300; ++trial) {
    const std::size_t count = random() % 60;
    const auto column = [&](int32_t most) {
      std::vector<int32_t> values(count);
      for (int32_t& value : values)
        value = static_cast<int32_t>(random() % static_cast<uint32_t>(most + 2)) - 1;
      return values;
    };
    const auto rows = static_cast<int32_t>(count);
    const std::vector<int32_t> parent = column(rows), module = column(4), stack = column(4),
                               forward = column(rows), parameter = column(3), parameter_module{0, -1, 2};
    std::vector<uint8_t> scope(count);
    for (uint8_t& value : scope) value = static_cast<uint8_t>(random() % 2);
    const InheritedModules inherited =
        inherit_modules({parent, module, stack, forward, parameter, parameter_module, scope});
    for (std::size_t row = 0; row < count; ++row)
      CHECK(inherited.module[row] >= -1 && inherited.module[row] <= 4);

    std::vector<int32_t> thread = column(2), forward_thread = column(2);
    std::sort(thread.begin(), thread.end());
    std::vector<int64_t> start_ns(count), sequence(count);
    for (std::size_t row = 0; row < count; ++row) {
      start_ns[row] = static_cast<int64_t>(row);
      sequence[row] = static_cast<int64_t>(random() % 8) - 1;
    }
    const Column<int32_t> links = link_backward(thread, start_ns, scope, sequence, forward_thread);
    for (std::size_t row = 0; row < count; ++row) {
      int32_t last = -1;
      for (std::size_t other = 0; other < count; ++other) {
        if (thread[other] == forward_thread[row] && forward_thread[other] < 0 &&
            scope[other] != kBackwardScope && sequence[other] == sequence[row] &&
            start_ns[other] <= start_ns[row]) {
          last = static_cast<int32_t>(other);
        }
      }
      const bool links_back = scope[row] == kBackwardScope && sequence[row] >= 0;
      CHECK(links[row] == (links_back ? last : -1));
    }
  }
}

}  // namespace
}  // namespace kinetoscope

int main() {
  kinetoscope::random_spans_nest();
  kinetoscope::extreme_times_do_not_overflow();
  kinetoscope::wrong_columns_are_refused();
  kinetoscope::any_links_resolve();
  return kinetoscope::testing::checks_failed();
}
