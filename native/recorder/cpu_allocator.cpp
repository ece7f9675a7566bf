#include "cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/StorageImpl.h>

#include "clock.h"
#include "session.h"
#include "thread_state.h"

namespace kinetoscope {
namespace {

c10::Allocator* original = nullptr;
c10::Allocator* recording_allocator = nullptr;
c10::DeleterFnPtr original_deleter = nullptr;

void record(const void* address, int64_t bytes) {
  ThreadState* thread = this_thread();
  if (thread == nullptr) return;
  BusyGuard busy(*thread);
  Session* session = Session::current();
  if (session == nullptr || (live.what.load(std::memory_order_relaxed) & kRecordMemory) == 0) return;
  try {
    if (thread->generation != live.generation.load(std::memory_order_relaxed)) thread->join(*session);
    AllocationRecord event{};
    event.tick = read_tick();
    event.address = reinterpret_cast<uintptr_t>(address);
    event.bytes = bytes;
    event.device_type = static_cast<uint8_t>(c10::DeviceType::CPU);
    event.device_index = -1;
    session->add_allocation(*thread, event);
  } catch (...) {
    session->faults.fetch_add(1, std::memory_order_relaxed);
  }
}

// Records the free first, while the address cannot be reused, and then calls the original deleter.
void recording_deleter(void* context) {
  if (context != nullptr) record(context, 0);
  original_deleter(context);
}

class RecordingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = original->allocate(bytes);
    // Blocks with another deleter are not wrapped: their context may not be their address.
    if (data.get_context() != nullptr &&
        data.compare_exchange_deleter(original_deleter, &recording_deleter) && bytes != 0) {
      record(data.get_context(), static_cast<int64_t>(bytes));
    }
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return original_deleter == nullptr ? nullptr : &recording_deleter;
  }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    original->copy_data(destination, source, bytes);
  }
};

}  // namespace

bool watch_storage(c10::StorageImpl& storage) {
  if (original == nullptr) return false;
  if (storage.allocator() == original) storage.set_allocator(recording_allocator);
  // Only the deleter is read; accessing the data might copy it, or fail.
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  return data.device().is_cpu() && data.get_context() != nullptr &&
         data.compare_exchange_deleter(original_deleter, &recording_deleter);
}

void wrap_cpu_allocator() {
  if (original != nullptr) return;
  c10::Allocator* found = c10::GetAllocator(c10::DeviceType::CPU);
  original_deleter = found->raw_deleter();
  // Without a raw deleter it cannot be replaced.
  if (original_deleter == nullptr) return;
  original = found;
  recording_allocator = new RecordingAllocator;
  // The highest priority, so that an allocator that is registered later with a lower one does not replace
  // ours.
  c10::SetAllocator(c10::DeviceType::CPU, recording_allocator, UINT8_MAX);
}

}  // namespace kinetoscope
