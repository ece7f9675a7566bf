// Every CPU tensor block's birth and death, seen by standing in front of torch's CPU allocator.
#pragma once

namespace c10 {
struct StorageImpl;
}

namespace kinetoscope {

// [once] Puts ourselves in front of the allocator. It is never taken back: blocks that live on carry our
// deleter. While no session records memory it forwards and nothing else.
void wrap_cpu_allocator();

// [GIL, its tensor held] Gives a block from before that our deleter, so that its free is recorded, and its
// storage our allocator, for when it is resized: a storage keeps the allocator that torch had when it was
// made. False: its memory is no block of the CPU allocator, or has our deleter already.
bool watch_storage(c10::StorageImpl& storage);

}  // namespace kinetoscope
