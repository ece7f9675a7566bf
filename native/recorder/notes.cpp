#include "notes.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include "session.h"
#include "shapes.h"
#include "thread_state.h"

namespace kinetoscope {
namespace {

class NoteWriter {
 public:
  explicit NoteWriter(NoteRecord* room) : room_(room) {}

  void add_number(uint64_t value, NoteKind kind) {
    room_[count_++] = {.value = value, .kind = static_cast<uint8_t>(kind)};
  }

  void add_tensor(const at::Tensor& tensor, NoteKind kind, size_t argument, uint32_t parameter) {
    if (count_ == kMaxNotes || !tensor.defined() || !has_plain_sizes(tensor) || !tensor.has_storage()) return;
    const c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    if (storage == nullptr) return;
    // Only the address is wanted; asking for the data might copy it, or refuse.
    const void* address = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks().get();
    if (address == nullptr) return;
    const c10::Device device = storage->device();
    room_[count_++] = {.value = reinterpret_cast<uintptr_t>(address),
                       .bytes = storage->sym_nbytes().maybe_as_int().value_or(0),
                       .parameter = parameter,
                       .kind = static_cast<uint8_t>(kind),
                       .argument = static_cast<uint8_t>(argument),
                       .device_type = static_cast<uint8_t>(device.type()),
                       .device_index = static_cast<int8_t>(device.index())};
  }

  void add_input(const c10::IValue& value, NoteKind kind, size_t argument, uint32_t parameter) {
    if (value.isTensor()) {
      add_tensor(value.toTensor(), kind, argument, parameter);
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) add_tensor(element.toTensor(), kind, argument, parameter);
      }
    }
  }

  uint32_t count() const { return count_; }

 private:
  NoteRecord* room_;
  uint32_t count_ = 0;
};

}  // namespace

uint32_t write_notes(ThreadState& thread, Session& session, const at::RecordFunction& function, uint32_t what,
                     uint32_t gradient_of, uint32_t facts, uint32_t arguments) {
  NoteRecord* room = session.room_for_notes(thread, kMaxNotes);
  if (room == nullptr) return 0;
  NoteWriter notes(room);
  if (facts != 0) notes.add_number(facts, NoteKind::BetweenRanks);
  if (arguments != 0) notes.add_number(arguments, NoteKind::Arguments);
  if ((what & kRecordFunctionIds) != 0) notes.add_number(function.handle(), NoteKind::RecordFunction);
  if ((what & kRecordMemory) == 0) return notes.count();
  if (gradient_of != 0) {
    for (const c10::IValue& gradient : function.inputs())
      notes.add_input(gradient, NoteKind::Gradient, 0, gradient_of);
  } else if ((what & kRecordShapes) != 0) {
    const auto inputs = function.inputs();
    for (size_t at = 0; at < inputs.size() && at < UINT8_MAX; ++at)
      notes.add_input(inputs[at], NoteKind::Operand, at, 0);
  }
  return notes.count();
}

}  // namespace kinetoscope
