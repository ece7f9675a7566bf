#include "clock.h"

#include <cstdio>
#include <cstring>

namespace kinetoscope {

Clock active_clock = Clock::Monotonic;

Clock choose_clock() {
#if defined(__x86_64__)
  // If the TSC drifts between cores, the kernel marks it as unstable, and uses another clock source.
  char source[32] = {};
  if (FILE* file = std::fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re")) {
    const size_t got = std::fread(source, 1, sizeof(source) - 1, file);
    std::fclose(file);
    source[got] = '\0';
  }
  const bool trusted = std::strncmp(source, "tsc", 3) == 0 || std::strncmp(source, "kvm-clock", 9) == 0;
  return trusted ? Clock::Tsc : Clock::Monotonic;
#elif defined(__aarch64__)
  return Clock::VirtualCounter;
#else
  return Clock::Monotonic;
#endif
}

ClockPair read_clock_pair() {
  ClockPair best{};
  uint64_t narrowest = UINT64_MAX;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const uint64_t before = read_tick();
    const int64_t monotonic = read_clock(CLOCK_MONOTONIC);
    const uint64_t after = read_tick();
    if (after - before < narrowest) {
      narrowest = after - before;
      best.tick = before + (after - before) / 2;
      best.monotonic_ns = monotonic;
    }
  }
  // Realtime is read relative to monotonic, so that only one reading has to be close to the tick.
  const int64_t monotonic = read_clock(CLOCK_MONOTONIC);
  const int64_t realtime = read_clock(CLOCK_REALTIME);
  best.realtime_ns = realtime - (monotonic - best.monotonic_ns);
  return best;
}

}  // namespace kinetoscope
