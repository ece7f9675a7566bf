#include "linking.h"

#include <algorithm>
#include <vector>

#include "nesting.h"

namespace kinetoscope {
namespace {

// A span that may be the forward of others, found by its sequence number.
struct Candidate {
  int64_t sequence;
  int32_t row;
};

// The candidates of one thread by (sequence, row). Within a thread sequence numbers hardly ever fall, so they
// mostly come in this order.
class Candidates {
 public:
  void add(Candidate candidate) {
    sorted_ &= all_.empty() || all_.back().sequence <= candidate.sequence;
    all_.push_back(candidate);
  }

  void finish() {
    if (!sorted_) {
      std::stable_sort(all_.begin(), all_.end(),
                       [](const Candidate& a, const Candidate& b) { return a.sequence < b.sequence; });
    }
    last_ = all_.size();
  }

  // The last row of `sequence` that does not start after `start_ns`, or -1.
  int32_t last_started(int64_t sequence, int64_t start_ns, std::span<const int64_t> starts) {
    const std::size_t end = up_to(sequence);
    if (end == 0 || all_[end - 1].sequence != sequence) return -1;
    const auto started = [&](const Candidate& at) {
      return starts[static_cast<std::size_t>(at.row)] <= start_ns;
    };
    if (started(all_[end - 1])) return all_[end - 1].row;
    const auto last = all_.begin() + static_cast<std::ptrdiff_t>(end);
    const auto first = std::lower_bound(
        all_.begin(), last, sequence, [](const Candidate& at, int64_t value) { return at.sequence < value; });
    const auto after = std::partition_point(first, last, started);
    return after == first ? -1 : (after - 1)->row;
  }

 private:
  // The number of candidates up to and with `sequence`. Backward runs through sequence numbers step by step,
  // so the search starts where the last one ended and doubles its stride.
  std::size_t up_to(int64_t sequence) {
    const std::size_t size = all_.size();
    std::size_t low = 0, high = size;  // the answer is in [low, high]
    std::size_t stride = 1;
    if (last_ < size && all_[last_].sequence <= sequence) {
      low = last_ + 1;
      while (low + stride < size && all_[low + stride].sequence <= sequence) {
        low += stride + 1;
        stride *= 2;
      }
      high = std::min(size, low + stride);
    } else {
      high = std::min(last_, size);
      while (stride <= high && all_[high - stride].sequence > sequence) {
        high -= stride;
        stride *= 2;
      }
      low = stride <= high ? high - stride + 1 : 0;
    }
    const auto begin = all_.begin();
    const auto found =
        std::upper_bound(begin + static_cast<std::ptrdiff_t>(low), begin + static_cast<std::ptrdiff_t>(high),
                         sequence, [](int64_t value, const Candidate& at) { return value < at.sequence; });
    last_ = static_cast<std::size_t>(found - begin);
    return last_;
  }

  std::vector<Candidate> all_;
  std::size_t last_ = 0;
  bool sorted_ = true;
};

// Resolves the modules: each span once, after its parent and its forward span.
class ModuleResolver {
 public:
  explicit ModuleResolver(const SpanOrigins& spans)
      : spans_(spans),
        rows_(spans.parent.size()),
        result_{Column<int32_t>(rows_), Column<int32_t>(rows_)},
        under_(rows_),
        state_(rows_, State::Waiting) {}

  InheritedModules run() {
    for (std::size_t row = 0; row < rows_; ++row) {
      if (state_[row] == State::Waiting) resolve(row);
    }
    return std::move(result_);
  }

 private:
  enum class State : uint8_t { Waiting, Open, Done };

  bool exists(int32_t row) const { return static_cast<std::size_t>(row) < rows_; }
  bool waits(int32_t row) const {
    return exists(row) && state_[static_cast<std::size_t>(row)] == State::Waiting;
  }
  bool done(int32_t row) const { return exists(row) && state_[static_cast<std::size_t>(row)] == State::Done; }

  // The backward span whose links a span takes: its own, or a wrapper's first child's; -1 for all others.
  int32_t source_of(std::size_t row) const {
    if (spans_.scope[row] == kBackwardScope) return static_cast<int32_t>(row);
    const std::size_t child = row + 1;
    const bool wraps = child < rows_ && spans_.scope[child] == kBackwardScope &&
                       static_cast<std::size_t>(spans_.parent[child]) == row;
    return wraps ? static_cast<int32_t>(child) : -1;
  }

  int32_t forward_of(std::size_t row) const {
    const int32_t source = source_of(row);
    return source < 0 ? -1 : spans_.forward[static_cast<std::size_t>(source)];
  }

  void resolve(std::size_t first) {
    if (!waits(spans_.parent[first]) && !waits(forward_of(first))) {
      settle(first);
      return;
    }
    pending_.push_back(first);
    while (!pending_.empty()) {
      const std::size_t row = pending_.back();
      if (state_[row] == State::Waiting) {
        // What is open already waits for this row: a cycle, whose link settle() leaves out.
        state_[row] = State::Open;
        const int32_t parent = spans_.parent[row], forward = forward_of(row);
        if (waits(parent)) pending_.push_back(static_cast<std::size_t>(parent));
        if (waits(forward)) pending_.push_back(static_cast<std::size_t>(forward));
        if (pending_.back() != row) continue;
      }
      pending_.pop_back();
      if (state_[row] == State::Open) settle(row);
    }
  }

  void settle(std::size_t row) {
    const int32_t parent = spans_.parent[row], source = source_of(row);
    const bool has_parent = done(parent);
    const auto above = static_cast<std::size_t>(parent);
    int32_t module = -1, forward_stack = -1;
    int32_t under = has_parent ? under_[above] : -1;
    if (source >= 0) {
      const auto links = static_cast<std::size_t>(source);
      const int32_t forward = spans_.forward[links];
      const auto parameter = static_cast<std::size_t>(spans_.parameter[links]);
      if (done(forward)) {
        module = result_.module[static_cast<std::size_t>(forward)];
        forward_stack = spans_.stack[static_cast<std::size_t>(forward)];
      }
      if (module < 0 && parameter < spans_.parameter_module.size())
        module = spans_.parameter_module[parameter];
      under = static_cast<int32_t>(row);
    } else if (under >= 0 && spans_.module[row] == spans_.module[static_cast<std::size_t>(under)]) {
      module = result_.module[above];
    }
    if (module < 0) module = spans_.module[row];
    if (has_parent && module < 0) module = result_.module[above];
    if (has_parent && forward_stack < 0) forward_stack = result_.forward_stack[above];
    result_.module[row] = module;
    result_.forward_stack[row] = forward_stack;
    under_[row] = under;
    state_[row] = State::Done;
  }

  const SpanOrigins spans_;
  const std::size_t rows_;
  InheritedModules result_;
  Column<int32_t> under_;  // the nearest span, itself included, that has a source
  std::vector<State> state_;
  std::vector<std::size_t> pending_;
};

}  // namespace

Column<int32_t> link_backward(std::span<const int32_t> thread, std::span<const int64_t> start_ns,
                              std::span<const uint8_t> scope, std::span<const int64_t> sequence,
                              std::span<const int32_t> forward_thread) {
  const std::size_t rows = thread.size();
  if (start_ns.size() != rows || scope.size() != rows || sequence.size() != rows ||
      forward_thread.size() != rows) {
    throw BadColumns("link_backward: the columns have different lengths");
  }
  std::vector<int32_t> known;  // threads with candidates, ascending
  std::vector<Candidates> candidates;
  for (std::size_t row = 0; row < rows; ++row) {
    if (row > 0 && thread[row] < thread[row - 1])
      throw BadColumns("link_backward: the spans are not sorted by thread");
    if (sequence[row] < 0 || scope[row] == kBackwardScope || forward_thread[row] >= 0) continue;
    if (known.empty() || known.back() != thread[row]) {
      known.push_back(thread[row]);
      candidates.emplace_back();
    }
    candidates.back().add({sequence[row], static_cast<int32_t>(row)});
  }
  for (Candidates& of_thread : candidates) of_thread.finish();

  Column<int32_t> forward(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    forward[row] = -1;
    if (scope[row] != kBackwardScope || sequence[row] < 0) continue;
    const auto at = std::lower_bound(known.begin(), known.end(), forward_thread[row]);
    if (at == known.end() || *at != forward_thread[row]) continue;
    Candidates& of_thread = candidates[static_cast<std::size_t>(at - known.begin())];
    forward[row] = of_thread.last_started(sequence[row], start_ns[row], start_ns);
  }
  return forward;
}

InheritedModules inherit_modules(const SpanOrigins& spans) {
  const std::size_t rows = spans.parent.size();
  if (spans.module.size() != rows || spans.stack.size() != rows || spans.forward.size() != rows ||
      spans.parameter.size() != rows || spans.scope.size() != rows) {
    throw BadColumns("inherit_modules: the columns have different lengths");
  }
  return ModuleResolver(spans).run();
}

}  // namespace kinetoscope
