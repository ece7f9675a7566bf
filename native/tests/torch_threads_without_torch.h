// What the recorder asks torch about threads, for tests without torch. In one source of each test.
#pragma once

#include <atomic>
#include <cstdint>

#include "recorder/torch_threads.h"

namespace kinetoscope {

// torch's number of the thread; here one of our own.
uint64_t torch_thread_id() {
  static std::atomic<uint64_t> next{0};
  thread_local const uint64_t id = ++next;
  return id;
}

}  // namespace kinetoscope
