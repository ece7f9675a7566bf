#include "operators.h"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "clock.h"
#include "collectives.h"
#include "notes.h"
#include "parameters.h"
#include "python_walk.h"
#include "session.h"
#include "shapes.h"
#include "tensor_versions.h"
#include "thread_state.h"
#include "torch_threads.h"

namespace kinetoscope {

namespace {

at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
at::CallbackHandle backward_handle = at::INVALID_CALLBACK_HANDLE;

// The context of an operator that began during a pause, so that its end is not mistaken for that of another
// span.
struct Unrecorded final : at::ObserverContext {
  static void* operator new(size_t) {
    alignas(at::ObserverContext) static std::byte place[sizeof(at::ObserverContext)];
    return place;
  }
  static void operator delete(void*) {}
};

constexpr std::string_view kAccumulateGrad = "torch::autograd::AccumulateGrad";

// The overload name of a schema has an address of its own, valid as long as the schema. Plain names share the
// address of one empty overload name, which is stored here when the first one is seen.
std::atomic<const char*> no_overload{nullptr};

uint32_t text_name(ThreadState& thread, Session& session, const char* name) {
  const size_t length = std::strlen(name);
  TextKey key{hash_bytes(name, length), length};
  if (length >= 8) {
    uint64_t last;
    std::memcpy(&last, name + length - 8, 8);
    key.second ^= mix(last);
  }
  if (const uint32_t known = thread.text_names.find(key); known != 0) return known;
  uint32_t id = 0;
  {
    std::lock_guard lock(session.dictionary().mutex());
    id = session.dictionary().name({name, length}, {});
  }
  if (std::string_view(name, length) == kAccumulateGrad && id != kUnknownId) {
    live.accumulate_grad_name.store(id, std::memory_order_relaxed);
  }
  if (is_between_ranks({name, length})) id |= kBetweenRanks;
  thread.text_names.insert(key, id);
  return id;
}

uint32_t name_of(ThreadState& thread, Session& session, const at::RecordFunction& function,
                 const char* overload) {
  if (overload == no_overload.load(std::memory_order_relaxed))
    return text_name(thread, session, function.name());
  const AddressKey key{overload};
  if (const uint32_t known = thread.schema_names.find(key); known != 0) return known;
  if (!function.operator_name().has_value()) {
    no_overload.store(overload, std::memory_order_relaxed);
    return text_name(thread, session, function.name());
  }
  uint32_t id = 0;
  {
    std::lock_guard lock(session.dictionary().mutex());
    id = session.dictionary().name(function.name(), overload);
  }
  if (is_between_ranks(function.name())) id |= kBetweenRanks;
  thread.schema_names.insert(key, id);
  return id;
}

// The session whose mark of a step this thread is about to begin, plus 1; 0: none.
thread_local uint32_t step_owner = 0;

// The number in the name of a step mark, if it is written as by Python, and fits into a record; else -1.
int64_t step_number(std::string_view digits) {
  int64_t number = -1;
  if (digits.empty() || digits[0] < '0' || digits[0] > '9' || (digits[0] == '0' && digits.size() > 1))
    return -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = error == std::errc{} && end == digits.data() + digits.size();
  return whole && number <= SpanSite::kMostSequence ? number : -1;
}

// The name of a user's range; `number` becomes what its record has in place of a sequence number, if
// anything, and `owner` whose mark of a step it is.
uint32_t range_name(ThreadState& thread, Session& session, const char* name, int64_t& number,
                    uint32_t& owner) {
  const std::string_view text(name);
  const int64_t step = text.starts_with(kStepMark) ? step_number(text.substr(kStepMark.size())) : -1;
  const uint32_t id = text_name(thread, session, step < 0 ? name : kStepMark.data());
  if (id == kUnknownId) return id;
  if (step >= 0) {
    number = step;
    owner = step_owner;
  }
  if (text.starts_with(kOptimizerStep)) number = session.count_of(text);
  return id;
}

uint32_t parameter_of(ThreadState& thread, Session& session) {
  const AddressKey key{accumulated_parameter()};
  if (key.address == nullptr) return 0;
  if (const uint32_t known = thread.parameters.find(key); known != 0) return known;
  const uint32_t id = session.modules().intern_parameter(key.address);
  thread.parameters.insert(key, id);
  return id;
}

// Fills where Python stands into `span`, the innermost open one: from the span around it when nothing can
// have moved, else by a walk. Returns what there is to say of its calls, see SpanRecord::forward_thread.
uint16_t place(ThreadState& thread, Session& session, at::RecordScope scope, OpenSpan& span, bool modules) {
  const bool backward = scope == at::RecordScope::BACKWARD_FUNCTION;
  uint16_t kept = 0;
  const PythonPosition position = python_position(thread);
  const OpenSpan* around = thread.open.around_innermost();
  if (around != nullptr && around->frame != nullptr && around->frame == position.frame &&
      around->instruction == position.instruction) {
    span.stack = around->stack;
    span.module = around->module;
  } else {
    thread.walk.prefetch_path();
    const Place here = locate(thread, session, thread.walk, position, modules);
    span.stack = here.stack;
    span.module = here.module;
    kept = here.kept;
  }
  // Inside a user's range, Python code continues to run.
  span.frame = scope == at::RecordScope::USER_SCOPE ? nullptr : position.frame;
  span.instruction = position.instruction;
  if (kept == 0) return 0;
  // The record of a backward function has no field for it: it is stored in the next one.
  thread.pending_kept = std::min<uint32_t>(thread.pending_kept, kept & kKeptMask);
  thread.pending_sure = std::min<uint32_t>(thread.pending_sure, (kept & kKeptMask) - (kept >> kUnsureShift));
  if (backward) return 0;
  const uint32_t calls = std::exchange(thread.pending_kept, kMaxDepth + 1);
  const uint32_t sure = std::exchange(thread.pending_sure, kMaxDepth + 1);
  return static_cast<uint16_t>(calls | std::min(calls - std::min(calls, sure), kMaxUnsure) << kUnsureShift);
}

// Writes the notes of a span; returns their number. Not inlined into the hot path.
[[gnu::noinline, gnu::cold]] uint32_t note(ThreadState& thread, Session& session,
                                           const at::RecordFunction& function, uint32_t what, OpenSpan& span,
                                           uint32_t parameter, bool between_ranks) {
  const uint32_t facts = between_ranks ? facts_between_ranks(session, function) : 0;
  const bool given = thread.arguments_generation == session.generation();
  const uint32_t arguments = given ? thread.arguments.load(std::memory_order_relaxed) : 0;
  const uint32_t ids =
      ((what & kRecordFunctionIds) != 0 ? 1 : 0) + (facts != 0 ? 1 : 0) + (arguments != 0 ? 1 : 0);
  const OpenSpan* around = thread.open.around_innermost();
  span.noted = around != nullptr && around->noted;
  const bool operands = (what & kRecordShapes) != 0 && !span.noted;
  if (ids == 0 && !operands && parameter == 0) return 0;
  const uint32_t notes = write_notes(thread, session, function, span.noted ? what & ~kRecordShapes : what,
                                     parameter, facts, arguments);
  span.noted |= notes > ids;
  return notes;
}

[[gnu::noinline, gnu::cold]] std::unique_ptr<at::ObserverContext> unrecorded() {
  return std::make_unique<Unrecorded>();
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  ThreadState* thread = this_thread();
  if (thread == nullptr) return nullptr;
  BusyGuard busy(*thread);
  Session* session = Session::current();
  if (session == nullptr) return nullptr;
  try {
    if (__builtin_expect(!thread->keep_up(*session), 0)) return unrecorded();
    const uint32_t what = live.what.load(std::memory_order_relaxed);
    if (__builtin_expect((what & (kPaused | kCallbackReplaced)) != 0, 0)) {
      const bool seen = !thread->open.empty() && thread->open.back().function == &function;
      if (seen || (what & kPaused) != 0) return unrecorded();
    }
    // The operators in between have pushed all of ours out of the cache; these are the loads that we would
    // wait for.
    const char* overload = function.overload_name();
    thread->schema_names.prefetch({overload});
    __builtin_prefetch(&thread->shapes);
    thread->sites.prefetch();
    __builtin_prefetch(thread->next_span, 1);
    const at::RecordScope scope = function.scope();
    // Pushed before anything can fail, because its end will be reported in any case.
    OpenSpan& span = thread->open.push(&function);
    CompactSpan* record = session->next_span(*thread);
    if (__builtin_expect(record == nullptr, 0)) return nullptr;
    uint16_t kept = 0;
    if ((what & (kRecordStacks | kRecordModules)) != 0) {
      kept = place(*thread, *session, scope, span, (what & kRecordModules) != 0);
    }
    int64_t sequence = function.seqNr();
    uint32_t owner = 0;
    const uint32_t name = scope == at::RecordScope::USER_SCOPE
                              ? range_name(*thread, *session, function.name(), sequence, owner)
                              : name_of(*thread, *session, function, overload);
    constexpr uint32_t kWholePlace = kRecordStacks | kRecordModules;
    // Names of ranges are strings without a stable address.
    if ((what & kWholePlace) == kWholePlace && span.frame != nullptr &&
        overload != no_overload.load(std::memory_order_relaxed)) {
      thread->hold_frame();
    }
    const bool backward = scope == at::RecordScope::BACKWARD_FUNCTION;
    const bool accumulates =
        backward && (name & ~kBetweenRanks) == live.accumulate_grad_name.load(std::memory_order_relaxed);
    const uint32_t parameter = accumulates ? parameter_of(*thread, *session) : 0;
    record->site = session->site(
        *thread, {.name = name & ~kBetweenRanks,
                  .stack = (what & kRecordStacks) != 0 ? span.stack : 0,
                  .shapes = (what & kRecordShapes) != 0 ? input_shapes(*thread, *session, function) : 0,
                  .module = span.module,
                  .parameter = accumulates ? parameter : owner,
                  .scope_and_sequence = SpanSite::rest_of(static_cast<uint8_t>(scope), sequence)});
    record->sequence_low = static_cast<uint32_t>(sequence);
    span.forward_thread = backward ? static_cast<uint16_t>(function.forwardThreadId()) : kept;
    record->end = uint64_t{span.forward_thread} << CompactSpan::kEndBits;
    const uint8_t flags = scope == at::RecordScope::USER_SCOPE && function.isAsync() ? kSpanAsync : 0;
    if (__builtin_expect((what & kRecordTensorVersions) != 0, 0)) {
      const bool has_schema = overload != no_overload.load(std::memory_order_relaxed);
      note_argument_versions(*thread, function, has_schema ? overload : nullptr, span);
    }
    uint32_t notes = 0;
    if (__builtin_expect((what & (kRecordMemory | kRecordFunctionIds)) != 0 || (name & kBetweenRanks) != 0 ||
                             thread->arguments.load(std::memory_order_relaxed) != 0,
                         0)) {
      notes = note(*thread, *session, function, what, span, parameter, (name & kBetweenRanks) != 0);
    }
    span.record = record;
    // Read last, so that our overhead is attributed to the operator's caller.
    span.start_tick = read_tick();
    record->start = CompactSpan::start_of(span.start_tick, flags);
    Session::commit_span(*thread);
    if (__builtin_expect(notes != 0, 0)) Session::commit_notes(*thread, notes, span.start_tick);
    if (__builtin_expect((what & kRecordTensorVersions) != 0, 0))
      write_argument_versions(*thread, *session, span.start_tick);
  } catch (...) {
    // Out of memory, or a type we cannot describe: this one operator is missing, the job goes on.
    session->faults.fetch_add(1, std::memory_order_relaxed);
  }
  return nullptr;
}

// Ends a span that is not the innermost open one of its thread: ranges that a program opened and closes out
// of order, or on another thread.
[[gnu::noinline, gnu::cold]] void end_out_of_order(ThreadState& thread, Session& session,
                                                   const void* function, uint64_t now) {
  try {
    if (thread.generation == session.generation()) {
      OpenSpans& open = thread.open;
      for (OpenSpan* span = open.end(); span != open.begin();) {
        --span;
        if (span->function != function) continue;
        if (span->record != nullptr) {
          std::atomic_ref(span->record->end).store(span->end_word(now), std::memory_order_relaxed);
        }
        open.erase(span);
        thread.held.set(nullptr);
        return;
      }
    }
    session.end_elsewhere(function, now);
  } catch (...) {
    session.faults.fetch_add(1, std::memory_order_relaxed);
  }
}

inline void end_at(const void* function, uint64_t now) {
  ThreadState* thread = this_thread();
  if (thread == nullptr) return;
  BusyGuard busy(*thread);
  Session* session = Session::current();
  if (session == nullptr) return;
  OpenSpans& open = thread->open;
  if (__builtin_expect(open.empty() || open.back().function != function ||
                           thread->generation != live.generation.load(std::memory_order_relaxed),
                       0)) {
    end_out_of_order(*thread, *session, function, now);
    return;
  }
  if (const OpenSpan& span = open.back(); span.record != nullptr) {
    std::atomic_ref(span.record->end).store(span.end_word(now), std::memory_order_relaxed);
  }
  thread->pop_span();
}

void on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  const uint64_t now = read_tick();
  if (__builtin_expect(context != nullptr, 0)) return;
  if (__builtin_expect((live.what.load(std::memory_order_relaxed) & kRecordTensorVersions) != 0, 0))
    write_result_versions(function);
  end_at(&function, now);
}

}  // namespace

void own_steps(uint32_t owner) { step_owner = owner; }

namespace {

// With any of these a RecordFunction is needed: for every range, and for one that may have inputs.
constexpr uint32_t kTakesFunction = kPaused | kRecordFunctionIds;
constexpr uint32_t kTakesInputs = kTakesFunction | kRecordShapes | kRecordMemory;

// Begins a span by hand, unless any of `excluded` is recorded. `describe` gets the thread, the session and
// the span's site, fills in the name, and returns false if a RecordFunction is needed.
template <typename Describe>
bool begin_by_hand(const void* open, at::RecordScope scope, uint32_t excluded, Describe describe) {
  ThreadState* thread = this_thread();
  if (thread == nullptr) return false;
  BusyGuard busy(*thread);
  Session* session = Session::current();
  if (session == nullptr) return false;
  const uint32_t what = live.what.load(std::memory_order_relaxed);
  if ((what & excluded) != 0 || torch_profiles_this_thread() || !at::isRecordFunctionEnabled()) return false;
  bool opened = false;
  try {
    if (!thread->keep_up(*session)) return false;
    SpanSite site{};
    int64_t sequence = -1;
    if (!describe(*thread, *session, site, sequence)) return false;
    OpenSpan& span = thread->open.push(open);
    opened = true;
    const OpenSpan* around = thread->open.around_innermost();
    span.noted = around != nullptr && around->noted;
    CompactSpan* record = session->next_span(*thread);
    if (record == nullptr) return true;
    uint16_t kept = 0;
    if ((what & (kRecordStacks | kRecordModules)) != 0) {
      kept = place(*thread, *session, scope, span, (what & kRecordModules) != 0);
    }
    site.stack = (what & kRecordStacks) != 0 ? span.stack : 0;
    site.module = span.module;
    site.scope_and_sequence = SpanSite::rest_of(static_cast<uint8_t>(scope), sequence);
    record->site = session->site(*thread, site);
    record->sequence_low = static_cast<uint32_t>(sequence);
    span.forward_thread = kept;
    record->end = uint64_t{kept} << CompactSpan::kEndBits;
    span.record = record;
    span.start_tick = read_tick();
    record->start = CompactSpan::start_of(span.start_tick, 0);
    Session::commit_span(*thread);
    return true;
  } catch (...) {
    // Out of memory: the range is tried as any other.
    if (opened) thread->open.pop();
    return false;
  }
}

}  // namespace

bool begin_span(const void* open, const char* name) {
  return begin_by_hand(open, at::RecordScope::FUNCTION, kTakesInputs,
                       [name](ThreadState& thread, Session& session, SpanSite& site, int64_t&) {
                         site.name = text_name(thread, session, name);
                         return (site.name & kBetweenRanks) == 0;
                       });
}

bool begin_step_mark(const void* mark, int64_t number, uint32_t owner) {
  if (number < 0 || number > SpanSite::kMostSequence) return false;
  return begin_by_hand(mark, at::RecordScope::USER_SCOPE, kTakesInputs,
                       [=](ThreadState& thread, Session& session, SpanSite& site, int64_t& sequence) {
                         site.name = text_name(thread, session, kStepMark.data());
                         site.parameter = owner + 1;
                         sequence = number;
                         return site.name != kUnknownId;
                       });
}

bool begin_mark(const void* mark, const char* name) {
  return begin_by_hand(mark, at::RecordScope::USER_SCOPE, kTakesFunction,
                       [name](ThreadState& thread, Session& session, SpanSite& site, int64_t&) {
                         site.name = text_name(thread, session, name);
                         return site.name != kUnknownId && (site.name & kBetweenRanks) == 0;
                       });
}

void end_span(const void* open) { end_at(open, read_tick()); }

bool torch_profiles_this_thread() {
  return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr;
}

uint64_t torch_thread_id() { return at::RecordFunction::currentThreadId(); }

namespace {

// Registers the callback for `what`, in `handle` and `backward_handle`.
void register_callback(uint32_t what) {
  const bool shapes = (what & kRecordShapes) != 0;
  const bool ids = (what & kRecordFunctionIds) != 0;
  const bool results = (what & kRecordTensorVersions) != 0;
  // With memory, the gradients of backward functions are needed even if the inputs of other operators are
  // not: a second callback. Otherwise one callback is used, because torch iterates over all callbacks at
  // every node of a backward pass.
  const bool gradients = (what & kRecordMemory) != 0 && !shapes;
  using Scopes = std::unordered_set<at::RecordScope, std::hash<at::RecordScope>>;
  // Only the scopes in which torch opens ranges: for each scope, torch iterates over its callbacks at every
  // node of a backward pass.
  Scopes scopes{at::RecordScope::FUNCTION, at::RecordScope::TORCHSCRIPT_FUNCTION,
                at::RecordScope::USER_SCOPE};
  if (!gradients) scopes.insert(at::RecordScope::BACKWARD_FUNCTION);
  handle = at::addGlobalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                     .needsInputs(shapes)
                                     .needsOutputs(results)
                                     .needsIds(ids)
                                     .scopes(scopes));
  if (!gradients) return;
  backward_handle = at::addGlobalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                              .needsInputs(true)
                                              .needsIds(ids)
                                              .scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

// Unregisters a callback, if it is registered.
void unregister(at::CallbackHandle& added) {
  if (added == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(added);
  added = at::INVALID_CALLBACK_HANDLE;
}

}  // namespace

void add_operator_callback(uint32_t what) {
  // A forked child has inherited the parent's registration.
  remove_operator_callback();
  register_callback(what);
}

void replace_operator_callback(uint32_t what) {
  live.what.fetch_or(kCallbackReplaced, std::memory_order_seq_cst);
  at::CallbackHandle before = std::exchange(handle, at::INVALID_CALLBACK_HANDLE);
  at::CallbackHandle backward_before = std::exchange(backward_handle, at::INVALID_CALLBACK_HANDLE);
  // The new one first, so that no operator is missed in between.
  register_callback(what);
  unregister(before);
  unregister(backward_before);
}

bool has_operator_callback() { return handle != at::INVALID_CALLBACK_HANDLE; }

void resume_operator_callback(uint32_t what) {
  if (handle == at::INVALID_CALLBACK_HANDLE) register_callback(what);
}

void remove_operator_callback() {
  unregister(handle);
  unregister(backward_handle);
}

}  // namespace kinetoscope
