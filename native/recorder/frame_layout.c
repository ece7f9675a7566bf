/* As Python's headers have it, which come after others of the system here. */
#define _GNU_SOURCE 1
#define Py_BUILD_CORE 1
#include "frame_layout.h"

#include <Python.h>
#include <stddef.h>
#include <string.h>

/* Makes the header define the tables of inline caches and of unspecialized opcodes. */
#define NEED_OPCODE_TABLES 1
#define NEED_OPCODE_METADATA 1
#if PY_VERSION_HEX >= 0x030D0000
#include <internal/pycore_opcode_metadata.h>
#else
#include <internal/pycore_opcode.h>
#endif
#include <opcode.h>

#if PY_VERSION_HEX < 0x030B0000
#error "Kinetoscope's recorder needs Python 3.11 or newer"
#elif PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interp_structs.h>
#include <internal/pycore_interpframe_structs.h>
#else
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#endif

#ifdef Py_GIL_DISABLED
#error "Kinetoscope's recorder does not know the free-threaded build of Python yet"
#endif

const struct kinetoscope_frame_layout kinetoscope_layout = {
    .python_hex = PY_VERSION_HEX,
#if PY_VERSION_HEX >= 0x030D0000
    .thread_frame = offsetof(PyThreadState, current_frame),
    .with_cframe = 0,
    .cframe_current = 0,
    .code = offsetof(_PyInterpreterFrame, f_executable),
    .instruction = offsetof(_PyInterpreterFrame, instr_ptr),
#else
    .thread_frame = offsetof(PyThreadState, cframe),
    .with_cframe = 1,
    .cframe_current = offsetof(_PyCFrame, current_frame),
    .code = offsetof(_PyInterpreterFrame, f_code),
    .instruction = offsetof(_PyInterpreterFrame, prev_instr),
#endif
    .previous = offsetof(_PyInterpreterFrame, previous),
    .owner = offsetof(_PyInterpreterFrame, owner),
    .first_local = offsetof(_PyInterpreterFrame, localsplus),
    .code_first_instruction = offsetof(PyCodeObject, co_code_adaptive),
    .code_function = offsetof(PyCodeObject, co_qualname),
    .code_file = offsetof(PyCodeObject, co_filename),
    .code_first_line = offsetof(PyCodeObject, co_firstlineno),
    .code_lines = offsetof(PyCodeObject, co_linetable),
    .object_type = offsetof(PyObject, ob_type),
    .object_size = offsetof(PyVarObject, ob_size),
    .bytes_data = offsetof(PyBytesObject, ob_sval),
    .text_bytes = sizeof(PyASCIIObject),
    .newest_thread = offsetof(PyInterpreterState, threads.head),
    .thread_next = offsetof(PyThreadState, next),
    .thread_interpreter = offsetof(PyThreadState, interp),
    .thread_number = offsetof(PyThreadState, id),
    .thread_system = offsetof(PyThreadState, native_thread_id),
    .gil_holder = offsetof(struct _gil_runtime_state, last_holder),
    .gil_locked = offsetof(struct _gil_runtime_state, locked),
    .gil_bytes = sizeof(struct _gil_runtime_state),
#if PY_VERSION_HEX >= 0x030E0000
    .pointer_mask = ~(uintptr_t)3,
#else
    .pointer_mask = ~(uintptr_t)0,
#endif
};

#if PY_VERSION_HEX < 0x030C0000
const uint32_t kinetoscope_is_entry = offsetof(_PyInterpreterFrame, is_entry);
#endif

struct kinetoscope_interpreter kinetoscope_interpreter_here(void) {
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  PyASCIIObject text = {0};
  text.state.kind = 1;
  uint32_t flags = 0, shift = 0;
  memcpy(&flags, &text.state, sizeof(flags));
  while (flags >> shift > 1) ++shift;
  return (struct kinetoscope_interpreter){
      .interpreter = interpreter,
#if PY_VERSION_HEX >= 0x030C0000
      .gil = interpreter->ceval.gil,
#else
      .gil = &_PyRuntime.ceval.gil,
#endif
      .code_type = &PyCode_Type,
      .text_type = &PyUnicode_Type,
      .bytes_type = &PyBytes_Type,
      .newest_thread = PyInterpreterState_ThreadHead(interpreter),
      .this_thread = PyThreadState_Get(),
      .text_flags = offsetof(PyASCIIObject, state),
      .text_kind_shift = shift,
      .text_wide_bytes = sizeof(PyCompactUnicodeObject),
  };
}

struct kinetoscope_text kinetoscope_text_of(const void* header) {
  const PyASCIIObject* text = (const PyASCIIObject*)header;
  struct kinetoscope_text found = {(size_t)text->length, text->state.kind, 0};
  if (text->state.compact) {
    found.characters = text->state.ascii ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject);
  }
  return found;
}

static int jumps_back(uint8_t opcode) {
  switch (opcode) {
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
#if PY_VERSION_HEX < 0x030C0000
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE:
#endif
      return 1;
    default:
      return 0;
  }
}

static int never_goes_on(uint8_t opcode) {
  switch (opcode) {
    case JUMP_FORWARD:
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
    case RETURN_VALUE:
#ifdef RETURN_CONST
    case RETURN_CONST:
#endif
    case RAISE_VARARGS:
    case RERAISE:
      return 1;
    default:
      return 0;
  }
}

static int jumps_ahead(uint8_t opcode) {
  switch (opcode) {
    case JUMP_FORWARD:
    case FOR_ITER:
    case SEND:
#if PY_VERSION_HEX < 0x030C0000
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_FORWARD_IF_NONE:
    case POP_JUMP_FORWARD_IF_NOT_NONE:
    case JUMP_IF_FALSE_OR_POP:
    case JUMP_IF_TRUE_OR_POP:
#else
    case POP_JUMP_IF_FALSE:
    case POP_JUMP_IF_TRUE:
    case POP_JUMP_IF_NONE:
    case POP_JUMP_IF_NOT_NONE:
#endif
      return 1;
    default:
      return 0;
  }
}

#define KINETOSCOPE_TARGETS 32

struct kinetoscope_reach kinetoscope_reach_of(const void* code, const void* instruction) {
  const uint8_t* first = (const uint8_t*)code + kinetoscope_layout.code_first_instruction;
  const Py_ssize_t units = Py_SIZE((PyObject*)code);
  const Py_ssize_t here = ((const uint8_t*)instruction - first) / 2;
  /* An exception may lead from anywhere to its handler. */
  const int handles = PyBytes_GET_SIZE(((const PyCodeObject*)code)->co_exceptiontable) != 0;
  Py_ssize_t head = here;
  Py_ssize_t gap_begin = -1, gap_end = units;
  Py_ssize_t targets[KINETOSCOPE_TARGETS]; /* of the jumps ahead from `here` on */
  int jumps = 0;
  int again = 0;
  /* A generator is called again at each of its yields. */
  int avoidable =
      (((const PyCodeObject*)code)->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0;
  uint32_t extended = 0;
  for (Py_ssize_t at = 0; at < units;) {
    const uint8_t raw = first[2 * at];
    const uint32_t argument = extended | first[2 * at + 1];
    int unknown = 0;
#ifdef MIN_INSTRUMENTED_OPCODE
    /* What stood here before is known to the debugger or coverage tool only. */
    unknown |= raw >= MIN_INSTRUMENTED_OPCODE;
#endif
#ifdef ENTER_EXECUTOR
    unknown |= raw == ENTER_EXECUTOR;
#endif
    if (unknown) return (struct kinetoscope_reach){first, first, first, 1};
    const uint8_t opcode = _PyOpcode_Deopt[raw];
    if (opcode == EXTENDED_ARG) {
      extended = argument << 8;
      ++at;
      continue;
    }
    extended = 0;
    const Py_ssize_t next = at + 1 + _PyOpcode_Caches[opcode];
    if (jumps_back(opcode)) {
      const Py_ssize_t target = next - (Py_ssize_t)argument;
      if (target <= here && here < next) {
        again = 1;
        if (target < head) head = target;
      }
    }
    if (at < here && jumps_ahead(opcode) && next + (Py_ssize_t)argument > here) avoidable = 1;
    if (next > here && gap_begin < 0) {
      if (jumps_ahead(opcode)) {
        if (jumps < KINETOSCOPE_TARGETS) targets[jumps] = next + (Py_ssize_t)argument;
        ++jumps;
      }
      if (never_goes_on(opcode)) {
        gap_begin = next;
        for (int jump = 0; jump < jumps && jump < KINETOSCOPE_TARGETS; ++jump) {
          if (targets[jump] >= next && targets[jump] < gap_end) gap_end = targets[jump];
        }
      }
    }
    at = next;
  }
  if (handles || gap_begin < 0 || jumps > KINETOSCOPE_TARGETS) gap_begin = gap_end = 0;
  return (struct kinetoscope_reach){again ? first + 2 * head : NULL, first + 2 * gap_begin,
                                    first + 2 * gap_end, avoidable};
}
