// What a read Chrome trace is for Python: dictionaries of arrays and texts.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "chrome_order.h"
#include "chrome_reader.h"
#include "json_values.h"
#include "module.h"

namespace kinetoscope {
namespace {

template <typename T, typename Growing>
nb::object column_of(Growing& growing, std::span<const int32_t> order) {
  Column<T> made = gathered<T>(growing, order);
  growing.clear();
  return nb::cast(to_array(std::move(made)));
}

// Leaves out what no row has.
template <typename T, typename Growing>
void add_unless_empty(nb::dict& to, const char* name, Growing& growing, std::span<const int32_t> order) {
  if (!growing.empty()) to[name] = column_of<T>(growing, order);
}

// A function that makes a column of spans, in the order of the trace, whenever it is called. Until the last
// of these functions is gone the column stays as it was taken, which is a fraction of its size.
template <typename T, typename Growing, typename Meaning>
nb::object later_column(Growing&& taken, const std::shared_ptr<const ChromeOrder>& order, Meaning meaning) {
  const auto held = std::make_shared<const Growing>(std::move(taken));
  return nb::cpp_function([held, order, meaning]() {
    Column<T> made(order->order.size());
    for (std::size_t row = 0; row < made.size(); ++row) {
      made[row] = static_cast<T>(meaning((*held)[static_cast<std::size_t>(order->order[row])]));
    }
    return to_array(std::move(made));
  });
}

// The same for a column that is in the order of the trace already.
nb::object later_column(NarrowColumn&& taken, std::size_t rows) {
  const auto held = std::make_shared<const NarrowColumn>(std::move(taken));
  return nb::cpp_function([held, rows]() {
    Column<int32_t> made(rows);
    for (std::size_t row = 0; row < rows; ++row) made[row] = static_cast<int32_t>((*held)[row]);
    return to_array(std::move(made));
  });
}

constexpr auto kAsTaken = [](auto value) { return value; };

template <typename T>
nb::object array_of(const std::vector<T>& values) {
  Column<T> made(values.size());
  std::copy(values.begin(), values.end(), made.data());
  return nb::cast(to_array(std::move(made)));
}

nb::list texts_of(const TextTable& table) { return to_str_list(table.texts()); }

int64_t less(int64_t time_ns, int64_t base_ns) {
  int64_t difference;
  return __builtin_sub_overflow(time_ns, base_ns, &difference) ? INT64_MAX : difference;
}

class ChromeParts {
 public:
  nb::dict made_of(ChromeReader& reader, ChromeOrder& order, bool later) {
    ChromeEvents& taken = reader.taken();
    base_ns_ = first_ns(taken);
    nb::dict made;
    // Before the spans are put in order, since they refer to them as they were taken.
    std::vector<int32_t> row_of(taken.spans.rows);
    if (taken.kernels.rows + taken.copies.rows > 0) {
      for (std::size_t row = 0; row < order.order.size(); ++row) {
        row_of[static_cast<std::size_t>(order.order[row])] = static_cast<int32_t>(row);
      }
      made["kernels"] = kernels(taken.kernels, row_of);
      made["copies"] = copies(taken.copies, row_of);
    }
    row_of = {};
    made["allocations"] = allocations(taken.allocations, order.thread_rows);
    made["counters"] = counters(taken.counters);
    made["flows"] = flows(taken.flows, order.thread_rows);
    made["flows_implied"] = taken.flows_implied;
    made["threads"] = threads(taken, order.thread_rows);
    spans(taken, order, made, later);
    made["metadata"] = metadata(taken.metadata);
    made["shapes"] = shapes(taken);
    nb::dict arguments;
    arguments["json"] = texts_of(taken.argument_texts);
    made["arguments"] = arguments;
    made["strings"] = texts_of(taken.strings);
    made["categories"] = texts_of(taken.categories);
    made["call_stacks"] = texts_of(taken.call_stacks);
    nb::list header, windows;
    for (const auto& [key, value] : reader.header())
      header.append(nb::make_tuple(to_str(key), to_str(value)));
    for (const ChromeWindow& window : taken.windows) {
      windows.append(
          nb::make_tuple(to_str(window.name), less(window.start_ns, base_ns_), window.duration_ns));
    }
    made["header"] = header;
    made["windows"] = windows;
    made["base_ns"] = base_ns_;
    made["events"] = reader.events();
    made["losses"] = losses(taken.losses);
    return made;
  }

 private:
  static int64_t first_ns(const ChromeEvents& taken) {
    int64_t first = INT64_MAX;
    const auto look = [&first](const auto& column, std::size_t rows) {
      for (std::size_t row = 0; row < rows; ++row) first = std::min(first, column[row]);
    };
    look(taken.spans.start_ns, taken.spans.rows);
    look(taken.allocations.time_ns, taken.allocations.rows);
    look(taken.counters.time_ns, taken.counters.rows);
    look(taken.flows.time_ns, taken.flows.rows);
    for (const ChromeWindow& window : taken.windows) first = std::min(first, window.start_ns);
    return first == INT64_MAX ? 0 : first;
  }

  template <typename Growing>
  Column<int64_t> times(Growing& growing, std::span<const int32_t> order) const {
    Column<int64_t> made = gathered<int64_t>(growing, order);
    growing.clear();
    for (std::size_t row = 0; row < made.size(); ++row) made[row] = less(made[row], base_ns_);
    return made;
  }

  void spans(ChromeEvents& taken, ChromeOrder& ordered, nb::dict& made, bool later) const {
    ChromeSpanRows& rows = taken.spans;
    const auto order = std::make_shared<const ChromeOrder>(std::move(ordered));
    nb::dict spans;
    int64_t last_ns = base_ns_;
    for (std::size_t row = 0; row < rows.rows; ++row) {
      last_ns = std::max(last_ns, rows.start_ns[row] + rows.duration_ns[row]);
    }
    made["last_ns"] = less(last_ns, base_ns_);
    made["span_rows"] = rows.rows;
    if (taken.has_python) {
      ChromeStacks stacks = stack_spans(rows, *order);
      spans["own_stack"] = later_column(std::move(stacks.own_stack), rows.rows);
      spans["own_module"] = later_column(std::move(stacks.own_module), rows.rows);
      nb::dict of_stacks, of_modules;
      of_stacks["parent"] = array_of(stacks.stack_parent);
      of_stacks["name"] = array_of(stacks.stack_name);
      of_modules["caller"] = array_of(stacks.module_caller);
      of_modules["name"] = array_of(stacks.module_name);
      made["stacks"] = of_stacks;
      made["modules"] = of_modules;
    }
    const ChromeOrder& by = *order;
    spans["thread"] = later_column<int32_t>(std::move(rows.thread), order, [&by](int64_t thread) {
      return by.thread_rows[static_cast<std::size_t>(thread)];
    });
    spans["start_ns"] =
        later_column<int64_t>(std::move(rows.start_ns), order,
                              [base_ns = base_ns_](int64_t time_ns) { return less(time_ns, base_ns); });
    spans["duration_ns"] = later_column<int64_t>(std::move(rows.duration_ns), order, kAsTaken);
    spans["name"] = later_column<int32_t>(std::move(rows.name), order, kAsTaken);
    spans["kind"] = later_column<uint8_t>(std::move(rows.kind), order, kAsTaken);
    spans["category"] = later_column<int32_t>(std::move(rows.category), order, kAsTaken);
    spans["flags"] = later_column<uint8_t>(std::move(rows.flags), order, kAsTaken);
    const auto number = [&spans, &order]<typename T>(const char* name, NarrowColumn& column, T) {
      if (!column.empty()) spans[name] = later_column<T>(std::move(column), order, kAsTaken);
    };
    number("correlation", rows.correlation, int64_t{});
    number("external_id", rows.external_id, int64_t{});
    number("sequence", rows.sequence, int64_t{});
    number("forward_number", rows.forward_number, int64_t{});
    number("record_function", rows.record_function, int64_t{});
    number("shapes", rows.shapes, int32_t{});
    number("arguments", rows.arguments, int32_t{});
    number("call_stack", rows.call_stack, int32_t{});
    number("device_index", rows.device_index, int32_t{});
    if (!later) {
      for (const auto [key, column] : nb::dict(spans)) spans[key] = column();
    }
    made["spans"] = spans;
  }

  // The rows of a table about spans in the order of these, and what `span` is then.
  template <typename Rows>
  static Column<int32_t> by_span(Rows& rows, const std::vector<int32_t>& row_of, nb::dict& made) {
    Column<int32_t> order(rows.rows), span(rows.rows);
    for (std::size_t row = 0; row < rows.rows; ++row) order[row] = static_cast<int32_t>(row);
    const auto place = [&rows, &row_of](int32_t row) {
      return row_of[static_cast<std::size_t>(rows.span[static_cast<std::size_t>(row)])];
    };
    std::sort(order.data(), order.data() + order.size(),
              [&place](int32_t left, int32_t right) { return place(left) < place(right); });
    for (std::size_t row = 0; row < rows.rows; ++row) span[row] = place(order[row]);
    made["span"] = to_array(std::move(span));
    return order;
  }

  static nb::dict kernels(ChromeKernelRows& rows, const std::vector<int32_t>& row_of) {
    nb::dict made;
    const Column<int32_t> order = by_span(rows, row_of, made);
    add_unless_empty<int32_t>(made, "grid_x", rows.grid_x, order);
    add_unless_empty<int32_t>(made, "grid_y", rows.grid_y, order);
    add_unless_empty<int32_t>(made, "grid_z", rows.grid_z, order);
    add_unless_empty<int32_t>(made, "block_x", rows.block_x, order);
    add_unless_empty<int32_t>(made, "block_y", rows.block_y, order);
    add_unless_empty<int32_t>(made, "block_z", rows.block_z, order);
    add_unless_empty<int32_t>(made, "registers", rows.registers, order);
    add_unless_empty<int64_t>(made, "shared_bytes", rows.shared_bytes, order);
    add_unless_empty<double>(made, "blocks_per_sm", rows.blocks_per_sm, order);
    add_unless_empty<double>(made, "warps_per_sm", rows.warps_per_sm, order);
    add_unless_empty<double>(made, "occupancy_percent", rows.occupancy_percent, order);
    add_unless_empty<int64_t>(made, "context", rows.context, order);
    add_unless_empty<int64_t>(made, "graph", rows.graph, order);
    add_unless_empty<int64_t>(made, "graph_node", rows.graph_node, order);
    return made;
  }

  static nb::dict copies(ChromeCopyRows& rows, const std::vector<int32_t>& row_of) {
    nb::dict made;
    const Column<int32_t> order = by_span(rows, row_of, made);
    add_unless_empty<int64_t>(made, "bytes", rows.bytes_moved, order);
    add_unless_empty<int64_t>(made, "context", rows.context, order);
    add_unless_empty<int64_t>(made, "graph", rows.graph, order);
    add_unless_empty<int64_t>(made, "graph_node", rows.graph_node, order);
    return made;
  }

  static Column<int32_t> by_time(const NarrowColumn& time_ns, std::size_t rows) {
    Column<int32_t> order(rows);
    for (std::size_t row = 0; row < rows; ++row) order[row] = static_cast<int32_t>(row);
    std::stable_sort(order.data(), order.data() + rows, [&time_ns](int32_t left, int32_t right) {
      return time_ns[static_cast<std::size_t>(left)] < time_ns[static_cast<std::size_t>(right)];
    });
    return order;
  }

  static nb::object threads_of(NarrowColumn& growing, std::span<const int32_t> order,
                               const std::vector<int32_t>& thread_rows) {
    Column<int32_t> made = gathered<int32_t>(growing, order);
    growing.clear();
    for (std::size_t row = 0; row < made.size(); ++row)
      made[row] = thread_rows[static_cast<std::size_t>(made[row])];
    return nb::cast(to_array(std::move(made)));
  }

  nb::dict allocations(ChromeAllocationRows& rows, const std::vector<int32_t>& thread_rows) const {
    nb::dict made;
    const Column<int32_t> order = by_time(rows.time_ns, rows.rows);
    made["time_ns"] = to_array(times(rows.time_ns, order));
    made["thread"] = threads_of(rows.thread, order, thread_rows);
    made["address"] = column_of<uint64_t>(rows.address, order);
    made["bytes"] = column_of<int64_t>(rows.bytes_taken, order);
    made["freed_bytes"] = column_of<int64_t>(rows.freed_bytes, order);
    made["device_type"] = column_of<uint8_t>(rows.device_type, order);
    made["device_index"] = column_of<int8_t>(rows.device_index, order);
    add_unless_empty<int64_t>(made, "allocated_bytes", rows.allocated_bytes, order);
    add_unless_empty<int64_t>(made, "reserved_bytes", rows.reserved_bytes, order);
    return made;
  }

  nb::dict counters(ChromeCounterRows& rows) const {
    nb::dict made;
    const Column<int32_t> order = by_time(rows.time_ns, rows.rows);
    made["time_ns"] = to_array(times(rows.time_ns, order));
    made["name"] = column_of<int32_t>(rows.name, order);
    made["value"] = column_of<double>(rows.value, order);
    return made;
  }

  nb::dict flows(ChromeFlowRows& rows, const std::vector<int32_t>& thread_rows) const {
    nb::dict made;
    const Column<int32_t> order = by_time(rows.time_ns, rows.rows);
    made["time_ns"] = to_array(times(rows.time_ns, order));
    made["phase"] = column_of<uint8_t>(rows.phase, order);
    made["id"] = column_of<uint64_t>(rows.id, order);
    made["thread"] = threads_of(rows.thread, order, thread_rows);
    made["name"] = column_of<int32_t>(rows.name, order);
    made["category"] = column_of<int32_t>(rows.category, order);
    return made;
  }

  static nb::dict threads(const ChromeEvents& taken, const std::vector<int32_t>& thread_rows) {
    const std::size_t rows = taken.threads.size();
    std::vector<const ChromeThread*> sorted(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      sorted[static_cast<std::size_t>(thread_rows[row])] = &taken.threads[row];
    }
    std::vector<int64_t> process, number;
    std::vector<uint8_t> on_device;
    nb::list process_text, number_text;
    for (const ChromeThread* thread : sorted) {
      process.push_back(thread->process);
      number.push_back(thread->number);
      on_device.push_back(thread->on_device ? 1 : 0);
      process_text.append(to_str(thread->process_text));
      number_text.append(to_str(thread->number_text));
    }
    nb::dict made;
    made["process"] = array_of(process);
    made["number"] = array_of(number);
    made["process_text"] = process_text;
    made["number_text"] = number_text;
    made["on_device"] = array_of(on_device);
    return made;
  }

  static nb::list metadata(const TextTable& table) {
    nb::list made;
    for (const std::string_view text : table.texts()) {
      std::vector<std::string_view> fields;
      for (std::size_t at = 0; fields.size() < 3;) {
        const std::size_t stop = text.find(ChromeEvents::kFieldEnd, at);
        fields.push_back(text.substr(at, stop == std::string_view::npos ? stop : stop - at));
        at = stop == std::string_view::npos ? text.size() : stop + 1;
      }
      const std::size_t used = fields[0].size() + fields[1].size() + fields[2].size() + 3;
      std::string process, thread;
      const auto number = [](std::string_view raw, std::string& quoted) {
        const auto value = raw.empty() ? std::nullopt : integer_of(raw);
        const std::string_view inside = inside_quotes(raw);
        // What has no quotes and is no number, such as null, names nothing.
        if (!value && inside.size() < raw.size()) append_unescaped(inside, quoted);
        return value.value_or(-1);
      };
      const int64_t process_number = number(fields[1], process), thread_number = number(fields[2], thread);
      made.append(nb::make_tuple(to_str(fields[0]), process_number, thread_number,
                                 to_str(used <= text.size() ? text.substr(used) : std::string_view("{}")),
                                 to_str(process), to_str(thread)));
    }
    return made;
  }

  static nb::dict shapes(const ChromeEvents& taken) {
    nb::list columns[4];
    for (const std::string_view row : taken.shape_rows.texts()) {
      int32_t parts[4];
      std::memcpy(parts, row.data(), sizeof parts);
      for (std::size_t part = 0; part < 4; ++part)
        columns[part].append(to_str(taken.shape_texts[parts[part]]));
    }
    nb::dict made;
    made["dims"] = columns[0];
    made["types"] = columns[1];
    made["concrete"] = columns[2];
    made["strides"] = columns[3];
    return made;
  }

  static nb::dict losses(const ChromeLosses& losses) {
    nb::dict made;
    made["truncated_file"] = losses.truncated;
    made["bad_events"] = losses.bad_events;
    made["bad_header"] = losses.bad_header;
    made["bad_times"] = losses.bad_times;
    made["bad_arguments"] = losses.bad_arguments;
    made["bad_ids"] = losses.bad_ids;
    made["repeated_lists"] = losses.repeated_lists;
    made["bad_memory_events"] = losses.bad_memory_events;
    made["negative_durations"] = losses.negative_durations;
    made["missing_durations"] = losses.missing_durations;
    made["unmatched_ends"] = losses.unmatched_ends;
    made["unfinished_begins"] = losses.unfinished_begins;
    made["too_deep"] = losses.too_deep;
    made["oversized_values"] = losses.oversized_values;
    made["ignored_events"] = losses.ignored_events;
    made["text_after_end"] = losses.text_after_end;
    made["beyond_memory_limit"] = losses.beyond_memory_limit;
    return made;
  }

  int64_t base_ns_ = 0;
};

}  // namespace

nb::dict chrome_parts(ChromeReader& reader, ChromeOrder& order, bool later) {
  return ChromeParts().made_of(reader, order, later);
}

}  // namespace kinetoscope
