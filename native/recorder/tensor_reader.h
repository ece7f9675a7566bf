// Reads the addresses of plain tensors' storages, many at once; collect/sources/storages.py does so for other
// tensors.
#pragma once

struct _object;
using PyObject = _object;

namespace kinetoscope {

// [GIL] A new reference to the class `TensorReader`, whose methods `storages.py` describes; nullptr with an
// exception set. Its objects are used with the GIL held, and run no Python code while they read.
PyObject* tensor_reader_class();

}  // namespace kinetoscope
