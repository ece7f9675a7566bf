#include "storage_ids.h"

#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "probing_table.h"

namespace kinetoscope::storage_ids {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

struct Known {
  WeakStorage storage;
  uint64_t number;
};

constexpr size_t kFirstSweep = 4096;

// The weak references keep the addresses of the known storages from being used again.
class Table {
 public:
  uint64_t of(const c10::Storage& storage) {
    const AddressKey key{storage.unsafeGetStorageImpl()};
    if (const uint32_t place = places_.find(key); place != 0) return known_[place - 1].number;
    if (known_.size() >= sweep_at_) sweep();
    known_.push_back({storage.getWeakStorageImpl(), ++last_});
    places_.insert(key, static_cast<uint32_t>(known_.size()));
    return last_;
  }

  void forget() {
    known_.clear();
    places_.clear();
    sweep_at_ = kFirstSweep;
  }

 private:
  // Forgets those that were freed. Done each time that there are twice as many as were left before, so that
  // it costs little for each storage.
  void sweep() {
    std::erase_if(known_, [](const Known& known) { return known.storage.expired(); });
    places_.clear();
    for (size_t at = 0; at < known_.size(); ++at)
      places_.insert(AddressKey{known_[at].storage._unsafe_get_target()}, static_cast<uint32_t>(at + 1));
    sweep_at_ = std::max(kFirstSweep, 2 * known_.size());
  }

  std::vector<Known> known_;
  ProbingTable<AddressKey> places_;  // each one's place in `known_`, plus 1
  uint64_t last_ = 0;
  size_t sweep_at_ = kFirstSweep;
};

std::mutex mutex;
// Leaked on purpose: threads may outlive static destruction.
Table* table = nullptr;

}  // namespace

uint64_t of(const c10::Storage& storage) {
  std::lock_guard lock(mutex);
  if (table == nullptr) table = new Table;
  return table->of(storage);
}

void forget() {
  std::lock_guard lock(mutex);
  if (table != nullptr) table->forget();
}

void after_fork_in_child() {
  // Another thread may have been changing it. Leaked, with its weak references.
  new (&mutex) std::mutex;
  table = nullptr;
}

}  // namespace kinetoscope::storage_ids
