// What the recorder keeps of the Python calls that a thread is in the middle of. No torch and no Python in
// here.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "../core/recording/format.h"
#include "probing_table.h"

namespace kinetoscope {

// A code object as one recording knows it. A freed code's address is used again: in another epoch than
// `epoch` it has to show its fingerprint.
struct CodeEntry {
  uint64_t fingerprint = 0;
  uint32_t epoch = 0;
  uint32_t name = 0;   // qualified name
  uint32_t frame = 0;  // the function at its first line
  bool own = false;    // part of Kinetoscope, whose calls are not recorded
};
inline bool is_empty(const CodeEntry& entry) { return entry.name == 0; }

// A frame below the stack of its caller.
struct CalledKey {
  uint32_t caller = 0;
  uint32_t frame = 0;
  bool operator==(const CalledKey&) const = default;
  uint64_t hash() const { return mix(uint64_t{caller} << 32 | frame); }
};

inline constexpr uint32_t kUnknownCallers = UINT32_MAX;

// A call in progress.
struct OpenCall {
  const void* frame = nullptr;     // the function's; of a C function, that of its caller
  const void* function = nullptr;  // the C function; null for one in Python
  SpanRecord* record = nullptr;    // null: nothing is kept of it
  SpanRecord* module_record = nullptr;
  const void* code = nullptr;          // that the frame runs
  uint32_t callers = kUnknownCallers;  // the stack that `frame` was called from, which lasts as long as it
  uint32_t module = 0;                 // innermost nn.Module around and including it
  bool own = false;
};

struct CallState {
  std::vector<OpenCall> open;  // outermost first
  ProbingTable<AddressKey, CodeEntry> codes;
  ProbingTable<CalledKey> stacks;
  ProbingTable<TextKey> functions;  // names of C functions
  ProbingTable<TextKey> classes;    // names of module classes

  void clear() {
    open.clear();
    codes.clear();
    stacks.clear();
    functions.clear();
    classes.clear();
  }

  // Of the calls in progress, the modules and the records stay.
  void forget_ids() {
    for (OpenCall& call : open) call.callers = kUnknownCallers;
    codes.clear();
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
