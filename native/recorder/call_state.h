// What the recorder keeps of the Python calls that a thread is in the middle of. No torch and no Python in
// here.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "../core/recording_format.h"
#include "probing_table.h"

namespace kinetoscope {

// A code object as one recording knows it; a freed code's address is used again, so its parts belong to the
// key.
struct CodeKey {
  const void* code = nullptr;
  uint64_t fingerprint = 0;
  bool operator==(const CodeKey&) const = default;
  uint64_t hash() const { return mix(reinterpret_cast<uintptr_t>(code) ^ mix(fingerprint)); }
};

struct CodeEntry {
  uint32_t name = 0;   // qualified name
  uint32_t frame = 0;  // the function at its first line
  bool own = false;    // part of Kinetoscope, whose calls are not recorded
};

// A frame below the stack of its caller.
struct CalledKey {
  uint32_t caller = 0;
  uint32_t frame = 0;
  bool operator==(const CalledKey&) const = default;
  uint64_t hash() const { return mix(uint64_t{caller} << 32 | frame); }
};

// A call in progress.
struct OpenCall {
  const void* frame = nullptr;     // the function's; of a C function, that of its caller
  const void* function = nullptr;  // the C function; null for one in Python
  SpanRecord* record = nullptr;    // null: nothing is kept of it
  SpanRecord* module_record = nullptr;
  uint32_t module = 0;  // innermost nn.Module around and including it
  bool own = false;
};

struct CallState {
  std::vector<OpenCall> open;   // outermost first
  ProbingTable<CodeKey> codes;  // index in `entries`, from 1
  std::vector<CodeEntry> entries;
  ProbingTable<CalledKey> stacks;
  ProbingTable<TextKey> functions;  // names of C functions
  ProbingTable<TextKey> classes;    // names of module classes

  void clear() {
    open.clear();
    codes.clear();
    entries.clear();
    stacks.clear();
    functions.clear();
    classes.clear();
  }

  // Ends what is still running, at the end of the recording or of the thread.
  void cut(uint64_t tick) {
    for (const OpenCall& call : open) {
      for (SpanRecord* record : {call.record, call.module_record}) {
        if (record == nullptr) continue;
        record->flags |= kSpanCut;
        std::atomic_ref(record->end_tick).store(tick, std::memory_order_release);
      }
    }
    open.clear();
  }
};

}  // namespace kinetoscope
