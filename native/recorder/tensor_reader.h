// Reads where tensors lie, many at once: what collect/sources/storages.py does for any tensor, for plain
// ones.
#pragma once

struct _object;
using PyObject = _object;

namespace kinetoscope {

// [GIL] A new reference to the class `TensorReader`, whose methods `storages.py` describes; nullptr with an
// exception set. Its objects are used with the GIL held, and run no Python code while they read.
PyObject* tensor_reader_class();

}  // namespace kinetoscope
