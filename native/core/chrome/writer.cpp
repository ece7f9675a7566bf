#include "writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>

#include "../spans/nesting.h"

namespace kinetoscope {
namespace {

// The size of an instant or a sample without its texts; generous, and checked by the tests' shortest blocks.
constexpr std::size_t kEventBytes = 512;

// Whether an event after this text needs a comma first.
bool ends_with_value(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  return last != std::string_view::npos && text[last] != '[' && text[last] != ',';
}

void check_same(const char* table, std::size_t rows, std::initializer_list<std::size_t> sizes,
                std::initializer_list<std::size_t> optional_sizes = {}) {
  const auto fits = [rows](std::size_t size) { return size == rows; };
  const auto fits_or_none = [rows](std::size_t size) { return size == 0 || size == rows; };
  if (!std::all_of(sizes.begin(), sizes.end(), fits) ||
      !std::all_of(optional_sizes.begin(), optional_sizes.end(), fits_or_none))
    throw BadColumns("ChromeWriter: the columns of the " + std::string(table) + " have different lengths");
}

void check_rising(const char* table, std::span<const int32_t> span) {
  if (!std::is_sorted(span.begin(), span.end()))
    throw BadColumns("ChromeWriter: the " + std::string(table) + " are not sorted by span");
}

}  // namespace

int64_t chrome_time_ns(int64_t base_ns, int64_t time_ns) {
  int64_t sum;
  if (!__builtin_add_overflow(base_ns, time_ns, &sum)) return sum;
  return base_ns > 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

ChromeWriter::ChromeWriter(const ChromeColumns& columns, const ChromeTables& tables, int64_t base_ns,
                           std::string header, std::string footer, std::size_t block_bytes)
    : columns_(columns),
      texts_(columns.spans, tables),
      first_track_(tables.thread_first_track.begin(), tables.thread_first_track.end()),
      traits_(tables.traits.begin(), tables.traits.end()),
      base_ns_(base_ns),
      header_(std::move(header)),
      footer_(std::move(footer)),
      block_bytes_(block_bytes),
      comma_(ends_with_value(header_)) {
  check_lengths();
  check_tracks(tables);
  check_same("counter_name", tables.counter_name.size(), {tables.counter_pid.size()});
  for (const int64_t pid : tables.counter_pid)
    counter_places_.push_back(",\"pid\":" + std::to_string(pid) + ",\"tid\":0,\"ts\":");
  sort_flows();
}

void ChromeWriter::check_lengths() const {
  const ChromeSpans& spans = columns_.spans;
  check_same("spans", spans.start_ns.size(),
             {spans.duration_ns.size(), spans.name.size(), spans.kind.size(), spans.thread.size(),
              spans.lane.size(), spans.sequence.size(), spans.forward_thread.size(), spans.stack.size(),
              spans.module.size(), spans.shapes.size(), spans.flags.size()},
             {spans.record_function.size(), spans.event_index.size(), spans.external_id.size(),
              spans.correlation.size(), spans.call_number.size(), spans.stream.size(), spans.arguments.size(),
              spans.category.size()});
  const ChromeKernels& kernels = columns_.kernels;
  check_same(
      "kernels", kernels.span.size(),
      {kernels.grid_x.size(), kernels.grid_y.size(), kernels.grid_z.size(), kernels.block_x.size(),
       kernels.block_y.size(), kernels.block_z.size(), kernels.registers.size(), kernels.shared_bytes.size(),
       kernels.blocks_per_sm.size(), kernels.warps_per_sm.size(), kernels.occupancy_percent.size(),
       kernels.context.size(), kernels.graph.size(), kernels.graph_node.size()});
  check_rising("kernels", kernels.span);
  const ChromeCopies& copies = columns_.copies;
  check_same("copies", copies.span.size(),
             {copies.bytes.size(), copies.context.size(), copies.graph.size(), copies.graph_node.size()});
  check_rising("copies", copies.span);
  const ChromeFlows& flows = columns_.flows;
  check_same("flows", flows.source.size(), {flows.target.size(), flows.id.size(), flows.kind.size()});
  const ChromeAllocations& allocations = columns_.allocations;
  check_same("allocations", allocations.time_ns.size(),
             {allocations.thread.size(), allocations.address.size(), allocations.bytes.size(),
              allocations.total_bytes.size(), allocations.reserved_bytes.size(),
              allocations.device_type.size(), allocations.device_index.size()});
  const ChromeCounters& counters = columns_.counters;
  check_same("counters", counters.time_ns.size(), {counters.counter.size(), counters.value.size()});
}

void ChromeWriter::check_tracks(const ChromeTables& tables) const {
  const ChromeSpans& spans = columns_.spans;
  const std::size_t threads = first_track_.size(), tracks = texts_.tracks.size();
  const auto has_track = [&](int32_t thread, int32_t lane) {
    return static_cast<std::size_t>(thread) < threads && lane >= 0 && track_of(thread, lane) < tracks;
  };
  const std::size_t categories =
      std::min({tables.categories.size(), tables.device_categories.size(), tables.traits.size()});
  for (std::size_t row = 0; row < spans.start_ns.size(); ++row) {
    if (!has_track(spans.thread[row], spans.lane[row])) {
      throw BadColumns("ChromeWriter: span " + std::to_string(row) +
                       " is on a thread or lane without a track");
    }
    if (spans.kind[row] >= categories) {
      throw BadColumns("ChromeWriter: span " + std::to_string(row) + " has a kind without a category");
    }
  }
  for (const int32_t thread : columns_.allocations.thread) {
    if (!has_track(thread, 0)) throw BadColumns("ChromeWriter: an allocation is on a thread without a track");
  }
}

void ChromeWriter::sort_flows() {
  const ChromeFlows& flows = columns_.flows;
  const std::size_t spans = columns_.spans.start_ns.size();
  const auto exists = [spans](int32_t row) { return static_cast<std::size_t>(row) < spans; };
  for (std::size_t flow = 0; flow < flows.source.size(); ++flow) {
    if (exists(flows.source[flow]) && exists(flows.target[flow]) &&
        flows.kind[flow] < texts_.flow_categories.size())
      flows_by_source_.push_back(static_cast<uint32_t>(flow));
  }
  flows_by_target_ = flows_by_source_;
  const auto by = [](std::span<const int32_t> rows) {
    return [rows](uint32_t one, uint32_t other) { return rows[one] < rows[other]; };
  };
  std::stable_sort(flows_by_source_.begin(), flows_by_source_.end(), by(flows.source));
  std::stable_sort(flows_by_target_.begin(), flows_by_target_.end(), by(flows.target));
}

std::size_t ChromeWriter::track_of(int32_t thread, int32_t lane) const {
  return static_cast<std::size_t>(int64_t{first_track_[static_cast<std::size_t>(thread)]} + lane);
}

std::string_view ChromeWriter::track_of_span(std::size_t row) const {
  return texts_.tracks[track_of(columns_.spans.thread[row], columns_.spans.lane[row])];
}

bool ChromeWriter::has_room(std::size_t bytes) {
  if (used_ + bytes <= block_.size()) return true;
  if (used_ > 0) return false;
  block_ = Column<char>(std::max(bytes, block_bytes_));
  return true;
}

EventText ChromeWriter::begin_event() {
  EventText out(block_.data() + used_);
  if (comma_) out << ",\n";
  comma_ = true;
  return out;
}

void ChromeWriter::end_event(const EventText& out) {
  used_ = static_cast<std::size_t>(out.end() - block_.data());
}

bool ChromeWriter::write_allocations() {
  const ChromeAllocations& blocks = columns_.allocations;
  for (; row_ < blocks.time_ns.size(); ++row_) {
    if (!has_room(kEventBytes)) return false;
    EventText out = begin_event();
    out << "{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"cpu_instant_event\",\"name\":\"[memory]\","
        << texts_.tracks[track_of(blocks.thread[row_], 0)] << ",\"ts\":";
    out.microseconds(chrome_time_ns(base_ns_, blocks.time_ns[row_])) << ",\"args\":{";
    if (blocks.reserved_bytes[row_] >= 0) {
      out << "\"Total Reserved\":";
      out.number(blocks.reserved_bytes[row_]) << ",";
    }
    if (blocks.total_bytes[row_] >= 0) {
      out << "\"Total Allocated\":";
      out.number(blocks.total_bytes[row_]) << ",";
    }
    out << "\"Bytes\":";
    out.number(blocks.bytes[row_]);
    if (blocks.address[row_] != 0) {
      out << ",\"Addr\":";
      out.number(blocks.address[row_]);
    }
    out << ",\"Device Id\":";
    out.number(int64_t{blocks.device_index[row_]}) << ",\"Device Type\":";
    out.number(int64_t{blocks.device_type[row_]}) << "}}";
    end_event(out);
  }
  return true;
}

bool ChromeWriter::write_counters() {
  const ChromeCounters& counters = columns_.counters;
  for (; row_ < counters.time_ns.size(); ++row_) {
    const int32_t counter = counters.counter[row_];
    const std::string_view opening = texts_.counter_openings.of(counter);
    if (opening.empty() || !std::isfinite(counters.value[row_])) continue;
    if (!has_room(opening.size() + kEventBytes)) return false;
    EventText out = begin_event();
    out << opening;
    out.number(counters.value[row_]) << "}" << counter_places_[static_cast<std::size_t>(counter)];
    out.microseconds(chrome_time_ns(base_ns_, counters.time_ns[row_])) << "}";
    end_event(out);
  }
  return true;
}

std::string_view ChromeWriter::next_block() {
  used_ = 0;
  while (part_ != Part::Done) {
    if (part_ == Part::Header || part_ == Part::Footer) {
      const std::string& text = part_ == Part::Header ? header_ : footer_;
      if (!has_room(text.size())) break;
      std::memcpy(block_.data() + used_, text.data(), text.size());
      used_ += text.size();
    } else if (!(part_ == Part::Spans         ? write_spans()
                 : part_ == Part::Allocations ? write_allocations()
                                              : write_counters())) {
      break;
    }
    part_ = static_cast<Part>(static_cast<int>(part_) + 1);
    row_ = 0;
  }
  return {block_.data(), used_};
}

}  // namespace kinetoscope
