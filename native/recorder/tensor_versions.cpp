#include "tensor_versions.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "session.h"
#include "shapes.h"
#include "storage_ids.h"
#include "thread_state.h"

namespace kinetoscope {
namespace {

// More tensors of one call are not noted, and said to be unknown.
constexpr size_t kMostTensors = 1000;

// Longer tensors are not read: integers are what a program makes of texts and ids, over and over.
constexpr int64_t kMostBytes = 4096, kMostBytesOfIntegers = 65536;

// A hash of what is in a small tensor on the host, 0 for others.
uint64_t content_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->is_cpu() || !impl->is_non_overlapping_and_dense() || tensor.is_conj() || tensor.is_neg())
    return 0;
  const int64_t bytes = impl->numel() * static_cast<int64_t>(impl->itemsize());
  const bool is_integer = c10::isIntegralType(tensor.scalar_type(), true);
  if (bytes <= 0 || bytes > (is_integer ? kMostBytesOfIntegers : kMostBytes)) return 0;
  const void* data = impl->data();
  return data == nullptr ? 0 : checksum_of(data, static_cast<size_t>(bytes));
}

NoteRecord note_of(const at::Tensor& tensor, size_t argument, uint8_t flags) {
  NoteRecord note{.kind = static_cast<uint8_t>(NoteKind::TensorVersion),
                  .argument = static_cast<uint8_t>(argument),
                  .device_type = flags};
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->is_wrapped_number()) {
    // Each number is a tensor of its own, which torch fills without an operator.
    const size_t bytes = impl->itemsize();
    const bool plain = !impl->is_python_dispatch() && tensor.has_storage() && tensor.is_cpu();
    const void* data = plain ? impl->data() : nullptr;
    if (data == nullptr || bytes > sizeof(note.value)) return note;
    std::memcpy(&note.value, data, bytes);
    note.device_type |= kTensorIsNumber;
    return note;
  }
  if (!has_plain_sizes(tensor) || impl->is_python_dispatch() || !tensor.has_storage() ||
      tensor.layout() != c10::Layout::Strided)
    return note;
  const c10::Storage& storage = impl->unsafe_storage();
  if (!storage) return note;
  note.value = storage_ids::of(storage);
  note.bytes = static_cast<int64_t>(impl->storage_offset() * static_cast<int64_t>(impl->itemsize()));
  const c10::VariableVersion& version = impl->version_counter();
  // Tensors of inference mode have none.
  if (version.enabled()) note.parameter = std::min<uint32_t>(version.current_version(), INT32_MAX - 1) + 1;
  // torch forbids to resize memory that somebody else owns, or that NumPy has been given.
  if (!storage.unsafeGetStorageImpl()->resizable()) note.device_type |= kTensorIsShared;
  const int64_t storage_bytes = storage.sym_nbytes().maybe_as_int().value_or(-1);
  if (impl->is_non_overlapping_and_dense() &&
      impl->numel() * static_cast<int64_t>(impl->itemsize()) == storage_bytes)
    note.device_type |= kTensorIsWhole;
  return note;
}

void add(std::vector<NoteRecord>& notes, const c10::IValue& value, size_t argument, uint8_t flags) {
  const auto add_tensor = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || notes.size() >= kMostTensors) return;
    const NoteRecord& note = notes.emplace_back(note_of(tensor, argument, flags));
    if ((note.device_type & (kTensorIsResult | kTensorIsNumber)) != 0 || note.value == 0) return;
    if (const uint64_t content = content_of(tensor); content != 0)
      notes.push_back({.value = content, .kind = static_cast<uint8_t>(NoteKind::TensorContent)});
  };
  if (value.isTensor()) {
    add_tensor(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) add_tensor(element.toTensor());
    }
  } else if (value.isObject() || value.isPyObject()) {
    // It may contain tensors.
    notes.push_back({.kind = static_cast<uint8_t>(NoteKind::TensorVersion),
                     .argument = static_cast<uint8_t>(argument),
                     .device_type = flags});
  }
}

// `values` is what torch has of arguments or results.
template <typename Values>
void add_all(std::vector<NoteRecord>& notes, const Values& values, uint8_t flags) {
  for (size_t at = 0; at < values.size(); ++at)
    add(notes, values[at], std::min<size_t>(at, UINT8_MAX), flags);
  if (notes.size() < kMostTensors) return;
  notes.resize(1);
  notes[0] = {.kind = static_cast<uint8_t>(NoteKind::TensorVersion), .device_type = flags};
}

void write(ThreadState& thread, Session& session, uint64_t tick) {
  std::vector<NoteRecord>& notes = thread.versions;
  const auto count = static_cast<uint32_t>(notes.size());
  if (NoteRecord* room = count != 0 ? session.room_for_notes(thread, count) : nullptr) {
    std::memcpy(room, notes.data(), count * sizeof(NoteRecord));
    Session::commit_notes(thread, count, tick);
  }
  notes.clear();
}

// Whether an operator may write to what it is given: by its name, or because it is not torch's own.
bool may_write(const at::RecordFunction& function, const char* overload) {
  const std::string_view name(function.name());
  return !name.starts_with("aten::") || name.ends_with('_') || std::strstr(overload, "out") != nullptr;
}

}  // namespace

void note_argument_versions(ThreadState& thread, const at::RecordFunction& function, const char* overload,
                            OpenSpan& span) {
  thread.versions.clear();
  const OpenSpan* around = thread.open.around_innermost();
  span.versions = around == nullptr || around->versions == TensorVersions::None ? TensorVersions::None
                  : around->versions == TensorVersions::InBackward              ? TensorVersions::InBackward
                                                                                : TensorVersions::Inside;
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION && span.versions == TensorVersions::None)
    span.versions = TensorVersions::InBackward;
  if (overload == nullptr || function.scope() != at::RecordScope::FUNCTION ||
      span.versions == TensorVersions::Inside)
    return;
  if (span.versions == TensorVersions::InBackward && !may_write(function, overload)) return;
  span.versions = TensorVersions::Noted;
  add_all(thread.versions, function.inputs(), 0);
}

void write_argument_versions(ThreadState& thread, Session& session, uint64_t tick) {
  write(thread, session, tick);
}

void write_result_versions(const at::RecordFunction& function) {
  ThreadState* thread = this_thread();
  if (thread == nullptr) return;
  BusyGuard busy(*thread);
  Session* session = Session::current();
  if (session == nullptr || thread->generation != session->generation() || thread->open.empty()) return;
  const OpenSpan& span = thread->open.back();
  if (span.function != &function || span.record == nullptr || span.versions != TensorVersions::Noted) return;
  try {
    thread->versions.clear();
    add_all(thread->versions, function.outputs(), kTensorIsResult);
    write(*thread, *session, span.start_tick);
  } catch (...) {
    session->faults.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace kinetoscope
