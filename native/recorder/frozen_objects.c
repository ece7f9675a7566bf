/* As Python's headers have it, which come after others of the system here. */
#define _GNU_SOURCE 1
#define Py_BUILD_CORE 1
#include "frozen_objects.h"

#include <Python.h>
#include <internal/pycore_gc.h>
#include <internal/pycore_interp.h>

int kinetoscope_list_frozen(PyObject* into) {
  PyGC_Head* const head = &PyInterpreterState_Get()->gc.permanent_generation.head;
  /* Growing a list runs no collector, so nothing is unlinked meanwhile. */
  for (PyGC_Head* at = _PyGCHead_NEXT(head); at != head; at = _PyGCHead_NEXT(at)) {
    if (PyList_Append(into, (PyObject*)(at + 1)) != 0) return -1;
  }
  return 0;
}
