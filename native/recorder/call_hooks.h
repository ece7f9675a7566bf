// Where the events of Python calls come from: a profile function on Python 3.11, sys.monitoring from 3.12 on.
// Both leave alone what others installed, and work beside torch.compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct _object;
using PyObject = _object;
struct _ts;

namespace kinetoscope::call_hooks {

// [GIL] Whether events can be had; else, or if in part, `why` says what is in the way.
bool claim(std::string& why);
// [GIL] Lets the events of these calls, a set of kinetoscope::Recorded, and of no others come from all
// threads.
void start(uint32_t kinds);
// [GIL] Takes everything back.
void stop();
// [GIL] On how many threads ours are at present; 1 where they are on all.
size_t installed();
// [GIL] On how many threads another hook has replaced ours since start().
size_t replaced();
// [owner thread, with or without the GIL] Whether this thread's events reach us; makes them, where it can.
bool reach(_ts* python);
// [GIL] What threading.setprofile() shall be given so that new threads report too; a borrowed None if
// nothing.
PyObject* for_new_threads();

}  // namespace kinetoscope::call_hooks
