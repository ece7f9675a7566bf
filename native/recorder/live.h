// The state that every callback reads first, in one cache line, since operators in between evict most others.
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
  // Called by a thread that has not seen the latest `calls_epoch`; null until calls are recorded for the
  // first time.
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

// The last freed code objects: the one that increased `code_epoch` from `epoch` is at epoch % kGoneCodes.
inline constexpr uint32_t kGoneCodes = 256;
extern std::atomic<const void*> gone_codes[kGoneCodes];

// Whether the code object that was at an address in this epoch may have been freed.
inline bool code_went_since(uint32_t epoch, const void* code) {
  const uint32_t now = live.code_epoch.load(std::memory_order_acquire);
  // Elements are written before the epoch increases: the oldest one may have been overwritten already.
  if (now - epoch >= kGoneCodes) return true;
  for (uint32_t at = epoch; at != now; ++at) {
    if (gone_codes[at % kGoneCodes].load(std::memory_order_relaxed) == code) return true;
  }
  return false;
}

// [GIL] Called when a code object is freed.
inline void code_gone(const void* code) {
  const uint32_t epoch = live.code_epoch.load(std::memory_order_relaxed);
  gone_codes[epoch % kGoneCodes].store(code, std::memory_order_relaxed);
  live.code_epoch.store(epoch + 1, std::memory_order_release);
}

}  // namespace kinetoscope
