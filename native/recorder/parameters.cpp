#include "parameters.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_variable.h>

namespace kinetoscope {

const void* tensor_behind(PyObject* object) {
  if (!THPVariable_Check(object)) return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  return tensor.defined() ? tensor.unsafeGetTensorImpl() : nullptr;
}

c10::StorageImpl* storage_behind(PyObject* object) {
  if (!THPVariable_Check(object)) return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

const void* accumulated_parameter() {
  const auto node = torch::autograd::get_current_node();
  const auto* accumulate = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get());
  return accumulate != nullptr && accumulate->variable.defined() ? accumulate->variable.unsafeGetTensorImpl()
                                                                 : nullptr;
}

}  // namespace kinetoscope
