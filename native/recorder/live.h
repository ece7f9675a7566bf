// What every callback looks at first, in one cache line: the operators around it leave little else in the
// cache.
#pragma once

#include <atomic>
#include <cstdint>

namespace kinetoscope {

class Session;
struct ThreadState;

struct alignas(64) Live {
  std::atomic<Session*> session{nullptr};  // the recording in progress; set last and cleared first
  // How many spans ended on another thread than their own, above the session's generation times 2^32.
  std::atomic<uint64_t> orphans_posted{0};
  std::atomic<uint32_t> generation{0};  // of the session
  // kinetoscope::Recorded, of calls the kinds that are switched on at present.
  std::atomic<uint32_t> what{0};
  std::atomic<uint32_t> code_epoch{1};    // rises when a code object's address stops meaning that code
  std::atomic<uint32_t> module_epoch{1};  // rises when a module's address stops meaning that module
  std::atomic<uint32_t> accumulate_grad_name{
      0};                                // the name whose spans carry a parameter; 0 until it is seen
  std::atomic<uint32_t> calls_epoch{0};  // rises when Python calls or module calls are switched on
  // What a thread does that has not seen that; null until they are for the first time.
  std::atomic<void (*)(ThreadState&, Session&)> open_calls{nullptr};
  // Whether `code_epoch` rises with every code object that goes.
  bool code_is_watched = true;
  // Whether callbacks need a full fence because the kernel has no membarrier.
#if defined(__SANITIZE_THREAD__)
  bool fence_in_callbacks = true;
#else
  bool fence_in_callbacks = false;
#endif
};

extern Live live;

// Which code objects went last: the one that raised `code_epoch` from `epoch` is at epoch % kGoneCodes.
inline constexpr uint32_t kGoneCodes = 256;
extern std::atomic<const void*> gone_codes[kGoneCodes];

// Whether an address may have stopped meaning the code object that was there in this epoch.
inline bool code_went_since(uint32_t epoch, const void* code) {
  const uint32_t now = live.code_epoch.load(std::memory_order_acquire);
  // Slots are written before the epoch rises: the oldest one may already be another's.
  if (now - epoch >= kGoneCodes) return true;
  for (uint32_t at = epoch; at != now; ++at) {
    if (gone_codes[at % kGoneCodes].load(std::memory_order_relaxed) == code) return true;
  }
  return false;
}

// [GIL] An address stops meaning this code object.
inline void code_gone(const void* code) {
  const uint32_t epoch = live.code_epoch.load(std::memory_order_relaxed);
  gone_codes[epoch % kGoneCodes].store(code, std::memory_order_relaxed);
  live.code_epoch.store(epoch + 1, std::memory_order_release);
}

}  // namespace kinetoscope
