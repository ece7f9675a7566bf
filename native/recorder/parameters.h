// The tensor behind a parameter: as Python holds it, and as autograd accumulates into it.
#pragma once

struct _object;
using PyObject = _object;

namespace kinetoscope {

// [GIL] The TensorImpl of a Python tensor; nullptr for anything else.
const void* tensor_behind(PyObject* object);

// [autograd thread] The TensorImpl that the AccumulateGrad node now running adds to; nullptr in any other
// node.
const void* accumulated_parameter();

}  // namespace kinetoscope
