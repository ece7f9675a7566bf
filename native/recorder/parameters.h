// The tensor behind a parameter: as Python holds it, and as autograd accumulates into it.
#pragma once

struct _object;
using PyObject = _object;

namespace c10 {
struct StorageImpl;
}

namespace kinetoscope {

// [GIL] The TensorImpl of a Python tensor; nullptr for anything else.
const void* tensor_behind(PyObject* object);

// [GIL] The storage of a Python tensor; nullptr for anything else, and for a tensor without one.
c10::StorageImpl* storage_behind(PyObject* object);

// [autograd thread] The TensorImpl that the AccumulateGrad node now running adds to; nullptr in any other
// node.
const void* accumulated_parameter();

}  // namespace kinetoscope
