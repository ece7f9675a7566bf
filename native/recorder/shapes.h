// Shapes, strides, dtypes and concrete scalars of an operator's inputs, interned as one id.
#pragma once

#include <cstdint>

namespace at {
struct RecordFunction;
class Tensor;
}  // namespace at

namespace kinetoscope {

class Session;
struct ThreadState;

// Whether the sizes can be read without calling into Python or failing (symbolic, nested, wrapped by a
// subclass).
bool has_plain_sizes(const at::Tensor& tensor);

// [owner thread, inside the start callback] The id of this call's inputs; 0 when it has none.
uint32_t input_shapes(ThreadState& thread, Session& session, const at::RecordFunction& function);

}  // namespace kinetoscope
