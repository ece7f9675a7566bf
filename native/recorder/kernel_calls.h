// Calls of kernels that the compiler generated, as ranges.
#pragma once

struct _object;

namespace kinetoscope {

// A callable that does what `kernel` does, inside a range called `name`: generated kernels are plain
// functions that no dispatcher sees. A new reference; nullptr with an exception set when it cannot be made.
_object* observed_kernel(_object* kernel, _object* name);

}  // namespace kinetoscope
