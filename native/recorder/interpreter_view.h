// Reads the interpreter's threads, their frames and code objects, from a thread without the GIL: those of
// this process, or of one that it has forked, whose interpreter is at the same addresses.
//
// Everything is read through MemoryReader, and may change meanwhile. Inconsistent data is rejected: an
// instruction must lie in the code object of its frame, and the outermost frame must belong to a thread.
// Includes no Python headers: offsets are in kinetoscope_layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "frame_layout.h"
#include "memory_reader.h"

namespace kinetoscope {

struct PythonThread {
  const void* state;
  uint64_t number;  // never given to another thread of the interpreter
  uint32_t system;  // the system's id; 0 until the thread runs
};

// A frame that runs Python code.
struct SeenFrame {
  const void* code;
  const void* instruction;
  const void* first_local;
};

// What a code object says about one of its instructions.
struct SeenCode {
  std::string function;
  std::string file;
  uint32_t first_line = 0;
  uint32_t line = 0;  // 0: the instruction has none
  uint64_t fingerprint() const;
};

// The line at `offset` bytes in the code, by a code object's table of lines; 0 where it says none.
uint32_t line_at(const std::string& table, uint32_t first_line, int64_t offset);

class InterpreterView {
 public:
  explicit InterpreterView(const kinetoscope_interpreter& interpreter) : here_(interpreter) {}
  InterpreterView(const kinetoscope_interpreter& interpreter, pid_t forked)
      : here_(interpreter), memory_(forked) {}

  MemoryReader& memory() { return memory_; }

  // [GIL] Empty if the layout is consistent with what Python's API returns, else a description of the
  // difference.
  std::string problem();

  // The threads that can be read, newest first; false when the list changed under the reader.
  bool threads(std::vector<PythonThread>& found);
  // The innermost `most` Python frames of a thread, innermost first; false if they are inconsistent.
  bool frames(const PythonThread& thread, uint32_t most, std::vector<SeenFrame>& found);
  // Whether the thread of this state is the interpreter's only one. Only reads memory that is never freed.
  bool is_only_thread(const void* state) const;
  // The innermost frame of the main thread. Only reads memory that is never freed.
  const void* frame_of_main(const void* state) const;
  // A hash of where the names and the lines of a frame's code object are: another one at its address has
  // another one. 0 if there is no code object. Reads much less than code().
  uint64_t identity(const SeenFrame& frame);
  // False if the code object does not exist any more.
  bool code(const SeenFrame& frame, SeenCode& found);

  // Whether a thread that waits at `address` waits for the GIL.
  bool is_in_gil(uint64_t address) const {
    const auto gil = reinterpret_cast<uintptr_t>(here_.gil);
    return address >= gil && address < gil + kinetoscope_layout.gil_bytes;
  }
  // Whether another thread than this one holds the GIL; true if that cannot be read.
  bool gil_is_elsewhere(const PythonThread& thread);

 private:
  template <typename Value>
  bool field(const void* base, uint32_t offset, Value& into) {
    return memory_.read(static_cast<const char*>(base) + offset, into);
  }
  bool is_of(const void* object, const void* type);
  bool text(const void* object, std::string& into);
  bool bytes(const void* object, std::string& into);

  const kinetoscope_interpreter here_;
  MemoryReader memory_;
};

}  // namespace kinetoscope
