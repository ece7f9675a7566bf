#include "clock.h"

#include <algorithm>
#include <limits>

namespace kinetoscope {
namespace {

constexpr int64_t kMaxNs = std::numeric_limits<int64_t>::max();
constexpr uint64_t kMaxTick = std::numeric_limits<uint64_t>::max();
// 56 fractional bits: an error below one nanosecond for more than a year of ticks.
constexpr unsigned kShift = 56;

struct Rate {
  uint64_t value;
  unsigned shift;
};

// The largest rate of at most kShift fractional bits that does not run ahead of the pairs.
Rate rate_between(uint64_t ticks, uint64_t elapsed_ns) {
  unsigned shift = kShift;
  while (true) {
    const unsigned __int128 value = (static_cast<unsigned __int128>(elapsed_ns) << shift) / ticks;
    if (value <= kMaxTick) return {static_cast<uint64_t>(value), shift};
    --shift;
  }
}

int64_t saturate(__int128 value) {
  if (value > kMaxNs) return kMaxNs;
  if (value < std::numeric_limits<int64_t>::min()) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(value);
}

// Pairs whose tick and time both advance: a hostile or torn pair must not bend time backwards.
std::vector<ClockPair> advancing(std::span<const ClockPair> pairs) {
  std::vector<ClockPair> kept;
  for (const ClockPair& pair : pairs) {
    if (pair.tick == 0 || pair.monotonic_ns < 0) continue;
    if (!kept.empty() && (pair.tick <= kept.back().tick || pair.monotonic_ns <= kept.back().monotonic_ns))
      continue;
    kept.push_back(pair);
  }
  return kept;
}

}  // namespace

TickClock::TickClock(uint32_t clock, uint64_t start_tick, std::span<const ClockPair> pairs) {
  const std::vector<ClockPair> kept = advancing(pairs);
  const bool ticks_are_ns = clock == 0;
  Rate overall{uint64_t{1} << kShift, kShift};
  if (!ticks_are_ns) {
    calibrated_ = kept.size() >= 2;
    if (calibrated_) {
      overall = rate_between(kept.back().tick - kept.front().tick,
                             static_cast<uint64_t>(kept.back().monotonic_ns - kept.front().monotonic_ns));
    }
  }
  // Distances on the straight line through the first and the last pair, from the start; negative before it.
  const auto on_line = [&](uint64_t tick) {
    const bool before = tick < start_tick;
    const uint64_t distance = before ? start_tick - tick : tick - start_tick;
    const auto elapsed =
        static_cast<__int128>((static_cast<unsigned __int128>(distance) * overall.value) >> overall.shift);
    return before ? -elapsed : elapsed;
  };
  if (!kept.empty()) {
    const ClockPair& first = kept.front();
    start_realtime_ns_ = saturate(static_cast<__int128>(first.realtime_ns) - on_line(first.tick));
    start_monotonic_ns_ = saturate(static_cast<__int128>(first.monotonic_ns) - on_line(first.tick));
    for (const ClockPair& pair : kept) {
      const __int128 expected = on_line(pair.tick);
      const __int128 measured =
          on_line(first.tick) + (static_cast<__int128>(pair.monotonic_ns) - first.monotonic_ns);
      checks_.push_back({saturate(expected), saturate(measured - expected)});
    }
  }

  pieces_.push_back({start_tick, kMaxTick, 0, kMaxNs, overall.value, overall.shift});
  if (ticks_are_ns || !calibrated_) return;

  // Pairs up to the start only say at which time it lies; each later one begins a piece of its own.
  __int128 start_ns = static_cast<__int128>(kept.front().monotonic_ns) - on_line(kept.front().tick);
  for (std::size_t at = 0; at < kept.size(); ++at) {
    const ClockPair& pair = kept[at];
    Rate rate = overall;
    if (at + 1 < kept.size()) {
      rate = rate_between(kept[at + 1].tick - pair.tick,
                          static_cast<uint64_t>(kept[at + 1].monotonic_ns - pair.monotonic_ns));
    }
    ClockPiece& previous = pieces_.back();
    if (pair.tick <= start_tick) {
      const auto elapsed =
          (static_cast<unsigned __int128>(start_tick - pair.tick) * rate.value) >> rate.shift;
      start_ns = static_cast<__int128>(pair.monotonic_ns) + static_cast<__int128>(elapsed);
      start_realtime_ns_ = saturate(static_cast<__int128>(pair.realtime_ns) + static_cast<__int128>(elapsed));
      start_monotonic_ns_ = saturate(start_ns);
      previous.rate = rate.value;
      previous.shift = rate.shift;
      continue;
    }
    const int64_t at_ns =
        std::max(saturate(static_cast<__int128>(pair.monotonic_ns) - start_ns), previous.first_ns);
    previous.last_tick = pair.tick - 1;
    previous.last_ns = at_ns;
    pieces_.push_back({pair.tick, kMaxTick, at_ns, kMaxNs, rate.value, rate.shift});
  }
}

const ClockPiece& TickClock::piece_of(uint64_t tick) const {
  const auto after =
      std::upper_bound(pieces_.begin(), pieces_.end(), tick,
                       [](uint64_t value, const ClockPiece& piece) { return value < piece.first_tick; });
  return after == pieces_.begin() ? pieces_.front() : *(after - 1);
}

}  // namespace kinetoscope
