// Threads of the recorder in the profiled process.
#pragma once

#include <pthread.h>

#include <mutex>
#include <new>

namespace kinetoscope {

// Starts a detached thread that receives no signals except its own faults, with a name of at most 15
// characters. False if the system cannot create one.
bool start_helper_thread(void* (*run)(void*), void* argument, const char* name);

// Makes the state of a service, and starts its thread with it, unless it is there already. False if memory or
// threads are out.
template <typename State>
bool ensure_started(std::mutex& start_mutex, State*& state, void* (*run)(void*), const char* name) {
  std::lock_guard lock(start_mutex);
  if (state != nullptr) return true;
  auto* fresh = new (std::nothrow) State;
  if (fresh == nullptr) return false;
  if (!start_helper_thread(run, fresh, name)) {
    delete fresh;
    return false;
  }
  state = fresh;
  return true;
}

// Initializes a condition whose timed waits are by the monotonic clock.
void init_monotonic(pthread_cond_t& condition);

}  // namespace kinetoscope
