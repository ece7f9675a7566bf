// The smallest recorder of operators that torch accepts: it looks at nothing. Built by floor.py.
#include <ATen/record_function.h>

namespace {

at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction&) { return nullptr; }
void on_end(const at::RecordFunction&, at::ObserverContext*) {}

}  // namespace

extern "C" void add_empty_callback(int inputs) {
  // Those of the recorder, see native/recorder/operators.cpp: each further scope costs.
  handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&on_start, &on_end)
          .needsInputs(inputs != 0)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                   at::RecordScope::TORCHSCRIPT_FUNCTION, at::RecordScope::USER_SCOPE}));
}

extern "C" void remove_empty_callback() { at::removeCallback(handle); }
