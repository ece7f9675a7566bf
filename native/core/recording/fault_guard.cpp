#include "fault_guard.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace kinetoscope {
namespace {

// A handler may wait for nothing, so the mappings stand in a table of fixed size. One that finds no place is
// not watched; only the few recordings that wait to be unmapped are there at the same time.
struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0};  // 0: nothing to watch
  std::atomic<size_t> bytes{0};
  std::atomic<bool> lost{false};
};
constexpr int kSlots = 64;
constinit Slot slots[kSlots];

std::mutex install_mutex;
bool installed = false;
struct sigaction before = {};

bool replace_mapping(uintptr_t address) {
  for (Slot& slot : slots) {
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    const size_t bytes = slot.bytes.load(std::memory_order_relaxed);
    if (begin == 0 || address < begin || address - begin >= bytes) continue;
    slot.lost.store(true, std::memory_order_seq_cst);
    return mmap(reinterpret_cast<void*>(begin), bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
  }
  return false;
}

void on_fault(int number, siginfo_t* info, void* context) {
  const int error = errno;
  // A signal that a process has sent has no address.
  const bool fault = info->si_code > 0;
  if (!(fault && replace_mapping(reinterpret_cast<uintptr_t>(info->si_addr))))
    hand_on(before, number, info, context);
  errno = error;
}

void install() {
  std::lock_guard lock(install_mutex);
  struct sigaction now = {};
  if (sigaction(SIGBUS, nullptr, &now) != 0) return;
  const bool nobody =
      (now.sa_flags & SA_SIGINFO) == 0 && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN);
  // Whoever came after us may hand on to us: put in front of him, each would hand on to the other.
  if (installed && !nobody) return;
  struct sigaction ours = {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&ours.sa_mask);
  before = now;
  installed = sigaction(SIGBUS, &ours, nullptr) == 0;
}

}  // namespace

void hand_on(const struct sigaction& before, int number, siginfo_t* info, void* context) {
  const bool fault = info->si_code > 0;
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else if (fault || before.sa_handler == SIG_DFL) {
    // The access is repeated, or the signal is sent again, and now ends the process as it would have
    // without us.
    signal(number, SIG_DFL);
    if (!fault) raise(number);
  }
}

FaultGuard::FaultGuard(void* mapping, std::size_t bytes) : slot_(-1) {
  install();
  for (int at = 0; at < kSlots && slot_ < 0; ++at) {
    if (slots[at].taken.exchange(true, std::memory_order_acq_rel)) continue;
    slot_ = at;
    slots[at].lost.store(false, std::memory_order_relaxed);
    slots[at].bytes.store(bytes, std::memory_order_relaxed);
    slots[at].begin.store(reinterpret_cast<uintptr_t>(mapping), std::memory_order_release);
  }
}

FaultGuard::~FaultGuard() {
  if (slot_ < 0) return;
  slots[slot_].begin.store(0, std::memory_order_release);
  slots[slot_].taken.store(false, std::memory_order_release);
}

bool FaultGuard::file_lost() const { return slot_ >= 0 && slots[slot_].lost.load(std::memory_order_relaxed); }

void FaultGuard::lose_file() {
  if (slot_ >= 0) replace_mapping(slots[slot_].begin.load(std::memory_order_relaxed));
}

void FaultGuard::forget_all() {
  for (Slot& slot : slots) slot.begin.store(0, std::memory_order_release);
}

}  // namespace kinetoscope
