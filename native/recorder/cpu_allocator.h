// Every CPU tensor block's birth and death, seen by standing in front of torch's CPU allocator.
#pragma once

namespace c10 {
class DataPtr;
}

namespace kinetoscope {

// [once] Puts ourselves in front of the allocator. It is never taken back: blocks that live on carry our
// deleter. While no session records memory it forwards and nothing else.
void wrap_cpu_allocator();

// [its tensor held, nobody else at it] Gives a block from before that our deleter. False: it is no block of
// the CPU allocator, or has it already.
bool watch_block(c10::DataPtr& data);

}  // namespace kinetoscope
