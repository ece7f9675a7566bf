/* Where CPython keeps what the frame walk and the sampler read, taken from the headers of the Python that we
 * build for.
 * C, not C++: CPython's internal headers are C only. */
#ifndef KINETOSCOPE_FRAME_LAYOUT_H
#define KINETOSCOPE_FRAME_LAYOUT_H

#include <stddef.h>
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
  uint32_t code_first_instruction; /* in PyCodeObject, as all that follow */
  uint32_t code_function;
  uint32_t code_file;
  uint32_t code_first_line;
  uint32_t code_lines;
  uint32_t object_type;   /* in PyObject */
  uint32_t object_size;   /* in PyVarObject */
  uint32_t bytes_data;    /* in PyBytesObject */
  uint32_t text_bytes;    /* of what kinetoscope_text_of() reads of a str object */
  uint32_t newest_thread; /* in PyInterpreterState */
  uint32_t thread_next;   /* in PyThreadState, as all that follow */
  uint32_t thread_interpreter;
  uint32_t thread_number; /* its id, which no other thread ever gets */
  uint32_t thread_system; /* the system's id of the thread */
  uint32_t gil_holder;    /* in the GIL, as all that follow: the last thread that took it */
  uint32_t gil_locked;
  uint32_t gil_bytes;     /* its length, with what threads wait on in it */
  uintptr_t pointer_mask; /* clears the tag bits of a stack reference */
};

/* Frames whose owner is this or more stand for C code and carry no line. */
#define KINETOSCOPE_FIRST_C_OWNER 3

__attribute__((visibility("hidden"))) extern const struct kinetoscope_frame_layout kinetoscope_layout;
/* In _PyInterpreterFrame, before 3.12: whether C code called it. Only for frames of this process. */
__attribute__((visibility("hidden"))) extern const uint32_t kinetoscope_is_entry;

/* The interpreter that the calling thread is in: where the sampler begins to read. */
struct kinetoscope_interpreter {
  const void* interpreter;
  const void* gil;
  const void* code_type;
  const void* text_type;
  const void* bytes_type;
  const void* newest_thread; /* by Python's own functions, to compare with what is read */
  const void* this_thread;
  uint32_t
      text_flags; /* in a str object, for readers in another process; they begin, above some lower bits, */
  uint32_t
      text_kind_shift; /* with the width of a character, whether it is compact, and whether it is ASCII */
  uint32_t text_wide_bytes; /* the bytes before the characters of one that is not ASCII */
};

/* Needs the GIL. */
__attribute__((visibility("hidden"))) struct kinetoscope_interpreter kinetoscope_interpreter_here(void);

/* Where the characters of a str object are. */
struct kinetoscope_text {
  size_t length;       /* in characters */
  uint32_t width;      /* bytes of one */
  uint32_t characters; /* offset in the object; 0 if they are elsewhere */
};

/* `header` is a copy of the object's first text_bytes. Needs no GIL. */
__attribute__((visibility("hidden"))) struct kinetoscope_text kinetoscope_text_of(const void* header);

/* Where a call can go on to from an instruction, by the bytecode alone. */
struct kinetoscope_reach {
  const void* loop_head; /* the head of the outermost loop around it: the earliest that may run again; NULL
                            for none */
  const void*
      gap_begin; /* instructions after it, up to gap_end, that it cannot lead to but by that loop: those of */
  const void* gap_end; /* the other branch. An empty gap where this was not found out. */
  int avoidable; /* whether a call can get to a later instruction without this one, but for exceptions */
};

/* Needs no GIL. */
__attribute__((visibility("hidden"))) struct kinetoscope_reach kinetoscope_reach_of(const void* code,
                                                                                    const void* instruction);

#ifdef __cplusplus
}
#endif
#endif
