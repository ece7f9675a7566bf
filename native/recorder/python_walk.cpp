#include "python_walk.h"

#include <Python.h>

#include <algorithm>
#include <utility>

#include "live.h"
#include "session.h"
#include "thread_state.h"
#include "utf8.h"

namespace kinetoscope {
namespace {

const void* module_call = nullptr;

constexpr size_t kHashedBytes = 512;

uint64_t text_hash(PyObject* text) {
  if (!PyUnicode_Check(text)) return 0;
  const Py_hash_t known = reinterpret_cast<PyASCIIObject*>(text)->hash;
  if (known != -1) return static_cast<uint64_t>(known);
  // Not cached yet. Requesting it here would write into an object that must only be read.
  const size_t bytes =
      static_cast<size_t>(PyUnicode_GET_LENGTH(text)) * static_cast<size_t>(PyUnicode_KIND(text));
  return hash_bytes(static_cast<const char*>(PyUnicode_DATA(text)), std::min(bytes, kHashedBytes)) ^ bytes;
}

// Called when a code object is freed: every thread compares all frames at its next operator, because a cached
// address may be reused.
#if PY_VERSION_HEX >= 0x030C0000
int on_code_event(PyCodeEvent event, PyCodeObject* code) {
  if (event == PY_CODE_EVENT_DESTROY) code_gone(code);
  return 0;
}

// If Python has no free watcher, fingerprints are compared instead.
void watch_code() {
  if (PyCode_AddWatcher(on_code_event) >= 0) return;
  live.code_is_watched = false;
  PyErr_Clear();
}
#else
destructor dealloc_code = nullptr;

void dealloc_watched_code(PyObject* code) {
  code_gone(code);
  dealloc_code(code);
}

// Python 3.11 has no watchers of code objects.
void watch_code() {
  dealloc_code = PyCode_Type.tp_dealloc;
  PyCode_Type.tp_dealloc = dealloc_watched_code;
}
#endif

// Interns the frame of one call step, on a miss of the thread's cache.
uint32_t intern_frame(Session& session, const PyCodeObject* code, const void* instruction) {
  const char* first = reinterpret_cast<const char*>(code) + kinetoscope_layout.code_first_instruction;
  const auto offset = static_cast<const char*>(instruction) - first;
  // Only reads the line table; the frame holds a reference to the code object.
  const int line = PyCode_Addr2Line(const_cast<PyCodeObject*>(code), static_cast<int>(offset));
  std::string function;
  std::string filename;
  append_text(code->co_qualname, function);
  append_text(code->co_filename, filename);
  std::lock_guard lock(session.dictionary().mutex());
  const int first_line = code->co_firstlineno;
  return session.dictionary().frame(function, filename, line > 0 ? static_cast<uint32_t>(line) : 0,
                                    first_line > 0 ? static_cast<uint32_t>(first_line) : 0);
}

// The cached data of one step, independent of the calling stack.
const KnownStep& known_step(ThreadState& thread, Session& session, const PyCodeObject* code,
                            const void* instruction, uint64_t fingerprint) {
  const StepKey key{code, instruction};
  if (const KnownStep& known = thread.steps.at(key); known.frame == 0 || known.fingerprint != fingerprint) {
    thread.steps.insert(key, {fingerprint, kinetoscope_reach_of(code, instruction),
                              intern_frame(session, code, instruction)});
  }
  return thread.steps.at(key);
}

uint32_t module_id(ThreadState& thread, Session& session, PyObject* self, uint32_t caller) {
  const AddressKey key{self};
  if (const uint32_t known = thread.modules.find(key); known != 0) return known;
  const uint32_t id = session.modules().intern(self, caller);
  thread.modules.insert(key, id);
  return id;
}

// The cached data of one call step; found by address alone as long as no code object was freed since.
const KnownCall& known_call(ThreadState& thread, Session& session, uint32_t code_epoch,
                            const PyCodeObject* code, const void* instruction, uint32_t parent) {
  const CallKey key{code, instruction, parent};
  KnownCall& known = thread.calls.at(key);
  if (known.stack != 0 && known.epoch == code_epoch && live.code_is_watched) return known;
  if (known.stack != 0 && is_still(code, known.fingerprint, known.epoch)) {
    known.epoch = code_epoch;
    return known;
  }
  const uint64_t fingerprint = code_fingerprint(code);
  const KnownStep& step = known_step(thread, session, code, instruction, fingerprint);
  uint32_t stack = 0;
  {
    std::lock_guard lock(session.dictionary().mutex());
    stack = session.dictionary().stack(parent, step.frame);
  }
  thread.calls.insert(key, {fingerprint, step.reach, stack, code_epoch});
  return thread.calls.at(key);
}

const void* module_self(const void* frame, const void* code, bool modules) {
  return modules && code == module_call ? frames::first_local(frame) : nullptr;
}

bool is_at(const CallPosition& call, const void* frame) {
  return call.frame == frame && call.instruction == frames::instruction(frame) &&
         (call.module_self == nullptr || call.module_self == frames::first_local(frame));
}

// Whether the thread, whose innermost frame is `frame`, is in exactly the calls of `path`, and all but the
// innermost are at the same instruction. That is so for most operators.
bool same_callers(const CallPosition* path, uint32_t depth, const void* frame) {
  if (depth == 0 || depth == kMaxDepth || path[depth - 1].frame != frame || !frames::runs_code(frame))
    return false;
  for (const CallPosition* call = path + depth - 1;; --call) {
    frame = frames::previous_python(frame);
    if (call == path) return frame == nullptr;
    if (!is_at(call[-1], frame)) return false;
  }
}

bool is_past_anchor(const PathCall& call, const void* instruction) {
  return call.anchor != nullptr && call.anchor < instruction;
}

// What may be new outside of a call, by whether it has passed its anchor.
MayBeNew outside_of(const PathCall* calls, uint32_t call, bool passed) {
  if (passed) return {};
  if (call == 0) return {0, 0, true};
  MayBeNew outside = calls[call - 1].outside;
  if (calls[call - 1].reach.loop_head != nullptr || calls[call].called_by_c) {
    outside.most = static_cast<uint16_t>(call);
    if (outside.fewest == 0) outside.fewest = outside.most;
  }
  return outside;
}

struct Kept {
  uint32_t calls = 0;
  uint32_t unsure = 0;  // of these, the innermost
};

// How many of the `depth` open calls of a thread, innermost first in `chain`, are the same as the `before`
// calls in `path` and `calls`, of which `same` are at the same instruction. Addresses of frames are reused at
// once, so they do not tell. What tells is where a call can get to: from an instruction to a later one, or to
// any in a loop; a call begins again only where its caller's instruction runs again, in a loop or because C
// code calls; and a new call runs an operator at its anchor before it gets further. One instruction may run
// several operators: where that and a new call look alike, the calls that may be new are unsure.
Kept kept_calls(const CallPosition* path, const PathCall* calls, uint32_t before, const void* const* chain,
                uint32_t depth, uint32_t same, bool outermost_stays) {
  uint32_t most = same;
  const void* now = nullptr;
  // The last call of the shorter path is in the middle of one instruction.
  bool possible = same == depth || same == before;
  if (!possible) {
    const void* frame = chain[depth - 1 - same];
    now = frames::instruction(frame);
    const void* then = path[same].instruction;
    // At the same instruction, a call of another module is another call.
    if (path[same].frame == frame && calls[same].code == frames::code(frame) && then != now) {
      const kinetoscope_reach& reach = calls[same].reach;
      const bool ahead = now > then && (now < reach.gap_begin || now >= reach.gap_end);
      possible = ahead || (reach.loop_head != nullptr && now >= reach.loop_head);
      if (possible) ++most;
    }
  }
  const auto runs_again = [&](uint32_t call) {
    return calls[call].reach.loop_head != nullptr || (call + 1 < before && calls[call + 1].called_by_c);
  };
  if (!possible) possible = most > 0 ? runs_again(most - 1) : !outermost_stays;
  Kept kept{same};
  bool is_first = true;
  const auto may_be_all = [&](uint32_t count) {
    if (std::exchange(is_first, false)) kept.calls = count;
    kept.unsure = kept.calls - count;
  };
  if (possible) may_be_all(most);
  if (most == 0) return kept;
  const MayBeNew outside =
      most > same ? outside_of(calls, same, is_past_anchor(calls[same], now)) : calls[most - 1].outside;
  if (outside.most != 0) {
    may_be_all(outside.most);
    may_be_all(outside.fewest);
  }
  if (outside.none_kept && !outermost_stays) may_be_all(0);
  return kept;
}

// Notes where the calls of a walk have run an operator, innermost first: where one did so at an instruction
// that no call of it can avoid, so did its caller at the instruction that called it.
void set_anchors(const CallPosition* path, PathCall* calls, uint32_t depth) {
  for (uint32_t call = depth; call-- > 0;) {
    const void* instruction = path[call].instruction;
    if (calls[call].reach.avoidable || (calls[call].anchor != nullptr && calls[call].anchor <= instruction))
      return;
    calls[call].anchor = instruction;
  }
}

}  // namespace

uint64_t code_fingerprint(const PyCodeObject* code) {
  const auto bytes = static_cast<size_t>(PyBytes_GET_SIZE(code->co_linetable));
  const uint64_t lines =
      hash_bytes(PyBytes_AS_STRING(code->co_linetable), std::min(bytes, kHashedBytes)) ^ bytes;
  return (lines * 31 + text_hash(code->co_filename)) * 31 + text_hash(code->co_qualname) +
         static_cast<uint64_t>(code->co_firstlineno);
}

bool is_still(const PyCodeObject* code, uint64_t fingerprint, uint32_t epoch) {
  return (live.code_is_watched && !code_went_since(epoch, code)) || code_fingerprint(code) == fingerprint;
}

void append_text(PyObject* text, std::string& out) {
  if (text == nullptr || !PyUnicode_Check(text)) return;
  const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
  if (PyUnicode_IS_ASCII(text)) {
    out.append(static_cast<const char*>(PyUnicode_DATA(text)), static_cast<size_t>(length));
    return;
  }
  const int kind = PyUnicode_KIND(text);
  const void* data = PyUnicode_DATA(text);
  for (Py_ssize_t at = 0; at < length; ++at) append_utf8(PyUnicode_READ(kind, data, at), out);
}

bool prepare_walk(PyObject* code) {
  const uint32_t built_for = kinetoscope_layout.python_hex >> 16;
  if ((static_cast<uint32_t>(Py_Version) >> 16) != built_for) return false;
  module_call = code;
  watch_code();
  return true;
}

const void* module_call_code() { return module_call; }

PythonPosition position_elsewhere() { return position_in(PyGILState_GetThisThreadState()); }

Place locate(ThreadState& thread, Session& session, Walk& walk, const PythonPosition& position,
             bool modules) {
  if (position.frame == nullptr) return {};
  // Most operators begin in the same frame as the previous one, at a later instruction.
  if (const uint32_t last = walk.path_depth; last > 1 && walk.path[last - 1].frame == position.frame) {
    thread.calls.prefetch({nullptr, position.instruction, walk.path_calls[last - 2].stack});
  }
  CallPosition* path = walk.path;
  PathCall* calls = walk.path_calls;
  const uint32_t before = walk.path_depth;
  const void* chain[kMaxDepth];
  uint32_t depth = 0;
  uint32_t same = 0;
  const uint32_t module_epoch = live.module_epoch.load(std::memory_order_acquire);
  const uint32_t code_epoch = live.code_epoch.load(std::memory_order_acquire);
  const bool unchanged = module_epoch == walk.module_epoch && code_epoch == walk.code_epoch;
  if (unchanged && same_callers(path, before, position.frame)) {
    // Of the chain, only the innermost frame is needed below.
    chain[0] = position.frame;
    depth = before;
    same = is_at(path[before - 1], position.frame) ? before : before - 1;
  } else {
    for (const void* frame = position.frame; frame != nullptr && depth < kMaxDepth;
         frame = frames::previous(frame)) {
      if (frames::is_python(frame) && frames::runs_code(frame)) chain[depth++] = frame;
    }
    if (depth == 0) return {};
    // Skip outer frames that have not changed since the thread's last operator.
    while (same < before && same < depth && is_at(path[same], chain[depth - 1 - same])) ++same;
  }
  uint32_t at = same;
  if (!unchanged) {
    if (module_epoch != walk.module_epoch) thread.modules.clear();
    walk.module_epoch = module_epoch;
    walk.code_epoch = code_epoch;
    at = 0;
  }
  // If a path is truncated at its outer end, its calls cannot be matched.
  const bool comparable = before != 0 && before != kMaxDepth && depth != kMaxDepth;
  const Kept kept = comparable
                        ? kept_calls(path, calls, before, chain, depth, same, thread.main_python != nullptr)
                        : Kept{};
  for (uint32_t again = kept.calls; again < at; ++again) {
    calls[again].anchor = nullptr;
    calls[again].outside = outside_of(calls, again, false);
  }
  for (; at < depth; ++at) {
    const void* frame = chain[depth - 1 - at];
    const uint32_t parent = at == 0 ? 0 : calls[at - 1].stack;
    const uint32_t caller = at == 0 ? 0 : calls[at - 1].module;
    const auto* code = static_cast<const PyCodeObject*>(frames::code(frame));
    const void* instruction = frames::instruction(frame);
    const KnownCall& call = known_call(thread, session, code_epoch, code, instruction, parent);
    uint32_t module = caller;
    const void* self = module_self(frame, code, modules);
    if (self != nullptr) {
      module = module_id(thread, session, const_cast<PyObject*>(static_cast<const PyObject*>(self)), caller);
    }
    const bool is_kept = comparable && at < kept.calls && at < before;
    const void* anchor = is_kept ? calls[at].anchor : nullptr;
    const bool by_c = is_kept ? calls[at].called_by_c : frames::called_by_c(frame);
    // Complete before the next step, which may throw if memory is out.
    path[at] = {frame, instruction, self};
    calls[at] = {code, anchor, call.stack, module, call.reach, by_c};
    calls[at].outside = outside_of(calls, at, is_past_anchor(calls[at], instruction));
    walk.path_depth = at + 1;
  }
  walk.path_depth = depth;
  set_anchors(path, calls, depth);
  Place place{calls[depth - 1].stack, calls[depth - 1].module};
  if (comparable) {
    place.kept = static_cast<uint16_t>((kept.calls + 1) | std::min(kept.unsure, kMaxUnsure) << kUnsureShift);
  }
  return place;
}

uint32_t stack_at(ThreadState& thread, Session& session, const Walk& walk, const void* frame,
                  uint32_t callers) {
  const auto* code = static_cast<const PyCodeObject*>(frames::code(frame));
  return known_call(thread, session, walk.code_epoch, code, frames::instruction(frame), callers).stack;
}

}  // namespace kinetoscope
