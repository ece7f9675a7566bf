// torch's logical number of the calling thread, the one that backward functions name as their forward thread.
#pragma once

#include <cstdint>

namespace kinetoscope {

uint64_t torch_thread_id();

}  // namespace kinetoscope
