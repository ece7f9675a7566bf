// torch's own number of the calling thread, by which backward functions refer to their forward thread.
#pragma once

#include <cstdint>

namespace kinetoscope {

uint64_t torch_thread_id();

}  // namespace kinetoscope
