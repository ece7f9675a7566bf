// Files that a writer produces block by block, for Python: as an iterator of bytes, or written to a file
// descriptor.
#pragma once

#include <Python.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <future>
#include <string_view>
#include <system_error>
#include <utility>

namespace kinetoscope {

// The next block of a writer, or StopIteration.
template <typename Writer>
nanobind::bytes next_block_bytes(Writer& writer) {
  std::string_view block;
  {
    nanobind::gil_scoped_release released;
    block = writer.next_block();
  }
  if (block.empty()) throw nanobind::stop_iteration();
  return nanobind::bytes(block.data(), block.size());
}

// Throws std::system_error.
inline void write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(file, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      throw std::system_error(errno, std::generic_category());
    }
  }
}

// Writes all blocks, each while the next one is made, and returns how many bytes these are. Errors of the
// file become OSError, and a signal of Python's ends it between blocks.
template <typename Writer>
std::uint64_t write_blocks(Writer& writer, int file) try {
  std::uint64_t written = 0;
  decltype(writer.exchange_block({})) block;
  std::future<void> writing;
  while (true) {
    {
      nanobind::gil_scoped_release released;
      const std::string_view text = writer.next_block();
      if (writing.valid()) writing.get();
      if (text.empty()) return written;
      block = writer.exchange_block(std::move(block));
      written += text.size();
      writing = std::async(std::launch::async, write_all, file, text);
    }
    if (PyErr_CheckSignals() != 0) {
      nanobind::gil_scoped_release released;
      writing.wait();
      break;
    }
  }
  throw nanobind::python_error();
} catch (const std::system_error& error) {
  errno = error.code().value();
  PyErr_SetFromErrno(PyExc_OSError);
  throw nanobind::python_error();
}

// Adds these methods to a writer's Python class; its writer() returns the writer.
template <typename Face>
void bind_blocks(nanobind::class_<Face>& type) {
  type.def("__iter__", [](nanobind::handle self) { return nanobind::borrow(self); })
      .def("__next__", [](Face& self) { return next_block_bytes(self.writer()); })
      .def(
          "write_to", [](Face& self, int file) { return write_blocks(self.writer(), file); },
          nanobind::arg("file"),
          R"(Writes all blocks to an open file, making each while the one before is being written.

Args:
    file: The file's descriptor.

Returns:
    The number of bytes.

Raises:
    OSError: The file cannot be written to.)");
}

}  // namespace kinetoscope
