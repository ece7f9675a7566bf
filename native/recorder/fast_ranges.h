// Ranges that torch opens with `torch._C._profiler._RecordFunctionFast`.
#pragma once

struct _object;

namespace kinetoscope {

// The class that does what `theirs`, torch's class, does, for whoever records: torch's own does nothing
// unless torch's profiler runs on the same thread, and where it does, that one is used. A borrowed reference,
// the same for every call of the process; nullptr with an exception set when it cannot be made.
_object* fast_range_class(_object* theirs);

}  // namespace kinetoscope
