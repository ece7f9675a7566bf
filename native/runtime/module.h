// What runs in the profiled program, also while nothing records.
#pragma once

#include "../core/bindings/builtin.h"

namespace kinetoscope {

void bind_live_objects(nb::module_& module);
void bind_requests(nb::module_& module);
void bind_step_count(nb::module_& module);

}  // namespace kinetoscope
