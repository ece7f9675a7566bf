#define Py_BUILD_CORE 1
#include "frame_layout.h"

#include <Python.h>
#include <stddef.h>

#if PY_VERSION_HEX < 0x030B0000
#error "Kinetoscope's recorder needs Python 3.11 or newer"
#elif PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe_structs.h>
#else
#include <internal/pycore_frame.h>
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
#if PY_VERSION_HEX >= 0x030E0000
    .pointer_mask = ~(uintptr_t)3,
#else
    .pointer_mask = ~(uintptr_t)0,
#endif
};
