// Threads of the recorder in the profiled process.
#pragma once

namespace kinetoscope {

// Starts a detached thread that receives no signals except its own faults, with a name of at most 15
// characters. False if the system cannot create one.
bool start_helper_thread(void* (*run)(void*), void* argument, const char* name);

}  // namespace kinetoscope
