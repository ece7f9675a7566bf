#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <tuple>

#include "../chrome/writer.h"
#include "blocks.h"
#include "module.h"

namespace kinetoscope {
namespace {

using Columns = std::optional<nb::dict>;

// One table's columns by name; keeps their arrays alive.
class Arrays {
 public:
  // A column that must be there if the table is.
  template <typename T>
  std::span<const T> needed(const Columns& table, const char* name) {
    if (!table) return {};
    if (!table->contains(name)) throw nb::key_error(name);
    return taken<T>(nb::object((*table)[name]), name);
  }
  template <typename T>
  std::span<const T> optional(const Columns& table, const char* name) {
    return table && table->contains(name) ? taken<T>(nb::object((*table)[name]), name) : std::span<const T>{};
  }

 private:
  template <typename T>
  std::span<const T> taken(const nb::object& value, const char* name) {
    Array<T> array;
    if (!nb::try_cast(value, array, false)) {
      throw nb::type_error(
          ("ChromeWriter: " + std::string(name) + " must be a contiguous array of the column's type")
              .c_str());
    }
    auto& kept = std::get<std::vector<Array<T>>>(kept_);
    kept.push_back(array);
    return view(array);
  }

  std::tuple<std::vector<Array<int8_t>>, std::vector<Array<uint8_t>>, std::vector<Array<int32_t>>,
             std::vector<Array<int64_t>>, std::vector<Array<uint64_t>>, std::vector<Array<double>>>
      kept_;
};

ChromeColumns columns_of(Arrays& arrays, const Columns& spans, const Columns& kernels, const Columns& copies,
                         const Columns& flows, const Columns& allocations, const Columns& counters) {
  const auto i32 = [&](const Columns& table, const char* name) {
    return arrays.needed<int32_t>(table, name);
  };
  const auto i64 = [&](const Columns& table, const char* name) {
    return arrays.needed<int64_t>(table, name);
  };
  const auto u8 = [&](const Columns& table, const char* name) { return arrays.needed<uint8_t>(table, name); };
  const auto f64 = [&](const Columns& table, const char* name) { return arrays.needed<double>(table, name); };
  return {.spans = {.start_ns = i64(spans, "start_ns"),
                    .duration_ns = i64(spans, "duration_ns"),
                    .name = i32(spans, "name"),
                    .kind = u8(spans, "kind"),
                    .thread = i32(spans, "thread"),
                    .lane = i32(spans, "lane"),
                    .sequence = i64(spans, "sequence"),
                    .forward_thread = i32(spans, "forward_thread"),
                    .stack = i32(spans, "stack"),
                    .module = i32(spans, "module"),
                    .shapes = i32(spans, "shapes"),
                    .flags = u8(spans, "flags"),
                    .record_function = arrays.optional<int64_t>(spans, "record_function"),
                    .event_index = arrays.optional<int64_t>(spans, "event_index"),
                    .external_id = arrays.optional<int64_t>(spans, "external_id"),
                    .correlation = arrays.optional<int64_t>(spans, "correlation"),
                    .call_number = arrays.optional<int64_t>(spans, "call_number"),
                    .stream = arrays.optional<int32_t>(spans, "stream"),
                    .arguments = arrays.optional<int32_t>(spans, "arguments"),
                    .category = arrays.optional<int32_t>(spans, "category")},
          .kernels = {.span = i32(kernels, "span"),
                      .grid_x = i32(kernels, "grid_x"),
                      .grid_y = i32(kernels, "grid_y"),
                      .grid_z = i32(kernels, "grid_z"),
                      .block_x = i32(kernels, "block_x"),
                      .block_y = i32(kernels, "block_y"),
                      .block_z = i32(kernels, "block_z"),
                      .registers = i32(kernels, "registers"),
                      .shared_bytes = i64(kernels, "shared_bytes"),
                      .blocks_per_sm = f64(kernels, "blocks_per_sm"),
                      .warps_per_sm = f64(kernels, "warps_per_sm"),
                      .occupancy_percent = f64(kernels, "occupancy_percent"),
                      .context = i64(kernels, "context"),
                      .graph = i64(kernels, "graph"),
                      .graph_node = i64(kernels, "graph_node")},
          .copies = {.span = i32(copies, "span"),
                     .bytes = i64(copies, "bytes"),
                     .context = i64(copies, "context"),
                     .graph = i64(copies, "graph"),
                     .graph_node = i64(copies, "graph_node")},
          .flows = {.source = i32(flows, "source"),
                    .target = i32(flows, "target"),
                    .id = i64(flows, "id"),
                    .kind = u8(flows, "kind")},
          .allocations = {.time_ns = i64(allocations, "time_ns"),
                          .thread = i32(allocations, "thread"),
                          .address = arrays.needed<uint64_t>(allocations, "address"),
                          .bytes = i64(allocations, "bytes"),
                          .total_bytes = i64(allocations, "total_bytes"),
                          .reserved_bytes = i64(allocations, "reserved_bytes"),
                          .device_type = u8(allocations, "device_type"),
                          .device_index = arrays.needed<int8_t>(allocations, "device_index")},
          .counters = {.time_ns = i64(counters, "time_ns"),
                       .counter = i32(counters, "counter"),
                       .value = f64(counters, "value")}};
}

// The lists of texts of the tables, which are copied, since Python's are not UTF-8.
class Texts {
 public:
  explicit Texts(const nb::dict& tables) : tables_(tables) {}
  std::span<const std::string> operator()(const char* name) {
    if (!tables_.contains(name)) return {};
    kept_.push_back(std::make_unique<std::vector<std::string>>(to_utf8_list(tables_[name], name)));
    return *kept_.back();
  }

 private:
  const nb::dict& tables_;
  std::vector<std::unique_ptr<std::vector<std::string>>> kept_;
};

ChromeTables tables_of(Arrays& arrays, Texts& texts, const Columns& tables) {
  const auto i32 = [&](const char* name) { return arrays.optional<int32_t>(tables, name); };
  const auto i64 = [&](const char* name) { return arrays.optional<int64_t>(tables, name); };
  return {.strings = texts("strings"),
          .stack_parent = i32("stack_parent"),
          .stack_frame = i32("stack_frame"),
          .frame_function = i32("frame_function"),
          .frame_file = i32("frame_file"),
          .frame_line = i32("frame_line"),
          .module_path = texts("module_path"),
          .module_class = texts("module_class"),
          .module_number = i64("module_number"),
          .shape_dims = texts("shape_dims"),
          .shape_types = texts("shape_types"),
          .shape_concrete = texts("shape_concrete"),
          .shape_strides = texts("shape_strides"),
          .arguments = texts("arguments"),
          .categories = texts("categories"),
          .device_categories = texts("device_categories"),
          .traits = arrays.optional<uint8_t>(tables, "traits"),
          .flow_categories = texts("flow_categories"),
          .counter_name = texts("counter_name"),
          .counter_pid = i64("counter_pid"),
          .thread_torch_tid = i64("thread_torch_tid"),
          .thread_first_track = i32("thread_first_track"),
          .track_pid = i64("track_pid"),
          .track_tid = i64("track_tid"),
          .stream_device = i64("stream_device"),
          .stream_number = i64("stream_number")};
}

class PythonChromeWriter {
 public:
  PythonChromeWriter(const nb::dict& spans, const nb::dict& tables, const Columns& kernels,
                     const Columns& copies, const Columns& flows, const Columns& allocations,
                     const Columns& counters, int64_t base_ns, const nb::bytes& header,
                     const nb::bytes& footer, std::size_t block_bytes) {
    const ChromeColumns columns = columns_of(arrays_, spans, kernels, copies, flows, allocations, counters);
    Texts texts(tables);
    const ChromeTables made = tables_of(arrays_, texts, tables);
    std::string header_text(header.c_str(), header.size()), footer_text(footer.c_str(), footer.size());
    nb::gil_scoped_release released;
    writer_ = std::make_unique<ChromeWriter>(columns, made, base_ns, std::move(header_text),
                                             std::move(footer_text), block_bytes);
  }

  ChromeWriter& writer() { return *writer_; }

 private:
  Arrays arrays_;
  std::unique_ptr<ChromeWriter> writer_;
};

}  // namespace

void bind_chrome_writer(nb::module_& module) {
  using Writer = PythonChromeWriter;
  const auto table = [](const char* name) { return nb::arg(name).none() = nb::none(); };
  nb::class_<Writer> type(module, "ChromeWriter", nb::is_final(),
                          R"(Writes the events of a Chrome trace; iterating yields its bytes in blocks.

Each table is given as its columns by name, those of native/core/chrome_writer_columns.h. Rows point to each other by
number, -1 for none; names are indices of `strings`. A span's track is thread_first_track[thread] + lane, with
its process and number in track_pid and track_tid. Times are nanoseconds and are written as microseconds with
three decimals, base_ns + start_ns. `header` opens the file up to and with the "[" of the events and may hold
events of its own; `footer` closes it. Shape texts that are no JSON, and arguments that are no JSON objects, are
left out, and so are arguments under a key that the span already has from a column.

Raises:
    KeyError: A table lacks a column.
    TypeError: A column is not an array of its type.
    ValueError: Columns differ in length, or a thread, lane or kind has no track or category.)");
  type.def(
      nb::init<const nb::dict&, const nb::dict&, const Columns&, const Columns&, const Columns&,
               const Columns&, const Columns&, int64_t, const nb::bytes&, const nb::bytes&, std::size_t>(),
      nb::kw_only(), nb::arg("spans"), nb::arg("tables"), table("kernels"), table("copies"), table("flows"),
      table("allocations"), table("counters"), nb::arg("base_ns") = 0, nb::arg("header") = nb::bytes("", 0),
      nb::arg("footer") = nb::bytes("", 0), nb::arg("block_bytes") = 4 << 20);
  bind_blocks(type);
}

}  // namespace kinetoscope
