#include "tensor_reader.h"

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/core/DeviceType.h>
#include <c10/core/Storage.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <torch/csrc/autograd/python_variable.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cpu_allocator.h"
#include "frozen_objects.h"
#include "json_text.h"
#include "probing_table.h"

namespace kinetoscope {
namespace {

// The numbers of kinetoscope.model.schema.StorageRole.
enum class Role : uint8_t { Tensor = 0, Parameter = 1, Buffer = 2, Gradient = 3, OptimizerState = 4 };

// storages.py cuts longer ones, by characters.
constexpr Py_ssize_t kLongestName = 60;
// Rows that fit into one of the recorder's longer chunks.
constexpr size_t kRowsInAPart = 2000;

// Tensors of these kinds have no memory of their own, or more than one storage.
constexpr c10::DispatchKeySet kNotPlain({c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                         c10::DispatchKey::FuncTorchBatched,
                                         c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::Batched,
                                         c10::DispatchKey::FuncTorchGradWrapper});

struct Row {
  int64_t time_ns;
  uint64_t address;
  int64_t bytes;
  uint64_t module;
  uint64_t parameter;
  uint32_t name;
  Role role;
  c10::DeviceType device_type;
  int8_t device_index;
};

// Objects that are left to Python: holds references, and builds the list only at the end, because creating
// one may run the garbage collector.
class Leftover {
 public:
  Leftover() = default;
  Leftover(const Leftover&) = delete;
  Leftover& operator=(const Leftover&) = delete;
  ~Leftover() {
    for (PyObject* object : objects_) Py_DECREF(object);
  }

  void add(PyObject* object) { objects_.push_back(Py_NewRef(object)); }

  PyObject* list() {
    PyObject* made = PyList_New(static_cast<Py_ssize_t>(objects_.size()));
    if (made == nullptr) return nullptr;
    Py_ssize_t at = 0;
    for (PyObject* object : std::exchange(objects_, {})) PyList_SET_ITEM(made, at++, object);
    return made;
  }

 private:
  std::vector<PyObject*> objects_;
};

// The distinct names of rows. They are the keys of modules' dictionaries, the same objects again and again.
class Names {
 public:
  Names() : texts_{""} {}
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;
  ~Names() { clear(); }

  // Nothing for names that only Python code can convert.
  std::optional<uint32_t> index_of(PyObject* name) {
    if (const auto known = by_object_.find(name); known != by_object_.end()) return known->second;
    if (!PyUnicode_CheckExact(name) || PyUnicode_GET_LENGTH(name) > kLongestName) return std::nullopt;
    Py_ssize_t size = 0;
    const char* utf8 = PyUnicode_AsUTF8AndSize(name, &size);
    if (utf8 == nullptr) {
      PyErr_Clear();
      return std::nullopt;
    }
    texts_.emplace_back(utf8, static_cast<size_t>(size));
    const auto index = static_cast<uint32_t>(texts_.size() - 1);
    by_object_.emplace(Py_NewRef(name), index);
    return index;
  }

  const std::string& text(uint32_t index) const { return texts_[index]; }

  void clear() {
    for (const auto& [name, index] : std::exchange(by_object_, {})) Py_DECREF(name);
    texts_.assign(1, "");
  }

 private:
  std::unordered_map<PyObject*, uint32_t> by_object_;
  std::vector<std::string> texts_;
};

// The known storages, without keeping their memory alive.
class MetStorages {
 public:
  MetStorages() = default;

  void add(const c10::Storage& storage) {
    const AddressKey key{storage.unsafeGetStorageImpl()};
    if (places_.find(key) != 0) return;
    places_.insert(key, 1);
    storages_.push_back(storage.getWeakStorageImpl());
  }

  void clear() {
    places_.clear();
    storages_.clear();
  }

  size_t size() const { return storages_.size(); }

  // Calls `visit` with each live storage; removes the others. If another thread frees one meanwhile, the last
  // reference is here, and freeing it may release the GIL: storages may be added before this returns.
  template <typename Visit>
  void each(Visit visit) {
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages = std::exchange(storages_, {});
    size_t left = 0;
    for (size_t at = 0; at < storages.size(); ++at) {
      if (at + kAhead < storages.size()) __builtin_prefetch(storages[at + kAhead]._unsafe_get_target());
      const c10::intrusive_ptr<c10::StorageImpl> held = storages[at].lock();
      if (!held) continue;
      visit(*held);
      if (left != at) storages[left] = std::move(storages[at]);
      ++left;
    }
    const bool forgets = left != storages.size();
    storages.erase(storages.begin() + static_cast<std::ptrdiff_t>(left), storages.end());
    std::move(storages_.begin(), storages_.end(), std::back_inserter(storages));
    storages_ = std::move(storages);
    if (!forgets) return;
    places_.clear();
    for (const auto& storage : storages_) places_.insert(AddressKey{storage._unsafe_get_target()}, 1);
  }

 private:
  static constexpr size_t kAhead = 8;

  // An address is not reused as long as there is a weak reference to its object.
  ProbingTable<AddressKey> places_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

// Numbers as JSON: the first where all are equal, else the base64 of their little-endian bytes.
template <typename Value, typename Get>
void append_numbers(std::string& out, const char* key, const Row* rows, size_t count, Get get) {
  out.append("\"").append(key).append("\":");
  std::vector<Value> values(count);
  bool equal = true;
  for (size_t at = 0; at < count; ++at) {
    values[at] = get(rows[at]);
    equal = equal && values[at] == values[0];
  }
  if (equal) {
    out.append(std::to_string(values[0])).append(",");
    return;
  }
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  const size_t size = count * sizeof(Value);
  out += '"';
  const size_t first = out.size();
  out.resize(first + (size + 2) / 3 * 4, '=');
  char* to = out.data() + first;
  for (size_t at = 0; at < size; at += 3, to += 4) {
    const size_t left = size - at;
    const uint32_t word = static_cast<uint32_t>(bytes[at]) << 16 |
                          static_cast<uint32_t>(left > 1 ? bytes[at + 1] : 0) << 8 |
                          static_cast<uint32_t>(left > 2 ? bytes[at + 2] : 0);
    to[0] = kDigits[word >> 18];
    to[1] = kDigits[word >> 12 & 63];
    if (left > 1) to[2] = kDigits[word >> 6 & 63];
    if (left > 2) to[3] = kDigits[word & 63];
  }
  out += "\",";
}

template <typename Same, typename Text>
void append_texts(std::string& out, const char* key, const Row* rows, size_t count, Same same, Text text) {
  out.append("\"").append(key).append("\":");
  if (std::all_of(rows, rows + count, [&](const Row& row) { return same(row, rows[0]); })) {
    append_json_text(out, text(rows[0]));
    return;
  }
  for (size_t at = 0; at < count; ++at) {
    out += at == 0 ? '[' : ',';
    append_json_text(out, text(rows[at]));
  }
  out += ']';
}

// System calls in which threads wait for input, time or a process. Not futex, in which threads also wait for
// the GIL.
constexpr long kWaits[] = {
    SYS_read,        SYS_recvfrom,  SYS_recvmsg,         SYS_accept4,    SYS_ppoll,  SYS_pselect6,
    SYS_epoll_pwait, SYS_nanosleep, SYS_clock_nanosleep, SYS_wait4,      SYS_waitid,
#ifdef SYS_poll
    SYS_poll,        SYS_select,    SYS_accept,          SYS_epoll_wait,
#else
    SYS_accept,
#endif
};

// Whether a thread of this process is waiting in one of these calls; false if the system does not tell.
bool waits_in_system(unsigned long native_thread) {
  char path[64], text[32];
  std::snprintf(path, sizeof(path), "/proc/self/task/%lu/syscall", native_thread);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t size = read(file, text, sizeof(text) - 1);
  close(file);
  if (size <= 0) return false;
  text[size] = 0;
  char* end = nullptr;
  const long call = std::strtol(text, &end, 10);
  return end != text && std::find(std::begin(kWaits), std::end(kWaits), call) != std::end(kWaits);
}

unsigned long native_id(unsigned long thread) {
  PyThreadState* state = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  while (state != nullptr && state->thread_id != thread) state = PyThreadState_Next(state);
  return state == nullptr ? 0 : state->native_thread_id;
}

// How to recognize threads that are not training.
struct Rest {
  PyObject* frames_of_threads;  // sys._current_frames
  PyObject* resting;            // the code of functions in which threads wait
  PyObject* torch_folder;       // where torch's own functions are
  // Whether threads that no longer exist may have been training: this process was forked beside them.
  int forked_beside_work;
};

// Whether a thread with this innermost frame cannot be replacing a gradient as long as the GIL is held.
bool rests(PyFrameObject* frame, unsigned long thread, const Rest& known) {
  PyObject* code = reinterpret_cast<PyObject*>(PyFrame_GetCode(frame));
  bool waits = false;
  for (Py_ssize_t which = 0; which < PyTuple_GET_SIZE(known.resting); ++which)
    waits = waits || PyTuple_GET_ITEM(known.resting, which) == code;
  Py_DECREF(code);
  if (waits) return true;
  if (!waits_in_system(native_id(thread))) return false;
  // A hook of a backward pass may wait, too, while other threads continue that pass.
  bool in_torch = false;
  Py_INCREF(frame);
  while (frame != nullptr && !in_torch) {
    PyCodeObject* its = PyFrame_GetCode(frame);
    in_torch = PyUnicode_Tailmatch(its->co_filename, known.torch_folder, 0, PY_SSIZE_T_MAX, -1) != 0;
    Py_DECREF(its);
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  return !in_torch;
}

// [GIL] Whether no other Python thread is training while the GIL is held. Runs no Python code; false if
// unknown.
bool others_rest(const Rest& known) {
  if (known.forked_beside_work != 0) return false;
  // Frames are made on demand, which may start a collection, which may run code that releases the GIL.
  const int collects = PyGC_Disable();
  PyObject* frames = PyObject_CallNoArgs(known.frames_of_threads);
  bool rest = frames != nullptr && PyDict_Check(frames);
  const unsigned long own = PyThread_get_thread_ident();
  PyObject *thread = nullptr, *frame = nullptr;
  for (Py_ssize_t at = 0; rest && PyDict_Next(frames, &at, &thread, &frame) != 0;) {
    const unsigned long number = PyLong_AsUnsignedLong(thread);
    rest = number == own || rests(reinterpret_cast<PyFrameObject*>(frame), number, known);
  }
  Py_XDECREF(frames);
  PyErr_Clear();
  if (collects != 0) PyGC_Enable();
  return rest;
}

// [GIL] Releases the GIL a few times for a moment, and returns whether other threads wait then: a thread that
// only handles a message, such as those of a test runner, needs the GIL for that.
bool others_come_to_rest(const Rest& known) {
  if (known.forked_beside_work != 0) return false;
  constexpr int kMoments = 3;
  constexpr useconds_t kMomentUs = 200;
  for (int moment = 0; moment < kMoments; ++moment) {
    Py_BEGIN_ALLOW_THREADS;
    usleep(kMomentUs);
    Py_END_ALLOW_THREADS;
    if (others_rest(known)) return true;
  }
  return false;
}

// Reads the addresses of tensors' storages. Other threads may be training meanwhile, so each method holds the
// GIL all the time.
//
// Only gradients need more. `parameter.grad = None` releases the GIL while the parameter still refers to the
// gradient that is being freed, and a backward pass replaces gradients without the GIL. A thread may
// therefore read the gradients of parameters that it trains itself, and others only while all other threads
// rest.
class Reader {
 public:
  // With `other`, it remembers the same storages.
  Reader(PyObject* plain, PyObject* owners, const Rest& rest, const Reader* other)
      : plain_(plain),
        owners_(owners),
        rest_(rest),
        met_(other != nullptr ? other->met_ : std::make_shared<MetStorages>()) {}

  // What plain() says of tensors that are not plain, as Python shall look at them.
  PyObject* meet(PyObject* things) {
    Leftover left;
    std::unordered_map<PyTypeObject*, Kind> kinds;
    PyTypeObject* last = nullptr;
    Kind kind = Kind::Other;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(things); ++at) {
      PyObject* thing = PyList_GET_ITEM(things, at);
      if (Py_TYPE(thing) != last) {
        last = Py_TYPE(thing);
        const auto [known, fresh] = kinds.try_emplace(last, Kind::Other);
        if (fresh) known->second = kind_of(last);
        kind = known->second;
      }
      if (kind == Kind::Other) continue;
      const at::TensorImpl* tensor = kind == Kind::Plain ? plain(thing) : nullptr;
      if (tensor == nullptr) {
        left.add(thing);
      } else if (tensor->device_type() != c10::DeviceType::Meta) {
        met_->add(tensor->unsafe_storage());
      }
    }
    return left.list();
  }

  // Selects the plain tensors, modules and optimizers among some objects.
  PyObject* wanted(PyObject* things) const {
    Leftover found;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(things); ++at) {
      PyObject* thing = PyList_GET_ITEM(things, at);
      if (kind_of(Py_TYPE(thing)) != Kind::Other) found.add(thing);
    }
    return found.list();
  }

  void forget() { met_->clear(); }
  size_t met() const { return met_->size(); }

  void begin(int64_t time_ns, bool first) {
    time_ns_ = time_ns;
    watching_ = first;
    held_.clear();
    seen_.clear();
    own_.clear();
    if (!first) return;
    unread_.clear();
    rows_.clear();
    names_.clear();
    wrap_cpu_allocator();
  }

  void own(PyObject* parameters) {
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(parameters); ++at)
      if (const c10::TensorImpl* tensor = implementation(PyList_GET_ITEM(parameters, at)))
        own_.insert(AddressKey{tensor}, 1);
  }

  PyObject* modules(PyObject* modules) {
    others_rest_ = others_rest(rest_) || others_come_to_rest(rest_);
    Leftover left;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(modules); ++at) {
      PyObject* module = PyList_GET_ITEM(modules, at);
      const size_t before = rows_.size();
      if (!read_module(module)) {
        rows_.resize(before);
        left.add(module);
      }
    }
    return left.list();
  }

  PyObject* parameters(PyObject* parameters) {
    others_rest_ = others_rest(rest_);
    Leftover left;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(parameters); ++at) {
      PyObject* parameter = PyList_GET_ITEM(parameters, at);
      const at::TensorImpl* tensor = plain(parameter);
      if (tensor == nullptr || !read_parameter(parameter, *tensor, 0, 0)) left.add(parameter);
    }
    return left.list();
  }

  // A new reference to the gradient of a tensor of any class; None without one, or if it must not be read.
  PyObject* gradient(PyObject* parameter) {
    others_rest_ = others_rest(rest_);
    const c10::TensorImpl* tensor = implementation(parameter);
    if (tensor == nullptr || !THPVariable_Unpack(parameter).is_leaf() || !may_read_gradient(*tensor))
      return Py_NewRef(Py_None);
    const at::Tensor found = tensor->grad();
    return found.defined() ? THPVariable_Wrap(found) : Py_NewRef(Py_None);
  }

  // Number of parameters whose gradients could not be read in any scan since the first one.
  size_t unread() const { return unread_.size(); }

  PyObject* state(PyObject* state) {
    Leftover left;
    PyObject *parameter = nullptr, *values = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(state, &at, &parameter, &values) != 0;) {
      const size_t before = rows_.size();
      if (!read_state(parameter, values)) {
        rows_.resize(before);
        left.add(parameter);
      }
    }
    return left.list();
  }

  bool rest(PyObject* also_seen) {
    std::unordered_set<const void*> also;
    PyObject* number = nullptr;
    PyObject* numbers = PyObject_GetIter(also_seen);
    if (numbers == nullptr) return false;
    while ((number = PyIter_Next(numbers)) != nullptr) {
      also.insert(PyLong_AsVoidPtr(number));
      Py_DECREF(number);
    }
    Py_DECREF(numbers);
    if (PyErr_Occurred() != nullptr) return false;
    met_->each([&](c10::StorageImpl& storage) {
      if (seen_.find(AddressKey{&storage}) == 0 && !also.contains(&storage))
        add(storage, Role::Tensor, 0, 0, 0);
    });
    return true;
  }

  std::vector<std::string> take() {
    std::vector<std::string> parts;
    for (size_t first = 0; first < rows_.size(); first += kRowsInAPart)
      parts.push_back(part(rows_.data() + first, std::min(kRowsInAPart, rows_.size() - first)));
    rows_.clear();
    names_.clear();
    seen_.clear();
    watching_ = false;
    return parts;
  }

 private:
  enum class Kind : uint8_t { Other, Plain, Owner };

  Kind kind_of(PyTypeObject* type) const {
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(plain_); ++at)
      if (reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(plain_, at)) == type) return Kind::Plain;
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(owners_); ++at)
      if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(owners_, at))) != 0)
        return Kind::Owner;
    return Kind::Other;
  }

  static bool has_one_storage(const at::TensorImpl& tensor) {
    return !tensor.key_set().has_any(kNotPlain) && !tensor.is_nested() &&
           tensor.layout() == c10::Layout::Strided && tensor.has_storage();
  }

  // The tensor behind an object of a plain type that has one storage of its own; else nullptr.
  const at::TensorImpl* plain(PyObject* object) const {
    bool is_plain = false;
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(plain_); ++at)
      is_plain = is_plain || reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(plain_, at)) == Py_TYPE(object);
    if (!is_plain) return nullptr;
    const at::Tensor& tensor = THPVariable_Unpack(object);
    return tensor.defined() && has_one_storage(*tensor.unsafeGetTensorImpl()) ? tensor.unsafeGetTensorImpl()
                                                                              : nullptr;
  }

  void add(c10::StorageImpl& storage, Role role, uint64_t module, uint64_t parameter, uint32_t name) {
    // A storage without memory may be resized during the recording.
    if (watching_) watch_storage(storage);
    // Only the address; accessing the data might copy it, or fail.
    const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
    const auto bytes = static_cast<int64_t>(storage.nbytes());
    if (bytes == 0 || data.get() == nullptr) return;
    if (watching_) seen_.insert(AddressKey{&storage}, 1);
    const c10::Device device = data.device();
    const bool numbered = !device.is_cpu() && device.has_index();
    rows_.push_back({time_ns_, reinterpret_cast<uintptr_t>(data.get()), bytes, module, parameter, name, role,
                     device.type(), numbered ? device.index() : c10::DeviceIndex{-1}});
  }

  void add(const at::TensorImpl& tensor, Role role, uint64_t module, uint64_t parameter, uint32_t name) {
    if (tensor.device_type() != c10::DeviceType::Meta)
      add(*tensor.unsafe_storage().unsafeGetStorageImpl(), role, module, parameter, name);
  }

  // False, with nothing held: its gradient is not plain.
  bool read_parameter(PyObject* object, const at::TensorImpl& tensor, uint64_t module, uint32_t name) {
    const AddressKey key{&tensor};
    const auto number = reinterpret_cast<uintptr_t>(&tensor);
    if (module == 0 && held_.find(key) != 0) return true;
    const at::Tensor& variable = THPVariable_Unpack(object);
    at::Tensor gradient;
    if (variable.is_leaf() && may_read_gradient(tensor)) gradient = tensor.grad();
    if (gradient.defined() && !has_one_storage(*gradient.unsafeGetTensorImpl())) return false;
    if (module != 0) held_.insert(key, 1);
    add(tensor, Role::Parameter, module, number, name);
    if (gradient.defined()) add(*gradient.unsafeGetTensorImpl(), Role::Gradient, module, number, name);
    return true;
  }

  static const c10::TensorImpl* implementation(PyObject* object) {
    return THPVariable_Check(object) ? THPVariable_Unpack(object).unsafeGetTensorImpl() : nullptr;
  }

  bool may_read_gradient(const c10::TensorImpl& tensor) {
    const bool may = others_rest_ || own_.find(AddressKey{&tensor}) != 0;
    if (may) {
      unread_.erase(&tensor);
    } else if (tensor.requires_grad()) {
      unread_.insert(&tensor);
    }
    return may;
  }

  bool read_module(PyObject* module) {
    PyObject* attributes = PyObject_GenericGetDict(module, nullptr);
    if (attributes == nullptr) {
      PyErr_Clear();
      return false;
    }
    const bool whole = read_held(module, attributes, "_parameters", true) &&
                       read_held(module, attributes, "_buffers", false);
    Py_DECREF(attributes);
    return whole;
  }

  bool read_held(PyObject* module, PyObject* attributes, const char* key, bool parameters) {
    PyObject* held = PyDict_GetItemString(attributes, key);
    if (held == nullptr || !PyDict_Check(held)) return false;
    const auto owner = reinterpret_cast<uintptr_t>(module);
    PyObject *name = nullptr, *object = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(held, &at, &name, &object) != 0;) {
      if (object == Py_None) continue;
      const at::TensorImpl* tensor = plain(object);
      const std::optional<uint32_t> text = names_.index_of(name);
      if (tensor == nullptr || !text) return false;
      if (!parameters) {
        add(*tensor, Role::Buffer, owner, 0, *text);
      } else if (!read_parameter(object, *tensor, owner, *text)) {
        return false;
      }
    }
    return true;
  }

  bool read_state(PyObject* parameter, PyObject* values) {
    if (!PyDict_CheckExact(values)) return false;
    const auto number = THPVariable_Check(parameter)
                            ? reinterpret_cast<uintptr_t>(THPVariable_Unpack(parameter).unsafeGetTensorImpl())
                            : 0;
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(values, &at, &name, &value) != 0;) {
      if (value == Py_None || PyFloat_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value))
        continue;
      const at::TensorImpl* tensor = plain(value);
      const std::optional<uint32_t> text = names_.index_of(name);
      if (tensor == nullptr || !text) return false;
      add(*tensor, Role::OptimizerState, 0, number, *text);
    }
    return true;
  }

  std::string part(const Row* rows, size_t count) const {
    std::string out = "{";
    append_numbers<int64_t>(out, "time_ns", rows, count, [](const Row& row) { return row.time_ns; });
    append_numbers<uint8_t>(out, "role", rows, count,
                            [](const Row& row) { return static_cast<uint8_t>(row.role); });
    append_numbers<uint64_t>(out, "address", rows, count, [](const Row& row) { return row.address; });
    append_numbers<int64_t>(out, "bytes", rows, count, [](const Row& row) { return row.bytes; });
    append_numbers<int8_t>(out, "device_index", rows, count, [](const Row& row) { return row.device_index; });
    append_numbers<uint64_t>(out, "module", rows, count, [](const Row& row) { return row.module; });
    append_numbers<uint64_t>(out, "parameter", rows, count, [](const Row& row) { return row.parameter; });
    append_texts(
        out, "device", rows, count,
        [](const Row& row, const Row& other) { return row.device_type == other.device_type; },
        [](const Row& row) { return c10::DeviceTypeName(row.device_type, true); });
    out += ',';
    append_texts(
        out, "name", rows, count, [](const Row& row, const Row& other) { return row.name == other.name; },
        [this](const Row& row) { return std::string_view(names_.text(row.name)); });
    out.append(",\"rows\":").append(std::to_string(count)).append("}");
    return out;
  }

  // Tuples of types, and what is in `Rest`, held by the object.
  PyObject* plain_;
  PyObject* owners_;
  const Rest rest_;
  // Valid inside one method, as long as the GIL is held.
  bool others_rest_ = false;
  const std::shared_ptr<MetStorages> met_;
  std::vector<Row> rows_;
  Names names_;
  int64_t time_ns_ = 0;
  bool watching_ = false;
  // The parameters of modules in this scan, and the storages with rows in the first scan.
  ProbingTable<AddressKey> held_;
  ProbingTable<AddressKey> seen_;
  // The parameters that this thread trains, and those whose gradients could not be read; only compared, never
  // read.
  ProbingTable<AddressKey> own_;
  std::unordered_set<const void*> unread_;
};

struct TensorReader {
  PyObject_HEAD PyObject* plain;
  PyObject* owners;
  Rest rest;
  Reader* reader;
};

// Calls `work`; an exception of C++ becomes one of Python.
template <typename Work>
PyObject* guarded(PyObject* self, Work work) {
  try {
    return work(*reinterpret_cast<TensorReader*>(self)->reader);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

using Listed = PyObject* (Reader::*)(PyObject*);

template <Listed method>
PyObject* of_list(PyObject* self, PyObject* list) {
  if (!PyList_Check(list)) {
    PyErr_SetString(PyExc_TypeError, "a list is needed");
    return nullptr;
  }
  return guarded(self, [list](Reader& reader) { return (reader.*method)(list); });
}

PyObject* of_state(PyObject* self, PyObject* state) {
  if (!PyDict_Check(state)) {
    PyErr_SetString(PyExc_TypeError, "a dictionary is needed");
    return nullptr;
  }
  return guarded(self, [state](Reader& reader) { return reader.state(state); });
}

PyObject* begin(PyObject* self, PyObject* args) {
  long long time_ns = 0;
  int first = 0;
  if (PyArg_ParseTuple(args, "Lp", &time_ns, &first) == 0) return nullptr;
  return guarded(self, [&](Reader& reader) {
    reader.begin(time_ns, first != 0);
    return Py_NewRef(Py_None);
  });
}

PyObject* own(PyObject* self, PyObject* parameters) {
  if (!PyList_Check(parameters)) {
    PyErr_SetString(PyExc_TypeError, "a list is needed");
    return nullptr;
  }
  return guarded(self, [parameters](Reader& reader) {
    reader.own(parameters);
    return Py_NewRef(Py_None);
  });
}

PyObject* gradient(PyObject* self, PyObject* parameter) {
  return guarded(self, [parameter](Reader& reader) { return reader.gradient(parameter); });
}

PyObject* unread(PyObject* self, PyObject*) {
  return guarded(self, [](Reader& reader) { return PyLong_FromSize_t(reader.unread()); });
}

PyObject* rest(PyObject* self, PyObject* also_seen) {
  return guarded(self, [&](Reader& reader) { return reader.rest(also_seen) ? Py_NewRef(Py_None) : nullptr; });
}

PyObject* forget(PyObject* self, PyObject*) {
  return guarded(self, [](Reader& reader) {
    reader.forget();
    return Py_NewRef(Py_None);
  });
}

PyObject* met(PyObject* self, PyObject*) {
  return guarded(self, [](Reader& reader) { return PyLong_FromSize_t(reader.met()); });
}

PyObject* frozen(PyObject* self, PyObject*) {
  return guarded(self, [](Reader& reader) -> PyObject* {
    PyObject* objects = PyList_New(0);
    if (objects != nullptr && kinetoscope_list_frozen(objects) != 0) Py_CLEAR(objects);
    PyObject* wanted = objects == nullptr ? nullptr : reader.wanted(objects);
    Py_XDECREF(objects);
    return wanted;
  });
}

PyObject* take(PyObject* self, PyObject*) {
  return guarded(self, [](Reader& reader) {
    const std::vector<std::string> parts = reader.take();
    PyObject* list = PyList_New(static_cast<Py_ssize_t>(parts.size()));
    for (size_t at = 0; list != nullptr && at < parts.size(); ++at) {
      PyObject* text =
          PyUnicode_FromStringAndSize(parts[at].data(), static_cast<Py_ssize_t>(parts[at].size()));
      if (text == nullptr) {
        Py_CLEAR(list);
      } else {
        PyList_SET_ITEM(list, static_cast<Py_ssize_t>(at), text);
      }
    }
    return list;
  });
}

// A reader like this one, for another session.
PyObject* another(PyObject* self, PyObject*) {
  const auto& own = *reinterpret_cast<TensorReader*>(self);
  return PyObject_CallFunction(reinterpret_cast<PyObject*>(Py_TYPE(self)), "OOOOOiO", own.plain, own.owners,
                               own.rest.frames_of_threads, own.rest.resting, own.rest.torch_folder,
                               own.rest.forked_beside_work, self);
}

PyMethodDef reader_methods[] = {{"another", &another, METH_NOARGS, nullptr},
                                {"meet", &of_list<&Reader::meet>, METH_O, nullptr},
                                {"forget", &forget, METH_NOARGS, nullptr},
                                {"frozen", &frozen, METH_NOARGS, nullptr},
                                {"met", &met, METH_NOARGS, nullptr},
                                {"begin", &begin, METH_VARARGS, nullptr},
                                {"own", &own, METH_O, nullptr},
                                {"gradient", &gradient, METH_O, nullptr},
                                {"unread", &unread, METH_NOARGS, nullptr},
                                {"modules", &of_list<&Reader::modules>, METH_O, nullptr},
                                {"parameters", &of_list<&Reader::parameters>, METH_O, nullptr},
                                {"state", &of_state, METH_O, nullptr},
                                {"rest", &rest, METH_O, nullptr},
                                {"take", &take, METH_NOARGS, nullptr},
                                {nullptr, nullptr, 0, nullptr}};

PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *plain = nullptr, *owners = nullptr, *other = nullptr;
  Rest rest{};
  if (PyArg_ParseTuple(args, "O!O!OO!Up|O!", &PyTuple_Type, &plain, &PyTuple_Type, &owners,
                       &rest.frames_of_threads, &PyTuple_Type, &rest.resting, &rest.torch_folder,
                       &rest.forked_beside_work, type, &other) == 0)
    return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  auto& own = *reinterpret_cast<TensorReader*>(self);
  own.plain = Py_NewRef(plain);
  own.owners = Py_NewRef(owners);
  own.rest = {Py_NewRef(rest.frames_of_threads), Py_NewRef(rest.resting), Py_NewRef(rest.torch_folder),
              rest.forked_beside_work};
  try {
    own.reader = new Reader(plain, owners, own.rest,
                            other != nullptr ? reinterpret_cast<TensorReader*>(other)->reader : nullptr);
  } catch (const std::bad_alloc&) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return self;
}

void destroy_reader(PyObject* self) {
  auto& own = *reinterpret_cast<TensorReader*>(self);
  delete own.reader;
  Py_XDECREF(own.plain);
  Py_XDECREF(own.owners);
  Py_XDECREF(own.rest.frames_of_threads);
  Py_XDECREF(own.rest.resting);
  Py_XDECREF(own.rest.torch_folder);
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject reader_type = [] {
  PyTypeObject made{};
  made.ob_base = PyVarObject{PyObject_HEAD_INIT(nullptr) 0};
  made.tp_name = "kinetoscope.TensorReader";
  made.tp_basicsize = sizeof(TensorReader);
  made.tp_flags = Py_TPFLAGS_DEFAULT;
  made.tp_doc = "Reads where plain tensors lie.";
  made.tp_methods = reader_methods;
  made.tp_new = &create;
  made.tp_dealloc = &destroy_reader;
  return made;
}();

}  // namespace

PyObject* tensor_reader_class() {
  if (PyType_Ready(&reader_type) < 0) return nullptr;
  return Py_NewRef(reinterpret_cast<PyObject*>(&reader_type));
}

}  // namespace kinetoscope
