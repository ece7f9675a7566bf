// Converts a Chrome trace that was read to Python: dictionaries of arrays and texts.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <ranges>
#include <string>
#include <utility>

#include "../chrome/json_values.h"
#include "../chrome/order.h"
#include "../chrome/reader.h"
#include "module.h"

namespace kinetoscope {
namespace {

using Order = std::shared_ptr<const RowOrder>;

constexpr auto kAsTaken = [](auto value) { return value; };

// Columns of one table, as functions that make them whenever they are called. While a function for a column
// exists, the column is stored as it was read, which is a fraction of its size.
class LaterColumns {
 public:
  LaterColumns(std::size_t rows, Order order) : rows_(rows), order_(std::move(order)) {}

  // In the order of the trace.
  template <typename T, typename Growing, typename Meaning = decltype(kAsTaken)>
  void add(const char* name, Growing& taken, Meaning meaning = kAsTaken) {
    const auto held = std::make_shared<const Growing>(std::exchange(taken, Growing(taken.none())));
    made_[name] = nb::cpp_function([held, order = order_, rows = rows_, meaning]() {
      Column<T> made(rows);
      for (std::size_t row = 0; row < rows; ++row) {
        made[row] = static_cast<T>(meaning((*held)[static_cast<std::size_t>((*order)[row])]));
      }
      return to_array(std::move(made));
    });
  }
  // Drops columns that no row has.
  template <typename T, typename Growing>
  void add_unless_empty(const char* name, Growing& taken) {
    if (!taken.empty()) add<T>(name, taken);
  }
  // A column that is in the order of the trace already.
  void add_ordered(const char* name, PackedColumn&& taken) {
    const auto held = std::make_shared<const PackedColumn>(std::move(taken));
    made_[name] = nb::cpp_function([held, rows = rows_]() {
      Column<int32_t> made(rows);
      for (std::size_t row = 0; row < rows; ++row) made[row] = static_cast<int32_t>((*held)[row]);
      return to_array(std::move(made));
    });
  }
  // The functions, or their results.
  nb::dict made(bool later) {
    if (!later) {
      for (const auto [key, column] : nb::dict(made_)) made_[key] = column();
    }
    return made_;
  }

 private:
  std::size_t rows_;
  Order order_;
  nb::dict made_;
};

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
    nb::dict made, rows;
    made["last_ns"] = less(last_ns(taken), base_ns_);
    made["threads"] = threads(taken, order);
    rows["spans"] = taken.spans.rows;
    rows["allocations"] = taken.allocations.rows;
    rows["counters"] = taken.counters.rows;
    rows["flows"] = taken.flows.rows;
    // Before the spans, because they read these in the order of the file.
    if (taken.kernels.rows + taken.copies.rows > 0) {
      rows["kernels"] = taken.kernels.rows;
      rows["copies"] = taken.copies.rows;
      made["kernels"] = kernels(taken.kernels, taken, order, later);
      made["copies"] = copies(taken.copies, taken, order, later);
    }
    made["rows"] = rows;
    made["allocations"] = allocations(taken.allocations, order.thread_rows, later);
    made["counters"] = counters(taken.counters, later);
    made["flows"] = flows(taken.flows, order.thread_rows, later);
    made["flows_implied"] = taken.flows_implied;
    spans(taken, order, made, later);
    made["metadata"] = metadata(taken.metadata);
    made["shapes"] = shapes(taken);
    rows["arguments"] = taken.arguments.size();
    made["collective_arguments"] = taken.arguments.collectives();
    made["arguments"] = arguments(taken, later);
    made["strings"] = texts_of(taken.strings);
    made["categories"] = texts_of(taken.categories);
    made["call_stacks"] = texts_of(taken.call_stacks);
    nb::list header, windows;
    for (const auto& [key, value] : reader.header())
      header.append(nb::make_tuple(to_str(key), to_str(value)));
    for (const ChromeWindow& window : taken.windows) {
      windows.append(nb::make_tuple(
          to_str(window.name), less(window.start_ns, base_ns_), window.duration_ns,
          window.thread < 0 ? -1 : order.thread_rows[static_cast<std::size_t>(window.thread)]));
    }
    nb::list counter_processes;
    for (const std::string_view raw : taken.counter_processes.texts()) {
      int64_t number = -1;
      std::string text;
      identify(raw, number, text);
      counter_processes.append(nb::make_tuple(number, to_str(text)));
    }
    made["counter_processes"] = counter_processes;
    made["implausible"] = array_of(taken.implausible);
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

  // Of spans, allocations and counters; windows also contain what torch itself does at the end.
  int64_t last_ns(const ChromeEvents& taken) const {
    int64_t last = base_ns_;
    const ChromeSpanRows& spans = taken.spans;
    for (std::size_t row = 0; row < spans.rows; ++row) {
      last = std::max(last, spans.start_ns[row] + spans.duration_ns[row]);
    }
    const auto look = [&last](const PackedColumn& times_ns, std::size_t rows) {
      for (std::size_t row = 0; row < rows; ++row) last = std::max(last, times_ns[row]);
    };
    look(taken.allocations.time_ns, taken.allocations.rows);
    look(taken.counters.time_ns, taken.counters.rows);
    return last;
  }

  auto since_base() const {
    return [base_ns = base_ns_](int64_t time_ns) { return less(time_ns, base_ns); };
  }

  // The row of a thread among those of the trace.
  static auto row_in(const std::vector<int32_t>& thread_rows) {
    return [rows = std::make_shared<const std::vector<int32_t>>(thread_rows)](int64_t thread) {
      return (*rows)[static_cast<std::size_t>(thread)];
    };
  }

  void spans(ChromeEvents& taken, ChromeOrder& ordered, nb::dict& made, bool later) const {
    ChromeSpanRows& rows = taken.spans;
    ChromeStacks stacks;
    if (taken.has_python) stacks = stack_spans(rows, ordered);
    LaterColumns spans(rows.rows, std::make_shared<const RowOrder>(std::move(ordered.order)));
    if (taken.has_python) {
      spans.add_ordered("own_stack", std::move(stacks.own_stack));
      spans.add_ordered("own_module", std::move(stacks.own_module));
      nb::dict of_stacks, of_modules;
      of_stacks["parent"] = array_of(stacks.stack_parent);
      of_stacks["name"] = array_of(stacks.stack_name);
      of_modules["caller"] = array_of(stacks.module_caller);
      of_modules["name"] = array_of(stacks.module_name);
      made["stacks"] = of_stacks;
      made["modules"] = of_modules;
    }
    spans.add<int32_t>("thread", rows.thread, row_in(ordered.thread_rows));
    spans.add<int64_t>("start_ns", rows.start_ns, since_base());
    spans.add<int64_t>("duration_ns", rows.duration_ns);
    spans.add<int32_t>("name", rows.name);
    spans.add<uint8_t>("kind", rows.kind);
    spans.add<int32_t>("category", rows.category);
    spans.add<uint8_t>("flags", rows.flags);
    spans.add_unless_empty<int64_t>("correlation", rows.correlation);
    spans.add_unless_empty<int64_t>("external_id", rows.external_id);
    spans.add_unless_empty<int64_t>("sequence", rows.sequence);
    spans.add_unless_empty<int64_t>("forward_number", rows.forward_number);
    spans.add_unless_empty<int64_t>("record_function", rows.record_function);
    spans.add_unless_empty<int64_t>("event_index", rows.event_index);
    spans.add_unless_empty<int32_t>("shapes", rows.shapes);
    spans.add_unless_empty<int32_t>("arguments", rows.arguments);
    spans.add_unless_empty<int32_t>("call_stack", rows.call_stack);
    made["spans"] = spans.made(later);
  }

  // A table about device spans, in their order; `span` was added already. Rows refer to spans in the order of
  // the file, ascending.
  static LaterColumns about_spans(PackedColumn& taken_span, std::size_t rows, const ChromeEvents& taken,
                                  const ChromeOrder& order) {
    std::size_t first = order.rows();
    for (std::size_t thread = 0; thread < taken.threads.size(); ++thread) {
      if (taken.threads[thread].on_device) {
        first = std::min(first, order.first_rows[static_cast<std::size_t>(order.thread_rows[thread])]);
      }
    }
    RowOrder place;
    PackedColumn span{0};
    std::size_t at = 0;
    const auto every = std::views::iota(std::size_t{0}, rows);
    for (std::size_t row = first; row < order.rows(); ++row) {
      const int64_t wanted = order.order[row];
      const auto found = std::ranges::lower_bound(every, wanted, {},
                                                  [&taken_span](std::size_t one) { return taken_span[one]; });
      if (found == every.end() || taken_span[*found] != wanted) continue;
      place.append(static_cast<int64_t>(*found));
      span.set(at++, static_cast<int64_t>(row));
    }
    taken_span.clear();
    LaterColumns made(rows, std::make_shared<const RowOrder>(std::move(place)));
    made.add_ordered("span", std::move(span));
    return made;
  }

  static nb::dict kernels(ChromeKernelRows& rows, const ChromeEvents& taken, const ChromeOrder& order,
                          bool later) {
    LaterColumns made = about_spans(rows.span, rows.rows, taken, order);
    made.add_unless_empty<int32_t>("grid_x", rows.grid_x);
    made.add_unless_empty<int32_t>("grid_y", rows.grid_y);
    made.add_unless_empty<int32_t>("grid_z", rows.grid_z);
    made.add_unless_empty<int32_t>("block_x", rows.block_x);
    made.add_unless_empty<int32_t>("block_y", rows.block_y);
    made.add_unless_empty<int32_t>("block_z", rows.block_z);
    made.add_unless_empty<int32_t>("registers", rows.registers);
    made.add_unless_empty<int64_t>("shared_bytes", rows.shared_bytes);
    made.add_unless_empty<double>("blocks_per_sm", rows.blocks_per_sm);
    made.add_unless_empty<double>("warps_per_sm", rows.warps_per_sm);
    made.add_unless_empty<double>("occupancy_percent", rows.occupancy_percent);
    made.add_unless_empty<int64_t>("context", rows.context);
    made.add_unless_empty<int64_t>("graph", rows.graph);
    made.add_unless_empty<int64_t>("graph_node", rows.graph_node);
    return made.made(later);
  }

  static nb::dict copies(ChromeCopyRows& rows, const ChromeEvents& taken, const ChromeOrder& order,
                         bool later) {
    LaterColumns made = about_spans(rows.span, rows.rows, taken, order);
    made.add_unless_empty<int64_t>("bytes", rows.bytes_moved);
    made.add_unless_empty<int64_t>("context", rows.context);
    made.add_unless_empty<int64_t>("graph", rows.graph);
    made.add_unless_empty<int64_t>("graph_node", rows.graph_node);
    return made.made(later);
  }

  // A table in the order of time; `time_ns` was added already.
  LaterColumns by_time(PackedColumn& time_ns, std::size_t rows) const {
    RowOrder place;
    const auto time_of = [&time_ns](auto row) { return time_ns[static_cast<std::size_t>(row)]; };
    if (!std::ranges::is_sorted(std::views::iota(std::size_t{0}, rows), {}, time_of)) {
      Column<int32_t> order(rows);
      std::iota(order.data(), order.data() + rows, 0);
      std::stable_sort(order.data(), order.data() + rows,
                       [&time_of](int32_t left, int32_t right) { return time_of(left) < time_of(right); });
      for (std::size_t row = 0; row < rows; ++row) place.append(order[row]);
    }
    LaterColumns made(rows, std::make_shared<const RowOrder>(std::move(place)));
    made.add<int64_t>("time_ns", time_ns, since_base());
    return made;
  }

  nb::dict allocations(ChromeAllocationRows& rows, const std::vector<int32_t>& thread_rows,
                       bool later) const {
    LaterColumns made = by_time(rows.time_ns, rows.rows);
    made.add<int32_t>("thread", rows.thread, row_in(thread_rows));
    made.add<uint64_t>("address", rows.address);
    made.add<int64_t>("bytes", rows.bytes_taken);
    made.add<int64_t>("freed_bytes", rows.freed_bytes);
    made.add<uint8_t>("device_type", rows.device_type);
    made.add<int8_t>("device_index", rows.device_index);
    made.add_unless_empty<int64_t>("allocated_bytes", rows.allocated_bytes);
    made.add_unless_empty<int64_t>("reserved_bytes", rows.reserved_bytes);
    return made.made(later);
  }

  nb::dict counters(ChromeCounterRows& rows, bool later) const {
    LaterColumns made = by_time(rows.time_ns, rows.rows);
    made.add<int32_t>("name", rows.name);
    made.add<double>("value", rows.value);
    made.add<int32_t>("process", rows.process);
    return made.made(later);
  }

  nb::dict flows(ChromeFlowRows& rows, const std::vector<int32_t>& thread_rows, bool later) const {
    LaterColumns made = by_time(rows.time_ns, rows.rows);
    made.add<uint8_t>("phase", rows.phase);
    made.add<uint64_t>("id", rows.id);
    made.add<int32_t>("thread", rows.thread, row_in(thread_rows));
    made.add<int32_t>("name", rows.name);
    made.add<int32_t>("category", rows.category);
    return made.made(later);
  }

  static nb::dict threads(ChromeEvents& taken, const ChromeOrder& order) {
    const std::size_t rows = taken.threads.size();
    std::vector<const ChromeThread*> sorted(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      sorted[static_cast<std::size_t>(order.thread_rows[row])] = &taken.threads[row];
    }
    std::vector<int64_t> process, number, first_row;
    std::vector<int32_t> first_category, device_index;
    std::vector<uint8_t> on_device;
    nb::list process_text, number_text;
    for (std::size_t row = 0; row < rows; ++row) {
      const ChromeThread& thread = *sorted[row];
      process.push_back(thread.process);
      number.push_back(thread.number);
      on_device.push_back(thread.on_device ? 1 : 0);
      process_text.append(to_str(thread.process_text));
      number_text.append(to_str(thread.number_text));
      const std::size_t first = order.first_rows[row], after = order.first_rows[row + 1];
      const auto in_row = [&order](const PackedColumn& column, std::size_t at) {
        return static_cast<int32_t>(column[static_cast<std::size_t>(order.order[at])]);
      };
      first_category.push_back(first < after ? in_row(taken.spans.category, first) : -1);
      int32_t largest = -1;
      for (std::size_t at = first; thread.on_device && at < after; ++at) {
        largest = std::max(largest, in_row(taken.spans.device_index, at));
      }
      device_index.push_back(largest);
    }
    taken.spans.device_index.clear();
    for (const std::size_t first : order.first_rows) first_row.push_back(static_cast<int64_t>(first));
    nb::dict made;
    made["process"] = array_of(process);
    made["number"] = array_of(number);
    made["process_text"] = process_text;
    made["number_text"] = number_text;
    made["on_device"] = array_of(on_device);
    made["first_row"] = array_of(first_row);
    made["first_category"] = array_of(first_category);
    made["device_index"] = array_of(device_index);
    return made;
  }

  static nb::dict arguments(ChromeEvents& taken, bool later) {
    const auto held = std::make_shared<const ChromeArgumentTexts>(std::move(taken.arguments));
    const auto json = [held]() {
      nb::list texts;
      held->each_json([&texts](const std::string& json) { texts.append(to_str(json)); });
      return texts;
    };
    nb::dict made;
    made["json"] = later ? nb::object(nb::cpp_function(json)) : nb::object(json());
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
      int64_t process_number = -1, thread_number = -1;
      std::string process, thread;
      identify(fields[1], process_number, process);
      identify(fields[2], thread_number, thread);
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
    made["bad_texts"] = losses.bad_texts;
    made["implausible_durations"] = losses.implausible_durations;
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
