#include "shapes.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#include "json_text.h"
#include "session.h"
#include "thread_state.h"
#include "utf8.h"

namespace kinetoscope {
namespace {

// Longer lists are described by their first elements and an ellipsis.
constexpr size_t kMaxListElements = 64;
constexpr size_t kMaxInputs = 256;
constexpr size_t kMaxConcreteText = 256;

// The first pass only computes a key (cheap, for every operator); the texts are built for new keys only.
enum Tag : uint64_t {
  kNone = 1,
  kTensor,
  kStridedTensor,
  kOpaqueTensor,
  kInt,
  kTrue,
  kFalse,
  kDouble,
  kList,
  kTensorList,
  kOptionalTensorList,
  kString,
  kDevice,
  kScalar,
  kOther,
};

// Digests an operator's inputs word by word into 128 bits, by which they are known from then on.
class InputKey {
 public:
  void add(uint64_t word) {
    first_ = mix(first_ ^ word);
    second_ = (second_ + word) * 0xD6E8FEB86659FD93ull;
    second_ ^= second_ >> 32;
  }
  void add_text(std::string_view text) {
    add(text.size());
    add(hash_bytes(text.data(), text.size()));
  }
  TextKey key() const { return {first_, second_}; }

 private:
  uint64_t first_ = 0x243F6A8885A308D3ull;
  uint64_t second_ = 0x13198A2E03707344ull;
};

// Accesses protected members of tensor implementations: whether a Python method returns the sizes, and
// whether strides are plain numbers, which sparse tensors lack and some subclasses compute.
struct SizesPolicy : c10::TensorImpl {
  static bool is_python(const c10::TensorImpl& impl) {
    return impl.is_python_dispatch() &&
           (impl.*(&SizesPolicy::matches_python_custom))(c10::TensorImpl::SizesStridesPolicy::CustomSizes);
  }
  static bool has_strides(const c10::TensorImpl& impl) {
    return !(impl.*(&SizesPolicy::matches_policy))(c10::TensorImpl::SizesStridesPolicy::CustomStrides);
  }
};

// The strides of a tensor with plain sizes; empty where it has none that can be read.
c10::IntArrayRef strides_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return SizesPolicy::has_strides(*impl) ? impl->strides() : c10::IntArrayRef();
}

// Whether the strides follow from the sizes, as those of most tensors do.
bool are_dense(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  if (strides.size() != sizes.size()) return false;
  int64_t expected = 1;
  for (size_t at = sizes.size(); at-- > 0;) {
    if (strides[at] != expected) return false;
    if (sizes[at] > 1) expected *= sizes[at];
  }
  return true;
}

void add_tensor(const at::Tensor& tensor, InputKey& key) {
  if (!tensor.defined()) {
    key.add(kNone);
    return;
  }
  const auto type = static_cast<uint64_t>(tensor.scalar_type());
  if (!has_plain_sizes(tensor)) {
    key.add(kOpaqueTensor | type << 8);
    return;
  }
  const auto sizes = tensor.sizes();
  const auto strides = strides_of(tensor);
  const bool dense = are_dense(sizes, strides);
  key.add((dense ? kTensor : kStridedTensor) | type << 8 | sizes.size() << 16);
  for (const int64_t size : sizes) key.add(static_cast<uint64_t>(size));
  if (dense) return;
  key.add(strides.size());
  for (const int64_t stride : strides) key.add(static_cast<uint64_t>(stride));
}

template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  const auto list = value.toListRef();
  for (size_t at = 0; at < list.size() && at < kMaxListElements; ++at) visit(list[at].toTensor());
}

std::string concrete_text(const c10::IValue& value);

std::string list_text(const c10::IValue& value) {
  std::string out = "[";
  const auto list = value.toListRef();
  for (size_t at = 0; at < list.size(); ++at) {
    if (at != 0) out += ", ";
    if (at == kMaxListElements) {
      out += "...";
      break;
    }
    out += concrete_text(list[at]);
  }
  return out + "]";
}

std::string concrete_text(const c10::IValue& value) {
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) return std::to_string(value.toInt());
  if (value.isDouble()) {
    std::string text = number_text(value.toDouble());
    if (std::isfinite(value.toDouble()) && text.find_first_of(".e") == std::string::npos) text += ".";
    return text;
  }
  if (value.isComplexDouble()) {
    // As Python writes it.
    const c10::complex<double> number = value.toComplexDouble();
    const std::string imaginary = number_text(number.imag()) + "j";
    if (number.real() == 0 && !std::signbit(number.real())) return imaginary;
    return "(" + number_text(number.real()) + (imaginary[0] == '-' ? "" : "+") + imaginary + ")";
  }
  if (value.isString()) return value.toStringRef();
  if (value.isDevice()) return value.toDevice().str();
  if (value.isList() && !value.isTensorList()) return list_text(value);
  return {};
}

bool has_concrete_value(const c10::IValue& value) {
  return value.isScalar() || value.isString() || value.isDevice() ||
         (value.isList() && !value.isTensorList() && !value.isOptionalTensorList());
}

// The key contains everything that the texts of an input depend on.
void add_input(const c10::IValue& value, InputKey& key) {
  if (value.isTensor()) {
    add_tensor(value.toTensor(), key);
  } else if (value.isInt()) {
    key.add(kInt);
    key.add(static_cast<uint64_t>(value.toInt()));
  } else if (value.isNone()) {
    key.add(kNone);
  } else if (value.isBool()) {
    key.add(value.toBool() ? kTrue : kFalse);
  } else if (value.isDouble()) {
    key.add(kDouble);
    key.add(std::bit_cast<uint64_t>(value.toDouble()));
  } else if (value.isList()) {
    const auto list = value.toListRef();
    const Tag kind = value.isTensorList()           ? kTensorList
                     : value.isOptionalTensorList() ? kOptionalTensorList
                                                    : kList;
    key.add(kind | list.size() << 8);
    for (size_t at = 0; at < list.size() && at < kMaxListElements; ++at) add_input(list[at], key);
  } else if (value.isString()) {
    key.add(kString);
    key.add_text(value.toStringRef());
  } else if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    key.add(kDevice | static_cast<uint64_t>(device.type()) << 8 |
            static_cast<uint64_t>(device.index() + 1) << 16);
  } else if (value.isScalar()) {
    // Complex and symbolic numbers, by their text, since they are rare.
    key.add(kScalar);
    key.add_text(concrete_text(value));
  } else {
    key.add(kOther);
  }
}

void append_json(std::string& out, std::string_view text) {
  out.push_back('"');
  for (size_t at = 0, bytes = 0; at < text.size() && at < kMaxConcreteText;
       at += std::max<size_t>(bytes, 1)) {
    const char c = text[at];
    const auto byte = static_cast<unsigned char>(c);
    bytes = utf8_bytes(text.substr(at));
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (bytes > 1) {
      out += text.substr(at, bytes);
    } else if (byte < 0x20 || byte >= 0x7F) {
      // Operator arguments may be any bytes; what is no UTF-8 is shown byte by byte.
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", byte);
      out += escaped;
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

void append_numbers(std::string& out, c10::IntArrayRef numbers) {
  out.push_back('[');
  for (size_t at = 0; at < numbers.size(); ++at) {
    if (at != 0) out += ", ";
    out += std::to_string(numbers[at]);
  }
  out.push_back(']');
}

struct Texts {
  std::string dims = "[";
  std::string strides = "[";
  std::string types = "[";
  std::string concrete = "[";
};

void append_sizes(Texts& out, const at::Tensor& tensor) {
  const bool known = tensor.defined() && has_plain_sizes(tensor);
  append_numbers(out.dims, known ? tensor.sizes() : c10::IntArrayRef());
  append_numbers(out.strides, known ? strides_of(tensor) : c10::IntArrayRef());
}

std::string_view dtype_name(const at::Tensor& tensor) {
  return tensor.defined() ? std::string_view(tensor.dtype().name()) : std::string_view();
}

void describe(const c10::IValue& value, Texts& out) {
  if (value.isTensor()) {
    append_sizes(out, value.toTensor());
    append_json(out.types, dtype_name(value.toTensor()));
    out.concrete += "\"\"";
    return;
  }
  if (value.isTensorList()) {
    const char* separator = "[";
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      out.dims += separator;
      out.strides += separator;
      separator = ", ";
      append_sizes(out, tensor);
    });
    const char* end = *separator == '[' ? "[]" : "]";
    out.dims += end;
    out.strides += end;
    append_json(out.types, "TensorList");
    out.concrete += "\"\"";
    return;
  }
  out.dims += "[]";
  out.strides += "[]";
  const bool scalars = value.isList() && has_concrete_value(value);
  append_json(out.types, value.isScalar() ? "Scalar" : scalars ? "ScalarList" : "");
  append_json(out.concrete, has_concrete_value(value) ? concrete_text(value) : std::string());
}

}  // namespace

bool has_plain_sizes(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return !impl->has_symbolic_sizes_strides() && !tensor.is_nested() && !SizesPolicy::is_python(*impl);
}

uint32_t input_shapes(ThreadState& thread, Session& session, const at::RecordFunction& function) {
  const auto inputs = function.inputs();
  if (inputs.empty()) return 0;
  InputKey digest;
  for (size_t at = 0; at < inputs.size() && at < kMaxInputs; ++at) add_input(inputs[at], digest);
  const TextKey key = digest.key();
  if (const uint32_t known = thread.shapes.find(key); known != 0) return known;

  uint32_t id = 0;
  {
    std::lock_guard lock(session.dictionary().mutex());
    id = session.dictionary().find_shapes(key);
  }
  if (id == 0) {
    Texts texts;
    for (size_t at = 0; at < inputs.size() && at < kMaxInputs; ++at) {
      if (at != 0) {
        texts.dims += ", ";
        texts.strides += ", ";
        texts.types += ", ";
        texts.concrete += ", ";
      }
      describe(inputs[at], texts);
    }
    std::lock_guard lock(session.dictionary().mutex());
    id = session.dictionary().find_shapes(key);
    if (id == 0)
      id = session.dictionary().shapes(key, texts.dims + "]", texts.types + "]", texts.concrete + "]",
                                       texts.strides + "]");
  }
  thread.shapes.insert(key, id);
  return id;
}

}  // namespace kinetoscope
