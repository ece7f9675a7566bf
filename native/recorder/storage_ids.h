// Numbers for the storages of tensors. An address is used again when a storage has been freed; a number is
// not.
#pragma once

#include <cstdint>

namespace c10 {
struct Storage;
}

namespace kinetoscope::storage_ids {

// [any thread] The number of a storage, from 1. It keeps a weak reference until the storage has been freed:
// its memory is freed as without it.
uint64_t of(const c10::Storage& storage);

// [any thread] Forgets all storages, when nothing is recorded any more. The numbers go on.
void forget();

// In a forked child.
void after_fork_in_child();

}  // namespace kinetoscope::storage_ids
