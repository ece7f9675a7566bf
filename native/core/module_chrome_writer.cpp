#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <memory>
#include <optional>
#include <system_error>

#include "chrome_writer.h"
#include "module.h"

namespace kinetoscope {
namespace {

// Keeps the arrays alive for as long as the writer reads them.
class PythonChromeWriter {
 public:
  using I8 = std::optional<Array<int8_t>>;
  using U8 = std::optional<Array<uint8_t>>;
  using I32 = std::optional<Array<int32_t>>;
  using I64 = std::optional<Array<int64_t>>;
  using U64 = std::optional<Array<uint64_t>>;

  PythonChromeWriter(Array<int64_t> start_ns, Array<int64_t> duration_ns, Array<int32_t> name,
                     Array<uint8_t> kind, Array<int32_t> thread, Array<int32_t> lane, Array<int64_t> sequence,
                     Array<int32_t> forward, Array<int32_t> forward_thread, Array<int32_t> stack,
                     Array<int32_t> module, Array<int32_t> shapes, Array<uint8_t> flags, nb::object strings,
                     Array<int32_t> stack_parent, Array<int32_t> stack_frame, Array<int32_t> frame_function,
                     Array<int32_t> frame_file, Array<int32_t> frame_line, nb::object module_path,
                     nb::object module_class, nb::object shape_dims, nb::object shape_types,
                     nb::object shape_concrete, nb::object categories, Array<int64_t> thread_torch_tid,
                     Array<int32_t> thread_first_track, Array<int64_t> track_tid, int64_t pid,
                     int64_t base_ns, nb::bytes header, nb::bytes footer, std::size_t block_bytes,
                     I64 allocation_time_ns, I32 allocation_thread, U64 allocation_address,
                     I64 allocation_bytes, I64 allocation_total_bytes, U8 allocation_device_type,
                     I8 allocation_device_index, I64 record_function)
      : int32_columns_{name, thread, lane, forward, forward_thread, stack, module, shapes},
        int64_columns_{start_ns, duration_ns, sequence},
        record_function_(record_function),
        uint8_columns_{kind, flags},
        allocation_columns_{allocation_time_ns,     allocation_bytes,   allocation_total_bytes,
                            allocation_thread,      allocation_address, allocation_device_type,
                            allocation_device_index} {
    const ChromeSpans spans{.start_ns = view(start_ns),
                            .duration_ns = view(duration_ns),
                            .name = view(name),
                            .kind = view(kind),
                            .thread = view(thread),
                            .lane = view(lane),
                            .sequence = view(sequence),
                            .forward = view(forward),
                            .forward_thread = view(forward_thread),
                            .stack = view(stack),
                            .module = view(module),
                            .shapes = view(shapes),
                            .record_function = view_or_none(record_function),
                            .flags = view(flags)};
    const ChromeAllocations allocations{.time_ns = view_or_none(allocation_time_ns),
                                        .thread = view_or_none(allocation_thread),
                                        .address = view_or_none(allocation_address),
                                        .bytes = view_or_none(allocation_bytes),
                                        .total_bytes = view_or_none(allocation_total_bytes),
                                        .device_type = view_or_none(allocation_device_type),
                                        .device_index = view_or_none(allocation_device_index)};
    const std::vector<std::string> string_texts = to_utf8_list(strings, "strings"),
                                   paths = to_utf8_list(module_path, "module_path"),
                                   classes = to_utf8_list(module_class, "module_class"),
                                   dims = to_utf8_list(shape_dims, "shape_dims"),
                                   types = to_utf8_list(shape_types, "shape_types"),
                                   concrete = to_utf8_list(shape_concrete, "shape_concrete"),
                                   category_texts = to_utf8_list(categories, "categories");
    const ChromeTables tables{.strings = string_texts,
                              .stack_parent = view(stack_parent),
                              .stack_frame = view(stack_frame),
                              .frame_function = view(frame_function),
                              .frame_file = view(frame_file),
                              .frame_line = view(frame_line),
                              .module_path = paths,
                              .module_class = classes,
                              .shape_dims = dims,
                              .shape_types = types,
                              .shape_concrete = concrete,
                              .categories = category_texts,
                              .thread_torch_tid = view(thread_torch_tid),
                              .thread_first_track = view(thread_first_track),
                              .track_tid = view(track_tid)};
    std::string header_text(header.c_str(), header.size()), footer_text(footer.c_str(), footer.size());
    nb::gil_scoped_release released;
    writer_ = std::make_unique<ChromeWriter>(spans, allocations, tables, pid, base_ns, std::move(header_text),
                                             std::move(footer_text), block_bytes);
  }

  nb::bytes next() {
    std::string_view block;
    {
      nb::gil_scoped_release released;
      block = writer_->next_block();
    }
    if (block.empty()) throw nb::stop_iteration();
    return nb::bytes(block.data(), block.size());
  }

  // One block is written while the next one is made. Returns how many bytes it wrote.
  std::uint64_t write_to(int file) {
    std::uint64_t written = 0;
    Column<char> block;
    std::future<void> writing;
    while (true) {
      {
        nb::gil_scoped_release released;
        const std::string_view text = writer_->next_block();
        if (writing.valid()) writing.get();
        if (text.empty()) return written;
        block = writer_->exchange_block(std::move(block));
        written += text.size();
        writing = std::async(std::launch::async, write_all, file, text);
      }
      if (PyErr_CheckSignals() != 0) {
        nb::gil_scoped_release released;
        writing.wait();
        break;
      }
    }
    throw nb::python_error();
  }

 private:
  // Throws std::system_error.
  static void write_all(int file, std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::write(file, text.data(), text.size());
      if (count >= 0) {
        text.remove_prefix(static_cast<std::size_t>(count));
      } else if (errno != EINTR) {
        throw std::system_error(errno, std::generic_category());
      }
    }
  }

  template <typename T>
  static std::span<const T> view_or_none(const std::optional<Array<T>>& array) {
    return array ? view(*array) : std::span<const T>{};
  }

  struct AllocationArrays {
    I64 time_ns, bytes, total_bytes;
    I32 thread;
    U64 address;
    U8 device_type;
    I8 device_index;
  };

  std::vector<Array<int32_t>> int32_columns_;
  std::vector<Array<int64_t>> int64_columns_;
  I64 record_function_;
  std::vector<Array<uint8_t>> uint8_columns_;
  AllocationArrays allocation_columns_;
  std::unique_ptr<ChromeWriter> writer_;
};

}  // namespace

void bind_chrome_writer(nb::module_& module) {
  using Writer = PythonChromeWriter;
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  const auto optional_array = [](const char* name) { return nb::arg(name).noconvert().none() = nb::none(); };
  nb::class_<Writer>(module, "ChromeWriter", nb::is_final(),
                     R"(Writes the events of a Chrome trace; iterating yields its bytes in blocks.

A span's track is track_tid[thread_first_track[thread] + lane]. Times are nanoseconds and are written as
microseconds with three decimals, base_ns + start_ns. `strings` is indexed by string id (name, frame_function,
frame_file), `categories` by kind; stack, module, shapes, forward and forward_thread are rows, -1 for none.
A span with a forward row gets a flow arrow from there. `header` opens the file up to and with the "[" of the
events and may hold events of its own; `footer` closes it. Shape texts that are no JSON are left out.
The allocation columns are all given or none; allocation_bytes is negative for frees.

Raises:
    ValueError: Columns differ in length, or a thread, lane or kind has no track or category.)")
      .def(
          nb::init<Array<int64_t>, Array<int64_t>, Array<int32_t>, Array<uint8_t>, Array<int32_t>,
                   Array<int32_t>, Array<int64_t>, Array<int32_t>, Array<int32_t>, Array<int32_t>,
                   Array<int32_t>, Array<int32_t>, Array<uint8_t>, nb::object, Array<int32_t>, Array<int32_t>,
                   Array<int32_t>, Array<int32_t>, Array<int32_t>, nb::object, nb::object, nb::object,
                   nb::object, nb::object, nb::object, Array<int64_t>, Array<int32_t>, Array<int64_t>,
                   int64_t, int64_t, nb::bytes, nb::bytes, std::size_t, Writer::I64, Writer::I32, Writer::U64,
                   Writer::I64, Writer::I64, Writer::U8, Writer::I8, Writer::I64>(),
          nb::kw_only(), array("start_ns"), array("duration_ns"), array("name"), array("kind"),
          array("thread"), array("lane"), array("sequence"), array("forward"), array("forward_thread"),
          array("stack"), array("module"), array("shapes"), array("flags"), nb::arg("strings"),
          array("stack_parent"), array("stack_frame"), array("frame_function"), array("frame_file"),
          array("frame_line"), nb::arg("module_path"), nb::arg("module_class"), nb::arg("shape_dims"),
          nb::arg("shape_types"), nb::arg("shape_concrete"), nb::arg("categories"), array("thread_torch_tid"),
          array("thread_first_track"), array("track_tid"), nb::arg("pid"), nb::arg("base_ns") = 0,
          nb::arg("header") = nb::bytes("", 0), nb::arg("footer") = nb::bytes("", 0),
          nb::arg("block_bytes") = 4 << 20, optional_array("allocation_time_ns"),
          optional_array("allocation_thread"), optional_array("allocation_address"),
          optional_array("allocation_bytes"), optional_array("allocation_total_bytes"),
          optional_array("allocation_device_type"), optional_array("allocation_device_index"),
          optional_array("record_function"))
      .def("__iter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__next__", &Writer::next)
      .def(
          "write_to",
          [](Writer& writer, int file) {
            try {
              return writer.write_to(file);
            } catch (const std::system_error& error) {
              errno = error.code().value();
              PyErr_SetFromErrno(PyExc_OSError);
              throw nb::python_error();
            }
          },
          nb::arg("file"),
          R"(Writes all blocks to an open file, making each while the one before is being written.

Args:
    file: The file's descriptor.

Returns:
    The number of bytes.

Raises:
    OSError: The file cannot be written to.)");
}

}  // namespace kinetoscope
