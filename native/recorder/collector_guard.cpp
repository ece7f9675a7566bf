#include "collector_guard.h"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <utility>

namespace kinetoscope::collector_guard {
namespace {

using DebugInfo = c10::ThreadLocalDebugInfo;

const void* current_recording() { return DebugInfo::get(c10::DebugInfoKind::PROFILER_STATE); }

// A range, for the first callback.
struct Begun : at::ObserverContext {
  const void* recording = current_recording();
  // Expires with the recording, whose address a later one may have. Not a shared pointer: whoever drops the
  // last one destroys Python objects, and ranges also end without the GIL.
  std::weak_ptr<DebugInfo> holder = DebugInfo::current();
  // Whether the second callback will be called, too.
  bool has_second = false;
};

// Of the range that begins on this thread, between its two callbacks.
thread_local Begun* beginning = nullptr;
// What the first callback has hidden and the second one restores.
thread_local std::shared_ptr<DebugInfo> hidden;
thread_local at::CallbackHandle first = at::INVALID_CALLBACK_HANDLE, second = at::INVALID_CALLBACK_HANDLE;

std::unique_ptr<at::ObserverContext> begin_first(const at::RecordFunction&) {
  auto begun = std::make_unique<Begun>();
  beginning = begun.get();
  return begun;
}

std::unique_ptr<at::ObserverContext> begin_second(const at::RecordFunction&) {
  if (Begun* begun = std::exchange(beginning, nullptr)) begun->has_second = true;
  return nullptr;
}

void end_first(const at::RecordFunction&, at::ObserverContext* context) {
  const auto* begun = static_cast<const Begun*>(context);
  if (begun == nullptr || !begun->has_second) return;
  const void* now = current_recording();
  if (now == nullptr || (now == begun->recording && !begun->holder.expired())) return;
  hidden = DebugInfo::current();
  DebugInfo::_forceCurrentDebugInfo(nullptr);
}

void end_second(const at::RecordFunction&, at::ObserverContext*) {
  if (hidden != nullptr) DebugInfo::_forceCurrentDebugInfo(std::exchange(hidden, nullptr));
}

at::CallbackHandle add(at::RecordFunctionCallback::StartCallback begin,
                       at::RecordFunctionCallback::EndCallback end) {
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::USER_SCOPE}));
}

void remove(at::CallbackHandle& handle) {
  const at::CallbackHandle old = std::exchange(handle, at::INVALID_CALLBACK_HANDLE);
  if (old != at::INVALID_CALLBACK_HANDLE) at::removeCallback(old);
}

}  // namespace

void before_collector() {
  collector_stopped();
  first = add(&begin_first, &end_first);
}

void after_collector() { second = add(&begin_second, &end_second); }

void collector_stopped() {
  remove(first);
  remove(second);
}

}  // namespace kinetoscope::collector_guard
