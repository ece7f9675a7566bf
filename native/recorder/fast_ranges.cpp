#include "fast_ranges.h"

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json_text.h"
#include "operators.h"
#include "session.h"
#include "thread_state.h"

namespace kinetoscope {
namespace {

using Keywords = std::unordered_map<std::string, c10::IValue>;

// The same name as in kinetoscope.model.schema.
const std::string kOtherKeywords = "other_keywords";

struct FastRange {
  PyObject_HEAD PyObject* name;
  PyObject* inputs;    // a list or tuple, or null
  PyObject* keywords;  // a dict, or null
  PyObject* theirs;    // torch's own range while it is open; else null
  std::unique_ptr<at::RecordFunction> open;
  bool begun;  // a span begun by hand
};

// Kept for ever, as the class is.
PyObject* torch_class = nullptr;

// Converts to UTF-8, with a question mark for lone surrogates. No exception stays set.
std::string text_of(PyObject* text) {
  Py_ssize_t size = 0;
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(text, &size)) return {utf8, static_cast<size_t>(size)};
  PyErr_Clear();
  std::string out;
  if (PyObject* bytes = PyUnicode_AsEncodedString(text, "utf-8", "replace")) {
    out.assign(PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes)));
    Py_DECREF(bytes);
  }
  PyErr_Clear();
  return out;
}

// Converts numbers, bools and strings; nothing for other objects, or numbers that are too large.
std::optional<c10::IValue> scalar(PyObject* value) {
  if (PyBool_Check(value)) return c10::IValue(value == Py_True);
  if (PyLong_Check(value)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0 || (number == -1 && PyErr_Occurred() != nullptr)) {
      PyErr_Clear();
      return std::nullopt;
    }
    return c10::IValue(static_cast<int64_t>(number));
  }
  if (PyFloat_Check(value)) return c10::IValue(PyFloat_AS_DOUBLE(value));
  if (PyUnicode_Check(value)) return c10::IValue(text_of(value));
  return std::nullopt;
}

template <typename T, typename Convert>
c10::IValue list_of(const std::vector<c10::IValue>& values, Convert convert) {
  c10::List<T> list;
  for (const c10::IValue& value : values) list.push_back(convert(value));
  return c10::IValue(std::move(list));
}

// Converts a list whose elements all have the same type; nothing for other and empty lists.
std::optional<c10::IValue> list(PyObject* value) {
  std::vector<c10::IValue> values;
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(value); ++at) {
    PyObject* element = PyList_GET_ITEM(value, at);
    std::optional<c10::IValue> one = THPVariable_Check(element)
                                         ? std::optional<c10::IValue>(THPVariable_Unpack(element))
                                         : scalar(element);
    if (!one || (!values.empty() && one->tagKind() != values.front().tagKind())) return std::nullopt;
    values.push_back(std::move(*one));
  }
  if (values.empty()) return std::nullopt;
  const c10::IValue& first = values.front();
  if (first.isTensor()) return list_of<at::Tensor>(values, [](const auto& v) { return v.toTensor(); });
  if (first.isInt()) return list_of<int64_t>(values, [](const auto& v) { return v.toInt(); });
  if (first.isBool()) return list_of<bool>(values, [](const auto& v) { return v.toBool(); });
  if (first.isDouble()) return list_of<double>(values, [](const auto& v) { return v.toDouble(); });
  return list_of<std::string>(values, [](const auto& v) { return v.toStringRef(); });
}

// As torch, ignores objects without a TorchScript type.
std::vector<c10::IValue> positional(PyObject* inputs) {
  std::vector<c10::IValue> out;
  PyObject* sequence = PySequence_Fast(inputs, "input_values must be a list or tuple");
  if (sequence == nullptr) {
    PyErr_Clear();
    return out;
  }
  for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(sequence); ++at) {
    PyObject* value = PySequence_Fast_GET_ITEM(sequence, at);
    std::optional<c10::IValue> found;
    if (THPVariable_Check(value)) {
      found = c10::IValue(THPVariable_Unpack(value));
    } else if (value == Py_None || PyTuple_Check(value)) {
      // A tuple has a place among the inputs, but neither a size nor a type.
      found = c10::IValue();
    } else {
      found = PyList_Check(value) ? list(value) : scalar(value);
    }
    if (found) out.push_back(std::move(*found));
  }
  Py_DECREF(sequence);
  return out;
}

Keywords keyword(PyObject* keywords) {
  Keywords out;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(keywords, &at, &key, &value) != 0;) {
    if (!PyUnicode_Check(key)) continue;
    std::optional<c10::IValue> found = PyList_Check(value) ? list(value) : scalar(value);
    // As torch, if the type is unknown.
    out[text_of(key)] = found ? std::move(*found) : c10::IValue("NULL");
  }
  return out;
}

// Nesting depth; lists may contain themselves.
constexpr int kDeepestList = 8;
// Less than the limit of a dictionary string.
constexpr std::size_t kMostKeywordBytes = 64 * 1024;

// Appends a number, bool, string, None, or a list or tuple of these; false for other objects, and values
// without a JSON form, such as infinities, of which `out` may then contain a part.
bool append_json(std::string& out, PyObject* value, int depth = 0) {
  if (out.size() > kMostKeywordBytes) return false;
  if (value == Py_None) {
    out += "null";
  } else if (PyBool_Check(value)) {
    out += value == Py_True ? "true" : "false";
  } else if (PyLong_Check(value)) {
    const std::optional<c10::IValue> number = scalar(value);
    if (!number) return false;
    out += std::to_string(number->toInt());
  } else if (PyFloat_Check(value)) {
    const double number = PyFloat_AS_DOUBLE(value);
    if (!std::isfinite(number)) return false;
    const std::string text = number_text(number);
    out += text;
    if (text.find_first_of(".e") == std::string::npos) out += ".0";
  } else if (PyUnicode_Check(value)) {
    append_json_text(out, text_of(value));
  } else if ((PyList_Check(value) || PyTuple_Check(value)) && depth < kDeepestList) {
    out += '[';
    for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(value); ++at) {
      if (at != 0) out += ',';
      if (!append_json(out, PySequence_Fast_GET_ITEM(value, at), depth + 1)) return false;
    }
    out += ']';
  } else {
    return false;
  }
  return out.size() <= kMostKeywordBytes;
}

// Whether torch's collector writes it into its traces: numbers, truth values, texts and lists of texts.
bool is_written_by_torch(PyObject* value) {
  if (!PyList_Check(value)) return value != Py_None && !PyTuple_Check(value);
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(value); ++at) {
    if (!PyUnicode_Check(PyList_GET_ITEM(value, at))) return false;
  }
  return true;
}

void append_member(std::string& members, const std::string& key, std::string_view json) {
  if (!members.empty()) members += ',';
  append_json_text(members, key);
  (members += ':') += json;
}

// The keywords as one JSON object, with those that torch leaves out of its traces in an object of their own;
// empty without any that can be written. [with the GIL]
std::string json_of(PyObject* keywords) {
  std::string written, others;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(keywords, &at, &key, &value) != 0;) {
    if (!PyUnicode_Check(key)) continue;
    std::string json;
    const bool known = append_json(json, value);
    if (PyList_Check(value) || PyTuple_Check(value) || value == Py_None) {
      if (!known) json = "null";
      append_member(is_written_by_torch(value) && known ? written : others, text_of(key), json);
    } else if (known) {
      append_member(written, text_of(key), json);
    } else if (!PyFloat_Check(value)) {
      // As torch, if the type is unknown.
      append_member(written, text_of(key), "\"NULL\"");
    }
  }
  if (!others.empty()) append_member(written, kOtherKeywords, "{" + others + "}");
  return written.empty() || written.size() > kMostKeywordBytes * 2 ? std::string() : "{" + written + "}";
}

// Passes the keywords of the next range to the callback that records it: reading the keywords of every
// operator would be more expensive, since only few ranges have any.
class GivenArguments {
 public:
  // `keywords` is a dict, or null. [with the GIL]
  explicit GivenArguments(PyObject* keywords) {
    if (keywords == nullptr || PyDict_GET_SIZE(keywords) == 0) return;
    thread_ = this_thread();
    if (thread_ == nullptr) return;
    BusyGuard busy(*thread_);
    Session* session = Session::current();
    if (session == nullptr) return;
    const std::string text = json_of(keywords);
    if (text.empty()) return;
    std::lock_guard lock(session->dictionary().mutex());
    thread_->arguments_generation = session->generation();
    thread_->arguments.store(session->dictionary().string(text), std::memory_order_relaxed);
  }
  ~GivenArguments() {
    if (thread_ != nullptr) thread_->arguments.store(0, std::memory_order_relaxed);
  }
  GivenArguments(const GivenArguments&) = delete;
  GivenArguments& operator=(const GivenArguments&) = delete;

 private:
  ThreadState* thread_ = nullptr;
};

FastRange& range_of(PyObject* self) { return *reinterpret_cast<FastRange*>(self); }

PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) new (&range_of(self).open) std::unique_ptr<at::RecordFunction>();
  return self;
}

int initialize(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* const kNames[] = {"name", "input_values", "keyword_values", nullptr};
  PyObject *name = nullptr, *inputs = nullptr, *keywords = nullptr;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "U|OO", const_cast<char**>(kNames), &name, &inputs,
                                  &keywords) == 0)
    return -1;
  if (inputs == Py_None) inputs = nullptr;
  if (keywords == Py_None) keywords = nullptr;
  if (inputs != nullptr && !PyList_Check(inputs) && !PyTuple_Check(inputs)) {
    PyErr_SetString(PyExc_TypeError, "input_values must be a list or tuple");
    return -1;
  }
  if (keywords != nullptr && !PyDict_Check(keywords)) {
    PyErr_SetString(PyExc_TypeError, "keyword_values must be a dict");
    return -1;
  }
  FastRange& range = range_of(self);
  Py_XSETREF(range.name, Py_NewRef(name));
  Py_XSETREF(range.inputs, Py_XNewRef(inputs));
  Py_XSETREF(range.keywords, Py_XNewRef(keywords));
  return 0;
}

void destroy(PyObject* self) {
  FastRange& range = range_of(self);
  if (range.begun) end_span(self);
  range.open.~unique_ptr();
  Py_CLEAR(range.name);
  Py_CLEAR(range.inputs);
  Py_CLEAR(range.keywords);
  Py_CLEAR(range.theirs);
  Py_TYPE(self)->tp_free(self);
}

// Opens torch's own range, which both torch's profiler and the recorder see.
bool open_theirs(FastRange& range) {
  PyObject* inputs = range.inputs != nullptr ? Py_NewRef(range.inputs) : PyTuple_New(0);
  PyObject* theirs = nullptr;
  if (inputs != nullptr && range.keywords != nullptr) {
    theirs = PyObject_CallFunctionObjArgs(torch_class, range.name, inputs, range.keywords, nullptr);
  } else if (inputs != nullptr) {
    theirs = PyObject_CallFunctionObjArgs(torch_class, range.name, inputs, nullptr);
  }
  Py_XDECREF(inputs);
  if (theirs == nullptr) return false;
  PyObject* entered = PyObject_CallMethod(theirs, "__enter__", nullptr);
  if (entered == nullptr) {
    Py_DECREF(theirs);
    return false;
  }
  Py_DECREF(entered);
  Py_XSETREF(range.theirs, theirs);
  return true;
}

void open_ours(FastRange& range) {
  auto open = std::make_unique<at::RecordFunction>(at::RecordScope::FUNCTION);
  if (!open->isActive()) return;
  std::vector<c10::IValue> inputs;
  Keywords keywords;
  if (open->needsInputs()) {
    if (range.inputs != nullptr) inputs = positional(range.inputs);
    if (range.keywords != nullptr) keywords = keyword(range.keywords);
    const auto scope = keywords.find("scope");
    if (scope != keywords.end() && scope->second.isString() && scope->second.toStringRef() == "user_scope") {
      open = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    }
  }
  const GivenArguments given(open->needsInputs() ? range.keywords : nullptr);
  open->before(text_of(range.name), &inputs, &keywords);
  range.open = std::move(open);
}

PyObject* enter(PyObject* self, PyObject*) {
  FastRange& range = range_of(self);
  if (range.name == nullptr) Py_RETURN_NONE;
  // If an open range is entered again, it ends first.
  if (std::exchange(range.begun, false)) end_span(self);
  const char* name = PyUnicode_AsUTF8(range.name);
  if (name == nullptr) PyErr_Clear();
  if (name != nullptr && begin_span(self, name)) {
    range.begun = true;
    Py_RETURN_NONE;
  }
  try {
    if (torch_profiles_this_thread()) {
      const bool wanted = (live.what.load(std::memory_order_relaxed) & kRecordShapes) != 0;
      const GivenArguments given(wanted ? range.keywords : nullptr);
      if (!open_theirs(range)) return nullptr;
    } else {
      open_ours(range);
    }
  } catch (...) {
    // Out of memory, or a callback of somebody else that threw: this one range is missing, the job goes on.
    range.open.reset();
  }
  Py_RETURN_NONE;
}

PyObject* leave(PyObject* self, PyObject*) {
  FastRange& range = range_of(self);
  if (std::exchange(range.begun, false)) end_span(self);
  range.open.reset();
  if (range.theirs == nullptr) Py_RETURN_NONE;
  PyObject* theirs = std::exchange(range.theirs, nullptr);
  PyObject* left = PyObject_CallMethod(theirs, "__exit__", "OOO", Py_None, Py_None, Py_None);
  Py_DECREF(theirs);
  return left;
}

PyMethodDef methods[] = {
    {"__enter__", &enter, METH_NOARGS, "Begins the range."},
    {"__exit__", &leave, METH_VARARGS, "Ends the range."},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject type = [] {
  PyTypeObject made{};
  made.ob_base = PyVarObject{PyObject_HEAD_INIT(nullptr) 0};
  // With the name of the class that it replaces, by which the compiler decides whether to trace into it.
  made.tp_name = "torch._C._profiler.RecordFunctionFast";
  made.tp_basicsize = sizeof(FastRange);
  made.tp_flags = Py_TPFLAGS_DEFAULT;
  made.tp_doc = "A range with a name, inputs and keywords, as torch's class of this name opens it.";
  made.tp_new = &make;
  made.tp_init = &initialize;
  made.tp_dealloc = &destroy;
  made.tp_methods = methods;
  return made;
}();

}  // namespace

PyObject* fast_range_class(PyObject* theirs) {
  if (torch_class == nullptr) {
    if (PyType_Ready(&type) < 0) return nullptr;
    torch_class = Py_NewRef(theirs);
  }
  return reinterpret_cast<PyObject*>(&type);
}

}  // namespace kinetoscope
