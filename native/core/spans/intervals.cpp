#include "intervals.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "nesting.h"

namespace kinetoscope {
namespace {

void check(const Stretches& stretches) {
  if (stretches.start_ns.size() != stretches.end_ns.size())
    throw BadColumns("intervals: starts and ends have different lengths");
}

// Writes stretches that come in order of their starts, joined where they touch.
class Writer {
 public:
  explicit Writer(std::size_t most) : made_{Column<int64_t>(most), Column<int64_t>(most)} {}

  void add(int64_t start_ns, int64_t end_ns) {
    if (end_ns <= start_ns) return;
    if (rows_ > 0 && start_ns <= made_.end_ns[rows_ - 1]) {
      made_.end_ns[rows_ - 1] = std::max(made_.end_ns[rows_ - 1], end_ns);
      return;
    }
    made_.start_ns[rows_] = start_ns;
    made_.end_ns[rows_++] = end_ns;
  }

  Moments done() {
    made_.start_ns.shrink(rows_);
    made_.end_ns.shrink(rows_);
    return std::move(made_);
  }

 private:
  Moments made_;
  std::size_t rows_ = 0;
};

}  // namespace

Moments unite(const Stretches& stretches) {
  check(stretches);
  const auto [start_ns, end_ns] = stretches;
  Writer writer(start_ns.size());
  if (std::is_sorted(start_ns.begin(), start_ns.end())) {
    for (std::size_t row = 0; row < start_ns.size(); ++row) writer.add(start_ns[row], end_ns[row]);
    return writer.done();
  }
  std::vector<std::pair<int64_t, int64_t>> sorted(start_ns.size());
  for (std::size_t row = 0; row < sorted.size(); ++row) sorted[row] = {start_ns[row], end_ns[row]};
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [start, end] : sorted) writer.add(start, end);
  return writer.done();
}

LayeredMoments first_layers(const Stretches& windows, std::span<const Stretches> layers) {
  check(windows);
  std::size_t edges = windows.start_ns.size();
  for (const Stretches& layer : layers) {
    check(layer);
    edges += 2 * layer.start_ns.size();
  }
  struct Moment {
    int64_t window, stretch, start_ns, end_ns;
  };
  std::vector<Moment> moments;
  moments.reserve(edges);
  std::vector<std::size_t> next(layers.size());
  std::vector<std::size_t> first_stretch(layers.size());
  for (std::size_t layer = 1; layer < layers.size(); ++layer)
    first_stretch[layer] = first_stretch[layer - 1] + layers[layer - 1].start_ns.size();
  for (std::size_t window = 0; window < windows.start_ns.size(); ++window) {
    const int64_t end_ns = windows.end_ns[window];
    int64_t time_ns = windows.start_ns[window];
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      const std::span<const int64_t> ends = layers[layer].end_ns;
      next[layer] =
          static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), time_ns) - ends.begin());
    }
    while (time_ns < end_ns) {
      Moment moment{static_cast<int64_t>(window), -1, time_ns, end_ns};
      for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        const auto [starts, ends] = layers[layer];
        std::size_t& stretch = next[layer];
        while (stretch < ends.size() && ends[stretch] <= time_ns) ++stretch;
        if (stretch == ends.size()) continue;
        if (starts[stretch] > time_ns) {
          moment.end_ns = std::min(moment.end_ns, starts[stretch]);
          continue;
        }
        moment.stretch = static_cast<int64_t>(first_stretch[layer] + stretch);
        moment.end_ns = std::min(moment.end_ns, ends[stretch]);
        break;
      }
      moments.push_back(moment);
      time_ns = moment.end_ns;
    }
  }
  const std::size_t count = moments.size();
  LayeredMoments columns{Column<int64_t>(count), Column<int64_t>(count), Column<int64_t>(count),
                         Column<int64_t>(count)};
  for (std::size_t row = 0; row < count; ++row) {
    columns.window[row] = moments[row].window;
    columns.stretch[row] = moments[row].stretch;
    columns.start_ns[row] = moments[row].start_ns;
    columns.end_ns[row] = moments[row].end_ns;
  }
  return columns;
}

Moments join(const Stretches& one, const Stretches& other) {
  check(one);
  check(other);
  const std::size_t ones = one.start_ns.size(), others = other.start_ns.size();
  Writer writer(ones + others);
  for (std::size_t a = 0, b = 0; a < ones || b < others;) {
    if (b == others || (a < ones && one.start_ns[a] <= other.start_ns[b])) {
      writer.add(one.start_ns[a], one.end_ns[a]);
      ++a;
    } else {
      writer.add(other.start_ns[b], other.end_ns[b]);
      ++b;
    }
  }
  return writer.done();
}

Moments intersect(const Stretches& one, const Stretches& other) {
  check(one);
  check(other);
  Writer writer(one.start_ns.size() + other.start_ns.size());
  for (std::size_t a = 0, b = 0; a < one.start_ns.size() && b < other.start_ns.size();) {
    writer.add(std::max(one.start_ns[a], other.start_ns[b]), std::min(one.end_ns[a], other.end_ns[b]));
    if (one.end_ns[a] < other.end_ns[b]) {
      ++a;
    } else {
      ++b;
    }
  }
  return writer.done();
}

Moments subtract(const Stretches& one, const Stretches& other) {
  check(one);
  check(other);
  Writer writer(one.start_ns.size() + other.start_ns.size());
  std::size_t hole = 0;
  for (std::size_t row = 0; row < one.start_ns.size(); ++row) {
    int64_t from_ns = one.start_ns[row];
    const int64_t end_ns = one.end_ns[row];
    while (hole < other.end_ns.size() && other.end_ns[hole] <= from_ns) ++hole;
    for (std::size_t at = hole; at < other.start_ns.size() && other.start_ns[at] < end_ns; ++at) {
      writer.add(from_ns, other.start_ns[at]);
      from_ns = std::max(from_ns, other.end_ns[at]);
      hole = at;
    }
    writer.add(from_ns, end_ns);
  }
  return writer.done();
}

Column<int64_t> length_before(const Stretches& set, std::span<const int64_t> time_ns) {
  check(set);
  // Unsigned: sums of hostile lengths wrap.
  std::vector<uint64_t> sums(set.start_ns.size() + 1, 0);
  for (std::size_t row = 0; row < set.start_ns.size(); ++row) {
    sums[row + 1] =
        sums[row] + (static_cast<uint64_t>(set.end_ns[row]) - static_cast<uint64_t>(set.start_ns[row]));
  }
  Column<int64_t> length(time_ns.size());
  std::size_t begun = 0;
  for (std::size_t row = 0; row < time_ns.size(); ++row) {
    // Moments mostly come in order: the stretch of one is that of the last one or the next.
    const bool near = begun == 0 || set.start_ns[begun - 1] <= time_ns[row];
    if (near && begun < set.start_ns.size() && set.start_ns[begun] <= time_ns[row]) ++begun;
    if (!near || (begun < set.start_ns.size() && set.start_ns[begun] <= time_ns[row])) {
      begun = static_cast<std::size_t>(
          std::upper_bound(set.start_ns.begin(), set.start_ns.end(), time_ns[row]) - set.start_ns.begin());
    }
    uint64_t before = sums[begun];
    if (begun > 0 && set.end_ns[begun - 1] > time_ns[row])
      before -= static_cast<uint64_t>(set.end_ns[begun - 1]) - static_cast<uint64_t>(time_ns[row]);
    length[row] = static_cast<int64_t>(before);
  }
  return length;
}

}  // namespace kinetoscope
