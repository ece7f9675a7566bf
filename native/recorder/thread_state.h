// The recorder's state of each thread that has run an operator, and its synchronization with stop().
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "frame_layout.h"
#include "live.h"
#include "probing_table.h"
#include "recording_file.h"
#include "site_cache.h"

namespace kinetoscope {

class Session;
struct CallState;

// Longest Python stack that is walked; of deeper ones the innermost frames are kept.
inline constexpr uint32_t kMaxDepth = 512;

// One step down the Python stack: this code object, at this instruction, called from that stack.
struct CallKey {
  const void* code = nullptr;
  const void* instruction = nullptr;
  uint32_t parent = 0;
  bool operator==(const CallKey&) const = default;
  uint64_t hash() const { return mix(reinterpret_cast<uintptr_t>(instruction) ^ (uint64_t{parent} << 40)); }
};

// Cached data of a step. Addresses of freed code objects are reused, so in a later epoch than `epoch` the
// fingerprint must be compared.
struct KnownCall {
  uint64_t fingerprint = 0;
  kinetoscope_reach reach{};
  uint32_t stack = 0;
  uint32_t epoch = 0;
};
inline bool is_empty(const KnownCall& call) { return call.stack == 0; }

// The same step, independent of the calling stack: module calls lead to the same few frames from everywhere.
struct StepKey {
  const void* code = nullptr;
  const void* instruction = nullptr;
  bool operator==(const StepKey&) const = default;
  uint64_t hash() const { return mix(reinterpret_cast<uintptr_t>(instruction)); }
};

// Cached data of a step: finding its line and its jumps needs a walk over the whole code object.
struct KnownStep {
  uint64_t fingerprint = 0;
  kinetoscope_reach reach{};
  uint32_t frame = 0;
};
inline bool is_empty(const KnownStep& step) { return step.frame == 0; }

// The position of one call at a thread's last operator. Every walk compares these and little else, so they
// are kept together in few cache lines. An instruction identifies its code object.
struct CallPosition {
  const void* frame;
  const void* instruction;
  const void* module_self;  // the instance, in frames of nn.Module's call; else null
};

// Outside of a call: which numbers of calls on the stack may be all that are still the same, see
// `kept_calls`.
struct MayBeNew {
  uint16_t most = 0;    // the largest such number; 0 for none
  uint16_t fewest = 0;  // the smallest above 0
  bool none_kept = false;
};

// Other data of that call.
struct PathCall {
  const void* code;
  const void* anchor;       // the first instruction seen that every call runs an operator at; null for none
  uint32_t stack;           // of this frame and all that called it
  uint32_t module;          // innermost module at this frame
  kinetoscope_reach reach;  // from its position's instruction
  bool called_by_c;
  MayBeNew outside = {};
};

// A thread's last position in Python: every call on its stack, outermost first.
struct Walk {
  uint32_t path_depth = 0;
  uint32_t module_epoch = 0;
  uint32_t code_epoch = 0;
  CallPosition path[kMaxDepth];
  PathCall path_calls[kMaxDepth];

  // [hot] Fetches what a walk compares of the path, and where it is likely to write.
  void prefetch_path() const {
    constexpr uint32_t kMostLines = 8;
    const auto* begin = reinterpret_cast<const char*>(path);
    const uint32_t lines = path_depth * sizeof(CallPosition) / 64 + 1;
    for (uint32_t line = 0; line < lines && line < kMostLines; ++line) __builtin_prefetch(begin + 64 * line);
    if (path_depth != 0) __builtin_prefetch(&path_calls[path_depth - 1], 1);
  }
};

// Whether the versions of tensors were noted: of this operator, or of one around it, whose arguments those of
// what runs inside come from.
enum class TensorVersions : uint8_t { None, Noted, Inside, InBackward };

// An open span. It is identified by the address of the object that began it, torch's RecordFunction or one of
// our ranges, which do not move: cheaper than a context object for each operator. One cache line.
struct alignas(64) OpenSpan {
  const void* function = nullptr;
  CompactSpan* record = nullptr;  // null when there was no room for it
  uint64_t start_tick = 0;        // the record's
  // Where Python stood. While a C++ operator is open, the frame that called it cannot move on, so an operator
  // begun from the same frame at the same instruction has the same stack; null when that does not hold.
  const void* frame = nullptr;
  const void* instruction = nullptr;
  uint32_t stack = 0;
  uint32_t module = 0;
  uint16_t forward_thread = 0;  // the record's, see SpanRecord
  // Whether its operands, or those of a span around it, were noted: what runs inside works on the same
  // blocks, or on blocks of its own that do not outlive it.
  bool noted = false;
  // Whether it is an operator, and so `frame` stands still until it ends; Python may go on inside a range.
  bool holds_frame = false;
  TensorVersions versions = TensorVersions::None;

  // [hot] What its record has as its end, once it has ended at that tick.
  uint64_t end_word(uint64_t tick) const {
    return uint64_t{forward_thread} << CompactSpan::kEndBits | CompactSpan::end_of(start_tick, tick);
  }
};

// For the sampler: the Python position of a thread while it is inside an operator and runs no other frame.
// Written by the owner; a reader gets a consistent snapshot.
class HeldPlace {
 public:
  // [owner, hot] What `span` says is held, if it holds its frame.
  void set(const OpenSpan* span) {
    // In between, nothing: a frame never shows with what belongs to another one.
    frame_.store(nullptr, std::memory_order_relaxed);
    if (span == nullptr || !span->holds_frame) return;
    ids_.store(span->stack | uint64_t{span->module} << 32, std::memory_order_release);
    frame_.store(span->frame, std::memory_order_release);
  }
  // [owner] Clears the position, for a new session.
  void reset(uint32_t generation) {
    frame_.store(nullptr, std::memory_order_relaxed);
    generation_.store(generation, std::memory_order_release);
  }
  // [sampler] Stack and module if `current` returns the frame that is held; else false.
  template <typename Current>
  bool read(uint32_t generation, Current current, uint32_t& stack, uint32_t& module) const {
    if (generation_.load(std::memory_order_acquire) != generation) return false;
    const void* frame = frame_.load(std::memory_order_acquire);
    if (frame == nullptr || current() != frame) return false;
    const uint64_t ids = ids_.load(std::memory_order_acquire);
    if (frame_.load(std::memory_order_relaxed) != frame) return false;
    stack = static_cast<uint32_t>(ids);
    module = static_cast<uint32_t>(ids >> 32);
    return true;
  }

 private:
  std::atomic<const void*> frame_{nullptr};
  std::atomic<uint64_t> ids_{0};  // the module's above the stack's
  std::atomic<uint32_t> generation_{0};
};

// The open spans of one thread, outermost first: a vector whose growth is not inlined into the callbacks.
class OpenSpans {
 public:
  bool empty() const { return end_ == spans_.data(); }
  OpenSpan* begin() { return spans_.data(); }
  OpenSpan* end() { return end_; }
  OpenSpan& back() { return end_[-1]; }
  // The span around the innermost one; null if there is none.
  const OpenSpan* around_innermost() const { return end_ - spans_.data() > 1 ? end_ - 2 : nullptr; }
  // [hot] One more, without a record and a place. Field by field: a whole one is made on the stack and
  // copied, in pieces that do not fit those it was written in, and the processor waits for that.
  OpenSpan& push(const void* function) {
    if (__builtin_expect(end_ == limit_, 0)) grow();
    OpenSpan& span = *end_++;
    span.function = function;
    span.record = nullptr;
    span.frame = nullptr;
    span.instruction = nullptr;
    span.stack = 0;
    span.module = 0;
    span.forward_thread = 0;
    span.noted = false;
    span.holds_frame = false;
    span.versions = TensorVersions::None;
    return span;
  }
  void pop() { --end_; }
  void erase(OpenSpan* span) { end_ = std::move(span + 1, end_, span); }
  void clear() { end_ = spans_.data(); }

 private:
  [[gnu::noinline, gnu::cold]] void grow() {
    const size_t used = spans_.size();
    spans_.resize(std::max<size_t>(64, used * 2));
    end_ = spans_.data() + used;
    limit_ = spans_.data() + spans_.size();
  }

  std::vector<OpenSpan> spans_;
  OpenSpan* end_ = nullptr;
  OpenSpan* limit_ = nullptr;
};

// More keys than a program's code can have; names and shapes that never repeat can be more.
inline constexpr size_t kMostCached = size_t{1} << 18;

// What every operator touches comes first, in as few lines of the processor's cache as it fits in.
struct alignas(64) ThreadState {
  // 1 while this thread is inside one of our callbacks. stop() waits for 0 after it has made everyone see the
  // end.
  std::atomic<uint32_t> busy{0};
  uint32_t generation = 0;  // of the session the fields below belong to
  std::atomic<uint32_t> index{0};
  uint32_t dictionary_epoch = 0;      // of the ids below
  const void* main_python = nullptr;  // the main thread's PyThreadState; null on every other thread

  CompactSpan* next_span = nullptr;
  CompactSpan* span_end = nullptr;
  ChunkHeader* span_chunk = nullptr;
  uint64_t orphans_seen =
      0;  // of Live::orphans_posted; of another session, like `generation`, when it differs there

  // What the range that is about to begin was given beside its inputs: a string of the dictionary, 0 for
  // nothing, and the session whose dictionary it is. A collection reads it: it is in no record yet.
  std::atomic<uint32_t> arguments{0};
  uint32_t arguments_generation = 0;

  OpenSpans open;  // spans begun on this thread and not yet ended
  HeldPlace held;

  SiteCache sites{kMostCached};

  ProbingTable<AddressKey> schema_names{kMostCached};  // by the address of a schema's overload name
  // Smallest number of calls that continued between walks whose result no record could store; kMaxDepth for
  // all.
  uint32_t pending_kept = kMaxDepth + 1;
  uint32_t pending_sure = kMaxDepth + 1;  // the same of those that certainly continued
  // Of Live, when it last opened the calls that it was in the middle of.
  uint32_t calls_epoch = 0;

  ProbingTable<TextKey> text_names{kMostCached};
  ProbingTable<CallKey, KnownCall> calls{kMostCached};
  ProbingTable<StepKey, KnownStep> steps{kMostCached};
  ProbingTable<AddressKey> modules{kMostCached};
  ProbingTable<AddressKey> parameters{kMostCached};
  ProbingTable<TextKey> shapes{kMostCached};

  AllocationRecord* next_allocation = nullptr;
  AllocationRecord* allocation_end = nullptr;
  ChunkHeader* allocation_chunk = nullptr;

  NoteRecord* next_note = nullptr;
  NoteRecord* note_end = nullptr;
  ChunkHeader* note_chunk = nullptr;
  // The notes about the tensors of one operator, before they are written.
  std::vector<NoteRecord> versions;

  // Made when calls are first recorded on this thread, and kept like the thread's state itself.
  CallState* call_state = nullptr;

  // Of the last operator; last, because it is long.
  Walk walk;

  // Resets the state for a new session.
  void join(Session& session);
  // [hot, before any id is used] Takes part in this session, closes those of its spans that ended on other
  // threads, forgets the ids of an earlier epoch of the dictionary, and opens the calls it is in where those
  // have been switched on. False if the session has ended meanwhile: then it may be gone.
  bool keep_up(Session& session) {
    if (__builtin_expect(orphans_seen != live.orphans_posted.load(std::memory_order_relaxed), 0))
      return catch_up(session);
    return true;
  }
  bool catch_up(Session& session);
  // Opens the calls it is in where those have been switched on since it last did.
  void keep_up_with_calls(Session& session);
  // Clears all cached ids that are not in a record.
  void forget_ids();
  // Sets the chunks that it writes into to none.
  void forget_chunks();
  // [hot] The innermost open span, which is an operator, holds the frame that it was called from.
  void hold_frame() {
    OpenSpan& span = open.back();
    span.holds_frame = true;
    const OpenSpan* around = open.around_innermost();
    if (around == nullptr || !around->holds_frame || around->frame != span.frame) held.set(&span);
  }
  // [hot] The innermost open span has ended.
  void pop_span() {
    const OpenSpan& span = open.back();
    const OpenSpan* around = open.around_innermost();
    if (span.holds_frame && (around == nullptr || !around->holds_frame || around->frame != span.frame))
      held.set(around);
    open.pop();
  }
  // [when its thread has ended, or in a forked child] Detaches the state from its session.
  void leave() { generation = 0, orphans_seen = 0, held.reset(0); }
};

// One pointer only: a shared library loaded late finds little room in the static TLS block.
extern constinit thread_local ThreadState* this_state __attribute__((tls_model("initial-exec")));

// Makes the calling thread's state; nullptr when memory is out.
ThreadState* make_this_thread();

// [hot] The state of the calling thread, made on first use; nullptr when memory is out.
inline ThreadState* this_thread() {
  ThreadState* state = this_state;
  return __builtin_expect(state != nullptr, 1) ? state : make_this_thread();
}
// [forked child] Removes the states of all threads except the forking one.
void forget_other_threads();
// [sampler] The state of the thread whose Python state that is, if it is the main thread and ran an operator.
const ThreadState* find_main_thread(const void* python);
// [stop] True once every thread has been seen outside the callbacks; gives up after `patience_ns`.
bool wait_until_idle(int64_t patience_ns);
// [stop, when idle] Visits the state of every living thread.
void for_each_thread(const std::function<void(ThreadState&)>& visit);
// [load] Chooses how stop() synchronizes with callbacks: by membarrier, or by a fence in every callback.
void prepare_quiescence();

// Marks the calling thread as inside a callback for the guard's lifetime.
class BusyGuard {
 public:
  explicit BusyGuard(ThreadState& state) : state_(state) { enter(state); }
  ~BusyGuard() { leave(state_); }
  // For a thread that waits for others during its callback.
  static void enter(ThreadState& state) {
    state.busy.store(1, std::memory_order_relaxed);
    if (__builtin_expect(live.fence_in_callbacks, 0)) {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    } else {
      // The other half of this fence is the membarrier in wait_until_idle().
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
  }
  static void leave(ThreadState& state) { state.busy.store(0, std::memory_order_release); }
  BusyGuard(const BusyGuard&) = delete;
  BusyGuard& operator=(const BusyGuard&) = delete;

 private:
  ThreadState& state_;
};

}  // namespace kinetoscope
