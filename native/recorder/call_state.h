// The open Python calls of a thread. Includes neither torch nor Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "../core/recording/format.h"
#include "probing_table.h"
#include "thread_state.h"

namespace kinetoscope {

// Whose a function is; as Code in collect/process/own_code.py.
enum class CodeOwner : char { Own = 'o', PassingOn = 'p', Python = 'l', Torch = 't', Program = 'u' };

// Which calls in a call are not recorded, because Kinetoscope makes them for itself.
enum class Hides : uint8_t { None, OfPython, OfTorchToo };

// What a recording knows of a code object. Addresses of freed code objects are reused, so in a later epoch
// than `epoch` its fingerprint must be compared.
struct CodeEntry {
  uint64_t fingerprint = 0;
  uint32_t epoch = 0;
  uint32_t name = 0;   // qualified name
  uint32_t frame = 0;  // the function at its first line
  CodeOwner owner = CodeOwner::Program;
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

// Writes the end of a call's record, after its flags.
inline void end_record(CompactSpan& record, uint64_t tick) {
  std::atomic_ref(record.end)
      .store(CompactSpan::end_of(record.start_tick(), tick), std::memory_order_release);
}

// A call in progress.
struct OpenCall {
  const void* frame = nullptr;     // the function's; of a C function, that of its caller
  const void* function = nullptr;  // the C function; null for one in Python
  CompactSpan* record = nullptr;   // null: nothing is kept of it
  CompactSpan* module_record = nullptr;
  SpanSite site{};                     // of `record`
  const void* code = nullptr;          // the frame's code object
  uint32_t callers = kUnknownCallers;  // the stack that `frame` was called from, which lasts as long as it
  uint32_t module = 0;                 // innermost nn.Module around and including it
  uint32_t depth = 0;                  // of its frame, from the outermost one, which has 1
  Hides hides = Hides::None;           // not None: it is not recorded either
};

// Which kinds of calls can be recorded.
inline constexpr uint32_t kCalls = kRecordCalls | kRecordModuleSpans;

// Guards the open calls of all threads, since not every access holds the GIL: switching calls off ends them
// on all threads, while a thread may be opening its own calls at an operator, or ending.
inline std::mutex open_calls_mutex;

struct CallState {
  std::vector<OpenCall> open;  // outermost first
  uint32_t kinds = 0;          // of kCalls: which of them `open` has
  Walk walk;                   // of the last call whose stack was walked
  ProbingTable<AddressKey, CodeEntry> codes;
  ProbingTable<CalledKey> stacks;
  ProbingTable<TextKey> functions;  // names of C functions
  ProbingTable<TextKey> classes;    // names of module classes

  void clear() {
    open.clear();
    kinds = 0;
    walk.path_depth = 0;
    codes.clear();
    stacks.clear();
    functions.clear();
    classes.clear();
  }

  // [with open_calls_mutex] Clears all cached ids. Modules and records of open calls remain.
  void forget_ids() {
    for (OpenCall& call : open) call.callers = kUnknownCallers;
    walk.path_depth = 0;
    codes.clear();
    stacks.clear();
    functions.clear();
    classes.clear();
  }

  // [with open_calls_mutex] Ends open calls of some kinds: at the end of the recording or thread, or when
  // these kinds are switched off.
  void cut(uint32_t ended, uint64_t tick) {
    for (OpenCall& call : open) {
      if ((ended & kRecordCalls) != 0) cut(call.record, tick);
      if ((ended & kRecordModuleSpans) != 0) cut(call.module_record, tick);
    }
    kinds &= ~ended;
    if (kinds == 0) {
      open.clear();
    } else if ((kinds & kRecordCalls) == 0) {
      // Only calls of modules remain.
      std::erase_if(open, [](const OpenCall& call) { return call.module_record == nullptr; });
    }
  }

 private:
  static void cut(CompactSpan*& record, uint64_t tick) {
    if (record == nullptr) return;
    record->start |= kSpanCut;
    end_record(*record, tick);
    record = nullptr;
  }
};

// Clears the open calls of an earlier recording.
inline void clear_calls(ThreadState& thread) {
  std::lock_guard lock(open_calls_mutex);
  if (thread.call_state != nullptr) thread.call_state->clear();
}

// Clears cached ids of an earlier epoch of the dictionary.
inline void forget_call_ids(ThreadState& thread) {
  std::lock_guard lock(open_calls_mutex);
  if (thread.call_state != nullptr) thread.call_state->forget_ids();
}

}  // namespace kinetoscope
