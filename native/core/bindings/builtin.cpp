#include "builtin.h"

#include <deque>
#include <string>

namespace kinetoscope {
namespace {

PyObject* pass_on(PyObject* callable, PyObject* arguments, PyObject* keywords) {
  return PyObject_Call(callable, arguments, keywords);
}

}  // namespace

void define_builtin(nb::module_& module, const char* name, const std::string& signature, const char* doc,
                    const nb::object& callable) {
  // Python keeps the pointers for as long as the function lives, which may be to the end.
  static std::deque<std::string> docs;
  static std::deque<PyMethodDef> methods;
  // The form in which Python finds the signature of a builtin function in its documentation.
  docs.push_back(signature + "\n--\n\n" + doc);
  methods.push_back({name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&pass_on)),
                     METH_VARARGS | METH_KEYWORDS, docs.back().c_str()});
  PyObject* function =
      PyCFunction_NewEx(&methods.back(), callable.ptr(), nb::object(module.attr("__name__")).ptr());
  if (function == nullptr) nb::raise_python_error();
  module.attr(name) = nb::steal<nb::object>(function);
}

}  // namespace kinetoscope
