// Makes the device one of torch's: memory, streams, and every operator, which the processor computes on a
// stream's thread.

#include <ATen/Parallel.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace {

using test_device::Kind;
constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

thread_local c10::DeviceIndex current_device = 0;
thread_local int64_t current_stream[test_device::kDevices] = {0, 1};

// ----------------------------------------------------------------------------------------------------------
// memory

std::atomic<int64_t> allocated_bytes[test_device::kDevices];

// Work that is queued holds the memory, so that the host may let go of a tensor before it is computed.
struct Block {
  std::shared_ptr<void> memory;
  size_t bytes;
  c10::DeviceIndex device;
};

void report(void* pointer, int64_t bytes, c10::DeviceIndex device) {
  const int64_t total = allocated_bytes[device] += bytes;
  c10::reportMemoryUsageToProfiler(pointer, bytes, total, total, c10::Device(kType, device));
}

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  report(block->memory.get(), -static_cast<int64_t>(block->bytes), block->device);
  delete block;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kType, current_device);
    if (bytes == 0) return {nullptr, device};
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    TORCH_CHECK(memory != nullptr, "the test device has no ", bytes, " bytes left");
    auto* block = new Block{{memory, std::free}, bytes, current_device};
    report(memory, static_cast<int64_t>(bytes), current_device);
    return {memory, block, free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

std::shared_ptr<void> holder(const at::Tensor& tensor) {
  const auto* block = static_cast<Block*>(tensor.storage().data_ptr().get_context());
  return block == nullptr ? nullptr : block->memory;
}

bool is_here(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

at::Tensor with_layout(const c10::Storage& storage, c10::DispatchKeySet keys, const at::Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

// The same sizes and strides elsewhere: on the processor over the same memory, or on the meta device without
// any.
at::Tensor elsewhere(const at::Tensor& tensor, c10::DeviceType type) {
  const bool on_meta = type == c10::DeviceType::Meta;
  void* memory = on_meta ? nullptr : const_cast<void*>(tensor.storage().data());
  // A meta kernel gives results the sizes that they need.
  c10::Allocator* grows = on_meta ? c10::GetAllocator(type) : nullptr;
  const c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                             c10::DataPtr(memory, c10::Device(type)), grows, on_meta);
  const auto key = on_meta ? c10::DispatchKey::Meta : c10::DispatchKey::CPU;
  return with_layout(storage, c10::DispatchKeySet(key), tensor);
}

at::Tensor allocate_like(const at::Tensor& meta) {
  int64_t elements = meta.numel() == 0 ? 0 : 1;
  for (int64_t dim = 0; elements != 0 && dim < meta.dim(); ++dim)
    elements += (meta.size(dim) - 1) * meta.stride(dim);
  const size_t bytes = static_cast<size_t>(elements) * meta.dtype().itemsize();
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, &allocator, true);
  return with_layout(storage, kKeys, meta);
}

// Gives a tensor that is to be written the sizes of what is written.
void take_sizes(const at::Tensor& target, const at::Tensor& meta) {
  if (target.sizes() == meta.sizes()) return;
  const at::Tensor made = allocate_like(meta);
  target.unsafeGetTensorImpl()->set_storage_keep_dtype(made.storage());
  target.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides());
}

// ---------------------------------------------------------------------------------------------------------
// streams

using EventHandle = std::shared_ptr<test_device::Event>;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(c10::Device device, int64_t number) {
    return c10::Stream(c10::Stream::UNSAFE, device, static_cast<c10::StreamId>(number));
  }
  static c10::DeviceIndex index(c10::Device device) {
    return device.index() < 0 ? current_device : device.index();
  }

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(index(device) < test_device::kDevices, "there is no test device ", index(device));
    current_device = index(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = index(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return test_device::kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    return stream({kType, index(device)}, current_stream[index(device)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream({kType, index(device)}, test_device::default_stream(index(device)));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream({kType, index(device)}, test_device::new_stream(index(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream wanted) const override {
    const c10::Stream before = getStream(wanted.device());
    current_stream[wanted.device_index()] = wanted.id();
    return before;
  }
  bool queryStream(const c10::Stream& asked) const override { return test_device::is_idle(asked.id()); }
  void synchronizeStream(const c10::Stream& asked) const override {
    test_device::synchronize_stream(asked.device_index(), asked.id());
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    test_device::synchronize_device(device);
  }

  void record(void** event, const c10::Stream& on, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new EventHandle(std::make_shared<test_device::Event>());
    test_device::record_event(*static_cast<EventHandle*>(*event), on.device_index(), on.id());
  }
  void block(void* event, const c10::Stream& on) const override {
    if (event != nullptr)
      test_device::wait_for_event(*static_cast<EventHandle*>(event), on.device_index(), on.id());
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || (*static_cast<EventHandle*>(event))->is_done();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) test_device::synchronize_event(*static_cast<EventHandle*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventHandle*>(event);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    return static_cast<double>((*static_cast<EventHandle*>(second))->time_ns() -
                               (*static_cast<EventHandle*>(first))->time_ns()) /
           1e6;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return test_device::kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { Guard().setDevice({kType, device}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return Guard().exchangeDevice({kType, device}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
};

// -------------------------------------------------------------------------------------------------------
// operators

// Changes each tensor in a stack's value, also in lists.
template <class Change>
c10::IValue changed(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return is_here(value.toTensor()) ? c10::IValue(change(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& one : value.toTensorVector()) made.push_back(is_here(one) ? change(one) : one);
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const std::optional<at::Tensor>& one : value.toOptionalTensorVector())
      made.push_back(one.has_value() && is_here(*one) ? std::optional(change(*one)) : one);
    return made;
  }
  return value;
}

template <class Change>
torch::jit::Stack changed_stack(const torch::jit::Stack& stack, size_t count, c10::DeviceType type,
                                const Change& change) {
  torch::jit::Stack made;
  made.reserve(count);
  for (auto value = stack.end() - static_cast<std::ptrdiff_t>(count); value != stack.end(); ++value) {
    if (value->isDevice() && value->toDevice().type() == kType)
      made.emplace_back(c10::Device(type));
    else
      made.push_back(changed(*value, change));
  }
  return made;
}

// torch has no convolution for other devices than its own; the processor's takes one argument more backward.
c10::OperatorHandle computing(const c10::OperatorHandle& asked, torch::jit::Stack& stack) {
  const std::string& name = asked.schema().name();
  const auto find = [](const char* other) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(other, "");
  };
  if (name == "aten::convolution_overrideable") return find("aten::convolution");
  if (name != "aten::convolution_backward_overrideable") return asked;
  stack.insert(stack.begin() + 3, c10::IValue());
  return find("aten::convolution_backward");
}

// Which argument a result is, or is a view of; -1 for a new tensor.
int aliased_argument(const c10::FunctionSchema& schema, size_t result) {
  const auto* alias = schema.returns()[result].alias_info();
  if (alias == nullptr) return -1;
  for (size_t place = 0; place < schema.arguments().size(); ++place) {
    const auto* other = schema.arguments()[place].alias_info();
    if (other != nullptr && other->beforeSets() == alias->beforeSets()) return static_cast<int>(place);
  }
  return -1;
}

// Every operator that torch does not take apart: the sizes of its results come from its meta kernel, so that
// the call returns at once, and the processor computes them when the stream comes to it.
void compute(const c10::OperatorHandle& asked, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = asked.schema();
  const size_t count = schema.arguments().size();
  torch::jit::Stack given(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  c10::DeviceIndex device = current_device;
  std::vector<std::shared_ptr<void>> held;
  const auto on_meta = [&](const at::Tensor& tensor) {
    device = tensor.device().index();
    return elsewhere(tensor, c10::DeviceType::Meta);
  };
  const auto on_processor = [&](const at::Tensor& tensor) {
    held.push_back(holder(tensor));
    return elsewhere(tensor, c10::DeviceType::CPU);
  };
  torch::jit::Stack metas = changed_stack(given, count, c10::DeviceType::Meta, on_meta);
  const c10::OperatorHandle computed = computing(asked, metas);
  {
    const at::RecordFunctionGuard unseen(false);
    const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset);
    computed.callBoxed(&metas);
  }
  const c10::impl::VirtualGuardImpl guard(kType);
  const c10::Device before = guard.exchangeDevice({kType, device});
  for (size_t place = 0; place < metas.size(); ++place) {
    const int argument = aliased_argument(schema, place);
    if (argument >= 0 && schema.returns()[place].alias_info()->isWrite() && metas[place].isTensor())
      take_sizes(given[static_cast<size_t>(argument)].toTensor(), metas[place].toTensor());
  }
  torch::jit::Stack inputs = changed_stack(given, count, c10::DeviceType::CPU, on_processor);
  computing(asked, inputs);
  torch::jit::Stack results;
  std::vector<std::pair<size_t, at::Tensor>> targets;
  bool is_view = !schema.returns().empty();
  for (size_t place = 0; place < metas.size(); ++place) {
    const int argument = aliased_argument(schema, place);
    const bool writes = argument >= 0 && schema.returns()[place].alias_info()->isWrite();
    is_view = is_view && argument >= 0 && !writes;
    const auto make = [&](const at::Tensor& meta) {
      at::Tensor made = allocate_like(meta);
      targets.emplace_back(place, on_processor(made));
      return made;
    };
    if (writes) {
      results.push_back(given[static_cast<size_t>(argument)]);
    } else if (argument >= 0) {
      const at::Tensor& base = given[static_cast<size_t>(argument)].toTensor();
      const auto view = [&](const at::Tensor& meta) {
        return with_layout(base.storage(), base.key_set(), meta);
      };
      if (metas[place].isTensor()) {
        results.emplace_back(view(metas[place].toTensor()));
      } else {
        c10::List<at::Tensor> views;
        for (const at::Tensor& meta : metas[place].toTensorVector()) views.push_back(view(meta));
        results.emplace_back(views);
      }
    } else if (metas[place].isTensor()) {
      const at::Tensor& meta = metas[place].toTensor();
      results.push_back(meta.defined() ? c10::IValue(make(meta)) : metas[place]);
    } else {
      c10::List<at::Tensor> made;
      for (const at::Tensor& meta : metas[place].toTensorVector()) made.push_back(make(meta));
      results.emplace_back(made);
    }
  }
  guard.exchangeDevice(before);
  torch::jit::drop(*stack, count);
  stack->insert(stack->end(), results.begin(), results.end());
  if (is_view) return;
  const std::string name = schema.name().substr(schema.name().rfind(':') + 1);
  const Kind kind = name == "zero_" ? Kind::kFill : Kind::kKernel;
  const uint64_t bytes = kind == Kind::kFill ? given[0].toTensor().nbytes() : 0;
  test_device::launch(device, current_stream[device], kind,
                      kind == Kind::kFill ? "Memset (Device)" : "test_" + name, bytes,
                      [computed, inputs, targets, held]() mutable {
                        computed.callBoxed(&inputs);
                        size_t next = 0;
                        for (size_t place = 0; place < inputs.size() && next < targets.size(); ++place) {
                          std::vector<at::Tensor> made;
                          if (inputs[place].isTensor())
                            made.push_back(inputs[place].toTensor());
                          else
                            made = inputs[place].toTensorVector();
                          for (const at::Tensor& one : made) {
                            if (next < targets.size() && targets[next].first == place && one.defined())
                              at::_ops::copy_::call(targets[next++].second, one, false);
                          }
                        }
                      });
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const c10::DeviceIndex device = is_here(to) ? to.device().index() : from.device().index();
  const char* name = !is_here(from) ? "Memcpy HtoD (Pageable -> Device)"
                     : is_here(to)  ? "Memcpy DtoD (Device -> Device)"
                                    : "Memcpy DtoH (Device -> Pageable)";
  std::vector<std::shared_ptr<void>> held;
  const auto plain = [&](const at::Tensor& tensor) {
    if (!is_here(tensor)) return tensor.detach();
    held.push_back(holder(tensor));
    return elsewhere(tensor, c10::DeviceType::CPU);
  };
  test_device::launch(device, current_stream[device], Kind::kCopy, name, to.nbytes(),
                      [source = plain(from), target = plain(to), held] {
                        at::_ops::copy_::call(const_cast<at::Tensor&>(target), source, false);
                      });
  if (!(is_here(from) && is_here(to)) && !non_blocking)
    test_device::synchronize_stream(device, current_stream[device]);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  at::Tensor plain = elsewhere(tensor, c10::DeviceType::CPU);
  const c10::DeviceIndex device = tensor.device().index();
  alignas(16) char value[16] = {};
  test_device::launch(device, current_stream[device], Kind::kCopy, "Memcpy DtoH (Device -> Pageable)",
                      tensor.nbytes(), [&] { std::memcpy(value, plain.const_data_ptr(), plain.nbytes()); });
  test_device::synchronize_stream(device, current_stream[device]);
  const at::RecordFunctionGuard unseen(false);
  return plain.item();
}

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::impl::VirtualGuardImpl guard(kType);
  const c10::Device before = guard.exchangeDevice(device.value_or(c10::Device(kType, current_device)));
  const c10::Storage none(c10::Storage::use_byte_size_t(), 0,
                          c10::DataPtr(nullptr, c10::Device(c10::DeviceType::Meta)), nullptr, false);
  auto meta = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(none),
                                                       c10::DispatchKeySet(c10::DispatchKey::Meta),
                                                       c10::scalarTypeToTypeMeta(dtype.value_or(at::kFloat)));
  meta.unsafeGetTensorImpl()->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(sizes),
                                                    C10_AS_INTARRAYREF_SLOW(strides));
  at::Tensor made = allocate_like(meta);
  guard.exchangeDevice(before);
  return made;
}

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  const auto plain = C10_AS_INTARRAYREF_SLOW(sizes);
  const auto wanted = format.value_or(at::MemoryFormat::Contiguous);
  std::vector<int64_t> strides(plain.size());
  if (wanted == at::MemoryFormat::ChannelsLast) {
    strides = c10::get_channels_last_strides_2d(plain);
  } else {
    int64_t step = 1;
    for (size_t place = plain.size(); place-- > 0; step *= std::max<int64_t>(plain[place], 1))
      strides[place] = step;
  }
  return empty_strided(sizes, c10::fromIntArrayRefSlow(strides), dtype, layout, device, pinned);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  for (const char* name : {"convolution_overrideable", "convolution_backward_overrideable"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&compute>());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}

// Called once the backend has its name.
extern "C" void test_device_begin() {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  test_device::set_thread_setup([] {
    at::enableRecordFunction(false);
    c10::GradMode::set_enabled(false);
    at::set_num_threads(1);
  });
}
