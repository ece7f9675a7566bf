#include <Python.h>
#include <structmember.h>

#include <cstddef>

#include "module.h"

// What runs at each resumption of a request, also while nothing records: then Python's code for it costs a
// server several times as much as these few words, above all where a model has emptied the processor's
// caches.
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
  PyObject* next_mark;
};

PyObject* new_state(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self != nullptr) reinterpret_cast<RequestState*>(self)->number = -1;
  return self;
}

void free_state(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_CLEAR(reinterpret_cast<RequestState*>(self)->next_mark);
  // A subclass written in Python is known to Python's collector.
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyMemberDef kStateMembers[] = {
    {"number", T_INT, offsetof(RequestState, number), 0, nullptr},
    {"has_ended", T_BOOL, offsetof(RequestState, has_ended), 0, nullptr},
    {"next_mark", T_OBJECT, offsetof(RequestState, next_mark), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot kStateSlots[] = {
    {Py_tp_new, slot(new_state)},
    {Py_tp_dealloc, slot(free_state)},
    {Py_tp_members, kStateMembers},
    {Py_tp_doc, const_cast<char*>("A request in progress: the number it has in a recording, or -1.")},
    {0, nullptr},
};
PyType_Spec kStateSpec = {"kinetoscope._core.RequestState", sizeof(RequestState), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, kStateSlots};

// ---------------------------------------------------------------------------------------------- a follower

struct Follower {
  PyObject_HEAD
      // The module whose attribute says whether anything records; its dictionary, once it is imported.
      PyObject *module,
      *attribute, *globals;
  // Methods of the context variable of the current request.
  PyObject *get_current, *set_current, *reset_current;
  PyObject *coroutine_type, *state_type;
  // Functions for what happens while something records.
  PyObject *begin, *enter, *leave, *end;
};

PyObject** fields_of(Follower* self) { return &self->module; }
constexpr std::size_t kFields = (sizeof(Follower) - offsetof(Follower, module)) / sizeof(PyObject*);

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

PyObject* new_follower(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"module", "attribute", "current", "coroutine_type", "state_type", "begin",
                                "enter",  "leave",     "end",     nullptr};
  PyObject *current = nullptr, *given[8] = {};
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "UUOOOOOOO:Follower", const_cast<char**>(names),
                                  &given[0], &given[1], &current, &given[2], &given[3], &given[4], &given[5],
                                  &given[6], &given[7]) == 0) {
    return nullptr;
  }
  PyObject* made = PyType_GenericAlloc(type, 0);
  if (made == nullptr) return nullptr;
  auto* self = reinterpret_cast<Follower*>(made);
  PyObject** fields[] = {&self->module, &self->attribute, &self->coroutine_type, &self->state_type,
                         &self->begin,  &self->enter,     &self->leave,          &self->end};
  for (std::size_t at = 0; at < 8; ++at) *fields[at] = Py_NewRef(given[at]);
  PyUnicode_InternInPlace(&self->attribute);
  self->get_current = PyObject_GetAttrString(current, "get");
  self->set_current = PyObject_GetAttrString(current, "set");
  self->reset_current = PyObject_GetAttrString(current, "reset");
  if (self->get_current == nullptr || self->set_current == nullptr || self->reset_current == nullptr) {
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
  if (is_recording(follower)) {
    self->open = PyObject_CallFunctionObjArgs(follower->begin, self->description, nullptr);
  } else {
    self->open = PyObject_CallNoArgs(follower->state_type);
  }
  if (self->open == nullptr) return false;
  if (Py_TYPE(self->open) != reinterpret_cast<PyTypeObject*>(follower->state_type)) {
    Py_CLEAR(self->open);
    PyErr_SetString(PyExc_TypeError, "the begin of a request has to return one");
    return false;
  }
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
    auto* state = reinterpret_cast<RequestState*>(open);
    if (state->number < 0) {
      state->has_ended = 1;
    } else {
      PyObject* done = PyObject_CallFunctionObjArgs(follower->end, open, self->description, error, nullptr);
      if (done == nullptr) PyErr_WriteUnraisable(open);
      Py_XDECREF(done);
    }
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
  PyObject* is_new = nullptr;
  Follower* follower = follower_of(self);
  if (self->open != nullptr && is_recording(follower)) {
    is_new = PyObject_CallFunctionObjArgs(follower->enter, self->open, nullptr);
    if (is_new == nullptr) {
      finish(self);
      return PYGEN_ERROR;
    }
  }
  const PySendResult status = resume();
  if (is_new == Py_True && self->open != nullptr) {
    nb::error_scope raised;
    PyObject* done = PyObject_CallFunctionObjArgs(follower->leave, self->open, nullptr);
    if (done == nullptr) PyErr_WriteUnraisable(self->open);
    Py_XDECREF(done);
  }
  Py_XDECREF(is_new);
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
PyType_Spec kFollowedSpec = {"kinetoscope._core.Followed", sizeof(Followed), 0,
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
  auto* state_type = reinterpret_cast<PyTypeObject*>(reinterpret_cast<Follower*>(follower)->state_type);
  if (count != 2 || Py_TYPE(given[1]) != state_type) {
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
    {"is_recording", is_recording_method, METH_NOARGS,
     "is_recording($self, /)\n--\n\nWhether the attribute of the module is true; without the module it is "
     "not."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot kFollowerSlots[] = {
    {Py_tp_new, slot(new_follower)},
    {Py_tp_traverse, slot(visit_follower)},
    {Py_tp_clear, slot(clear_follower)},
    {Py_tp_dealloc, slot(free_collected<clear_follower>)},
    {Py_tp_methods, kFollowerMethods},
    {Py_tp_doc,
     const_cast<char*>(
         "Follows requests through their resumptions, and calls Python only while something records.")},
    {0, nullptr},
};
PyType_Spec kFollowerSpec = {"kinetoscope._core.Follower", sizeof(Follower), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, kFollowerSlots};

PyObject* add_type(nb::module_& module, const char* name, PyType_Spec& spec) {
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr || PyModule_AddObjectRef(module.ptr(), name, type) != 0) throw nb::python_error();
  return type;
}

}  // namespace

void bind_followed(nb::module_& module) {
  Py_DECREF(add_type(module, "RequestState", kStateSpec));
  Py_DECREF(add_type(module, "Follower", kFollowerSpec));
  followed_type = reinterpret_cast<PyTypeObject*>(add_type(module, "Followed", kFollowedSpec));
}

}  // namespace kinetoscope
