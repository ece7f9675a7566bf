#include "kernel_calls.h"

#include <ATen/record_function.h>
#include <Python.h>

#include <cstddef>
#include <new>
#include <optional>
#include <string>

#include "operators.h"

namespace kinetoscope {
namespace {

struct ObservedKernel {
  PyObject_HEAD vectorcallfunc call;
  PyObject* kernel;
  std::string name;
};

ObservedKernel& observed(PyObject* self) { return *reinterpret_cast<ObservedKernel*>(self); }

PyObject* call(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords) {
  const ObservedKernel& own = observed(self);
  // Identified by an address on the stack of this call: the kernel may be running on another thread, too.
  if (const char here = 0; begin_span(&here, own.name.c_str())) {
    PyObject* answer = PyObject_Vectorcall(own.kernel, args, count, keywords);
    end_span(&here);
    return answer;
  }
  std::optional<at::RecordFunction> range;
  try {
    range.emplace(at::RecordScope::FUNCTION);
    if (range->isActive()) range->before(own.name);
  } catch (...) {
    // Out of memory, or a callback of somebody else that threw: this one range is missing, the job goes on.
    range.reset();
  }
  return PyObject_Vectorcall(own.kernel, args, count, keywords);
}

void destroy_kernel(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Py_CLEAR(observed(self).kernel);
  observed(self).name.~basic_string();
  Py_TYPE(self)->tp_free(self);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(observed(self).kernel);
  return 0;
}

PyTypeObject kernel_type = [] {
  PyTypeObject made{};
  made.ob_base = PyVarObject{PyObject_HEAD_INIT(nullptr) 0};
  made.tp_name = "kinetoscope.ObservedKernel";
  made.tp_basicsize = sizeof(ObservedKernel);
  made.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  made.tp_doc = "Calls a generated kernel inside a range of its name.";
  made.tp_vectorcall_offset = offsetof(ObservedKernel, call);
  made.tp_call = &PyVectorcall_Call;
  made.tp_traverse = &traverse;
  made.tp_dealloc = &destroy_kernel;
  return made;
}();

}  // namespace

PyObject* observed_kernel(PyObject* kernel, PyObject* name) {
  if (PyType_Ready(&kernel_type) < 0) return nullptr;
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) return nullptr;
  PyObject* self = kernel_type.tp_alloc(&kernel_type, 0);
  if (self == nullptr) return nullptr;
  ObservedKernel& own = observed(self);
  own.call = &call;
  own.kernel = Py_NewRef(kernel);
  new (&own.name) std::string(text);
  return self;
}

}  // namespace kinetoscope
