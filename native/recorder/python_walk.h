// The Python side: walking the interpreter's frame chain at an operator's start, without the GIL.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>

#include "frame_layout.h"
#include "thread_state.h"

namespace kinetoscope {

class Session;

struct Place {
  uint32_t stack = 0;
  uint32_t module = 0;
  uint16_t kept = 0;  // as in SpanRecord::forward_thread
};

// The innermost Python frame of a thread and what it executes.
struct PythonPosition {
  const void* frame = nullptr;
  const void* instruction = nullptr;
};

// [owner thread, hot] The calling thread's position in Python. Its frames do not change while it is inside
// our callback. `walk` is its previous position: operators and calls have one each, because an operator
// stores what has changed since the previous one.
Place locate(ThreadState& thread, Session& session, Walk& walk, const PythonPosition& position, bool modules);

// [owner thread, hot] The stack of `frame` at its instruction, called from the stack `callers`: one step of
// `locate`, which has to have been called with this walk since the last code object went.
uint32_t stack_at(ThreadState& thread, Session& session, const Walk& walk, const void* frame,
                  uint32_t callers);

// [GIL, once] Tells the walk which code object runs a module's call; the object must live for ever.
// False when this Python is not the one the recorder was built for.
bool prepare_walk(PyObject* module_call_code);

const void* module_call_code();

// A fingerprint of the contents of a code object's lines and texts, to distinguish it from a later one at the
// same address.
uint64_t code_fingerprint(const PyCodeObject* code);

// Whether a code object is the one that had this fingerprint at its address in that epoch.
bool is_still(const PyCodeObject* code, uint64_t fingerprint, uint32_t epoch);

// Text of a str object, without the GIL: str objects never change. Lone surrogates keep their three-byte
// form.
void append_text(PyObject* text, std::string& out);

// Reads of interpreter frames, by the layout of the running version.
namespace frames {

inline const void* field(const void* base, uint32_t offset) {
  return *reinterpret_cast<const void* const*>(static_cast<const char*>(base) + offset);
}
inline const void* untagged(const void* pointer) {
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(pointer) &
                                       kinetoscope_layout.pointer_mask);
}
inline const void* innermost(const void* thread_state) {
  const void* at = field(thread_state, kinetoscope_layout.thread_frame);
  return kinetoscope_layout.with_cframe != 0 && at != nullptr ? field(at, kinetoscope_layout.cframe_current)
                                                              : at;
}
inline const void* previous(const void* frame) { return field(frame, kinetoscope_layout.previous); }
inline const void* code(const void* frame) { return untagged(field(frame, kinetoscope_layout.code)); }
inline const void* instruction(const void* frame) { return field(frame, kinetoscope_layout.instruction); }
inline PyObject* first_local(const void* frame) {
  const void* at = static_cast<const char*>(frame) + kinetoscope_layout.first_local;
  return const_cast<PyObject*>(static_cast<const PyObject*>(untagged(*static_cast<const void* const*>(at))));
}
inline bool runs_code(const void* frame) {
#if PY_VERSION_HEX >= 0x030D0000
  // A frame may run something else than a code object.
  const void* executed = code(frame);
  return executed != nullptr && PyCode_Check(const_cast<PyObject*>(static_cast<const PyObject*>(executed)));
#else
  return code(frame) != nullptr;
#endif
}
inline bool is_python(const void* frame) {
#if PY_VERSION_HEX >= 0x030C0000
  return static_cast<const char*>(frame)[kinetoscope_layout.owner] < KINETOSCOPE_FIRST_C_OWNER;
#else
  // Calls of C code have no frames yet.
  static_cast<void>(frame);
  return true;
#endif
}
// Whether C code called it, which may call again and again.
inline bool called_by_c(const void* frame) {
#if PY_VERSION_HEX >= 0x030C0000
  const void* around = previous(frame);
  return around == nullptr || !is_python(around);
#else
  return static_cast<const char*>(frame)[kinetoscope_is_entry] != 0;
#endif
}
inline const void* previous_python(const void* frame) {
  do frame = previous(frame);
  while (frame != nullptr && !is_python(frame));
  return frame;
}

}  // namespace frames

inline PythonPosition position_in(const void* python) {
  const void* frame = python != nullptr ? frames::innermost(python) : nullptr;
  if (frame == nullptr) return {};
  return {frame, frames::instruction(frame)};
}
PythonPosition position_elsewhere();

// [owner thread, hot] The calling thread's position in Python; nulls on a thread without Python.
inline PythonPosition python_position(const ThreadState& thread) {
  // Only the main thread's state exists as long as Python does; that of other threads may change.
  return thread.main_python != nullptr ? position_in(thread.main_python) : position_elsewhere();
}

}  // namespace kinetoscope
