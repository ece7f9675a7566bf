#include <Python.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "../core/recording/step_switch.h"
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

// A number that looks random, the same for the same seed, level and block (the finalizer of SplitMix64).
uint64_t random_of(uint64_t seed, uint64_t level, uint64_t block) {
  uint64_t mixed = block * 0x9E3779B97F4A7C15 + (level + 1) * 0xD1B54A32D192ED03 + seed;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
  return mixed ^ (mixed >> 31);
}

// The chosen step of a stratum of 2^level steps: one half after the other, from the largest to a single step,
// which nests the plans of all levels.
int64_t chosen_step(uint64_t seed, uint32_t level, int64_t stratum) {
  auto chosen = static_cast<uint64_t>(stratum);
  for (uint32_t half = level; half-- > 0;) chosen = chosen * 2 + (random_of(seed, half, chosen) & 1);
  return static_cast<int64_t>(chosen);
}

// The log of steps of kinetoscope/flight/step_log.py, in the memory of somebody else.
class SharedLog {
 public:
  SharedLog() = default;
  SharedLog(const SharedLog&) = delete;
  SharedLog& operator=(const SharedLog&) = delete;
  ~SharedLog() { close(); }

  // Offsets in bytes: of the step under way, of how many steps are logged, and of the table of so many steps.
  void open(nb::handle memory, std::size_t current, std::size_t logged, std::size_t table,
            std::size_t places) {
    close();
    if (PyObject_GetBuffer(memory.ptr(), &view_, PyBUF_WRITABLE) != 0) throw nb::python_error();
    const auto bytes = static_cast<std::size_t>(view_.len);
    const auto fits = [bytes](std::size_t offset, std::size_t words) {
      return offset % sizeof(int64_t) == 0 && offset <= bytes && words <= (bytes - offset) / sizeof(int64_t);
    };
    if (!fits(current, kWords) || !fits(logged, 1) || !fits(table, places * kWords) || places == 0) {
      PyBuffer_Release(&view_);
      throw nb::value_error("an offset is that of no word in the memory");
    }
    words_ = static_cast<int64_t*>(view_.buf);
    current_ = current / sizeof(int64_t), logged_ = logged / sizeof(int64_t);
    table_ = table / sizeof(int64_t), places_ = places;
  }
  void close() {
    if (words_ == nullptr) return;
    words_ = nullptr;
    PyBuffer_Release(&view_);
  }
  void set_number(int64_t number) {
    if (words_ != nullptr) store(current_, number);
  }
  void begin(int64_t number, int64_t began_ns, bool recorded, int64_t hang_ns) {
    if (words_ != nullptr) write(current_, {number, began_ns, recorded ? 1 : 0, hang_ns});
  }
  void end(int64_t number, int64_t began_ns, int64_t duration_ns, bool recorded) {
    if (words_ == nullptr) return;
    const int64_t logged = words_[logged_];
    write(table_ + static_cast<uint64_t>(logged) % places_ * kWords,
          {number, began_ns, duration_ns, recorded ? 1 : 0});
    store(logged_, logged + 1);
  }

 private:
  static constexpr std::size_t kWords = 4;

  void store(std::size_t word, int64_t value) { __atomic_store_n(words_ + word, value, __ATOMIC_RELEASE); }
  void write(std::size_t word, const int64_t (&values)[kWords]) {
    for (std::size_t at = 0; at < kWords; ++at) store(word + at, values[at]);
  }

  Py_buffer view_{};
  int64_t* words_ = nullptr;
  std::size_t current_ = 0, logged_ = 0, table_ = 0, places_ = 1;
};

// A step that was looked at and has ended: its number, when it began, how long it took, what was done before
// it, what counting took for it, and whether it was recorded.
using Row = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, bool>;

// A step of a program may take less than a millisecond, and leave nothing of ours in the caches of the
// processor: then Python's code to count it, or to switch recording on and off, costs more than the budget of
// the whole recorder, but these few words do not.
class StepCount {
 public:
  explicit StepCount(nb::object otherwise) : otherwise_(std::move(otherwise)), forks_(forks) {}
  ~StepCount() { end_mark(); }
  StepCount(const StepCount&) = delete;
  StepCount& operator=(const StepCount&) = delete;

  void mark(nb::handle number, nb::handle loss) {
    int64_t next = number_ + 1;
    if (!looks_at_each_ && forks == forks_ && reads(number, next) && is_harmless(loss)) {
      if (left_ > 0) {
        count_as(next);
        return;
      }
      if (advance_to(next)) return;
    }
    if (otherwise_.is_valid()) otherwise_(number, loss);
  }

  // As mark(), for a step whose loss needs no look; false if there is more to do.
  bool advance(std::optional<int64_t> number) {
    const int64_t next = number.value_or(number_ + 1);
    if (forks != forks_) return false;
    if (left_ > 0) {
      count_as(next);
      return true;
    }
    return advance_to(next);
  }

  void count(std::optional<int64_t> number) { count_as(number.value_or(number_ + 1)); }

  int64_t take() {
    const int64_t passed = passed_;
    passed_ = left_ = 0;
    return passed;
  }

  void arm(uint64_t seed, uint32_t level, bool records_others, int64_t together, int64_t hang_ns,
           int64_t look_at_ns) {
    seed_ = seed, level_ = std::min(level, 62u), records_others_ = records_others;
    together_ = together, hang_ns_ = hang_ns;
    look_at_ns_ = look_at_ns;
    rows_.reserve(kMostRows);
    stratum_ = -1;
  }
  void disarm() { look_at_ns_ = 0; }
  bool is_armed() const { return look_at_ns_ != 0; }

  std::vector<Row> drain() {
    std::vector<Row> rows(rows_.begin(), rows_.end());
    rows_.clear();
    return rows;
  }

  void set_switch(std::size_t address) { switch_ = std::bit_cast<const StepSwitch*>(address); }
  // Records from now on, with the mark of a step; false if that needs the usual way.
  bool switch_on(int64_t number) {
    if (switch_ == nullptr || forks != forks_) return false;
    end_mark();
    marked_ = attached_ ? switch_->begin(this, number) : switch_->on(this, number, last_step_ns_);
    attached_ |= marked_;
    return marked_;
  }
  // Records no more; false if that needs the usual way.
  bool switch_off() {
    if (switch_ == nullptr || forks != forks_ || !switch_->off(marked_ ? this : nullptr)) return false;
    marked_ = attached_ = false;
    return true;
  }
  void end_mark() {
    if (marked_ && forks == forks_) switch_->end(this);
    marked_ = false;
  }

  void write_to(nb::handle memory, std::size_t current, std::size_t logged, std::size_t table,
                std::size_t places) {
    log_.open(memory, current, logged, table, places);
  }
  void close() { log_.close(); }
  void log_begin(int64_t hang_ns) {
    log_.begin(number_, began_ns_, began_ns_ != 0 ? recording_ : attached_, hang_ns);
  }
  void log_end(int64_t duration_ns) {
    last_step_ns_ = duration_ns;
    log_.end(number_, began_ns_, duration_ns, recording_);
  }

  int64_t left_ = 0, number_ = -1, took_ns_ = 0;
  // Of the step under way: when it began (0: none has), what was done before it, whether it is recorded, and
  // whether the one before was. How long it took to end a step before another began.
  int64_t began_ns_ = 0, own_ns_ = 0, closing_ns_ = 0;
  bool recording_ = true, was_recorded_ = true;
  // Whether operators are recorded now: between two steps they may not be.
  bool attached_ = true;
  // Whether mark() leaves all steps to the function.
  bool looks_at_each_ = false;

 private:
  static constexpr std::size_t kMostRows = 1024;

  // Ends a step and begins the next one, without Python; false, with nothing changed, if there is more to do.
  bool advance_to(int64_t next) {
    if (look_at_ns_ == 0 || switch_ == nullptr || switch_->allowed == 0) return false;
    const int64_t entered_ns = monotonic_ns();
    if (entered_ns >= look_at_ns_ || next != number_ + 1 || next < 0 || rows_.size() >= kMostRows)
      return false;
    const int64_t chosen = chosen_in_stratum_of(next);
    const bool record = (chosen == next) != records_others_;
    if (record ? !switch_on(next) : attached_ && !switch_off()) return false;
    const int64_t counted = take(), passed = counted + 1, passing_ns = took_ns_ * counted / passed;
    // 0: what passed since the step before is part of none.
    const int64_t step_ns = began_ns_ != 0 ? (entered_ns - began_ns_) / passed - passing_ns : 0;
    if (step_ns > 0) {
      log_end(step_ns);
      rows_.emplace_back(number_, began_ns_, step_ns, own_ns_ / passed, passing_ns, recording_);
    }
    const bool was_recording = std::exchange(recording_, record);
    // The two steps after a recorded one are looked at alone: they may still pay for that.
    const bool plain = !(recording_ || was_recording || was_recorded_);
    was_recorded_ = was_recording;
    number_ = next;
    if (plain && together_ > 1 && !records_others_) {
      const int64_t until = chosen > next ? chosen : chosen_step(seed_, level_, (next >> level_) + 1);
      left_ = std::min(together_, until - next) - 1;
    }
    began_ns_ = monotonic_ns();
    own_ns_ = began_ns_ - entered_ns + std::exchange(closing_ns_, 0);
    log_begin(hang_ns_);
    return true;
  }

  int64_t chosen_in_stratum_of(int64_t step) {
    if (step >> level_ != stratum_) {
      stratum_ = step >> level_;
      chosen_ = chosen_step(seed_, level_, stratum_);
    }
    return chosen_;
  }

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
    log_.set_number(number);
    if (first) took_ns_ = monotonic_ns() - began_ns;
  }

  friend int visit_references(PyObject* self, visitproc visit, void* arg);
  friend int clear_references(PyObject* self);

  nb::object otherwise_;
  const int forks_;
  int64_t passed_ = 0;
  SharedLog log_;
  const StepSwitch* switch_ = nullptr;
  bool marked_ = false;  // whether the mark of a step is open
  // Of the plan, which is followed up to a time; 0: not at all.
  uint64_t seed_ = 0;
  uint32_t level_ = 1;
  bool records_others_ = false;
  // How long the step before took, or one of those that were looked at together.
  int64_t last_step_ns_ = 0;
  int64_t together_ = 1, hang_ns_ = 0, look_at_ns_ = 0;
  int64_t stratum_ = -1, chosen_ = -1;
  std::vector<Row> rows_;
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

It counts the step if `left` is above 0, or follows the plan that it was armed with, if no process was forked since, and the
loss needs no look; otherwise it calls the function that this was made with.)")
      .def("advance", &StepCount::advance, nb::arg("number") = nb::none(),
           "Does as `step`, for a loss that needs no look; false in place of calling the function.")
      .def("count", &StepCount::count, nb::arg("number") = nb::none(),
           "Counts a step, whose number is one more than that before, or the given one.")
      .def("take", &StepCount::take,
           "Returns how many steps were counted since the last call, and lets no more be counted.")
      .def(
          "arm", &StepCount::arm, nb::arg("seed"), nb::arg("level"), nb::arg("records_others"),
          nb::arg("together"), nb::arg("hang_ns"), nb::arg("look_at_ns"),
          R"(Follows a plan from the next step on, up to a time: one of each 2^level steps is recorded, see `chosen_step`, or all others.

Of the steps that are not recorded, nor the first two after one that is, so many are looked at together. Steps that
are looked at are logged, and kept for `drain`.)")
      .def("disarm", &StepCount::disarm, "Follows no plan.")
      .def_prop_ro("is_armed", &StepCount::is_armed, "Whether it follows a plan.")
      .def("drain", &StepCount::drain,
           R"(Returns the steps that were looked at since the last call.

Each with its number, when it began, how long it took, what was done before it, what counting took for it, all in
nanoseconds, and whether it was recorded.)")
      .def("set_switch", &StepCount::set_switch, nb::arg("address"),
           "Sets by what recording is switched on and off: see native/core/recording/step_switch.h.")
      .def("switch_on", &StepCount::switch_on, nb::arg("number"),
           "Records the step with this number; false, with nothing changed, if that needs the usual way.")
      .def("switch_off", &StepCount::switch_off,
           "Records no more; false, with nothing changed, if that needs the usual way.")
      .def("end_mark", &StepCount::end_mark, "Ends the mark of the step, if it is one of `switch_on`.")
      .def("write_to", &StepCount::write_to, nb::arg("memory"), nb::arg("current"), nb::arg("logged"),
           nb::arg("table"), nb::arg("places"),
           R"(Also writes steps into a log in some memory, until `close`; the arguments are offsets in bytes.

At `current` the step under way, at `logged` how many have ended, at `table` so many places for those.)")
      .def("close", &StepCount::close, "Releases the memory.")
      .def("log_begin", &StepCount::log_begin, nb::arg("hang_ns"),
           "Writes the step under way into the log, and after how long it hangs; 0: never.")
      .def("log_end", &StepCount::log_end, nb::arg("duration_ns"), "Adds the step under way to the log.")
      .def_rw("left", &StepCount::left_, "How many steps may still be counted.")
      .def_rw("number", &StepCount::number_, "The number of the step under way.")
      .def_rw("began_ns", &StepCount::began_ns_, "When the step under way began; 0 if none is.")
      .def_rw("own_ns", &StepCount::own_ns_, "How long it took to begin that step.")
      .def_rw("closing_ns", &StepCount::closing_ns_, "How long it took to end a step before another begins.")
      .def_rw("recording", &StepCount::recording_, "Whether the step under way is recorded.")
      .def_rw("was_recorded", &StepCount::was_recorded_, "Whether the step before was recorded.")
      .def_rw("attached", &StepCount::attached_, "Whether operators are recorded now.")
      .def_rw("looks_at_each", &StepCount::looks_at_each_,
              "Whether `step` always calls the function, while `advance` does not.")
      .def_ro("took_ns", &StepCount::took_ns_, "How long counting the first step since `take` took.");
  define(module, "chosen_step", &chosen_step,
         R"(The step that a plan records of a stratum of 2^level consecutive ones.

The steps of a sparser plan are a subset of those of a denser one with the same seed.)",
         nb::arg("seed"), nb::arg("level"), nb::arg("stratum"));
}

}  // namespace kinetoscope
