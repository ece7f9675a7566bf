// Shapes, element types and concrete scalars of an operator's inputs, hash-consed to one small id.
#pragma once

#include <cstdint>

namespace at {
struct RecordFunction;
}

namespace kinetoscope {

class Session;
struct ThreadState;

// [owner thread, inside the start callback] The id of this call's inputs; 0 when it has none.
uint32_t input_shapes(ThreadState& thread, Session& session, const at::RecordFunction& function);

}  // namespace kinetoscope
