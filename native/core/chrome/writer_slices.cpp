// How ChromeWriter writes spans: their slices, the facts of a device about them, and the arrows between them.
#include <cmath>

#include "../recording/reader.h"
#include "writer.h"

namespace kinetoscope {
namespace {

// The size of a slice without its texts, with all numbers of a kernel; generous, and checked by the tests'
// shortest blocks.
constexpr std::size_t kSliceBytes = 1536;
constexpr std::size_t kFlowBytes = 256;

template <typename T>
T of_row(std::span<const T> column, std::size_t row, T none) {
  return column.empty() ? none : column[row];
}

template <std::size_t N>
void add_known(EventText& out, const char (&key)[N], int64_t value) {
  if (value < 0) return;
  out << key;
  out.number(value);
}

template <std::size_t N>
void add_known(EventText& out, const char (&key)[N], double value) {
  if (!std::isfinite(value) || value < 0) return;
  out << key;
  out.number(value);
}

template <std::size_t N>
void add_known(EventText& out, const char (&key)[N], int32_t x, int32_t y, int32_t z) {
  if (x < 0 && y < 0 && z < 0) return;
  out << key;
  out.number(int64_t{x}) << ",";
  out.number(int64_t{y}) << ",";
  out.number(int64_t{z}) << "]";
}

// Moves to the first entry of an ascending column that is not below `row`; returns whether it is `row`.
bool at_row(std::span<const int32_t> column, std::size_t& at, std::size_t row) {
  while (at < column.size() && column[at] < static_cast<int64_t>(row)) ++at;
  return at < column.size() && column[at] == static_cast<int64_t>(row);
}

}  // namespace

bool ChromeWriter::write_spans() {
  const std::size_t rows = columns_.spans.start_ns.size();
  for (; row_ < rows; ++row_) {
    if (!slice_written_ && !write_slice()) return false;
    slice_written_ = true;
    if (!write_flows()) return false;
    slice_written_ = false;
  }
  return true;
}

bool ChromeWriter::write_slice() {
  const ChromeSpans& spans = columns_.spans;
  const std::size_t row = row_;
  const bool on_device = of_row(spans.stream, row, -1) >= 0;
  const int32_t own_category = of_row(spans.category, row, 0);
  const std::string_view category = own_category > 0   ? texts_.names.of(own_category)
                                    : own_category < 0 ? std::string_view("")
                                    : on_device        ? texts_.device_categories[spans.kind[row]]
                                                       : texts_.categories[spans.kind[row]];
  const std::string_view name = texts_.names.of(spans.name[row]),
                         shapes = texts_.shapes.of(spans.shapes[row]),
                         module = texts_.modules.of(spans.module[row]),
                         stack = texts_.stacks.of(spans.stack[row]);
  // Shown where a module begins; inside, only the path is shown.
  const bool same_module =
      row > 0 && spans.module[row] == spans.module[row - 1] && spans.thread[row] == spans.thread[row - 1];
  const std::string_view type =
      same_module ? std::string_view("") : texts_.module_classes.of(spans.module[row]);
  const int32_t arguments = of_row(spans.arguments, row, -1);
  if (!has_room(category.size() + name.size() + shapes.size() + module.size() + type.size() + stack.size() +
                texts_.arguments.bytes_of(arguments) + kSliceBytes))
    return false;

  EventText out = begin_event();
  const bool instant = spans.flags[row] & kStateInstant;
  if (instant) {
    out << "{\"ph\":\"i\",\"s\":\"t\",";
  } else {
    out << "{\"ph\":\"X\",";
  }
  if (own_category >= 0) out << "\"cat\":\"" << category << "\",";
  out << "\"name\":\"" << name << "\"," << track_of_span(row) << ",\"ts\":";
  out.microseconds(chrome_time_ns(base_ns_, spans.start_ns[row]));
  if (!instant) {
    out << ",\"dur\":";
    out.microseconds(spans.duration_ns[row]);
  }
  out << ",\"args\":";
  char* const first = out.end();
  if (traits_[spans.kind[row]] & kChromeCall) write_call(out);
  write_numbers(out);
  if (on_device && at_row(columns_.kernels.span, kernel_, row)) write_kernel(out);
  if (on_device && at_row(columns_.copies.span, copy_, row)) write_copy(out);
  out << shapes << module << type;
  if (spans.flags[row] & kStateUnfinished) out << ",\"Unfinished\":true";
  if (spans.flags[row] & kStateBegunBefore) out << ",\"Begun before\":true";
  if (spans.flags[row] & kStateAsync) out << ",\"Asynchronous\":true";
  out << stack;
  const std::string_view written(first, static_cast<std::size_t>(out.end() - first));
  texts_.arguments.append(arguments, written, out);
  // Every member wrote a comma before itself.
  if (out.end() == first) {
    out << "{}}";
  } else {
    *first = '{';
    out << "}}";
  }
  end_event(out);
  return true;
}

void ChromeWriter::write_numbers(EventText& out) {
  const ChromeSpans& spans = columns_.spans;
  const std::size_t row = row_;
  const int32_t stream = of_row(spans.stream, row, -1);
  // If the source has no numbers, every span of the host except calls gets that of its row.
  if (!spans.external_id.empty()) {
    add_known(out, ",\"External id\":", spans.external_id[row]);
  } else if (stream < 0 && !(traits_[spans.kind[row]] & kChromeCall)) {
    out << ",\"External id\":";
    out.number(static_cast<uint64_t>(row) + 1);
  }
  add_known(out, ",\"Record function id\":", of_row(spans.record_function, row, int64_t{-1}));
  add_known(out, ",\"Ev Idx\":", of_row(spans.event_index, row, int64_t{-1}));
  if (spans.sequence[row] >= 0) {
    out << ",\"Sequence number\":";
    out.number(spans.sequence[row]) << texts_.torch_tids.of(spans.forward_thread[row]);
  }
  // A range that was marked on the host and is shown on a device as well has no stream: readers treat
  // everything with one as device work.
  if (!(traits_[spans.kind[row]] & kChromeRange)) out << texts_.streams.of(stream);
  add_known(out, ",\"correlation\":", of_row(spans.correlation, row, int64_t{-1}));
}

void ChromeWriter::write_call(EventText& out) {
  const ChromeSpans& spans = columns_.spans;
  const std::size_t row = row_;
  if (!calls_.empty() && spans.thread[calls_.back().row] != spans.thread[row]) calls_.clear();
  while (!calls_.empty() && calls_.back().end_ns <= spans.start_ns[row] &&
         spans.start_ns[calls_.back().row] < spans.start_ns[row])
    calls_.pop_back();
  const auto number = [&spans](std::size_t call) {
    return of_row(spans.call_number, call, static_cast<int64_t>(call) + 1);
  };
  out << ",\"Python parent id\":";
  if (calls_.empty()) {
    out << "null";
  } else {
    out.number(number(calls_.back().row));
  }
  out << ",\"Python id\":";
  out.number(number(row));
  if (traits_[spans.kind[row]] & kChromeModule) out << texts_.module_ordinals.of(spans.module[row]);
  if (spans.lane[row] == 0)
    calls_.push_back({chrome_time_ns(spans.start_ns[row], spans.duration_ns[row]), row});
}

void ChromeWriter::write_kernel(EventText& out) {
  const ChromeKernels& kernels = columns_.kernels;
  const std::size_t at = kernel_;
  add_known(out, ",\"context\":", kernels.context[at]);
  add_known(out, ",\"registers per thread\":", int64_t{kernels.registers[at]});
  add_known(out, ",\"shared memory\":", kernels.shared_bytes[at]);
  add_known(out, ",\"blocks per SM\":", kernels.blocks_per_sm[at]);
  add_known(out, ",\"warps per SM\":", kernels.warps_per_sm[at]);
  add_known(out, ",\"grid\":[", kernels.grid_x[at], kernels.grid_y[at], kernels.grid_z[at]);
  add_known(out, ",\"block\":[", kernels.block_x[at], kernels.block_y[at], kernels.block_z[at]);
  add_known(out, ",\"est. achieved occupancy %\":", kernels.occupancy_percent[at]);
  add_known(out, ",\"graph id\":", kernels.graph[at]);
  add_known(out, ",\"graph node id\":", kernels.graph_node[at]);
}

void ChromeWriter::write_copy(EventText& out) {
  const ChromeCopies& copies = columns_.copies;
  const std::size_t at = copy_;
  const int64_t duration_ns = columns_.spans.duration_ns[row_];
  add_known(out, ",\"context\":", copies.context[at]);
  add_known(out, ",\"bytes\":", copies.bytes[at]);
  if (copies.bytes[at] >= 0 && duration_ns > 0) {
    // One byte per nanosecond is one GB per second.
    add_known(out, ",\"memory bandwidth (GB/s)\":",
              static_cast<double>(copies.bytes[at]) / static_cast<double>(duration_ns));
  }
  add_known(out, ",\"graph id\":", copies.graph[at]);
  add_known(out, ",\"graph node id\":", copies.graph_node[at]);
}

bool ChromeWriter::write_flows() {
  const ChromeFlows& flows = columns_.flows;
  const auto row = static_cast<int32_t>(row_);
  for (; leaving_ < flows_by_source_.size() && flows.source[flows_by_source_[leaving_]] == row; ++leaving_) {
    if (!has_room(texts_.flow_categories[flows.kind[flows_by_source_[leaving_]]].size() * 2 + kFlowBytes))
      return false;
    write_flow(flows_by_source_[leaving_], false);
  }
  for (; arriving_ < flows_by_target_.size() && flows.target[flows_by_target_[arriving_]] == row;
       ++arriving_) {
    if (!has_room(texts_.flow_categories[flows.kind[flows_by_target_[arriving_]]].size() * 2 + kFlowBytes))
      return false;
    write_flow(flows_by_target_[arriving_], true);
  }
  return true;
}

void ChromeWriter::write_flow(std::size_t flow, bool arrives) {
  const std::string_view category = texts_.flow_categories[columns_.flows.kind[flow]];
  EventText out = begin_event();
  if (arrives) {
    out << "{\"ph\":\"f\",\"bp\":\"e\",\"id\":";
  } else {
    out << "{\"ph\":\"s\",\"id\":";
  }
  out.number(columns_.flows.id[flow]) << "," << track_of_span(row_) << ",\"ts\":";
  out.microseconds(chrome_time_ns(base_ns_, columns_.spans.start_ns[row_]))
      << ",\"cat\":\"" << category << "\",\"name\":\"" << category << "\"}";
  end_event(out);
}

}  // namespace kinetoscope
