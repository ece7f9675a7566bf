// How each phase of an event is taken: complete, instant, begin and end, asynchronous, flow, counter,
// metadata.
#include <algorithm>
#include <limits>

#include "chrome_events.h"
#include "json.h"
#include "json_scan.h"
#include "json_values.h"

namespace kinetoscope {
std::size_t ChromeSpanRows::bytes() const {
  return start_ns.bytes() + duration_ns.bytes() + name.bytes() + thread.bytes() + category.bytes() +
         kind.bytes() + flags.bytes() + correlation.bytes() + external_id.bytes() + sequence.bytes() +
         forward_number.bytes() + record_function.bytes() + shapes.bytes() + arguments.bytes() +
         call_stack.bytes() + device_index.bytes();
}

std::size_t ChromeKernelRows::bytes() const {
  return span.bytes() + grid_x.bytes() + grid_y.bytes() + grid_z.bytes() + block_x.bytes() + block_y.bytes() +
         block_z.bytes() + registers.bytes() + shared_bytes.bytes() + context.bytes() + graph.bytes() +
         graph_node.bytes() + blocks_per_sm.bytes() + warps_per_sm.bytes() + occupancy_percent.bytes();
}

std::size_t ChromeCopyRows::bytes() const {
  return span.bytes() + bytes_moved.bytes() + context.bytes() + graph.bytes() + graph_node.bytes();
}

std::size_t ChromeAllocationRows::bytes() const {
  return time_ns.bytes() + address.bytes() + bytes_taken.bytes() + freed_bytes.bytes() +
         allocated_bytes.bytes() + reserved_bytes.bytes() + thread.bytes() + device_type.bytes() +
         device_index.bytes();
}

std::size_t ChromeCounterRows::bytes() const { return time_ns.bytes() + name.bytes() + value.bytes(); }

std::size_t ChromeFlowRows::bytes() const {
  return time_ns.bytes() + id.bytes() + thread.bytes() + name.bytes() + category.bytes() + phase.bytes();
}

void ChromeEvents::take_complete(const ChromeEvent& event, Arguments& arguments) {
  int64_t start_ns = 0, duration_ns = 0;
  if (!time_of(event.time, start_ns)) return;
  uint8_t flags = 0;
  if (event.duration.empty()) {
    ++losses.missing_durations;
    flags = kFlagUnfinished;
  } else if (!time_of(event.duration, duration_ns)) {
    flags = kFlagUnfinished;
  } else if (duration_ns < 0) {
    ++losses.negative_durations;
    duration_ns = 0;
  }
  if (duration_ns > kLatestNs - std::max<int64_t>(start_ns, 0)) {
    ++losses.bad_times;
    duration_ns = 0;
  }
  if (event.category == "\"Trace\"") {
    // The time for which the profiler was on, on a track that is none of the program.
    scratch_.clear();
    append_unescaped(inside_quotes(event.name), scratch_);
    windows.push_back({scratch_, start_ns, duration_ns});
    return;
  }
  add_span(event, arguments, start_ns, duration_ns, flags);
}

void ChromeEvents::take_instant(const ChromeEvent& event, Arguments& arguments) {
  int64_t time_ns = 0;
  if (!time_of(event.time, time_ns)) return;
  const std::string_view name = inside_quotes(event.name);
  if (name == "[memory]") return take_allocation(event, arguments, time_ns);
  if (event.category.empty() && (name.starts_with("Iteration Start: ") || name == "Record Window End")) {
    windows.push_back({std::string(name), time_ns, 0});
    return;
  }
  add_span(event, arguments, time_ns, 0, kFlagInstant);
}

void ChromeEvents::take_allocation(const ChromeEvent& event, Arguments& arguments, int64_t time_ns) {
  const auto bytes = integer_of(arguments.peek(Argument::MemoryBytes));
  if (!bytes || *bytes == std::numeric_limits<int64_t>::min()) {
    ++losses.bad_memory_events;
    return;
  }
  const std::size_t row = allocations.rows++;
  allocations.time_ns.set(row, time_ns);
  allocations.thread.set(row, thread_row(event.process, event.thread, false));
  const std::string_view address = arguments.peek(Argument::Address);
  allocations.address.set(row, address.empty() ? 0 : static_cast<int64_t>(address_of(address).value_or(0)));
  allocations.bytes_taken.set(row, std::max<int64_t>(*bytes, 0));
  allocations.freed_bytes.set(row, std::max<int64_t>(-*bytes, 0));
  const auto integer = [&arguments](Argument which, int64_t none) {
    return arguments.has(which) ? integer_of(arguments.peek(which)).value_or(none) : none;
  };
  const int64_t type = integer(Argument::DeviceType, 0), index = integer(Argument::DeviceId, -1);
  allocations.device_type.set(row, static_cast<uint8_t>(type >= 0 && type < 256 ? type : 0));
  allocations.device_index.set(row, static_cast<int16_t>(index >= 0 && index < 128 ? index : -1));
  allocations.allocated_bytes.set(row, integer(Argument::TotalAllocated, -1));
  allocations.reserved_bytes.set(row, integer(Argument::TotalReserved, -1));
}

void ChromeEvents::take_counter(const ChromeEvent& event, Arguments& arguments) {
  int64_t time_ns = 0;
  if (!time_of(event.time, time_ns)) return;
  std::string series;
  arguments.append_rest(series);
  // The keys and values as they stand, one after the other; series of one event belong together.
  std::string text = series + "}";
  text.append(kScanPadding, '\0');
  const char* p = text.data();
  const char* const end = text.data() + text.size() - kScanPadding;
  std::string name;
  append_unescaped(inside_quotes(event.name), name);
  if (!event.id.empty()) {
    name += " [";
    append_unescaped(inside_quotes(event.id), name);
    name += "]";
  }
  std::vector<std::pair<std::string, double>> values;
  while (p < end && *p == '"') {
    bool escaped = false;
    const char* close = find_closing_quote(p + 1, end, escaped);
    if (close == nullptr) break;
    std::string key;
    append_unescaped({p + 1, static_cast<std::size_t>(close - p - 1)}, key);
    std::size_t depth = 0;
    const char* begin = close + 2;
    p = skip_value(begin, end, depth);
    if (p == nullptr) break;
    const auto value = real_of({begin, static_cast<std::size_t>(p - begin)});
    if (value) {
      values.emplace_back(std::move(key), *value);
    } else {
      ++losses.bad_events;
    }
    if (p < end && *p == ',') ++p;
  }
  for (const auto& [key, value] : values) {
    const std::size_t row = counters.rows++;
    counters.time_ns.set(row, time_ns);
    counters.name.set(row, strings.add(values.size() == 1 ? name : name + ": " + key));
    counters.value.set(row, value);
  }
}

void ChromeEvents::take_flow(const ChromeEvent& event) {
  const int16_t category = category_row(event.category);
  std::optional<int64_t> id = integer_of(event.id);
  // Kineto draws an arrow for each correlation, right behind the event that has the number itself.
  if (id && *id == last_correlation_ && category_[static_cast<std::size_t>(category)].is_flow_of_launch) {
    ++flows_implied;
    return;
  }
  int64_t time_ns = 0;
  if (!time_of(event.time, time_ns)) return;
  if (!id) {
    check_id(event.id);
    id = int64_t{1} << 62 | text_row(ids_, event.id);
  }
  const std::size_t row = flows.rows++;
  const char phase = inside_quotes(event.phase)[0];
  flows.phase.set(row, phase == 's' ? 0 : phase == 't' ? 1 : 2);
  flows.id.set(row, *id);
  flows.time_ns.set(row, time_ns);
  flows.thread.set(row, thread_of_flow(event));
  flows.name.set(row, text_row(strings, event.name));
  flows.category.set(row, text_row(strings, event.category));
}

int32_t ChromeEvents::thread_of_flow(const ChromeEvent& event) {
  // An arrow does not say whether its end is on a device; mostly the event before it stands there.
  if (last_thread_row_ >= 0 && event.thread == last_thread_ && event.process == last_process_)
    return last_thread_row_;
  scratch_.assign(event.process).append(1, kFieldEnd).append(event.thread).append(1, 'd');
  const int32_t on_device = raw_threads_.find(scratch_);
  if (on_device >= 0) return thread_of_raw_[static_cast<std::size_t>(on_device)];
  return thread_row(event.process, event.thread, false);
}

void ChromeEvents::take_begin(const ChromeEvent& event, Arguments& arguments) {
  int64_t start_ns = 0;
  if (!time_of(event.time, start_ns)) return;
  const int32_t row = add_span(event, arguments, start_ns, 0, kFlagUnfinished);
  if (row >= 0) open_[static_cast<int32_t>(spans.thread[static_cast<std::size_t>(row)])].push_back(row);
}

void ChromeEvents::end_span(int32_t span, int64_t end_ns) {
  const std::size_t row = static_cast<std::size_t>(span);
  int64_t duration_ns = 0;
  if (__builtin_sub_overflow(end_ns, spans.start_ns[row], &duration_ns) || duration_ns < 0) {
    ++losses.negative_durations;
    duration_ns = 0;
  }
  spans.duration_ns.set(row, duration_ns);
  spans.flags.set(row, static_cast<uint8_t>(spans.flags[row] & ~kFlagUnfinished));
  latest_ns_ = std::max(latest_ns_, end_ns);
}

void ChromeEvents::take_end(const ChromeEvent& event) {
  int64_t end_ns = 0;
  if (!time_of(event.time, end_ns)) return;
  auto found = open_.find(thread_row(event.process, event.thread, false));
  if (found == open_.end() || found->second.empty()) {
    ++losses.unmatched_ends;
    return;
  }
  end_span(found->second.back(), end_ns);
  found->second.pop_back();
}

ChromeEvents::AsyncKey ChromeEvents::async_key(const ChromeEvent& event) {
  if (!integer_of(event.id)) check_id(event.id);
  const int32_t process = text_row(ids_, event.process), id = text_row(ids_, event.id);
  const int32_t scope = text_row(ids_, event.scope.empty() ? event.category : event.scope);
  return {process, id, scope};
}

void ChromeEvents::take_async(const ChromeEvent& event, Arguments& arguments) {
  int64_t time_ns = 0;
  if (!time_of(event.time, time_ns)) return;
  const char phase = inside_quotes(event.phase)[0];
  if (phase == 'n') {
    add_span(event, arguments, time_ns, 0, kFlagInstant | kFlagAsync);
  } else if (phase == 'b' || phase == 'S') {
    const int32_t row = add_span(event, arguments, time_ns, 0, kFlagUnfinished | kFlagAsync);
    if (row >= 0) open_async_[async_key(event)].push_back(row);
  } else {
    auto found = open_async_.find(async_key(event));
    if (found == open_async_.end() || found->second.empty()) {
      ++losses.unmatched_ends;
      return;
    }
    end_span(found->second.back(), time_ns);
    found->second.pop_back();
    if (found->second.empty()) open_async_.erase(found);
  }
}

void ChromeEvents::take_metadata(const ChromeEvent& event, Arguments& arguments) {
  std::string_view track = event.thread;
  const auto process = integer_of(event.process), number = integer_of(track);
  if (process && number && lane_of_.size() + track_number_.size() < kMostNamedTracks) {
    if (const auto lane_of = integer_of(arguments.peek(Argument::LaneOf))) {
      lane_of_[{*process, *number}] = *lane_of;
      return;
    }
    if (const auto known = integer_of(arguments.peek(Argument::TrackNumber))) {
      track_number_[{*process, *number}] = *known;
      track = arguments.take(Argument::TrackNumber);
    }
  }
  scratch2_.clear();
  append_unescaped(inside_quotes(event.name), scratch2_);
  for (const std::string_view raw : {event.process, track}) {
    scratch2_ += kFieldEnd;
    scratch2_ += raw;
  }
  scratch2_ += kFieldEnd;
  std::string rest;
  arguments.append_rest(rest);
  scratch2_ += "{" + rest + "}";
  metadata.add(scratch2_);
}

void ChromeEvents::close() {
  const auto cut = [this](const std::vector<int32_t>& rows) {
    for (const int32_t row : rows) {
      ++losses.unfinished_begins;
      end_span(row, std::max(latest_ns_, spans.start_ns[static_cast<std::size_t>(row)]));
      const std::size_t at = static_cast<std::size_t>(row);
      spans.flags.set(at, static_cast<uint8_t>(spans.flags[at] | kFlagUnfinished));
    }
  };
  for (const auto& [thread, rows] : open_) cut(rows);
  for (const auto& [key, rows] : open_async_) cut(rows);
  open_.clear();
  open_async_.clear();
}

}  // namespace kinetoscope
