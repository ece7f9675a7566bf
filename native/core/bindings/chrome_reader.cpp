// kinetoscope._core.ChromeReader.
#include <nanobind/stl/string.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>

#include "../chrome/order.h"
#include "../chrome/reader.h"
#include "../recording/following.h"
#include "module.h"

namespace kinetoscope {
namespace {

class PythonChromeReader {
 public:
  PythonChromeReader(nb::object categories, nb::object kinds, nb::object on_device, std::size_t max_bytes) {
    const std::vector<std::string> names = to_utf8_list(categories, "categories");
    if (nb::len(kinds) != names.size() || nb::len(on_device) != names.size()) {
      throw nb::value_error("categories, kinds and on_device must have the same length");
    }
    std::vector<std::pair<std::string, ChromeCategory>> known;
    for (std::size_t row = 0; row < names.size(); ++row) {
      known.emplace_back(names[row],
                         ChromeCategory{nb::cast<uint8_t>(kinds[row]), nb::cast<bool>(on_device[row])});
    }
    reader_ = std::make_unique<ChromeReader>(std::move(known), max_bytes, std::random_device{}());
  }

  void feed(nb::object block) {
    check_open();
    Py_buffer view;
    if (PyObject_GetBuffer(block.ptr(), &view, PyBUF_SIMPLE) != 0) nb::raise_python_error();
    std::optional<std::string> refused;
    {
      const nb::gil_scoped_release released;
      try {
        reader_->feed({static_cast<const char*>(view.buf), static_cast<std::size_t>(view.len)});
      } catch (const NotATrace& error) {
        refused = error.what();
      } catch (...) {
        const nb::gil_scoped_acquire held;
        PyBuffer_Release(&view);
        throw;
      }
    }
    PyBuffer_Release(&view);
    if (refused) {
      reader_.reset();
      throw nb::value_error(refused->c_str());
    }
  }

  void follow(int text, int finished) {
    check_open();
    std::optional<std::string> refused;
    {
      const nb::gil_scoped_release released;
      following_ = true;
      try {
        kinetoscope::follow(text, finished, [this](std::string_view block) { reader_->feed(block); });
      } catch (const NotATrace& error) {
        refused = error.what();
      }
    }
    if (refused) {
      reader_.reset();
      throw nb::value_error(refused->c_str());
    }
  }

  bool following() const { return following_; }

  std::size_t events() const { return reader_ == nullptr ? events_ : reader_->events(); }

  nb::dict finish(bool later) {
    check_open();
    const std::unique_ptr<ChromeReader> reader = std::move(reader_);
    ChromeOrder order;
    std::optional<std::string> refused;
    {
      const nb::gil_scoped_release released;
      try {
        reader->finish();
        order = order_spans(reader->taken());
      } catch (const NotATrace& error) {
        refused = error.what();
      }
    }
    events_ = reader->events();
    if (refused) throw nb::value_error(refused->c_str());
    return chrome_parts(*reader, order, later);
  }

 private:
  void check_open() const {
    if (reader_ == nullptr)
      throw nb::value_error("this reader has finished: create a new one for another trace");
  }

  std::unique_ptr<ChromeReader> reader_;
  std::size_t events_ = 0;
  std::atomic<bool> following_ = false;
};

}  // namespace

void bind_chrome_reader(nb::module_& module) {
  nb::class_<PythonChromeReader>(module, "ChromeReader", nb::is_final(),
                                 "Reads a trace in Chrome's JSON format from blocks of text.")
      .def(nb::init<nb::object, nb::object, nb::object, std::size_t>(), nb::arg("categories"),
           nb::arg("kinds"), nb::arg("on_device"), nb::arg("max_bytes"))
      .def("feed", &PythonChromeReader::feed, nb::arg("block"),
           "Reads the next block of the text; blocks may end anywhere.")
      .def("follow", &PythonChromeReader::follow, nb::arg("text"), nb::arg("finished"),
           "Reads the text that another thread writes to a pipe, without the GIL, until all writers have "
           "closed "
           "it, or `finished` is readable and the pipe is empty.")
      .def_prop_ro("following", &PythonChromeReader::following,
                   "Whether `follow` was called and has released the GIL.")
      .def_prop_ro("events", &PythonChromeReader::events, "The number of events read so far.")
      .def("finish", &PythonChromeReader::finish, nb::arg("later") = false,
           R"(Returns all that was read, as columns; can be called once.

Args:
    later: Give the columns of spans as functions without arguments that make them. As long as such a function lives, so
        does what it makes the column from, which is a fraction of the column's size.)");
}

}  // namespace kinetoscope
