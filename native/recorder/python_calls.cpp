#include "python_calls.h"

#include <Python.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "call_hooks.h"
#include "call_state.h"
#include "clock.h"
#include "python_walk.h"
#include "session.h"
#include "thread_state.h"

namespace kinetoscope {
namespace {

std::vector<std::pair<std::string, CodeOwner>> code_prefixes;
uint64_t short_call_ticks = 0;

// When a kind of calls was switched on. Threads with a higher number than `last_thread` started later.
struct SwitchedOn {
  uint64_t tick = 0;
  uint64_t last_thread = 0;
};

// [with open_calls_mutex, like the kinds in Live::what and Live::calls_epoch]
SwitchedOn calls_on, module_spans_on;

// [GIL] The value of lost_call_threads() before the hooks were removed.
size_t lost_threads = 0;

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
  size_t longest = 0;
  for (const auto& [prefix, owner] : code_prefixes) {
    if (prefix.size() <= longest || !filename.starts_with(prefix)) continue;
    longest = prefix.size();
    entry.owner = owner;
  }
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

// The calling stack of a call, up to the current line of its caller.
uint32_t callers_of(ThreadState& thread, Session& session, const void* frame, bool modules) {
  const void* around = frames::previous(frame);
  // The frames of C code have no instruction.
  while (around != nullptr && !(frames::is_python(around) && frames::runs_code(around))) {
    around = frames::previous(around);
  }
  if (around == nullptr) return 0;
  // Of the calling stack, only the caller's line has changed since the caller was called itself.
  const std::vector<OpenCall>& open = thread.call_state->open;
  if (!open.empty() && open.back().frame == around && open.back().callers != kUnknownCallers &&
      open.back().code == frames::code(around) &&
      thread.call_state->walk.code_epoch == live.code_epoch.load(std::memory_order_acquire)) {
    return stack_at(thread, session, thread.call_state->walk, around, open.back().callers);
  }
  Walk& walk = thread.call_state->walk;
  return locate(thread, session, walk, {around, frames::instruction(around)}, modules).stack;
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

// The owner of a C function: its module, or a class.
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

CompactSpan* write_span(ThreadState& thread, Session& session, const SpanRecord& record) {
  CompactSpan* written = session.next_span(thread);
  if (written == nullptr) return nullptr;
  *written = compact(record, session.site(thread, site_of(record)));
  Session::commit_span(thread);
  return written;
}

uint32_t place_of(const OpenCall& call, CallKind kind) { return call.depth << kCallDepthShift | kind; }

SpanRecord call_record(uint8_t scope, uint8_t flags, uint64_t tick) {
  SpanRecord record;
  record.start_tick = tick;
  record.scope = scope;
  record.flags = flags;
  return record;
}

// Sets the module of a frame of nn.Module's call, and begins the module's span if these are recorded.
void enter_module(ThreadState& thread, Session& session, OpenCall& call, SpanRecord record, bool spans) {
  PyObject* self = frames::first_local(call.frame);
  if (self == nullptr) return;
  Walk& walk = thread.call_state->walk;
  const PythonPosition position{call.frame, frames::instruction(call.frame)};
  call.module = locate(thread, session, walk, position, true).module;
  // Also if no other calls are recorded from which the depth could be counted.
  call.depth = std::max(call.depth, walk.path_depth);
  if (!spans) return;
  record.module = call.module;
  // The calling line, rather than the line in nn.Module, which is always the same.
  record.stack = walk.path_depth > 1 ? walk.path_calls[walk.path_depth - 2].stack : 0;
  record.name = cached_name(thread.call_state->classes, session, Py_TYPE(self), Py_TYPE(self)->tp_name,
                            spell_class, self);
  record.parameter = place_of(call, kCallOfModule);
  call.module_record = write_span(thread, session, record);
}

// The stack of a call of this code; `call.callers` must be set.
uint32_t call_stack(ThreadState& thread, Session& session, OpenCall& call, uint32_t what,
                    const CodeEntry& entry) {
  call.callers = callers_of(thread, session, call.frame, (what & kRecordModules) != 0);
  return stack_of(thread, session, call.callers, entry.frame);
}

// What a call of this owner's code hides, made by a call that hides `around`.
Hides hides(CodeOwner owner, Hides around) {
  switch (owner) {
    case CodeOwner::Own:
      return Hides::OfTorchToo;
    case CodeOwner::PassingOn:
      return std::max(around, Hides::OfPython);
    case CodeOwner::Python:
      return around;
    case CodeOwner::Torch:
      return around == Hides::OfTorchToo ? around : Hides::None;
    default:
      return Hides::None;
  }
}

// Begins the records of a call: those of these kinds. The calls around it are open.
void begin_records(ThreadState& thread, Session& session, OpenCall& call, uint32_t kinds, uint8_t flags,
                   uint64_t calls_tick, uint64_t module_spans_tick) {
  CallState& state = *thread.call_state;
  const uint32_t what = live.what.load(std::memory_order_relaxed);
  const auto* code = static_cast<const PyCodeObject*>(call.code);
  if (code == module_call_code() && (what & kRecordModules) != 0) {
    enter_module(thread, session, call, call_record(kScopeModule, flags, module_spans_tick),
                 (kinds & kRecordModuleSpans) != 0);
  }
  if ((kinds & kRecordCalls) == 0) return;
  const CodeEntry& entry = entry_of(state, session, code);
  call.hides = hides(entry.owner, state.open.empty() ? Hides::None : state.open.back().hides);
  if (call.hides != Hides::None) return;
  SpanRecord record = call_record(kScopePython, flags, calls_tick);
  record.name = entry.name;
  if ((what & kRecordStacks) != 0) record.stack = call_stack(thread, session, call, what, entry);
  record.module = call.module;
  record.parameter = place_of(call, kCallOfPython);
  call.record = write_span(thread, session, record);
  call.site = site_of(record);
}

void open_call(ThreadState& thread, Session& session, const void* frame, uint64_t tick) {
  CallState& state = *thread.call_state;
  OpenCall call;
  call.frame = frame;
  call.code = frames::code(frame);
  if (!state.open.empty()) call.module = state.open.back().module;
  call.depth = state.open.empty() ? 1 : state.open.back().depth + 1;
  begin_records(thread, session, call, state.kinds, 0, tick, tick);
  state.open.push_back(call);
}

void end_call(const OpenCall& call, uint64_t tick) {
  for (CompactSpan* record : {call.record, call.module_record}) {
    if (record != nullptr) end_record(*record, tick);
  }
}

bool wanted(const void* frame, uint32_t what) {
  return (what & kRecordCalls) != 0 || frames::code(frame) == module_call_code();
}

// Adds what a call in progress lacks since stacks and modules have been recorded, too.
void complete(ThreadState& thread, Session& session, OpenCall& call) {
  const uint32_t what = live.what.load(std::memory_order_relaxed);
  if (call.record == nullptr) return;
  SpanSite site = call.site;
  if ((what & kRecordStacks) != 0 && site.stack == 0 && call.function == nullptr) {
    const auto* code = static_cast<const PyCodeObject*>(call.code);
    site.stack = call_stack(thread, session, call, what, entry_of(*thread.call_state, session, code));
  }
  if (site.module == 0) site.module = call.module;
  if (site == call.site) return;
  std::atomic_ref(call.record->site).store(session.site(thread, site), std::memory_order_relaxed);
  call.site = site;
}

// Opens the calls that a thread is in the middle of, of the kinds that have been switched on since it last
// did. [owner thread, with or without the GIL]
void open_running(ThreadState& thread, Session& session) {
  const std::lock_guard lock(open_calls_mutex);
  thread.calls_epoch = live.calls_epoch.load(std::memory_order_relaxed);
  const uint32_t kinds = live.what.load(std::memory_order_relaxed) & kCalls;
  if (kinds == 0) return;
  PyThreadState* python = PyGILState_GetThisThreadState();
  if (python == nullptr || !call_hooks::reach(python)) return;
  CallState& state = state_of(thread);
  const uint32_t fresh = kinds & ~std::exchange(state.kinds, kinds);
  const void* running[kMaxDepth];
  uint32_t depth = 0;
  for (const void* frame = frames::innermost(python); frame != nullptr && depth < kMaxDepth;
       frame = frames::previous(frame)) {
    if (frames::is_python(frame) && frames::runs_code(frame)) running[depth++] = frame;
  }
  // If one of them had begun since, its hook would have been called.
  const uint64_t now = read_tick();
  const auto since = [python, now](const SwitchedOn& on) {
    return python->id <= on.last_thread ? on.tick : now;
  };
  const uint64_t calls_tick = since(calls_on), module_spans_tick = since(module_spans_on);
  const std::vector<OpenCall> before = std::exchange(state.open, {});
  state.open.reserve(before.size() + depth);
  size_t next = 0;
  const uint32_t deepest = depth;
  while (depth-- > 0) {
    const void* frame = running[depth];
    if (!wanted(frame, kinds)) continue;
    size_t known = next;
    while (known < before.size() && (before[known].frame != frame || before[known].function != nullptr ||
                                     before[known].code != frames::code(frame)))
      ++known;
    OpenCall call;
    if (known < before.size()) {
      // Between them are those of another chain of frames, as greenlets make them.
      state.open.insert(state.open.end(), before.begin() + static_cast<ptrdiff_t>(next),
                        before.begin() + static_cast<ptrdiff_t>(known));
      call = before[known];
      next = known + 1;
    }
    call.frame = frame;
    call.code = frames::code(frame);
    call.depth = deepest - depth;
    if (call.module == 0 && !state.open.empty()) call.module = state.open.back().module;
    // An unknown one has just begun, or belongs to another chain of frames.
    begin_records(thread, session, call, known < before.size() ? fresh : kinds, kSpanBegunBefore,
                  (fresh & kRecordCalls) != 0 ? calls_tick : now,
                  (fresh & kRecordModuleSpans) != 0 ? module_spans_tick : now);
    complete(thread, session, call);
    state.open.push_back(call);
    // The C functions that it is in.
    for (; next < before.size() && before[next].function != nullptr && before[next].frame == frame; ++next) {
      state.open.push_back(before[next]);
      state.open.back().module = call.module;
      complete(thread, session, state.open.back());
    }
  }
  state.open.insert(state.open.end(), before.begin() + static_cast<ptrdiff_t>(next), before.end());
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
    const bool joins = thread->generation != live.generation.load(std::memory_order_relaxed) ||
                       thread->calls_epoch != live.calls_epoch.load(std::memory_order_relaxed);
    if (!(joins ? thread->catch_up(*session) : thread->keep_up(*session))) return;
    if (thread->call_state == nullptr) return;
    action(*thread, *session, joins);
  } catch (...) {
    // Out of memory: this one call is missing, the job goes on.
    session->faults.fetch_add(1, std::memory_order_relaxed);
  }
}

const void* running_frame() { return frames::innermost(PyThreadState_Get()); }

uint64_t last_thread() {
  uint64_t last = 0;
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  for (PyThreadState* thread = PyInterpreterState_ThreadHead(interpreter); thread != nullptr;
       thread = PyThreadState_Next(thread))
    last = std::max<uint64_t>(last, thread->id);
  return last;
}

void take_hooks_back() {
  lost_threads = lost_call_threads();
  call_hooks::stop();
}

// Ends the calls of these kinds that are in progress on any thread.
void cut_kinds(Session& session, uint32_t kinds, uint64_t tick) {
  for_each_thread([&](ThreadState& thread) {
    // Not held for the whole function: a thread in a callback may wait for it, and another thread for that
    // one.
    const std::lock_guard lock(open_calls_mutex);
    if (thread.generation == session.generation() && thread.call_state != nullptr)
      thread.call_state->cut(kinds, tick);
  });
}

// [with open_calls_mutex] Has every thread open the calls it is in, at its next call or operator.
void rise_epoch() {
  live.open_calls.store(open_running, std::memory_order_release);
  live.calls_epoch.fetch_add(1, std::memory_order_release);
  // Operators look at this one only.
  live.orphans_posted.fetch_add(1, std::memory_order_release);
}

// The calling thread's own calls at once, so that a recording that is killed in its first function contains
// it.
void open_here(Session& session) {
  ThreadState* thread = this_thread();
  if (thread == nullptr) return;
  BusyGuard busy(*thread);
  try {
    thread->catch_up(session);
  } catch (...) {
    // Out of memory: these calls are missing.
    session.faults.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace

void know_own_code(const char* prefixes) {
  code_prefixes.clear();
  for (; *prefixes != '\0'; prefixes += std::strlen(prefixes) + 1)
    code_prefixes.emplace_back(prefixes + 1, static_cast<CodeOwner>(*prefixes));
}

void know_microsecond(uint64_t ticks) { short_call_ticks = ticks; }

uint32_t switch_calls(Session& session, uint32_t kinds, uint64_t since, std::string& why) {
  const uint32_t before = live.what.load(std::memory_order_relaxed) & kCalls;
  if (before == 0 && kinds != 0 && !call_hooks::claim(why)) kinds = 0;
  const uint32_t off = before & ~kinds, on = kinds & ~before;
  if (off == 0 && on == 0) return kinds;
  if (kinds == 0) take_hooks_back();
  {
    const std::lock_guard lock(open_calls_mutex);
    live.what.fetch_and(~off, std::memory_order_relaxed);
    if (on != 0) {
      const SwitchedOn now{since != 0 ? since : read_tick(), last_thread()};
      if ((on & kRecordCalls) != 0) calls_on = now;
      if ((on & kRecordModuleSpans) != 0) module_spans_on = now;
      live.what.fetch_or(on, std::memory_order_relaxed);
      rise_epoch();
    }
  }
  if (off != 0) cut_kinds(session, off, read_tick());
  if (kinds != 0) call_hooks::start(kinds);
  if (on != 0) open_here(session);
  return kinds;
}

void complete_calls(Session& session) {
  {
    const std::lock_guard lock(open_calls_mutex);
    if ((live.what.load(std::memory_order_relaxed) & kCalls) == 0) return;
    rise_epoch();
  }
  open_here(session);
}

void stop_calls() {
  uint32_t before = 0;
  {
    const std::lock_guard lock(open_calls_mutex);
    before = live.what.fetch_and(~kCalls, std::memory_order_relaxed) & kCalls;
  }
  // Without the lock, because an audit hook of the program may release the GIL.
  if (before != 0) take_hooks_back();
}

void cut_calls(Session& session, uint64_t tick) { cut_kinds(session, kCalls, tick); }

size_t lost_call_threads() { return std::max(lost_threads, call_hooks::replaced()); }

void forget_lost_calls() { lost_threads = 0; }

void forget_calls() { call_hooks::stop(); }

void reset_calls_after_fork() { new (&open_calls_mutex) std::mutex; }

namespace calls {

bool concerns_this_call() { return frames::code(running_frame()) == module_call_code(); }

void began() {
  const void* frame = running_frame();
  in_session([frame](ThreadState& thread, Session& session, bool joins) {
    const uint64_t now = read_tick();
    std::vector<OpenCall>& open = thread.call_state->open;
    if (joins && !open.empty() && open.back().frame == frame) {
      // Opened together with the calls around it just now, but its span begins at this call.
      for (CompactSpan* record : {open.back().record, open.back().module_record}) {
        if (record == nullptr) continue;
        const auto flags = static_cast<uint8_t>(record->flags() & ~kSpanBegunBefore);
        record->start = CompactSpan::start_of(now, flags);
      }
      return;
    }
    open_call(thread, session, frame, now);
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
    if (around != nullptr && around->hides != Hides::None) return;
    OpenCall call;
    call.frame = frame;
    call.function = function;
    if (around != nullptr && around->frame == frame) {
      call.code = around->code;
      call.callers = around->callers;
    }
    call.module = around != nullptr ? around->module : 0;
    call.depth = around != nullptr ? around->depth : 0;
    SpanRecord record = call_record(kScopePython, 0, 0);
    record.module = call.module;
    record.parameter = place_of(call, kCallOfC);
    record.name = cached_name(state.functions, session, owner_of(function), method_of(function)->ml_name,
                              spell_function, function);
    record.start_tick = read_tick();
    call.record = write_span(thread, session, record);
    call.site = site_of(record);
    state.open.push_back(call);
  });
}

void c_ended(PyObject* function) {
  const uint64_t now = read_tick();
  in_session([function, now](ThreadState& thread, Session&, bool) {
    std::vector<OpenCall>& open = thread.call_state->open;
    if (open.empty() || open.back().function != function) return;
    CompactSpan* record = open.back().record;
    open.pop_back();
    if (record == nullptr) return;
    if (now - record->start_tick() < short_call_ticks && Session::take_back_span(thread, record)) return;
    end_record(*record, now);
  });
}

}  // namespace calls
}  // namespace kinetoscope
