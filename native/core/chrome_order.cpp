#include "chrome_order.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>

namespace kinetoscope {
namespace {

// What lies around what, where both begin and end at the same time: calls around ranges around operators
// around calls into the runtime.
uint8_t outwardness(uint8_t kind) {
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

// Sorts by merging what is in order already: the events of a thread come in few such runs. Stable.
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
  std::vector<std::size_t> begins(threads.size() + 1, 0);
  for (std::size_t row = 0; row < rows; ++row) {
    ++begins[static_cast<std::size_t>(made.thread_rows[static_cast<std::size_t>(events.spans.thread[row])]) +
             1];
  }
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  made.order = Column<int32_t>(rows);
  std::vector<std::size_t> next(begins.begin(), begins.end());
  for (std::size_t row = 0; row < rows; ++row) {
    const int32_t thread = made.thread_rows[static_cast<std::size_t>(events.spans.thread[row])];
    made.order[next[static_cast<std::size_t>(thread)]++] = static_cast<int32_t>(row);
  }
  const Before before(events.spans);
  std::size_t longest = 0;
  for (std::size_t thread = 0; thread < threads.size(); ++thread) {
    longest = std::max(longest, begins[thread + 1] - begins[thread]);
  }
  Column<int32_t> spare(longest);
  for (std::size_t thread = 0; thread < threads.size(); ++thread) {
    sort_runs(made.order.data() + begins[thread], made.order.data() + begins[thread + 1], spare.data(),
              before);
  }
  return made;
}

ChromeStacks stack_spans(const ChromeSpanRows& spans, const ChromeOrder& order) {
  struct Open {
    int64_t end_ns;
    int32_t stack, module;
  };
  ChromeStacks made;
  std::unordered_map<uint64_t, int32_t> stacks, modules;
  const auto below = [](std::unordered_map<uint64_t, int32_t>& known, std::vector<int32_t>& parents,
                        std::vector<int32_t>& names, int32_t parent, int32_t own_name) {
    const uint64_t key =
        static_cast<uint64_t>(static_cast<uint32_t>(parent)) << 32 | static_cast<uint32_t>(own_name);
    const auto [place, fresh] = known.emplace(key, static_cast<int32_t>(parents.size()));
    if (fresh) {
      parents.push_back(parent);
      names.push_back(own_name);
    }
    return place->second;
  };
  // A module is one instance whoever calls it: its name alone identifies it.
  const auto module_named = [&](int32_t caller, int32_t own_name) {
    const auto [place, fresh] = modules.emplace(static_cast<uint64_t>(static_cast<uint32_t>(own_name)),
                                                static_cast<int32_t>(made.module_name.size()));
    if (fresh) {
      made.module_caller.push_back(caller);
      made.module_name.push_back(own_name);
    }
    return place->second;
  };
  std::vector<Open> open;
  int64_t last_thread = -1;
  for (std::size_t row = 0; row < order.order.size(); ++row) {
    const std::size_t taken = static_cast<std::size_t>(order.order[row]);
    const int64_t start_ns = spans.start_ns[taken];
    const uint8_t kind = spans.kind[taken];
    const int32_t name = static_cast<int32_t>(spans.name[taken]);
    if (spans.thread[taken] != last_thread) open.clear();
    last_thread = spans.thread[taken];
    while (!open.empty() && open.back().end_ns <= start_ns) open.pop_back();
    int32_t stack = open.empty() ? -1 : open.back().stack, module = open.empty() ? -1 : open.back().module;
    if (kind == kKindPython) stack = below(stacks, made.stack_parent, made.stack_name, stack, name);
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
