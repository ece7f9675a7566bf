// Python 3.12 and later: sys.monitoring, which several tools can use at once, with callbacks in C.
#include <Python.h>

#if PY_VERSION_HEX >= 0x030C0000

#include <array>

#include "call_hooks.h"
#include "python_calls.h"
#include "python_walk.h"
#include "session.h"

namespace kinetoscope::call_hooks {
namespace {

constexpr const char* kToolName = "kinetoscope";
// Tool ids 3 and 4 are not reserved. 2 is for profilers: cProfile uses it, and raises an error if it is in
// use, so it comes last. The others are for debuggers, coverage tools and optimizers.
constexpr std::array<long, 3> kTools = {3, 4, 2};

// [GIL] Our tool id in sys.monitoring; -1 for none.
long tool = -1;
// [GIL] Whether events are enabled only for the code of module calls.
bool modules_only = false;

// Clears exceptions, because no function of this file may leave one set.
PyObject* checked(PyObject* result) {
  if (result == nullptr) PyErr_Clear();
  return result;
}

PyObject* monitoring() { return PySys_GetObject("monitoring"); }

PyObject* on_begin(PyObject*, PyObject* const*, Py_ssize_t) {
  if (!modules_only || calls::concerns_this_call()) calls::began();
  Py_RETURN_NONE;
}

PyObject* on_end(PyObject*, PyObject* const*, Py_ssize_t) {
  if (!modules_only || calls::concerns_this_call()) calls::ended();
  Py_RETURN_NONE;
}

// The arguments are the code, the offset, the callable, and its first argument.
PyObject* on_call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count > 2) calls::c_began(arguments[2]);
  Py_RETURN_NONE;
}

PyObject* on_c_end(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count > 2) calls::c_ended(arguments[2]);
  Py_RETURN_NONE;
}

using FastFunction = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

struct Hook {
  const char* event;
  bool for_modules;
  bool local;  // can be had for one code object alone
  FastFunction function;
  PyMethodDef method;
};

PyMethodDef described(FastFunction function) {
  return {"kinetoscope_calls", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)),
          METH_FASTCALL, nullptr};
}

Hook hooks[] = {
    {"PY_START", true, true, on_begin, described(on_begin)},
    {"PY_RETURN", true, true, on_end, described(on_end)},
    {"PY_UNWIND", true, false, on_end, described(on_end)},
    {"PY_RESUME", false, true, on_begin, described(on_begin)},
    {"PY_THROW", false, false, on_begin, described(on_begin)},
    {"PY_YIELD", false, true, on_end, described(on_end)},
    {"CALL", false, true, on_call, described(on_call)},
    {"C_RETURN", false, false, on_c_end, described(on_c_end)},
    {"C_RAISE", false, false, on_c_end, described(on_c_end)},
};

// The number of an event; 0 where this Python does not have it.
long number_of(const char* event) {
  PyObject* events = checked(PyObject_GetAttrString(monitoring(), "events"));
  if (events == nullptr) return 0;
  PyObject* number = checked(PyObject_GetAttrString(events, event));
  Py_DECREF(events);
  if (number == nullptr) return 0;
  const long value = PyLong_AsLong(number);
  Py_DECREF(number);
  return value;
}

// Registers our callbacks, or with `remove` unregisters them.
void register_callbacks(bool remove) {
  for (Hook& hook : hooks) {
    const long event = number_of(hook.event);
    if (event == 0) continue;
    PyObject* function = remove || (modules_only && !hook.for_modules)
                             ? Py_NewRef(Py_None)
                             : checked(PyCFunction_New(&hook.method, nullptr));
    if (function == nullptr) continue;
    Py_XDECREF(checked(PyObject_CallMethod(monitoring(), "register_callback", "llO", tool, event, function)));
    Py_DECREF(function);
  }
}

void set_events(long everywhere, long in_module_calls) {
  Py_XDECREF(checked(PyObject_CallMethod(monitoring(), "set_events", "ll", tool, everywhere)));
  auto* code = const_cast<PyObject*>(static_cast<const PyObject*>(module_call_code()));
  Py_XDECREF(
      checked(PyObject_CallMethod(monitoring(), "set_local_events", "lOl", tool, code, in_module_calls)));
}

bool holds(long number) {
  PyObject* name = checked(PyObject_CallMethod(monitoring(), "get_tool", "l", number));
  const bool ours =
      name != nullptr && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, kToolName) == 0;
  Py_XDECREF(name);
  return ours;
}

}  // namespace

bool claim(std::string& why) {
  if (tool >= 0) stop();
  if (monitoring() == nullptr) {
    why = "this Python has no sys.monitoring";
    return false;
  }
  for (const long number : kTools) {
    PyObject* done = checked(PyObject_CallMethod(monitoring(), "use_tool_id", "ls", number, kToolName));
    if (done == nullptr) continue;
    Py_DECREF(done);
    tool = number;
    return true;
  }
  why = "other tools use all tool ids of sys.monitoring";
  return false;
}

void start(uint32_t kinds) {
  if (tool < 0 || !holds(tool)) return;
  modules_only = (kinds & kRecordCalls) == 0;
  register_callbacks(false);
  long everywhere = 0;
  long in_module_calls = 0;
  for (const Hook& hook : hooks) {
    if (modules_only && !hook.for_modules) continue;
    (modules_only && hook.local ? in_module_calls : everywhere) |= number_of(hook.event);
  }
  set_events(everywhere, in_module_calls);
}

void stop() {
  if (tool < 0) return;
  if (holds(tool)) {
    set_events(0, 0);
    register_callbacks(true);
    Py_XDECREF(checked(PyObject_CallMethod(monitoring(), "free_tool_id", "l", tool)));
  }
  tool = -1;
}

size_t installed() { return tool >= 0 && holds(tool) ? 1 : 0; }

size_t replaced() { return tool >= 0 && !holds(tool) ? 1 : 0; }

bool reach(PyThreadState*) { return tool >= 0; }

PyObject* for_new_threads() { return Py_None; }

}  // namespace kinetoscope::call_hooks

#endif
