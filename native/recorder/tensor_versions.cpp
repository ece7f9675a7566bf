#include "tensor_versions.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
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

std::atomic<uint64_t> noted_operators{0};

// Longer tensors are not read: integers are what a program makes of texts and ids, over and over.
constexpr int64_t kMostBytes = 4096, kMostBytesOfIntegers = 65536;

// The values of a dense tensor on the host; nullptr if its storage does not hold them, as that of parameters
// that are freed between their uses, or of tensors that stand for others, as functionalization has them:
// torch computes an address for a view of these all the same.
const void* values_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage()) return nullptr;
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  const auto* values = static_cast<const char*>(storage->_mutable_data_ptr_no_checks().get());
  const auto item_bytes = static_cast<int64_t>(impl->itemsize());
  const int64_t end = (impl->storage_offset() + impl->numel()) * item_bytes;
  if (values == nullptr || end > storage->sym_nbytes().maybe_as_int().value_or(-1)) return nullptr;
  return values + impl->storage_offset() * item_bytes;
}

// A hash of what is in a small tensor on the host, 0 for others.
uint64_t content_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->is_cpu() || !impl->is_non_overlapping_and_dense() || tensor.is_conj() || tensor.is_neg())
    return 0;
  const int64_t bytes = impl->numel() * static_cast<int64_t>(impl->itemsize());
  const bool is_integer = c10::isIntegralType(tensor.scalar_type(), true);
  if (bytes <= 0 || bytes > (is_integer ? kMostBytesOfIntegers : kMostBytes)) return 0;
  const void* data = values_of(tensor);
  return data == nullptr ? 0 : checksum_of(data, static_cast<size_t>(bytes));
}

// Shorter rows are fields of a record.
constexpr int64_t kLeastColumns = 8, kMostBytesOfBatch = 4 << 20;

// A batch of rows, each of `columns` elements of `bytes` bytes.
struct Batch {
  const char* data;
  int64_t rows, columns;
  size_t bytes;

  // How many elements at an end of a row repeat `value`, or the outermost one where that is nullptr.
  int64_t repeated(int64_t row, bool at_end, const char* value) const {
    const char* first = data + row * columns * static_cast<int64_t>(bytes);
    const auto element = [&](int64_t at) {
      return first + (at_end ? columns - 1 - at : at) * static_cast<int64_t>(bytes);
    };
    if (value == nullptr) value = element(0);
    int64_t count = 0;
    while (count < columns && std::memcmp(element(count), value, bytes) == 0) ++count;
    return count;
  }

  // The value that most elements at one end of a row have.
  const char* padding(bool at_end) const {
    int64_t most = 1, longest_row = -1;
    for (int64_t row = 0; row < rows; ++row) {
      if (const int64_t count = repeated(row, at_end, nullptr); count > most) most = count, longest_row = row;
    }
    return longest_row < 0
               ? nullptr
               : data + (longest_row * columns + (at_end ? columns - 1 : 0)) * static_cast<int64_t>(bytes);
  }
};

// Which argument of an operator is a batch of sequences: indices, or rows of features; -1 for none.
int sequences_of(std::string_view name) {
  if (name == "aten::embedding") return 1;
  return name == "aten::linear" || name == "aten::lstm" || name == "aten::gru" ? 0 : -1;
}

// Writes to a note how many elements of a batch of sequences repeat one value at the ends of its rows, or at
// their beginnings where these are more, and how long the longest row is without them. Features are elements
// of zeros.
void note_padding(const at::Tensor& tensor, NoteRecord& note) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->is_cpu() || !has_plain_sizes(tensor) || impl->is_python_dispatch() || !impl->is_contiguous())
    return;
  const bool is_indices = c10::isIntegralType(tensor.scalar_type(), false);
  if (impl->dim() != (is_indices ? 2 : 3)) return;
  const size_t bytes = impl->itemsize() * static_cast<size_t>(is_indices ? 1 : impl->size(2));
  const Batch batch{static_cast<const char*>(values_of(tensor)), impl->size(0), impl->size(1), bytes};
  if (batch.data == nullptr || bytes == 0 || batch.rows < 1 || batch.columns < kLeastColumns ||
      batch.rows * batch.columns * static_cast<int64_t>(bytes) > kMostBytesOfBatch)
    return;
  for (const bool at_end : {true, false}) {
    const char* value = batch.padding(at_end);
    if (value == nullptr ||
        (!is_indices && std::any_of(value, value + bytes, [](char byte) { return byte != 0; })))
      continue;
    int64_t padding = 0, longest = 0;
    for (int64_t row = 0; row < batch.rows; ++row) {
      const int64_t repeated = batch.repeated(row, at_end, value);
      padding += repeated;
      longest = std::max(longest, batch.columns - repeated);
    }
    if (padding <= note.bytes) continue;
    note.bytes = padding;
    note.parameter = static_cast<uint32_t>(longest) + 1;
  }
}

NoteRecord note_of(const at::Tensor& tensor, size_t argument, uint8_t flags) {
  NoteRecord note{.kind = static_cast<uint8_t>(NoteKind::TensorVersion),
                  .argument = static_cast<uint8_t>(argument),
                  .device_type = flags};
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->is_wrapped_number()) {
    // Each number is a tensor of its own, which torch fills without an operator.
    const size_t bytes = impl->itemsize();
    const bool plain = !impl->is_python_dispatch() && tensor.is_cpu();
    const void* data = plain ? values_of(tensor) : nullptr;
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

void add(std::vector<NoteRecord>& notes, const c10::IValue& value, size_t argument, uint8_t flags,
         bool is_sequences = false) {
  const auto add_tensor = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || notes.size() >= kMostTensors) return;
    const NoteRecord& note = notes.emplace_back(note_of(tensor, argument, flags));
    if ((note.device_type & (kTensorIsResult | kTensorIsNumber)) != 0 || note.value == 0) return;
    NoteRecord content{.value = content_of(tensor), .kind = static_cast<uint8_t>(NoteKind::TensorContent)};
    if (is_sequences) note_padding(tensor, content);
    if (content.value != 0 || content.parameter != 0) notes.push_back(content);
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
void add_all(std::vector<NoteRecord>& notes, const Values& values, uint8_t flags, int sequences = -1) {
  for (size_t at = 0; at < values.size(); ++at)
    add(notes, values[at], std::min<size_t>(at, UINT8_MAX), flags, static_cast<int>(at) == sequences);
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
  noted_operators.fetch_add(1, std::memory_order_relaxed);
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
  add_all(thread.versions, function.inputs(), 0, sequences_of(function.name()));
}

void write_argument_versions(ThreadState& thread, Session& session, uint64_t tick) {
  write(thread, session, tick);
}

uint64_t operators_with_versions() { return noted_operators.load(std::memory_order_relaxed); }

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
