// Notes: additional data of a span besides its record, such as the memory blocks of its inputs, and torch's
// id of it.
#pragma once

#include <cstdint>

namespace at {
struct RecordFunction;
}

namespace kinetoscope {

class Session;
struct ThreadState;

// More tensors of one call than this are left out.
inline constexpr uint32_t kMaxNotes = 67;

// [owner thread, before the span's start is read] Writes the notes about a span; returns how many, for
// Session::commit_notes(). `gradient_of` is the parameter of an AccumulateGrad, else 0; `facts` is the
// string with the facts of a call between ranks, else 0;
// `arguments` the string with what the range was given by keyword, else 0.
uint32_t write_notes(ThreadState& thread, Session& session, const at::RecordFunction& function, uint32_t what,
                     uint32_t gradient_of, uint32_t facts, uint32_t arguments);

}  // namespace kinetoscope
