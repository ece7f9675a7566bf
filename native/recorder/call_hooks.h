// Hooks for events of Python calls: a profile function on Python 3.11, sys.monitoring from 3.12 on. Both
// leave the hooks of other tools in place, and work with torch.compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct _object;
using PyObject = _object;
struct _ts;

namespace kinetoscope::call_hooks {

// [GIL] Whether hooks can be installed; if not, or only in part, `why` is the reason.
bool claim(std::string& why);
// [GIL] Installs hooks on all threads for exactly these kinds of calls, a set of kinetoscope::Recorded.
void start(uint32_t kinds);
// [GIL] Removes all hooks.
void stop();
// [GIL] Number of threads with our hooks; 1 if they are installed for all threads at once.
size_t installed();
// [GIL] Number of threads on which another tool has replaced our hook since start().
size_t replaced();
// [owner thread, with or without the GIL] Whether this thread has our hook; installs it if possible.
bool reach(_ts* python);
// [GIL] The argument for threading.setprofile() that installs the hook on new threads, too; a borrowed None
// if that is not needed.
PyObject* for_new_threads();

}  // namespace kinetoscope::call_hooks
