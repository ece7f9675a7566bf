#include "order.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>

namespace kinetoscope {
namespace {

// What encloses what, if both begin and end at the same time: calls enclose ranges, ranges operators,
// operators calls of the runtime.
uint8_t outwardness(int64_t kind) {
  switch (kind) {
    case kKindPython:
    case kKindModule:
      return 0;
    case 2:
    case 3:
      return 1;  // ranges and steps
    case 0:
    case 1:
    case 13:
      return 2;  // operators, backward functions, collectives
    default:
      return 3;
  }
}

class Before {
 public:
  explicit Before(const ChromeSpanRows& spans) : spans_(spans) {}
  bool operator()(int32_t left, int32_t right) const {
    const std::size_t a = static_cast<std::size_t>(left), b = static_cast<std::size_t>(right);
    const int64_t start_a = spans_.start_ns[a], start_b = spans_.start_ns[b];
    if (start_a != start_b) return start_a < start_b;
    const int64_t long_a = spans_.duration_ns[a], long_b = spans_.duration_ns[b];
    if (long_a != long_b) return long_a > long_b;
    return outwardness(spans_.kind[a]) < outwardness(spans_.kind[b]);
  }

 private:
  const ChromeSpanRows& spans_;
};

// A stable merge sort of runs that are sorted already: the events of a thread are in few such runs.
void sort_runs(int32_t* begin, int32_t* end, int32_t* spare, const Before& before) {
  std::vector<std::ptrdiff_t> runs{0};
  for (std::ptrdiff_t at = 1; at < end - begin; ++at) {
    if (before(begin[at], begin[at - 1])) runs.push_back(at);
  }
  runs.push_back(end - begin);
  int32_t *from = begin, *to = spare;
  while (runs.size() > 2) {
    std::vector<std::ptrdiff_t> merged;
    std::size_t run = 0;
    for (; run + 2 < runs.size(); run += 2) {
      std::merge(from + runs[run], from + runs[run + 1], from + runs[run + 1], from + runs[run + 2],
                 to + runs[run], before);
      merged.push_back(runs[run]);
    }
    if (run + 1 < runs.size()) {
      std::copy(from + runs[run], from + runs[run + 1], to + runs[run]);
      merged.push_back(runs[run]);
    }
    merged.push_back(end - begin);
    runs = std::move(merged);
    std::swap(from, to);
  }
  if (from != begin) std::copy(from, from + (end - begin), begin);
}

// Whether the spans are in the order of the trace already, as those of a single thread often are.
template <typename ThreadOf>
bool in_order(std::size_t rows, const ThreadOf& thread_of, const Before& before) {
  std::size_t last_thread = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t thread = thread_of(row);
    if (thread < last_thread) return false;
    if (thread == last_thread && row > 0 &&
        before(static_cast<int32_t>(row), static_cast<int32_t>(row - 1))) {
      return false;
    }
    last_thread = thread;
  }
  return true;
}

}  // namespace

ChromeOrder order_spans(const ChromeEvents& events) {
  const auto& threads = events.threads;
  std::vector<int32_t> sorted(threads.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::stable_sort(sorted.begin(), sorted.end(), [&threads](int32_t left, int32_t right) {
    const auto key = [&threads](int32_t row) {
      const ChromeThread& thread = threads[static_cast<std::size_t>(row)];
      return std::tie(thread.on_device, thread.process, thread.number);
    };
    return key(left) < key(right);
  });
  ChromeOrder made;
  made.thread_rows.resize(threads.size());
  for (std::size_t row = 0; row < sorted.size(); ++row) {
    made.thread_rows[static_cast<std::size_t>(sorted[row])] = static_cast<int32_t>(row);
  }
  const std::size_t rows = events.spans.rows;
  const auto thread_of = [&events, &made](std::size_t row) {
    return static_cast<std::size_t>(made.thread_rows[static_cast<std::size_t>(events.spans.thread[row])]);
  };
  made.first_rows.assign(threads.size() + 1, 0);
  for (std::size_t row = 0; row < rows; ++row) ++made.first_rows[thread_of(row) + 1];
  std::partial_sum(made.first_rows.begin(), made.first_rows.end(), made.first_rows.begin());
  const Before before(events.spans);
  if (in_order(rows, thread_of, before)) return made;
  Column<int32_t> order(rows);
  std::vector<std::size_t> next(made.first_rows.begin(), made.first_rows.end());
  for (std::size_t row = 0; row < rows; ++row) order[next[thread_of(row)]++] = static_cast<int32_t>(row);
  std::size_t longest = 0;
  for (std::size_t thread = 0; thread < threads.size(); ++thread) {
    longest = std::max(longest, made.first_rows[thread + 1] - made.first_rows[thread]);
  }
  // Its pages are only allocated when runs are merged into them.
  Column<int32_t> spare(longest);
  for (std::size_t thread = 0; thread < threads.size(); ++thread) {
    int32_t* const begin = order.data() + made.first_rows[thread];
    int32_t* const end = order.data() + made.first_rows[thread + 1];
    sort_runs(begin, end, spare.data(), before);
  }
  spare = Column<int32_t>();
  for (std::size_t row = 0; row < rows; ++row) made.order.append(order[row]);
  return made;
}

namespace {

// Pairs of a parent and a name, numbered as they come.
class Tree {
 public:
  Tree(std::vector<int32_t>& parents, std::vector<int32_t>& names) : parents_(parents), names_(names) {
    slots_.assign(64, -1);
  }

  int32_t below(int32_t parent, int32_t name) {
    std::size_t at = place(parent, name);
    for (; slots_[at] >= 0; at = (at + 1) & (slots_.size() - 1)) {
      const std::size_t row = static_cast<std::size_t>(slots_[at]);
      if (parents_[row] == parent && names_[row] == name) return slots_[at];
    }
    const int32_t row = static_cast<int32_t>(parents_.size());
    slots_[at] = row;
    parents_.push_back(parent);
    names_.push_back(name);
    if (parents_.size() * 2 > slots_.size()) grow();
    return row;
  }

 private:
  std::size_t place(int32_t parent, int32_t name) const {
    const uint64_t key =
        static_cast<uint64_t>(static_cast<uint32_t>(parent)) << 32 | static_cast<uint32_t>(name);
    const uint64_t mixed = key * 0x9E3779B97F4A7C15ull;
    return (mixed ^ mixed >> 32) & (slots_.size() - 1);
  }
  void grow() {
    slots_.assign(slots_.size() * 2, -1);
    for (std::size_t row = 0; row < parents_.size(); ++row) {
      std::size_t at = place(parents_[row], names_[row]);
      while (slots_[at] >= 0) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = static_cast<int32_t>(row);
    }
  }

  std::vector<int32_t>& parents_;
  std::vector<int32_t>& names_;
  std::vector<int32_t> slots_;
};

}  // namespace

ChromeStacks stack_spans(const ChromeSpanRows& spans, const ChromeOrder& order) {
  struct Open {
    int64_t end_ns;
    int32_t stack, module;
  };
  ChromeStacks made;
  Tree stacks(made.stack_parent, made.stack_name);
  std::unordered_map<int32_t, int32_t> modules;
  // A module is one instance whoever calls it: its name alone identifies it.
  const auto module_named = [&](int32_t caller, int32_t own_name) {
    const auto [place, fresh] = modules.emplace(own_name, static_cast<int32_t>(made.module_name.size()));
    if (fresh) {
      made.module_caller.push_back(caller);
      made.module_name.push_back(own_name);
    }
    return place->second;
  };
  std::vector<Open> open;
  int64_t last_thread = -1;
  for (std::size_t row = 0; row < order.rows(); ++row) {
    const std::size_t taken = static_cast<std::size_t>(order.order[row]);
    const int64_t start_ns = spans.start_ns[taken];
    const int64_t kind = spans.kind[taken];
    const int32_t name = static_cast<int32_t>(spans.name[taken]);
    if (spans.thread[taken] != last_thread) open.clear();
    last_thread = spans.thread[taken];
    while (!open.empty() && open.back().end_ns <= start_ns) open.pop_back();
    int32_t stack = open.empty() ? -1 : open.back().stack, module = open.empty() ? -1 : open.back().module;
    if (kind == kKindPython) stack = stacks.below(stack, name);
    if (kind == kKindModule) module = module_named(module, name);
    made.own_stack.set(row, stack);
    made.own_module.set(row, module);
    if (kind != kKindPython && kind != kKindModule) continue;
    int64_t end_ns;
    if (__builtin_add_overflow(start_ns, spans.duration_ns[taken], &end_ns)) end_ns = INT64_MAX;
    open.push_back({end_ns, stack, module});
  }
  return made;
}

}  // namespace kinetoscope
