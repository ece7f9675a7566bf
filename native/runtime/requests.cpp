#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <deque>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "../core/recording/range_marks.h"
#include "module.h"

// What runs at each resumption of a request, also while nothing records: Python's code for it costs a server
// several times as much as these few words, above all where a model has emptied the processor's caches.
namespace kinetoscope {
namespace {

template <typename Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

// PyMethodDef has one type of function for all calling conventions; the flags say which it is.
template <typename Function>
PyCFunction method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

// ------------------------------------------------------------------------------------- a request in progress

struct RequestState {
  PyObject_HEAD int number;
  char has_ended;
  PyObject* next_text;
};

void free_state(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_CLEAR(reinterpret_cast<RequestState*>(self)->next_text);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyObject* new_state(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self != nullptr) reinterpret_cast<RequestState*>(self)->number = -1;
  return self;
}

PyMemberDef kStateMembers[] = {
    {"number", T_INT, offsetof(RequestState, number), READONLY,
     "The number that it has in a recording; -1 without one."},
    {"has_ended", T_BOOL, offsetof(RequestState, has_ended), READONLY, "Whether it has ended."},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot kStateSlots[] = {
    {Py_tp_new, slot(new_state)},
    {Py_tp_dealloc, slot(free_state)},
    {Py_tp_members, kStateMembers},
    {Py_tp_doc, const_cast<char*>("A request in progress: the number it has in a recording, or -1.")},
    {0, nullptr},
};
PyType_Spec kStateSpec = {"kinetoscope._runtime.RequestState", sizeof(RequestState), 0, Py_TPFLAGS_DEFAULT,
                          kStateSlots};

PyTypeObject* state_type = nullptr;

bool is_state(PyObject* object) { return Py_TYPE(object) == state_type; }
RequestState* state_of(PyObject* object) { return reinterpret_cast<RequestState*>(object); }

// Gives requests the smallest number that no open one has. [GIL]
class Numbers {
 public:
  int give() {
    if (free_.empty()) return next_++;
    std::pop_heap(free_.begin(), free_.end(), std::greater<>());
    const int number = free_.back();
    free_.pop_back();
    return number;
  }
  void take_back(int number) {
    free_.push_back(number);
    std::push_heap(free_.begin(), free_.end(), std::greater<>());
  }
  std::size_t given() const { return static_cast<std::size_t>(next_) - free_.size(); }

 private:
  std::vector<int> free_;
  int next_ = 0;
};

// ---------------------------------------------------------------------------------------------- a follower

struct Follower {
  PyObject_HEAD
      // The module whose attribute says whether anything records; its dictionary, once it is imported.
      PyObject *module,
      *attribute, *globals;
  // The context variable of the current request, and its methods.
  PyObject *current, *get_current, *set_current, *reset_current;
  PyObject* coroutine_type;
  // What marks begin with, what follows the number in the first and last one, and torch's ranges.
  PyObject *prefix, *begin_text, *end_text, *begin_range, *end_range;
  // The status of requests that an exception of a type ends, and of those without one.
  PyObject *status_of, *finished;
  // By what the recorder opens ranges; null until it is loaded.
  const RangeMarks* marks;
  Numbers* numbers;
};

PyObject** fields_of(Follower* self) { return &self->module; }
constexpr std::size_t kFields = (offsetof(Follower, marks) - offsetof(Follower, module)) / sizeof(PyObject*);

int visit_follower(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (std::size_t at = 0; at < kFields; ++at) Py_VISIT(fields_of(reinterpret_cast<Follower*>(self))[at]);
  return 0;
}

int clear_follower(PyObject* self) {
  for (std::size_t at = 0; at < kFields; ++at) Py_CLEAR(fields_of(reinterpret_cast<Follower*>(self))[at]);
  return 0;
}

template <int (*clear)(PyObject*)>
void free_collected(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

void free_follower(PyObject* self) {
  delete reinterpret_cast<Follower*>(self)->numbers;
  free_collected<clear_follower>(self);
}

PyObject* new_follower(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"module",    "attribute",  "current",  "coroutine_type",
                                "prefix",    "begin_text", "end_text", "begin_range",
                                "end_range", "status_of",  nullptr};
  PyObject* given[10] = {};
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "UUOOUOOOOO:Follower", const_cast<char**>(names),
                                  &given[0], &given[1], &given[2], &given[3], &given[4], &given[5], &given[6],
                                  &given[7], &given[8], &given[9]) == 0) {
    return nullptr;
  }
  PyObject* made = PyType_GenericAlloc(type, 0);
  if (made == nullptr) return nullptr;
  auto* self = reinterpret_cast<Follower*>(made);
  PyObject** fields[] = {&self->module,    &self->attribute,  &self->current,  &self->coroutine_type,
                         &self->prefix,    &self->begin_text, &self->end_text, &self->begin_range,
                         &self->end_range, &self->status_of};
  for (std::size_t at = 0; at < std::size(fields); ++at) *fields[at] = Py_NewRef(given[at]);
  PyUnicode_InternInPlace(&self->attribute);
  self->get_current = PyObject_GetAttrString(self->current, "get");
  self->set_current = PyObject_GetAttrString(self->current, "set");
  self->reset_current = PyObject_GetAttrString(self->current, "reset");
  self->numbers = new Numbers;
  self->finished = PyObject_CallFunctionObjArgs(self->status_of, Py_None, nullptr);
  if (self->finished == nullptr || self->get_current == nullptr || self->set_current == nullptr ||
      self->reset_current == nullptr) {
    Py_DECREF(made);
    return nullptr;
  }
  return made;
}

// Never with an exception.
bool is_recording(Follower* self) {
  if (self->globals == nullptr) {
    PyObject* module = PyImport_GetModule(self->module);
    PyObject* globals = module == nullptr ? nullptr : PyModule_GetDict(module);
    // While it is being imported, it lacks the attribute.
    if (globals != nullptr && PyDict_GetItemWithError(globals, self->attribute) != nullptr) {
      self->globals = Py_NewRef(globals);
    }
    Py_XDECREF(module);
    PyErr_Clear();
    if (self->globals == nullptr) return false;
  }
  PyObject* found = PyDict_GetItemWithError(self->globals, self->attribute);
  if (found == Py_False) return false;
  if (found == nullptr || PyObject_IsTrue(found) < 0) {
    PyErr_Clear();
    return false;
  }
  return PyObject_IsTrue(found) == 1;
}

PyObject* is_recording_method(PyObject* self, PyObject*) {
  return PyBool_FromLong(is_recording(reinterpret_cast<Follower*>(self)));
}

// ------------------------------------------------------------------------------------ stretches and moments

// A stretch of a request on its thread; the recorder knows it by its address.
struct Stretch {
  PyObject* state;
  PyObject* range;  // torch's, or null for the recorder's
};

// The open stretches of this thread. What is still open when it ends is not released, for lack of the GIL.
std::deque<Stretch>& stretches() {
  thread_local std::deque<Stretch> open;
  return open;
}

// Errors of recording do not reach the program, unless they are none, such as KeyboardInterrupt.
bool forgive() {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0) return false;
  PyErr_Clear();
  return true;
}

void give_number(Follower* self, RequestState* state) {
  if (state->number < 0 && state->has_ended == 0) state->number = self->numbers->give();
}

bool append_utf8(std::string& to, PyObject* text) {
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text, &size);
  if (utf8 != nullptr) to.append(utf8, static_cast<std::size_t>(size));
  return utf8 != nullptr;
}

// The name of the mark of a request with a text after its number, which may be null; empty with an exception.
std::string mark_of(Follower* self, int number, PyObject* text) {
  std::string name;
  if (!append_utf8(name, self->prefix)) return {};
  name += std::to_string(number);
  if (text != nullptr && !append_utf8(name, text)) return {};
  return name;
}

// Closes torch's range; an exception that is being raised stays so.
void end_theirs(Follower* self, PyObject* range) {
  nb::error_scope raised;
  PyObject* done = PyObject_CallFunctionObjArgs(self->end_range, range, nullptr);
  if (done == nullptr) PyErr_WriteUnraisable(self->end_range);
  Py_XDECREF(done);
  Py_DECREF(range);
}

PyObject* begin_theirs(Follower* self, const std::string& name) {
  PyObject* text = PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size()));
  PyObject* range =
      text == nullptr ? nullptr : PyObject_CallFunctionObjArgs(self->begin_range, text, nullptr);
  Py_XDECREF(text);
  return range;
}

// Ends the innermost open stretch of this thread.
void end_innermost(Follower* self) {
  std::deque<Stretch>& open = stretches();
  const Stretch stretch = open.back();
  // The recorder is loaded, as it began it, and is never unloaded.
  if (stretch.range == nullptr) self->marks->end(&open.back());
  open.pop_back();
  if (stretch.range != nullptr) end_theirs(self, stretch.range);
  Py_DECREF(stretch.state);
}

// Begins a stretch of a request on this thread: 1, or 0 if nothing records, if it is in one already, or has
// ended; -1 with an exception.
int enter(Follower* self, PyObject* object) {
  RequestState* state = state_of(object);
  if (state->has_ended != 0 || !is_recording(self)) return 0;
  std::deque<Stretch>& open = stretches();
  if (!open.empty() && open.back().state == object) return 0;
  give_number(self, state);
  const std::string name = mark_of(self, state->number, state->next_text);
  if (name.empty()) return -1;
  Py_CLEAR(state->next_text);
  open.push_back({object, nullptr});
  if (self->marks == nullptr || !self->marks->begin(&open.back(), name.c_str())) {
    open.pop_back();
    PyObject* range = begin_theirs(self, name);
    if (range == nullptr) return -1;
    open.push_back({object, range});
  }
  Py_INCREF(object);
  return 1;
}

// Ends the stretch of a request on this thread, if it is in one.
void leave(Follower* self, PyObject* object) {
  const std::deque<Stretch>& open = stretches();
  if (!open.empty() && open.back().state == object) end_innermost(self);
}

// Records a moment of a request with a number; false with an exception.
bool note(Follower* self, RequestState* state, PyObject* text) {
  const std::string name = mark_of(self, state->number, text);
  if (name.empty()) return false;
  if (self->marks != nullptr && self->marks->begin(&name, name.c_str())) {
    self->marks->end(&name);
    return true;
  }
  PyObject* range = begin_theirs(self, name);
  if (range == nullptr) return false;
  end_theirs(self, range);
  return true;
}

// What follows the number in the first mark of a request; null with an exception.
PyObject* described(Follower* self, PyObject* description) {
  PyObject* texts = PyObject_CallMethod(description, "at_begin", nullptr);
  PyObject* text = nullptr;
  if (texts != nullptr && PyTuple_Check(texts)) text = PyObject_CallObject(self->begin_text, texts);
  Py_XDECREF(texts);
  if (text != nullptr && PyUnicode_Check(text)) return text;
  Py_CLEAR(text);
  return forgive() ? PyObject_CallFunction(self->begin_text, "ss", "", "") : nullptr;
}

// A new request, recorded from its first stretch on; null with an exception.
PyObject* begun(Follower* self, PyObject* description) {
  PyObject* text = described(self, description);
  if (text == nullptr) return nullptr;
  PyObject* made = new_state(state_type, nullptr, nullptr);
  if (made == nullptr) {
    Py_DECREF(text);
    return nullptr;
  }
  state_of(made)->next_text = text;
  give_number(self, state_of(made));
  return made;
}

// What follows the number in the last mark of a request; null with an exception.
PyObject* ending(Follower* self, PyObject* description, PyObject* error) {
  PyObject* status = error == Py_None ? Py_NewRef(self->finished)
                                      : PyObject_CallFunctionObjArgs(self->status_of, error, nullptr);
  if (status == nullptr) return nullptr;
  PyObject* told = PyObject_CallMethod(description, "at_end", nullptr);
  PyObject* text = nullptr;
  if (told != nullptr) text = PyObject_CallFunctionObjArgs(self->end_text, status, told, nullptr);
  Py_XDECREF(told);
  if (text == nullptr && forgive()) text = PyObject_CallFunction(self->end_text, "Os", status, "");
  Py_DECREF(status);
  return text;
}

// Ends a request, and its stretch on this thread; `error` is the type of the exception that ends it, or None.
// False with an exception.
bool end(Follower* self, PyObject* object, PyObject* description, PyObject* error) {
  RequestState* state = state_of(object);
  if (state->has_ended != 0) return true;
  leave(self, object);
  state->has_ended = 1;
  if (state->number < 0) return true;
  bool done = true;
  if (is_recording(self)) {
    PyObject* text = ending(self, description, error);
    done = text != nullptr && note(self, state, text);
    Py_XDECREF(text);
  }
  self->numbers->take_back(std::exchange(state->number, -1));
  return done;
}

PyObject* needs_request() {
  PyErr_SetString(PyExc_TypeError, "it takes a request");
  return nullptr;
}

PyObject* begun_method(PyObject* self, PyObject* description) {
  return begun(reinterpret_cast<Follower*>(self), description);
}

PyObject* enter_method(PyObject* self, PyObject* state) {
  if (!is_state(state)) return needs_request();
  const int is_new = enter(reinterpret_cast<Follower*>(self), state);
  return is_new < 0 ? nullptr : PyBool_FromLong(is_new);
}

PyObject* leave_method(PyObject* self, PyObject* state) {
  if (!is_state(state)) return needs_request();
  leave(reinterpret_cast<Follower*>(self), state);
  Py_RETURN_NONE;
}

PyObject* note_method(PyObject* object, PyObject* const* given, Py_ssize_t count) {
  auto* self = reinterpret_cast<Follower*>(object);
  if (count != 2 || !is_state(given[0]) || !PyUnicode_Check(given[1])) return needs_request();
  RequestState* state = state_of(given[0]);
  if (state->has_ended == 0 && is_recording(self)) {
    give_number(self, state);
    if (!note(self, state, given[1])) return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* end_method(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  if (count != 3 || !is_state(given[0])) return needs_request();
  if (!end(reinterpret_cast<Follower*>(self), given[0], given[1], given[2])) return nullptr;
  Py_RETURN_NONE;
}

PyObject* begin_step_method(PyObject* object, PyObject* context) {
  auto* self = reinterpret_cast<Follower*>(object);
  const std::size_t depth = stretches().size();
  if (is_recording(self)) {
    PyObject* state = PyObject_CallMethod(context, "get", "O", self->current);
    if (state == nullptr) return nullptr;
    const int entered = is_state(state) ? enter(self, state) : 0;
    Py_DECREF(state);
    if (entered < 0) return nullptr;
  }
  return PyLong_FromSize_t(depth);
}

PyObject* end_step_method(PyObject* self, PyObject* number) {
  const std::size_t depth = PyLong_AsSize_t(number);
  if (depth == static_cast<std::size_t>(-1) && PyErr_Occurred() != nullptr) return nullptr;
  while (stretches().size() > depth) end_innermost(reinterpret_cast<Follower*>(self));
  Py_RETURN_NONE;
}

PyObject* set_marks_method(PyObject* self, PyObject* address) {
  const std::size_t number = PyLong_AsSize_t(address);
  if (PyErr_Occurred() != nullptr) return nullptr;
  reinterpret_cast<Follower*>(self)->marks = std::bit_cast<const RangeMarks*>(number);
  Py_RETURN_NONE;
}

PyObject* numbers_given_method(PyObject* self, PyObject*) {
  return PyLong_FromSize_t(reinterpret_cast<Follower*>(self)->numbers->given());
}

// ------------------------------------------------------------------------------------- what is followed

enum class Stage : char { kNew, kRunning, kDone };

struct Followed {
  PyObject_HEAD PyObject *follower, *awaitable, *inner, *description, *open, *token;
  Stage stage;
  // Whether it begins and ends the request; otherwise the request is given.
  bool owns;
};

Follower* follower_of(Followed* self) { return reinterpret_cast<Follower*>(self->follower); }

int visit_followed(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Followed*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->follower);
  Py_VISIT(self->awaitable);
  Py_VISIT(self->inner);
  Py_VISIT(self->description);
  Py_VISIT(self->open);
  Py_VISIT(self->token);
  return 0;
}

int clear_followed(PyObject* object) {
  auto* self = reinterpret_cast<Followed*>(object);
  Py_CLEAR(self->follower);
  Py_CLEAR(self->awaitable);
  Py_CLEAR(self->inner);
  Py_CLEAR(self->description);
  Py_CLEAR(self->open);
  Py_CLEAR(self->token);
  return 0;
}

PyObject* self_as_iterator(PyObject* self) { return Py_NewRef(self); }

// Begins the request, unless the context has one already; returns whether that went well.
bool start(Followed* self) {
  Follower* follower = follower_of(self);
  self->stage = Stage::kRunning;
  if (self->awaitable == nullptr ||
      Py_TYPE(self->awaitable) == reinterpret_cast<PyTypeObject*>(follower->coroutine_type)) {
    self->inner = Py_XNewRef(self->awaitable);
  } else {
    self->inner = PyObject_CallMethod(self->awaitable, "__await__", nullptr);
  }
  if (self->inner == nullptr) {
    self->stage = Stage::kDone;
    return false;
  }
  if (!self->owns) return true;
  PyObject* current = PyObject_CallNoArgs(follower->get_current);
  if (current == nullptr) return false;
  const bool is_part = current != Py_None;
  Py_DECREF(current);
  if (is_part) return true;
  self->open =
      is_recording(follower) ? begun(follower, self->description) : new_state(state_type, nullptr, nullptr);
  if (self->open == nullptr) return false;
  self->token = PyObject_CallFunctionObjArgs(follower->set_current, self->open, nullptr);
  return self->token != nullptr;
}

// Ends the request, if this one began it; an exception that is being raised stays so.
void finish(Followed* self) {
  self->stage = Stage::kDone;
  if (!self->owns || self->open == nullptr) return;
  Follower* follower = follower_of(self);
  PyObject *open = self->open, *token = self->token;
  self->open = self->token = nullptr;
  PyObject* error = PyErr_Occurred();
  error = Py_NewRef(error == nullptr ? Py_None : error);
  {
    nb::error_scope raised;
    if (token != nullptr) {
      PyObject* done = PyObject_CallFunctionObjArgs(follower->reset_current, token, nullptr);
      if (done == nullptr) {
        // Closed in another context than it began in.
        PyErr_Clear();
        done = PyObject_CallFunctionObjArgs(follower->set_current, Py_None, nullptr);
      }
      Py_XDECREF(done);
    }
    if (!end(follower, open, self->description, error)) PyErr_WriteUnraisable(open);
    PyErr_Clear();
  }
  Py_DECREF(error);
  Py_XDECREF(token);
  Py_DECREF(open);
}

// Runs something of the inner iterator as a stretch of the request, if anything records.
template <typename Resume>
PySendResult in_stretch(Followed* self, PyObject** result, Resume resume) {
  *result = nullptr;
  if (self->stage == Stage::kNew && !start(self)) {
    finish(self);
    return PYGEN_ERROR;
  }
  if (self->inner == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "cannot reuse an awaitable that has failed");
    return PYGEN_ERROR;
  }
  Follower* follower = follower_of(self);
  const int is_new = self->open == nullptr ? 0 : enter(follower, self->open);
  if (is_new < 0) {
    finish(self);
    return PYGEN_ERROR;
  }
  const PySendResult status = resume();
  if (is_new == 1 && self->open != nullptr) {
    nb::error_scope raised;
    leave(follower, self->open);
  }
  if (status != PYGEN_NEXT) finish(self);
  return status;
}

PySendResult send(PyObject* object, PyObject* value, PyObject** result) {
  auto* self = reinterpret_cast<Followed*>(object);
  return in_stretch(self, result, [&] { return PyIter_Send(self->inner, value, result); });
}

// As a method has it: a value, or an exception that may be StopIteration.
PyObject* as_call(PySendResult status, PyObject* result) {
  if (status == PYGEN_NEXT) return result;
  if (status == PYGEN_RETURN) {
    // An instance, because a tuple would be taken for arguments.
    PyObject* stopped = PyObject_CallFunctionObjArgs(PyExc_StopIteration, result, nullptr);
    if (stopped != nullptr) PyErr_SetObject(PyExc_StopIteration, stopped);
    Py_XDECREF(stopped);
    Py_DECREF(result);
  }
  return nullptr;
}

PyObject* send_method(PyObject* self, PyObject* value) {
  PyObject* result = nullptr;
  const PySendResult status = send(self, value, &result);
  return as_call(status, result);
}

PyObject* next(PyObject* self) { return send_method(self, Py_None); }

// Takes the value of a StopIteration that is being raised.
PySendResult returned(PyObject** result) {
  if (PyErr_ExceptionMatches(PyExc_StopIteration) == 0) return PYGEN_ERROR;
  nb::python_error stopped;
  *result = PyObject_GetAttrString(stopped.value().ptr(), "value");
  return *result == nullptr ? PYGEN_ERROR : PYGEN_RETURN;
}

PyObject* throw_method(PyObject* object, PyObject* arguments) {
  auto* self = reinterpret_cast<Followed*>(object);
  PyObject* result = nullptr;
  const PySendResult status = in_stretch(self, &result, [&] {
    PyObject* into = PyObject_GetAttrString(self->inner, "throw");
    result = into == nullptr ? nullptr : PyObject_CallObject(into, arguments);
    Py_XDECREF(into);
    return result != nullptr ? PYGEN_NEXT : returned(&result);
  });
  return as_call(status, result);
}

PyObject* close_method(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Followed*>(object);
  if (self->stage == Stage::kDone) return Py_NewRef(Py_None);
  if (self->stage == Stage::kNew) {
    self->stage = Stage::kDone;
    PyObject* close = PyObject_GetAttrString(self->awaitable, "close");
    if (close == nullptr) {
      PyErr_Clear();
      return Py_NewRef(Py_None);
    }
    PyObject* closed = PyObject_CallNoArgs(close);
    Py_DECREF(close);
    return closed;
  }
  PyObject* result = nullptr;
  const PySendResult status = in_stretch(self, &result, [&] {
    result = PyObject_CallMethod(self->inner, "close", nullptr);
    // To the request it is an exception that ends it.
    if (result != nullptr) {
      Py_CLEAR(result);
      PyErr_SetNone(PyExc_GeneratorExit);
    }
    return PYGEN_ERROR;
  });
  (void)status;
  if (PyErr_ExceptionMatches(PyExc_GeneratorExit) == 0) return nullptr;
  PyErr_Clear();
  return Py_NewRef(Py_None);
}

PyMethodDef kFollowedMethods[] = {
    {"send", send_method, METH_O, "send($self, value, /)\n--\n\nResumes it with a value."},
    {"throw", throw_method, METH_VARARGS, "throw($self, /, *error)\n--\n\nRaises an exception in it."},
    {"close", method(close_method), METH_NOARGS, "close($self, /)\n--\n\nEnds it early."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot kFollowedSlots[] = {
    {Py_tp_traverse, slot(visit_followed)},
    {Py_tp_clear, slot(clear_followed)},
    {Py_tp_dealloc, slot(free_collected<clear_followed>)},
    {Py_am_await, slot(self_as_iterator)},
    {Py_am_send, slot(send)},
    {Py_tp_iter, slot(self_as_iterator)},
    {Py_tp_iternext, slot(next)},
    {Py_tp_methods, kFollowedMethods},
    {Py_tp_doc, const_cast<char*>(
                    "An awaitable that records each resumption of another one as a stretch of a request.")},
    {0, nullptr},
};
PyType_Spec kFollowedSpec = {"kinetoscope._runtime.Followed", sizeof(Followed), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                             kFollowedSlots};

PyTypeObject* followed_type = nullptr;

Followed* new_followed(PyObject* follower, PyObject* awaitable) {
  PyObject* made = PyType_GenericAlloc(followed_type, 0);
  if (made == nullptr) return nullptr;
  auto* self = reinterpret_cast<Followed*>(made);
  self->follower = Py_NewRef(follower);
  self->awaitable = Py_NewRef(awaitable);
  return self;
}

PyObject* follow_method(PyObject* follower, PyObject* const* given, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "follow() takes an awaitable and a description");
    return nullptr;
  }
  Followed* self = new_followed(follower, given[0]);
  if (self == nullptr) return nullptr;
  self->owns = true;
  self->description = Py_NewRef(given[1]);
  return reinterpret_cast<PyObject*>(self);
}

PyObject* stretches_method(PyObject* follower, PyObject* const* given, Py_ssize_t count) {
  if (count != 2 || !is_state(given[1])) {
    PyErr_SetString(PyExc_TypeError, "stretches() takes an awaitable and a request");
    return nullptr;
  }
  Followed* self = new_followed(follower, given[0]);
  if (self == nullptr) return nullptr;
  self->open = Py_NewRef(given[1]);
  return reinterpret_cast<PyObject*>(self);
}

PyMethodDef kFollowerMethods[] = {
    {"follow", method(follow_method), METH_FASTCALL,
     "follow($self, awaitable, description, /)\n--\n\nReturns an awaitable that awaits another one as a "
     "request."},
    {"stretches", method(stretches_method), METH_FASTCALL,
     "stretches($self, awaitable, request, /)\n--\n\nReturns an awaitable whose resumptions are stretches of "
     "a request that goes on."},
    {"begun", begun_method, METH_O,
     "begun($self, description, /)\n--\n\nReturns a new request that is recorded from its first stretch on."},
    {"enter", enter_method, METH_O,
     "enter($self, request, /)\n--\n\nBegins a stretch on this thread; false if nothing records, if the "
     "request is in one already, or has ended."},
    {"leave", leave_method, METH_O,
     "leave($self, request, /)\n--\n\nEnds the stretch on this thread, if the request is in one."},
    {"note", method(note_method), METH_FASTCALL,
     "note($self, request, text, /)\n--\n\nRecords a moment of a request, with a text after its number, if "
     "anything records."},
    {"end", method(end_method), METH_FASTCALL,
     "end($self, request, description, error, /)\n--\n\nEnds a request, and its stretch on this thread, "
     "with the type of an exception or None."},
    {"begin_step", begin_step_method, METH_O,
     "begin_step($self, context, /)\n--\n\nBegins a stretch of the request that is current in a context, if "
     "any, and returns how many were open before."},
    {"end_step", end_step_method, METH_O,
     "end_step($self, depth, /)\n--\n\nEnds the stretches of this thread beyond so many."},
    {"set_marks", set_marks_method, METH_O,
     "set_marks($self, address, /)\n--\n\nSets by what ranges are opened where torch need not do it: see "
     "native/core/recording/range_marks.h."},
    {"numbers_given", numbers_given_method, METH_NOARGS,
     "numbers_given($self, /)\n--\n\nHow many requests have a number now."},
    {"is_recording", is_recording_method, METH_NOARGS,
     "is_recording($self, /)\n--\n\nWhether the attribute of the module is true; without the module it is "
     "not."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot kFollowerSlots[] = {
    {Py_tp_new, slot(new_follower)},
    {Py_tp_traverse, slot(visit_follower)},
    {Py_tp_clear, slot(clear_follower)},
    {Py_tp_dealloc, slot(free_follower)},
    {Py_tp_methods, kFollowerMethods},
    {Py_tp_doc, const_cast<char*>(
                    "Follows requests through their resumptions, and marks them while something records.")},
    {0, nullptr},
};
PyType_Spec kFollowerSpec = {"kinetoscope._runtime.Follower", sizeof(Follower), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, kFollowerSlots};

PyObject* add_type(nb::module_& module, const char* name, PyType_Spec& spec) {
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr || PyModule_AddObjectRef(module.ptr(), name, type) != 0) throw nb::python_error();
  return type;
}

}  // namespace

void bind_requests(nb::module_& module) {
  state_type = reinterpret_cast<PyTypeObject*>(add_type(module, "RequestState", kStateSpec));
  Py_DECREF(add_type(module, "Follower", kFollowerSpec));
  followed_type = reinterpret_cast<PyTypeObject*>(add_type(module, "Followed", kFollowedSpec));
}

}  // namespace kinetoscope
