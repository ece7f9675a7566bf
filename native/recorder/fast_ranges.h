// Ranges that torch opens with `torch._C._profiler._RecordFunctionFast`.
#pragma once

struct _object;

namespace kinetoscope {

// A class that replaces `theirs`, torch's class, which does nothing unless torch's profiler is recording on
// the same thread (then torch's is used): ours also opens ranges for our recorder. A borrowed reference,
// always the same in a process; nullptr with an exception set if it cannot be created.
_object* fast_range_class(_object* theirs);

}  // namespace kinetoscope
