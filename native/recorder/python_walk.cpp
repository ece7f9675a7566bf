#include "python_walk.h"

#include <Python.h>

#include <algorithm>

#include "live.h"
#include "session.h"
#include "thread_state.h"

namespace kinetoscope {
namespace {

const void* module_call = nullptr;

constexpr size_t kHashedBytes = 512;

uint64_t text_hash(PyObject* text) {
  if (!PyUnicode_Check(text)) return 0;
  const Py_hash_t known = reinterpret_cast<PyASCIIObject*>(text)->hash;
  if (known != -1) return static_cast<uint64_t>(known);
  // Nobody asked for it yet. Asking here would write into an object that we only look at.
  const size_t bytes =
      static_cast<size_t>(PyUnicode_GET_LENGTH(text)) * static_cast<size_t>(PyUnicode_KIND(text));
  return hash_bytes(static_cast<const char*>(PyUnicode_DATA(text)), std::min(bytes, kHashedBytes)) ^ bytes;
}

// [GIL] Every thread compares its next operator's frames anew: one of the addresses it knows may now be
// another code's.
void code_gone() { live.code_epoch.fetch_add(1, std::memory_order_acq_rel); }

#if PY_VERSION_HEX >= 0x030C0000
int on_code_event(PyCodeEvent event, PyCodeObject*) {
  if (event == PY_CODE_EVENT_DESTROY) code_gone();
  return 0;
}

// Without a free slot for a watcher the fingerprints have to do.
void watch_code() {
  if (PyCode_AddWatcher(on_code_event) < 0) PyErr_Clear();
}
#else
destructor dealloc_code = nullptr;

void dealloc_watched_code(PyObject* code) {
  code_gone();
  dealloc_code(code);
}

// What 3.12 has watchers for.
void watch_code() {
  dealloc_code = PyCode_Type.tp_dealloc;
  PyCode_Type.tp_dealloc = dealloc_watched_code;
}
#endif

void append_utf8(uint32_t point, std::string& out) {
  if (point < 0x80) {
    out.push_back(static_cast<char>(point));
  } else if (point < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (point >> 6)));
    out.push_back(static_cast<char>(0x80 | (point & 0x3F)));
  } else if (point < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (point >> 12)));
    out.push_back(static_cast<char>(0x80 | ((point >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (point & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | (point >> 18)));
    out.push_back(static_cast<char>(0x80 | ((point >> 12) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | ((point >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (point & 0x3F)));
  }
}

// Interns one call step, on a miss of the thread's cache.
uint32_t intern_call(Session& session, const PyCodeObject* code, const void* instruction, uint32_t parent) {
  const char* first = reinterpret_cast<const char*>(code) + kinetoscope_layout.code_first_instruction;
  const auto offset = static_cast<const char*>(instruction) - first;
  // Reads the line table only; the code object is held by the frame we came from.
  const int line = PyCode_Addr2Line(const_cast<PyCodeObject*>(code), static_cast<int>(offset));
  std::string function;
  std::string filename;
  append_text(code->co_qualname, function);
  append_text(code->co_filename, filename);
  std::lock_guard lock(session.dictionary().mutex());
  const uint32_t frame =
      session.dictionary().frame(function, filename, line > 0 ? static_cast<uint32_t>(line) : 0);
  return session.dictionary().stack(parent, frame);
}

uint32_t module_id(ThreadState& thread, Session& session, PyObject* self, uint32_t caller) {
  const AddressKey key{self};
  if (const uint32_t known = thread.modules.find(key); known != 0) return known;
  const uint32_t id = session.modules().intern(self, caller);
  thread.modules.insert(key, id);
  return id;
}

struct SeenFrame {
  const void* code;
  const void* instruction;
  const void* module_self;
};

// Fills `seen` innermost first; at most kMaxDepth frames.
uint32_t collect(const void* innermost, SeenFrame* seen, bool modules) {
  uint32_t count = 0;
  for (const void* frame = innermost; frame != nullptr && count < kMaxDepth;
       frame = frames::previous(frame)) {
    if (!frames::is_python(frame)) continue;
    if (!frames::runs_code(frame)) continue;
    const void* code = frames::code(frame);
    seen[count].code = code;
    seen[count].instruction = frames::instruction(frame);
    seen[count].module_self = modules && code == module_call ? frames::first_local(frame) : nullptr;
    ++count;
  }
  return count;
}

}  // namespace

uint64_t code_fingerprint(const PyCodeObject* code) {
  return (reinterpret_cast<uintptr_t>(code->co_linetable) * 31 + text_hash(code->co_filename)) * 31 +
         text_hash(code->co_qualname) + static_cast<uint64_t>(code->co_firstlineno);
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

bool frames::runs_code(const void* frame) {
  const void* code = frames::code(frame);
#if PY_VERSION_HEX >= 0x030D0000
  return code != nullptr && PyCode_Check(const_cast<PyObject*>(static_cast<const PyObject*>(code)));
#else
  return code != nullptr;
#endif
}

const void* module_call_code() { return module_call; }

PythonPosition python_position(const ThreadState& thread) {
  // Only the main thread's state lives as long as Python does; elsewhere it may be another one each time.
  const void* python = thread.main_python != nullptr ? thread.main_python : PyGILState_GetThisThreadState();
  if (python == nullptr) return {};
  const void* frame = frames::innermost(python);
  if (frame == nullptr) return {};
  return {frame, frames::instruction(frame)};
}

Place locate(ThreadState& thread, Session& session, const PythonPosition& position, bool modules) {
  if (position.frame == nullptr) return {};
  SeenFrame seen[kMaxDepth];
  const uint32_t depth = collect(position.frame, seen, modules);

  if (const uint32_t epoch = live.module_epoch.load(std::memory_order_acquire);
      epoch != thread.module_epoch) {
    thread.module_epoch = epoch;
    thread.modules.clear();
    thread.path_depth = 0;
  }
  if (const uint32_t epoch = live.code_epoch.load(std::memory_order_acquire); epoch != thread.code_epoch) {
    thread.code_epoch = epoch;
    thread.path_depth = 0;
  }
  // From the outermost frame inwards, as far as nothing changed since this thread's last operator.
  PathFrame* path = thread.path;
  const uint32_t comparable = depth < thread.path_depth ? depth : thread.path_depth;
  uint32_t at = 0;
  while (at < comparable) {
    const SeenFrame& now = seen[depth - 1 - at];
    const PathFrame& then = path[at];
    if (now.code != then.code || now.instruction != then.instruction || now.module_self != then.module_self)
      break;
    ++at;
  }
  for (; at < depth; ++at) {
    const SeenFrame& now = seen[depth - 1 - at];
    const uint32_t parent = at == 0 ? 0 : path[at - 1].stack;
    const uint32_t caller = at == 0 ? 0 : path[at - 1].module;
    const auto* code = static_cast<const PyCodeObject*>(now.code);
    const CallKey key{now.code, now.instruction, code_fingerprint(code), parent};
    uint32_t stack = thread.calls.find(key);
    if (stack == 0) {
      stack = intern_call(session, code, now.instruction, parent);
      thread.calls.insert(key, stack);
    }
    uint32_t module = caller;
    if (now.module_self != nullptr) {
      auto* self = const_cast<PyObject*>(static_cast<const PyObject*>(now.module_self));
      module = module_id(thread, session, self, caller);
    }
    path[at] = {now.code, now.instruction, now.module_self, stack, module};
    // What is written so far is whole, should the next step run out of memory.
    thread.path_depth = at + 1;
  }
  thread.path_depth = depth;
  if (depth == 0) return {};
  return {path[depth - 1].stack, path[depth - 1].module};
}

}  // namespace kinetoscope
