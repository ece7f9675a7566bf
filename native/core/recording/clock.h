// Converts ticks of a recording's counter to nanoseconds since its start.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format.h"

namespace kinetoscope {

// A linear piece of the conversion, in 128-bit fixed point: ns = first_ns + (tick - first_tick) * rate /
// 2^shift. The rate is rounded down, so a piece never ends above the start of the next and time never runs
// backwards.
struct ClockPiece {
  uint64_t first_tick;
  uint64_t last_tick;
  int64_t first_ns;
  int64_t last_ns;
  uint64_t rate;
  unsigned shift;

  int64_t to_ns(uint64_t tick) const {
    if (tick <= first_tick) return first_ns;
    const unsigned __int128 product = static_cast<unsigned __int128>(tick - first_tick) * rate;
    const unsigned __int128 elapsed = product >> shift;
    const auto room = static_cast<uint64_t>(last_ns) - static_cast<uint64_t>(first_ns);
    return elapsed > room
               ? last_ns
               : static_cast<int64_t>(static_cast<uint64_t>(first_ns) + static_cast<uint64_t>(elapsed));
  }
};

// The deviation of a clock pair from the line through the first and the last pair.
struct ClockCheck {
  int64_t time_ns;
  int64_t error_ns;
};

// Piecewise linear through the clock pairs, monotone, saturating, with time 0 at the recording's first tick.
class TickClock {
 public:
  // `pairs` that do not advance are ignored. With fewer than two left there is no rate: ticks then count as
  // nanoseconds, which is exact for clock 0 and marked by calibrated() == false for the others.
  TickClock(uint32_t clock, uint64_t start_tick, std::span<const ClockPair> pairs);

  // Ticks before the start give 0.
  int64_t to_ns(uint64_t tick) const { return piece_of(tick).to_ns(tick); }

  // The piece that contains `tick`; callers with ordered ticks reuse it as long as it contains them.
  const ClockPiece& piece_of(uint64_t tick) const;

  bool calibrated() const { return calibrated_; }
  int64_t start_realtime_ns() const { return start_realtime_ns_; }
  // The kernel's monotonic clock at the start, by which recordings of one machine are aligned; -1 if unknown.
  int64_t start_monotonic_ns() const { return start_monotonic_ns_; }
  const std::vector<ClockCheck>& checks() const { return checks_; }

 private:
  std::vector<ClockPiece> pieces_;
  std::vector<ClockCheck> checks_;
  int64_t start_realtime_ns_ = 0;
  int64_t start_monotonic_ns_ = -1;
  bool calibrated_ = true;
};

// Converts mostly ordered ticks: caches the last piece.
class TickReader {
 public:
  TickReader(const TickClock& clock, uint64_t start_tick)
      : clock_(clock), piece_(&clock.piece_of(start_tick)) {}

  int64_t to_ns(uint64_t tick) {
    if (tick < piece_->first_tick || tick > piece_->last_tick) piece_ = &clock_.piece_of(tick);
    return piece_->to_ns(tick);
  }

 private:
  const TickClock& clock_;
  const ClockPiece* piece_;
};

}  // namespace kinetoscope
