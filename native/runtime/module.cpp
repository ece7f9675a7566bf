#include "module.h"

NB_MODULE(_runtime, module) {
  using namespace kinetoscope;
  nb::set_leak_warnings(false);
  module.doc() = "What runs in the profiled program: counts steps, follows requests, finds live objects.";
  bind_live_objects(module);
  bind_requests(module);
  bind_step_count(module);
}
