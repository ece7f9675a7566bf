#include <Python.h>

#include <cstddef>

#include "module.h"

namespace kinetoscope {
namespace {

bool is_one_of(PyTypeObject* type, const nb::tuple& kinds) {
  for (const nb::handle kind : kinds)
    if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(kind.ptr())) != 0) return true;
  return false;
}

// No Python code runs while this holds references to all objects, so no other thread does, either.
// `tuple(generator)` in another thread fails if anything else holds the tuple that it is filling.
nb::object live_objects(const nb::tuple& kinds, const nb::object& generation) {
  for (const nb::handle kind : kinds)
    if (PyType_Check(kind.ptr()) == 0) throw nb::type_error("kinds must be types");
  const nb::object get_objects = nb::module_::import_("gc").attr("get_objects");
  // The results first: once references to all objects are held, nothing may start a collection, whose
  // callbacks are Python code.
  const bool collects = PyGC_Disable() != 0;
  nb::object result;
  try {
    nb::list found;
    std::size_t count = 0;
    {
      const nb::object all = get_objects(generation);
      PyTypeObject* last = nullptr;
      bool wanted = false;
      for (const nb::handle thing : nb::borrow<nb::list>(all)) {
        ++count;
        PyTypeObject* type = Py_TYPE(thing.ptr());
        if (type != last) {
          last = type;
          wanted = is_one_of(type, kinds);
        }
        if (wanted) found.append(thing);
      }
    }
    result = nb::make_tuple(found, count);
  } catch (...) {
    if (collects) PyGC_Enable();
    throw;
  }
  if (collects) PyGC_Enable();
  return result;
}

}  // namespace

void bind_live_objects(nb::module_& module) {
  define(
      module, "live_objects", &live_objects,
      R"(Returns the objects that Python's collector knows whose type is one of some types or derives from one.

No other thread runs meanwhile, which is what a loop over gc.get_objects() cannot promise: as long as its list lives,
another thread's tuple(generator) can fail with a SystemError.

Args:
    kinds: Types. Their instances are recognized without running code of theirs.
    generation: The generation of the collector, as for gc.get_objects; None for all.

Returns:
    The objects, and how many there were of any type.

Raises:
    TypeError: Something among the kinds is no type.)",
      nb::arg("kinds"), nb::arg("generation") = nb::none());
}

}  // namespace kinetoscope
