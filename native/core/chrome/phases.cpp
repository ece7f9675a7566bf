// How each phase of an event is converted: complete, instant, begin and end, asynchronous, flow, counter,
// metadata.
#include <algorithm>
#include <limits>
#include <tuple>

#include "events.h"
#include "json.h"
#include "json_scan.h"
#include "json_values.h"

namespace kinetoscope {
std::size_t ChromeSpanRows::bytes() const {
  return start_ns.bytes() + duration_ns.bytes() + name.bytes() + thread.bytes() + category.bytes() +
         kind.bytes() + flags.bytes() + correlation.bytes() + external_id.bytes() + sequence.bytes() +
         forward_number.bytes() + record_function.bytes() + event_index.bytes() + shapes.bytes() +
         arguments.bytes() + call_stack.bytes() + device_index.bytes();
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

std::size_t ChromeCounterRows::bytes() const {
  return time_ns.bytes() + name.bytes() + process.bytes() + value.bytes();
}

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
    // The time for which the profiler was on, on a track that does not belong to the program.
    scratch_.clear();
    append_unescaped(inside_quotes(event.name), scratch_);
    windows.push_back({scratch_, start_ns, duration_ns, last_host_thread_});
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
    windows.push_back({std::string(name), time_ns, 0, last_host_thread_});
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
  // The raw keys and values, one after the other; series of one event belong together.
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
  const int32_t process = counter_processes.add(event.process);
  for (const auto& [key, value] : values) {
    const std::size_t row = counters.rows++;
    counters.time_ns.set(row, time_ns);
    bool fresh = false;
    const std::string full = values.size() == 1 ? name : name + ": " + key;
    counters.name.set(row, strings.add(full, &fresh));
    if (fresh && has_damage(full)) ++losses.bad_texts;
    counters.process.set(row, process);
    counters.value.set(row, value);
  }
}

void ChromeEvents::take_flow(const ChromeEvent& event) {
  const int16_t category = category_row(event.category);
  std::optional<int64_t> id = integer_of(event.id);
  // Kineto draws an arrow for each correlation, right after the event that has the number itself.
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
  // An arrow does not say whether its end is on a device; usually the event before it is at that place.
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
  const int32_t span = add_span(event, arguments, start_ns, 0, kFlagUnfinished);
  if (span >= 0) begin_span(track_of(event), span);
}

void ChromeEvents::take_end(const ChromeEvent& event) {
  int64_t end_ns = 0;
  if (time_of(event.time, end_ns)) end_innermost(track_of(event), event.name, end_ns, true);
}

// Whether it is a thread or a stream; an end event does not say.
int32_t ChromeEvents::track_of(const ChromeEvent& event) {
  scratch_.assign(event.process).append(1, kFieldEnd).append(event.thread);
  return ids_.add(scratch_);
}

int32_t ChromeEvents::operation_of(const ChromeEvent& event) {
  if (!integer_of(event.id)) check_id(event.id);
  scratch_.assign(event.process).append(1, kFieldEnd).append(event.id).append(1, kFieldEnd);
  scratch_ += event.scope.empty() ? event.category : event.scope;
  return ids_.add(scratch_);
}

void ChromeEvents::begin_span(int32_t owner, int32_t span) {
  const int64_t start_ns = spans.start_ns[static_cast<std::size_t>(span)];
  OpenSpans& open = open_[owner];
  if (start_ns < open.last_ns) disordered_.insert(owner);
  open.last_ns = start_ns;
  open.rows.push_back(span);
  ends_.owner.set(ends_.rows, owner);
  ends_.span.set(ends_.rows++, int64_t{span} * 2);
}

void ChromeEvents::end_innermost(int32_t owner, std::string_view raw_name, int64_t end_ns, bool is_track) {
  const int32_t name = inside_quotes(raw_name).empty() ? -1 : text_row(strings, raw_name);
  const std::size_t row = ends_.rows++;
  ends_.owner.set(row, owner);
  latest_ns_ = std::max(latest_ns_, end_ns);
  const auto keep_unmatched = [&] {
    ends_.name.set(row, name);
    ends_.time_ns.set(row, end_ns);
  };
  if (disordered_.contains(owner)) return keep_unmatched();
  OpenSpans& open = open_[owner];
  if (end_ns < open.last_ns) {
    disordered_.insert(owner);
    return keep_unmatched();
  }
  open.last_ns = end_ns;
  const auto ended = innermost(open.rows, name);
  if (ended == open.rows.end()) {
    open.has_unmatched_ends = true;
    return keep_unmatched();
  }
  ends_.span.set(row, int64_t{*ended} * 2 + 1);
  if (name < 0) ends_.name.set(row, name);
  end_span(*ended, end_ns);
  open.rows.erase(ended);
  // Without names, a pair that stands alone belongs together, whatever follows. There are few tracks, but
  // many operations.
  if (open.rows.empty() && !open.has_unmatched_ends && (name < 0 || !is_track)) open_.erase(owner);
}

std::vector<int32_t>::iterator ChromeEvents::innermost(std::vector<int32_t>& open, int32_t name) const {
  if (name < 0) return open.empty() ? open.end() : open.end() - 1;
  const auto first = std::ssize(open) > kMostLookedThrough ? open.end() - kMostLookedThrough : open.begin();
  for (auto place = open.end(); place != first;) {
    if (spans.name[static_cast<std::size_t>(*--place)] == name) return place;
  }
  return open.end();
}

// Ends an open span at the time at which it began: writers may put its end before its begin.
bool ChromeEvents::end_empty(std::vector<int32_t>& open, int32_t name, int64_t time_ns) {
  const auto start_of = [this](int32_t span) { return spans.start_ns[static_cast<std::size_t>(span)]; };
  auto place = std::ranges::upper_bound(open, time_ns, {}, start_of);
  for (auto left = kMostLookedThrough; left > 0 && place != open.begin(); --left) {
    --place;
    if (start_of(*place) != time_ns) return false;
    if (name >= 0 && spans.name[static_cast<std::size_t>(*place)] != name) continue;
    end_span(*place, time_ns);
    open.erase(place);
    return true;
  }
  return false;
}

void ChromeEvents::end_span(int32_t span, int64_t end_ns) {
  const std::size_t row = static_cast<std::size_t>(span);
  spans.duration_ns.set(row, end_ns - spans.start_ns[row]);
  spans.flags.set(row, spans.flags[row] & ~kFlagUnfinished);
  latest_ns_ = std::max(latest_ns_, end_ns);
}

void ChromeEvents::match_in_order_of_time() {
  struct Event {
    int32_t owner, span, name;
    int64_t time_ns;
  };
  std::vector<Event> events;
  for (std::size_t row = 0; row < ends_.rows; ++row) {
    const auto owner = static_cast<int32_t>(ends_.owner[row]);
    if (!disordered_.contains(owner)) continue;
    const int64_t code = ends_.span[row];
    if (code < 0) {
      events.push_back({owner, -1, static_cast<int32_t>(ends_.name[row]), ends_.time_ns[row]});
      continue;
    }
    const std::size_t at = static_cast<std::size_t>(code / 2);
    if (code % 2 == 0) {
      spans.flags.set(at, spans.flags[at] | kFlagUnfinished);
      events.push_back({owner, static_cast<int32_t>(at), -1, spans.start_ns[at]});
    } else {
      const int64_t name = ends_.name[row] == Ends::kNameOfSpan ? spans.name[at] : ends_.name[row];
      events.push_back({owner, -1, static_cast<int32_t>(name), spans.start_ns[at] + spans.duration_ns[at]});
    }
  }
  // Of events at the same time, ends come first, so that consecutive spans do not overlap; an end without an
  // open span is that of a span without a duration.
  std::ranges::stable_sort(events, {}, [](const Event& event) {
    return std::make_tuple(event.owner, event.time_ns, event.span >= 0);
  });
  for (const int32_t owner : disordered_) open_[owner].rows.clear();
  std::vector<Event> early;
  for (std::size_t at = 0; at < events.size(); ++at) {
    const Event& event = events[at];
    std::vector<int32_t>& open = open_[event.owner].rows;
    if (event.span >= 0) {
      open.push_back(event.span);
    } else if (const auto ended = innermost(open, event.name); ended != open.end()) {
      end_span(*ended, event.time_ns);
      open.erase(ended);
    } else {
      early.push_back(event);
    }
    const bool last = at + 1 == events.size() || events[at + 1].owner != event.owner ||
                      events[at + 1].time_ns != event.time_ns;
    if (!last) continue;
    for (const Event& end : early) {
      losses.unmatched_ends += end_empty(open, end.name, end.time_ns) ? 0 : 1;
    }
    early.clear();
  }
}

void ChromeEvents::take_async(const ChromeEvent& event, Arguments& arguments) {
  int64_t time_ns = 0;
  if (!time_of(event.time, time_ns)) return;
  const char phase = inside_quotes(event.phase)[0];
  if (phase == 'n') {
    add_span(event, arguments, time_ns, 0, kFlagInstant | kFlagAsync);
  } else if (phase == 'b' || phase == 'S') {
    const int32_t span = add_span(event, arguments, time_ns, 0, kFlagUnfinished | kFlagAsync);
    if (span >= 0) begin_span(operation_of(event), span);
  } else {
    end_innermost(operation_of(event), event.name, time_ns, false);
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
  rest = "{" + rest + "}";
  bool fresh = false;
  metadata.add(scratch2_ + rest, &fresh);
  if (fresh && !is_json(rest)) ++losses.bad_arguments;
  if (fresh && has_damage(event.name)) ++losses.bad_texts;
}

void ChromeEvents::close() {
  if (!disordered_.empty()) match_in_order_of_time();
  for (std::size_t row = 0; row < ends_.rows; ++row) {
    const auto owner = static_cast<int32_t>(ends_.owner[row]);
    if (ends_.span[row] >= 0 || disordered_.contains(owner)) continue;
    const auto name = static_cast<int32_t>(ends_.name[row]);
    losses.unmatched_ends += end_empty(open_[owner].rows, name, ends_.time_ns[row]) ? 0 : 1;
  }
  disordered_.clear();
  ends_ = Ends();
  for (const auto& [owner, open] : open_) {
    for (const int32_t span : open.rows) {
      ++losses.unfinished_begins;
      const std::size_t row = static_cast<std::size_t>(span);
      end_span(span, std::max(latest_ns_, spans.start_ns[row]));
      spans.flags.set(row, spans.flags[row] | kFlagUnfinished);
    }
  }
  open_.clear();
  clip_implausible();
  arguments.close();
}

// A duration is implausible if the span outlasts everything else in the file by an hour, and a hundred times.
void ChromeEvents::clip_implausible() {
  constexpr int64_t kHourNs = int64_t{3600} * 1'000'000'000;
  if (latest_ns_ - first_ns_ <= kHourNs) return;
  int64_t first_ns = kLatestNs, latest_ns = -kLatestNs;
  const auto look = [&](int64_t time_ns) {
    first_ns = std::min(first_ns, time_ns);
    latest_ns = std::max(latest_ns, time_ns);
  };
  for (std::size_t row = 0; row < spans.rows; ++row) look(spans.start_ns[row]);
  for (std::size_t row = 0; row < allocations.rows; ++row) look(allocations.time_ns[row]);
  for (std::size_t row = 0; row < counters.rows; ++row) look(counters.time_ns[row]);
  const int64_t most_ns = std::max(kHourNs, (latest_ns - first_ns) * 100);
  int64_t last_end_ns = latest_ns;
  std::vector<std::size_t> beyond;
  for (std::size_t row = 0; row < spans.rows; ++row) {
    const int64_t end_ns = spans.start_ns[row] + spans.duration_ns[row];
    if (end_ns - latest_ns > most_ns) {
      beyond.push_back(row);
    } else {
      last_end_ns = std::max(last_end_ns, end_ns);
    }
  }
  // One span alone is not implausible: there is nothing that it could outlast.
  if (spans.rows + allocations.rows + counters.rows <= beyond.size()) return;
  losses.implausible_durations = static_cast<int64_t>(beyond.size());
  for (const std::size_t row : beyond) {
    spans.duration_ns.set(row, last_end_ns - spans.start_ns[row]);
    spans.flags.set(row, spans.flags[row] | kFlagUnfinished);
    implausible.push_back(static_cast<int32_t>(spans.name[row]));
  }
}

}  // namespace kinetoscope
