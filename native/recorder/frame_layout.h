/* Where CPython keeps what the frame walk reads, taken from the headers of the Python that we build for.
 * C, not C++: CPython's internal headers are C only. */
#ifndef KINETOSCOPE_FRAME_LAYOUT_H
#define KINETOSCOPE_FRAME_LAYOUT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kinetoscope_frame_layout {
  uint32_t python_hex;     /* PY_VERSION_HEX of the headers; major and minor must match at run time */
  uint32_t thread_frame;   /* in PyThreadState: the current frame, or (with_cframe) the _PyCFrame */
  uint32_t with_cframe;    /* 1 on 3.11 and 3.12: one more step through _PyCFrame */
  uint32_t cframe_current; /* in _PyCFrame */
  uint32_t previous;       /* in _PyInterpreterFrame, as all that follow */
  uint32_t code;
  uint32_t instruction;
  uint32_t owner;
  uint32_t first_local;
  uint32_t code_first_instruction; /* in PyCodeObject */
  uintptr_t pointer_mask;          /* clears the tag bits of a stack reference */
};

/* Frames whose owner is this or more stand for C code and carry no line. */
#define KINETOSCOPE_FIRST_C_OWNER 3

__attribute__((visibility("hidden"))) extern const struct kinetoscope_frame_layout kinetoscope_layout;

/* Where a call can go on to from an instruction, by the bytecode alone. */
struct kinetoscope_reach {
  const void* loop_head; /* the head of the outermost loop around it: the earliest that may run again; NULL
                            for none */
  const void*
      gap_begin; /* instructions after it, up to gap_end, that it cannot lead to but by that loop: those of */
  const void* gap_end; /* the other branch. An empty gap where this was not found out. */
};

/* Needs no GIL. */
__attribute__((visibility("hidden"))) struct kinetoscope_reach kinetoscope_reach_of(const void* code,
                                                                                    const void* instruction);

#ifdef __cplusplus
}
#endif
#endif
