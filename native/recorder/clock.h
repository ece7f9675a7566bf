// The recorder's clock: the cheapest monotonic counter of this processor, and how to convert it to kernel
// clocks.
#pragma once

#include <time.h>

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "../core/recording/format.h"

namespace kinetoscope {

// Values of FileHeader::clock.
enum class Clock : uint32_t { Monotonic = 0, Tsc = 1, VirtualCounter = 2 };

inline int64_t read_clock(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The best reliable counter of this machine; on x86 the TSC only if the kernel uses it as its clock source.
Clock choose_clock();

extern Clock active_clock;

inline uint64_t read_tick() {
#if defined(__x86_64__)
  if (__builtin_expect(active_clock == Clock::Tsc, 1)) return __rdtsc();
#elif defined(__aarch64__)
  if (__builtin_expect(active_clock == Clock::VirtualCounter, 1)) {
    uint64_t value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
  }
#endif
  return static_cast<uint64_t>(read_clock(CLOCK_MONOTONIC));
}

// Reads tick and kernel clocks together; the most precise of a few attempts.
ClockPair read_clock_pair();

}  // namespace kinetoscope
