#include "python_calls.h"

#include <Python.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "call_hooks.h"
#include "call_state.h"
#include "clock.h"
#include "python_walk.h"
#include "session.h"
#include "thread_state.h"

namespace kinetoscope {
namespace {

std::string own_folder;
uint64_t short_call_ticks = 0;
// Threads with a higher number began after the recording did.
uint64_t last_thread_at_start = 0;

CallState& state_of(ThreadState& thread) {
  if (thread.call_state == nullptr) thread.call_state = new CallState;
  return *thread.call_state;
}

const CodeEntry& entry_of(CallState& state, Session& session, const PyCodeObject* code) {
  const AddressKey key{code};
  const uint32_t epoch = live.code_epoch.load(std::memory_order_acquire);
  CodeEntry& known = state.codes.at(key);
  if (!is_empty(known) && known.epoch == epoch && live.code_is_watched) return known;
  if (!is_empty(known) && is_still(code, known.fingerprint, known.epoch)) {
    known.epoch = epoch;
    return known;
  }
  std::string function;
  std::string filename;
  append_text(code->co_qualname, function);
  append_text(code->co_filename, filename);
  CodeEntry entry{code_fingerprint(code), epoch};
  entry.own = !own_folder.empty() && filename.starts_with(own_folder);
  {
    Dictionary& dictionary = session.dictionary();
    std::lock_guard lock(dictionary.mutex());
    const int line = code->co_firstlineno;
    entry.name = dictionary.name(function, {});
    const uint32_t first_line = line > 0 ? static_cast<uint32_t>(line) : 0;
    entry.frame = dictionary.frame(function, filename, first_line, first_line);
  }
  state.codes.insert(key, entry);
  return state.codes.at(key);
}

// The stack that a call came from, up to where its caller stands.
uint32_t callers_of(ThreadState& thread, Session& session, const void* frame, bool modules) {
  const void* around = frames::previous(frame);
  // The frames of C code have no instruction.
  while (around != nullptr && !(frames::is_python(around) && frames::runs_code(around))) {
    around = frames::previous(around);
  }
  if (around == nullptr) return 0;
  // Only the caller has moved on since it was called itself.
  const std::vector<OpenCall>& open = thread.call_state->open;
  if (!open.empty() && open.back().frame == around && open.back().callers != kUnknownCallers &&
      open.back().code == frames::code(around) &&
      thread.code_epoch == live.code_epoch.load(std::memory_order_acquire)) {
    return stack_at(thread, session, around, open.back().callers);
  }
  return locate(thread, session, {around, frames::instruction(around)}, modules, true).stack;
}

// The stack of a call: the function at its first line, called from there.
uint32_t stack_of(ThreadState& thread, Session& session, uint32_t callers, uint32_t own_frame) {
  const CalledKey key{callers, own_frame};
  if (const uint32_t known = thread.call_state->stacks.find(key); known != 0) return known;
  uint32_t id = 0;
  {
    std::lock_guard lock(session.dictionary().mutex());
    id = session.dictionary().stack(callers, own_frame);
  }
  thread.call_state->stacks.insert(key, id);
  return id;
}

// Name of a text that lives as long as `owner` does, looked up by both.
uint32_t cached_name(ProbingTable<TextKey>& table, Session& session, const void* owner, const char* text,
                     std::string (*spell)(PyObject*), PyObject* object) {
  const size_t length = std::strlen(text);
  const TextKey key{hash_bytes(text, length), mix(reinterpret_cast<uintptr_t>(owner))};
  if (const uint32_t known = table.find(key); known != 0) return known;
  const std::string spelled = spell(object);
  uint32_t id = 0;
  {
    std::lock_guard lock(session.dictionary().mutex());
    id = session.dictionary().name(spelled, {});
  }
  table.insert(key, id);
  return id;
}

bool is_method_descriptor(PyObject* function) {
  return Py_IS_TYPE(function, &PyMethodDescr_Type) || Py_IS_TYPE(function, &PyClassMethodDescr_Type);
}

const PyMethodDef* method_of(PyObject* function) {
  return is_method_descriptor(function) ? reinterpret_cast<PyMethodDescrObject*>(function)->d_method
                                        : reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
}

// What a C function belongs to: its module, or a class.
PyObject* owner_of(PyObject* function) {
  if (is_method_descriptor(function)) return reinterpret_cast<PyObject*>(PyDescr_TYPE(function));
  const auto* self = reinterpret_cast<PyCFunctionObject*>(function);
  if (self->m_module != nullptr && PyUnicode_Check(self->m_module)) return self->m_module;
  if (self->m_self == nullptr || PyType_Check(self->m_self) || PyModule_Check(self->m_self))
    return self->m_self;
  return reinterpret_cast<PyObject*>(Py_TYPE(self->m_self));
}

std::string spell_function(PyObject* function) {
  PyObject* owner = owner_of(function);
  std::string spelled;
  if (owner != nullptr && PyUnicode_Check(owner)) {
    append_text(owner, spelled);
  } else if (owner != nullptr && PyType_Check(owner)) {
    spelled = reinterpret_cast<PyTypeObject*>(owner)->tp_name;
  }
  const char* name = method_of(function)->ml_name;
  // Operators that torch binds have no name of their own.
  if (!spelled.empty() && *name != '\0') spelled += '.';
  return spelled + name;
}

std::string spell_class(PyObject* self) {
  const std::string_view name = Py_TYPE(self)->tp_name;
  return std::string(name.substr(name.rfind('.') + 1));
}

SpanRecord* write_span(ThreadState& thread, Session& session, const SpanRecord& record) {
  SpanRecord* written = session.next_span(thread);
  if (written == nullptr) return nullptr;
  *written = record;
  Session::commit_span(thread);
  return written;
}

SpanRecord call_record(uint8_t scope, uint8_t flags, uint64_t tick) {
  SpanRecord record{};
  record.start_tick = tick;
  record.sequence = -1;
  record.scope = scope;
  record.flags = flags;
  return record;
}

// The module that a frame of nn.Module's call is the call of, and its span if those are wanted.
void enter_module(ThreadState& thread, Session& session, OpenCall& call, SpanRecord record, bool spans) {
  PyObject* self = frames::first_local(call.frame);
  if (self == nullptr) return;
  const Place inside = locate(thread, session, {call.frame, frames::instruction(call.frame)}, true, true);
  call.module = inside.module;
  if (!spans) return;
  record.scope = kScopeModule;
  record.module = call.module;
  // Where it was called, rather than the one line within nn.Module that is always the same.
  record.stack = thread.path_depth > 1 ? thread.path_calls[thread.path_depth - 2].stack : 0;
  record.name = cached_name(thread.call_state->classes, session, Py_TYPE(self), Py_TYPE(self)->tp_name,
                            spell_class, self);
  call.module_record = write_span(thread, session, record);
}

void open_call(ThreadState& thread, Session& session, const void* frame, uint8_t flags, uint64_t tick) {
  CallState& state = state_of(thread);
  const uint32_t what = live.what.load(std::memory_order_relaxed);
  const auto* code = static_cast<const PyCodeObject*>(frames::code(frame));
  OpenCall call;
  call.frame = frame;
  call.code = code;
  call.module = state.open.empty() ? 0 : state.open.back().module;
  SpanRecord record = call_record(kScopePython, flags, tick);
  const bool paused = (what & kPaused) != 0;
  if (code == module_call_code() && (what & kRecordModules) != 0) {
    enter_module(thread, session, call, record, (what & kRecordModuleSpans) != 0 && !paused);
  }
  if ((what & kRecordCalls) != 0) {
    const CodeEntry& entry = entry_of(state, session, code);
    call.own = entry.own;
    if (!entry.own && !paused) {
      record.name = entry.name;
      if ((what & kRecordStacks) != 0) {
        call.callers = callers_of(thread, session, frame, (what & kRecordModules) != 0);
        record.stack = stack_of(thread, session, call.callers, entry.frame);
      }
      record.module = call.module;
      call.record = write_span(thread, session, record);
    }
  }
  state.open.push_back(call);
}

void end_call(const OpenCall& call, uint64_t tick) {
  for (SpanRecord* record : {call.record, call.module_record}) {
    if (record != nullptr) std::atomic_ref(record->end_tick).store(tick, std::memory_order_relaxed);
  }
}

bool wanted(const void* frame, uint32_t what) {
  return (what & kRecordCalls) != 0 || frames::code(frame) == module_call_code();
}

// Opens the calls that a thread is in the middle of when it joins the recording.
void open_running(ThreadState& thread, Session& session) {
  PyThreadState* python = PyGILState_GetThisThreadState();
  if (python == nullptr || !call_hooks::reach(python)) return;
  state_of(thread).clear();
  const void* running[kMaxDepth];
  uint32_t depth = 0;
  const uint32_t what = live.what.load(std::memory_order_relaxed);
  for (const void* frame = frames::innermost(python); frame != nullptr && depth < kMaxDepth;
       frame = frames::previous(frame)) {
    if (frames::is_python(frame) && frames::runs_code(frame) && wanted(frame, what)) running[depth++] = frame;
  }
  // Had one of them begun since, we would have been told.
  const uint64_t tick = python->id <= last_thread_at_start ? session.file().header().start_tick : read_tick();
  while (depth-- > 0) open_call(thread, session, running[depth], kSpanBegunBefore, tick);
}

// Runs `action` with the calling thread's state in the recording in progress; whether the thread has just
// joined is its third argument.
template <typename Action>
void in_session(Action action) {
  ThreadState* thread = this_thread();
  if (thread == nullptr) return;
  BusyGuard busy(*thread);
  Session* session = Session::current();
  if (session == nullptr) return;
  try {
    const bool joins = thread->generation != live.generation.load(std::memory_order_relaxed);
    if (joins) thread->join(*session);
    if (!thread->keep_up(*session)) return;
    if (thread->call_state == nullptr) return;
    action(*thread, *session, joins);
  } catch (...) {
    // Out of memory: this one call is missing, the job goes on.
    session->faults.fetch_add(1, std::memory_order_relaxed);
  }
}

const void* running_frame() { return frames::innermost(PyThreadState_Get()); }

}  // namespace

void know_own_code(const char* folder) { own_folder = folder; }

uint32_t claim_calls(uint32_t what, std::string& why) {
  if ((what & (kRecordCalls | kRecordModuleSpans)) == 0) return what;
  return call_hooks::claim(why) ? what : what & ~(kRecordCalls | kRecordModuleSpans);
}

void prepare_calls(uint64_t ticks_a_microsecond) {
  short_call_ticks = ticks_a_microsecond;
  last_thread_at_start = 0;
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  for (PyThreadState* thread = PyInterpreterState_ThreadHead(interpreter); thread != nullptr;
       thread = PyThreadState_Next(thread))
    last_thread_at_start = std::max<uint64_t>(last_thread_at_start, thread->id);
  live.joined.store(open_running, std::memory_order_release);
}

void start_calls(Session& session) {
  call_hooks::start(live.what.load(std::memory_order_relaxed));
  // The caller's own calls at once: a recording killed in its first function knows that function.
  ThreadState* thread = this_thread();
  if (thread == nullptr) return;
  BusyGuard busy(*thread);
  if (thread->generation != session.generation()) thread->join(session);
}

size_t stop_calls() {
  if (live.joined.exchange(nullptr, std::memory_order_acq_rel) == nullptr) return 0;
  return call_hooks::stop();
}

void cut_calls(Session& session, uint64_t tick) {
  for_each_thread([&](ThreadState& thread) {
    if (thread.generation == session.generation() && thread.call_state != nullptr)
      thread.call_state->cut(tick);
  });
}

void forget_calls() { stop_calls(); }

namespace calls {

bool concerns_this_call() { return frames::code(running_frame()) == module_call_code(); }

void began() {
  const void* frame = running_frame();
  in_session([frame](ThreadState& thread, Session& session, bool joins) {
    const uint64_t now = read_tick();
    std::vector<OpenCall>& open = thread.call_state->open;
    if (joins && !open.empty() && open.back().frame == frame) {
      // Opened with the calls around it a moment ago, but it begins only now.
      for (SpanRecord* record : {open.back().record, open.back().module_record}) {
        if (record == nullptr) continue;
        record->start_tick = now;
        record->flags &= static_cast<uint8_t>(~kSpanBegunBefore);
      }
      return;
    }
    open_call(thread, session, frame, 0, now);
  });
}

void ended() {
  const uint64_t now = read_tick();
  const void* frame = running_frame();
  in_session([frame, now](ThreadState& thread, Session&, bool) {
    std::vector<OpenCall>& open = thread.call_state->open;
    // A C function that its frame was in has ended too.
    while (!open.empty() && open.back().function != nullptr && open.back().frame == frame) {
      end_call(open.back(), now);
      open.pop_back();
    }
    for (size_t at = open.size(); at-- > 0;) {
      if (open[at].frame != frame || open[at].function != nullptr) continue;
      end_call(open[at], now);
      // Others above it belong to another chain of frames, as greenlets make them.
      open.erase(open.begin() + static_cast<ptrdiff_t>(at));
      return;
    }
  });
}

void c_began(PyObject* function) {
  if (!PyCFunction_Check(function) && !is_method_descriptor(function)) return;
  const void* frame = running_frame();
  in_session([frame, function](ThreadState& thread, Session& session, bool) {
    CallState& state = *thread.call_state;
    const OpenCall* around = state.open.empty() ? nullptr : &state.open.back();
    if (around != nullptr && around->own) return;
    if ((live.what.load(std::memory_order_relaxed) & kPaused) != 0) return;
    OpenCall call;
    call.frame = frame;
    call.function = function;
    if (around != nullptr && around->frame == frame) {
      call.code = around->code;
      call.callers = around->callers;
    }
    call.module = around != nullptr ? around->module : 0;
    SpanRecord record = call_record(kScopePython, 0, 0);
    record.module = call.module;
    record.name = cached_name(state.functions, session, owner_of(function), method_of(function)->ml_name,
                              spell_function, function);
    record.start_tick = read_tick();
    call.record = write_span(thread, session, record);
    state.open.push_back(call);
  });
}

void c_ended(PyObject* function) {
  const uint64_t now = read_tick();
  in_session([function, now](ThreadState& thread, Session&, bool) {
    std::vector<OpenCall>& open = thread.call_state->open;
    if (open.empty() || open.back().function != function) return;
    SpanRecord* record = open.back().record;
    open.pop_back();
    if (record == nullptr) return;
    if (now - record->start_tick < short_call_ticks && Session::take_back_span(thread, record)) return;
    std::atomic_ref(record->end_tick).store(now, std::memory_order_relaxed);
  });
}

}  // namespace calls
}  // namespace kinetoscope
