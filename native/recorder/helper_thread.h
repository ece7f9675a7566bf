// Threads of our own in somebody else's process.
#pragma once

namespace kinetoscope {

// Starts a detached thread that gets none of the job's signals but faults of its own, under a name of at most
// 15 characters. False if the system refuses one.
bool start_helper_thread(void* (*run)(void*), void* argument, const char* name);

}  // namespace kinetoscope
