// Python 3.11: a C profile function on every thread.
#include <Python.h>
#include <frameobject.h>

#if PY_VERSION_HEX < 0x030C0000

#include <algorithm>
#include <vector>

#include "call_hooks.h"
#include "python_calls.h"
#include "session.h"

namespace kinetoscope::call_hooks {
namespace {

// [GIL]
bool is_on = false;
bool every_call = false;      // not only those of modules
std::vector<uint64_t> given;  // numbers of the threads that got ours at the start

int on_event(PyObject*, PyFrameObject*, int what, PyObject* argument) {
  if (!is_on || Session::current() == nullptr) {
    // The hook is of an ended recording, or calls were switched off; on a thread that stop() did not find, or
    // in a forked child.
    PyEval_SetProfile(nullptr, nullptr);
    return 0;
  }
  switch (what) {
    case PyTrace_CALL:
      if (every_call || calls::concerns_this_call()) calls::began();
      break;
    case PyTrace_RETURN:
      if (every_call || calls::concerns_this_call()) calls::ended();
      break;
    case PyTrace_C_CALL:
      if (every_call) calls::c_began(argument);
      break;
    case PyTrace_C_RETURN:
    case PyTrace_C_EXCEPTION:
      if (every_call) calls::c_ended(argument);
      break;
    default:
      break;
  }
  return 0;
}

// Python's profile function of a new thread, set by threading.setprofile(): replaces itself by our C
// function.
PyObject* begin_thread(PyObject*, PyObject*) {
  PyEval_SetProfile(is_on && Session::current() != nullptr ? on_event : nullptr, nullptr);
  Py_RETURN_NONE;
}

PyMethodDef begin_thread_method = {"kinetoscope_calls", begin_thread, METH_VARARGS, nullptr};

// Calls `visit` with every thread's state.
template <typename Visit>
void for_each_python_thread(Visit visit) {
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  for (PyThreadState* thread = PyInterpreterState_ThreadHead(interpreter); thread != nullptr;
       thread = PyThreadState_Next(thread))
    visit(thread);
}

// [GIL] An audit hook may refuse; then the thread has no hook.
bool set(PyThreadState* thread, Py_tracefunc function) {
  if (_PyEval_SetProfile(thread, function, nullptr) == 0) return true;
  PyErr_Clear();
  return false;
}

}  // namespace

bool claim(std::string& why) {
  const Py_tracefunc here = PyThreadState_Get()->c_profilefunc;
  if (here != nullptr && here != on_event) {
    why =
        "another profile function is installed on this thread (cProfile, sys.setprofile or a debugger), and "
        "Python 3.11 supports only one";
    return false;
  }
  size_t taken = 0;
  for_each_python_thread([&](PyThreadState* thread) {
    taken += thread->c_profilefunc != nullptr && thread->c_profilefunc != on_event;
  });
  if (taken != 0) {
    why = std::to_string(taken) +
          " other threads have a profile function already, and Python 3.11 supports only one";
  }
  return true;
}

void start(uint32_t kinds) {
  is_on = true;
  every_call = (kinds & kRecordCalls) != 0;
  given.clear();
  for_each_python_thread([](PyThreadState* thread) {
    if (thread->c_profilefunc == nullptr) set(thread, on_event);
    if (thread->c_profilefunc == on_event) given.push_back(thread->id);
  });
}

void stop() {
  is_on = false;
  for_each_python_thread([](PyThreadState* thread) {
    if (thread->c_profilefunc == on_event) set(thread, nullptr);
  });
  given.clear();
}

size_t installed() {
  size_t count = 0;
  for_each_python_thread(
      [&count](const PyThreadState* thread) { count += thread->c_profilefunc == on_event; });
  return count;
}

size_t replaced() {
  size_t count = 0;
  for_each_python_thread([&count](const PyThreadState* thread) {
    count +=
        thread->c_profilefunc != on_event && std::find(given.begin(), given.end(), thread->id) != given.end();
  });
  return count;
}

bool reach(PyThreadState* python) {
  if (python->c_profilefunc == nullptr) {
    // As _PyEval_SetProfile, which requires the GIL; but only this thread reads these fields.
    python->c_profileobj = nullptr;
    python->c_profilefunc = on_event;
    if (python->tracing == 0) python->cframe->use_tracing = 255;
  }
  return python->c_profilefunc == on_event;
}

PyObject* for_new_threads() {
  static PyObject* function = PyCFunction_New(&begin_thread_method, nullptr);
  return function != nullptr ? function : Py_None;
}

}  // namespace kinetoscope::call_hooks

#endif
