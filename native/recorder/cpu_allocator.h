// Records allocations and frees of CPU tensors, by wrapping torch's CPU allocator.
#pragma once

namespace c10 {
struct StorageImpl;
}

namespace kinetoscope {

// [once] Installs the wrapper. It is never removed, because live blocks have our deleter. While no session
// records memory, it only forwards.
void wrap_cpu_allocator();

// [GIL, with a reference to its tensor] Gives a block that was allocated before the wrapper was installed our
// deleter, so that its free is recorded; and its storage our allocator, for resizing, because a storage keeps
// the allocator that it was created with. False if its memory is not from the CPU allocator, or has our
// deleter already.
bool watch_storage(c10::StorageImpl& storage);

}  // namespace kinetoscope
