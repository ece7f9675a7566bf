#include <Python.h>
#include <nanobind/stl/optional.h>
#include <pthread.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <utility>

#include "module.h"

namespace kinetoscope {
namespace {

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// How often this process, and those that it was forked from, were forked: asking the system for the process
// would cost each step more than all the rest.
int forks = 0;

// Memory of somebody else that a word is written to.
class SharedWord {
 public:
  SharedWord() = default;
  SharedWord(const SharedWord&) = delete;
  SharedWord& operator=(const SharedWord&) = delete;
  ~SharedWord() { close(); }

  void open(nb::handle memory, std::size_t offset) {
    close();
    if (PyObject_GetBuffer(memory.ptr(), &view_, PyBUF_WRITABLE) != 0) throw nb::python_error();
    if (offset % sizeof(int64_t) != 0 || offset + sizeof(int64_t) > static_cast<std::size_t>(view_.len)) {
      PyBuffer_Release(&view_);
      throw nb::value_error("the offset is that of no word in the memory");
    }
    word_ = reinterpret_cast<int64_t*>(static_cast<std::byte*>(view_.buf) + offset);
  }
  void close() {
    if (word_ == nullptr) return;
    word_ = nullptr;
    PyBuffer_Release(&view_);
  }
  void store(int64_t value) {
    if (word_ != nullptr) __atomic_store_n(word_, value, __ATOMIC_RELAXED);
  }

 private:
  Py_buffer view_{};
  int64_t* word_ = nullptr;
};

// A step of a program may take less than a millisecond, and leave nothing of ours in the caches of the
// processor: then Python's code to count it costs more than the budget of the whole recorder, but these few
// words do not.
class StepCount {
 public:
  explicit StepCount(nb::object otherwise) : otherwise_(std::move(otherwise)), forks_(forks) {}

  void mark(nb::handle number, nb::handle loss) {
    int64_t next = number_ + 1;
    if (left_ > 0 && forks == forks_ && reads(number, next) && is_harmless(loss)) {
      count_as(next);
    } else if (otherwise_.is_valid()) {
      otherwise_(number, loss);
    }
  }

  void count(std::optional<int64_t> number) { count_as(number.value_or(number_ + 1)); }

  int64_t take() {
    const int64_t passed = passed_;
    passed_ = left_ = 0;
    return passed;
  }

  void write_to(nb::handle memory, std::size_t offset) { word_.open(memory, offset); }
  void close() { word_.close(); }

  int64_t left_ = 0, number_ = -1, took_ns_ = 0;

 private:
  // Whether a number is one that can be taken as it is; None leaves `next` as it was.
  static bool reads(nb::handle number, int64_t& next) {
    if (number.is_none()) return true;
    if (PyLong_Check(number.ptr()) == 0) return false;
    int overflow = 0;
    next = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    return overflow == 0;
  }
  static bool is_harmless(nb::handle loss) {
    return loss.is_none() || (PyFloat_Check(loss.ptr()) != 0 && std::isfinite(PyFloat_AsDouble(loss.ptr())));
  }

  void count_as(int64_t number) {
    const bool first = passed_ == 0;
    const int64_t began_ns = first ? monotonic_ns() : 0;
    --left_;
    ++passed_;
    number_ = number;
    word_.store(number);
    if (first) took_ns_ = monotonic_ns() - began_ns;
  }

  friend int visit_references(PyObject* self, visitproc visit, void* arg);
  friend int clear_references(PyObject* self);

  nb::object otherwise_;
  const int forks_;
  int64_t passed_ = 0;
  SharedWord word_;
};

// For Python's collector: the function is usually a method of what owns the count.
int visit_references(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<StepCount>(self)->otherwise_.ptr());
  return 0;
}
int clear_references(PyObject* self) {
  nb::inst_ptr<StepCount>(self)->otherwise_.reset();
  return 0;
}

PyType_Slot kCollectedSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(visit_references)},
                                 {Py_tp_clear, reinterpret_cast<void*>(clear_references)},
                                 {0, nullptr}};

// Not a method of nanobind's, whose dispatch takes several times as long.
PyObject* step(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  PyObject* arguments[2] = {Py_None, Py_None};
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_Size(names);
  bool understood = count + named <= 2;
  for (Py_ssize_t at = 0; understood && at < count; ++at) arguments[at] = given[at];
  for (Py_ssize_t at = 0; understood && at < named; ++at) {
    PyObject* name = PyTuple_GetItem(names, at);
    const bool is_loss = PyUnicode_CompareWithASCIIString(name, "loss") == 0;
    understood = (is_loss || PyUnicode_CompareWithASCIIString(name, "number") == 0) && count <= is_loss;
    arguments[is_loss] = given[count + at];
  }
  if (!understood) {
    PyErr_SetString(PyExc_TypeError, "step() takes a number and a loss, each at most once");
    return nullptr;
  }
  try {
    nb::inst_ptr<StepCount>(self)->mark(arguments[0], arguments[1]);
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
  return Py_NewRef(Py_None);
}

// PyMethodDef has one type of function for all calling conventions; the flags say which it is.
PyMethodDef kStep = {
    "step",
    reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(step)),
    METH_FASTCALL | METH_KEYWORDS,
    "step(number=None, loss=None)\n--\n\nMarks the start of the next step.",
};

}  // namespace

void bind_step_count(nb::module_& module) {
  pthread_atfork(nullptr, nullptr, [] { ++forks; });
  nb::class_<StepCount>(module, "StepCount", nb::is_final(), nb::type_slots(kCollectedSlots),
                        "Counts steps at which a flight recorder has nothing else to do.")
      .def(nb::init<nb::object>(), nb::arg("otherwise"))
      .def_prop_ro(
          "step",
          [](nb::handle self) {
            return nb::steal<nb::object>(PyCFunction_NewEx(&kStep, self.ptr(), nullptr));
          },
          R"(A function that marks the start of a step, with its number and the loss of the one before.

It counts the step if `left` is above 0, no process was forked since, and the loss needs no look; otherwise it calls the
function that this was made with.)")
      .def("count", &StepCount::count, nb::arg("number") = nb::none(),
           "Counts a step, whose number is one more than that before, or the given one.")
      .def("take", &StepCount::take,
           "Returns how many steps were counted since the last call, and lets no more be counted.")
      .def("write_to", &StepCount::write_to, nb::arg("memory"), nb::arg("offset"),
           "Also writes each number into a word of some memory, until `close`.")
      .def("close", &StepCount::close, "Releases the memory.")
      .def_rw("left", &StepCount::left_, "How many steps may still be counted.")
      .def_rw("number", &StepCount::number_, "The number of the step under way.")
      .def_ro("took_ns", &StepCount::took_ns_, "How long counting the first step since `take` took.");
}

}  // namespace kinetoscope
