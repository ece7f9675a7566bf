// Every CPU tensor block's birth and death, seen by standing in front of torch's CPU allocator.
#pragma once

namespace kinetoscope {

// [once] Puts ourselves in front of the allocator. It is never taken back: blocks that live on carry our
// deleter. While no session records memory it forwards and nothing else.
void wrap_cpu_allocator();

}  // namespace kinetoscope
