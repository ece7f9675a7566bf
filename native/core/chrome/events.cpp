#include "events.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "json.h"
#include "json_scan.h"
#include "json_values.h"

namespace kinetoscope {
namespace {

// Arguments without information about the program, or that follow from others.
constexpr uint64_t kWorthless = mask_of(Argument::TraceName) | mask_of(Argument::TraceIteration) |
                                mask_of(Argument::Bandwidth) | mask_of(Argument::PythonId) |
                                mask_of(Argument::PythonParent) | mask_of(Argument::PythonModule);
constexpr uint64_t kShapes = mask_of(Argument::InputDims) | mask_of(Argument::InputTypes) |
                             mask_of(Argument::ConcreteInputs) | mask_of(Argument::InputStrides);
constexpr uint64_t kKernelFacts = mask_of(Argument::Grid) | mask_of(Argument::Block) |
                                  mask_of(Argument::Registers) | mask_of(Argument::SharedMemory) |
                                  mask_of(Argument::BlocksPerSm) | mask_of(Argument::WarpsPerSm) |
                                  mask_of(Argument::Occupancy) | mask_of(Argument::Graph);
constexpr uint64_t kCopyFacts = mask_of(Argument::Bytes) | mask_of(Argument::Graph);
// If fewer than one in this many arguments repeats, further ones are stored without lookup.
constexpr std::size_t kFewRepeat = 8;
// One of this many hashes is in the sample.
constexpr std::size_t kHashesASample = 256;
// How often the memory in use is summed up.
constexpr std::size_t kLookEvery = 4096;

bool is_quoted(std::string_view raw) { return !raw.empty() && raw.front() == '"'; }

// Three numbers in brackets; false for anything else.
bool three_of(std::string_view raw, int32_t (&three)[3]) {
  std::size_t at = 0, found = 0;
  while (at < raw.size()) {
    const std::size_t first = raw.find_first_of("-0123456789", at);
    if (first == std::string_view::npos) break;
    std::size_t last = raw.find_first_not_of("-0123456789", first);
    if (last == std::string_view::npos) last = raw.size();
    const auto value = integer_of(raw.substr(first, last - first));
    if (!value || *value < 0 || *value > std::numeric_limits<int32_t>::max() || found == 3) return false;
    three[found++] = static_cast<int32_t>(*value);
    at = last;
  }
  return found == 3;
}

int64_t integer_or(std::string_view raw, int64_t none) {
  return raw.empty() ? none : integer_of(raw).value_or(none);
}

float real_or(std::string_view raw, float none) {
  return raw.empty() ? none : static_cast<float>(real_of(raw).value_or(none));
}

int32_t int32_or(std::string_view raw, int32_t none) {
  const int64_t value = integer_or(raw, none);
  return value < 0 || value > std::numeric_limits<int32_t>::max() ? none : static_cast<int32_t>(value);
}

// The digits in a text such as "stream 7"; -1 if there are none, or several groups.
int64_t only_number_in(std::string_view text) {
  const std::size_t first = text.find_first_of("0123456789");
  if (first == std::string_view::npos) return -1;
  const std::size_t last = text.find_first_not_of("0123456789", first);
  if (last != std::string_view::npos && text.find_first_of("0123456789", last) != std::string_view::npos)
    return -1;
  return integer_or(text.substr(first, last == std::string_view::npos ? last : last - first), -1);
}

}  // namespace

void identify(std::string_view raw, int64_t& number, std::string& text) {
  if (const auto value = integer_of(raw)) {
    number = *value;
  } else if (is_quoted(raw)) {
    append_unescaped(inside_quotes(raw), text);
    number = only_number_in(text);
  } else if (!raw.empty() && raw != "null") {
    // A number that does not fit, or any other text by which a writer identifies one.
    text = raw;
  }
}

int32_t ChromeArgumentTexts::add(std::string_view inside, bool* bad) {
  bool fresh = false;
  const std::size_t recent = static_cast<std::size_t>(recent_.add(inside, &fresh));
  const int32_t row = row_of(recent);
  if (!fresh) {
    repeated_[recent] = true;
    return row;
  }
  repeated_.push_back(false);
  const uint64_t hash = hash_text(inside, seed_);
  if (hash % kHashesASample == 0 && !seen_.insert(hash).second) ++came_again_;
  collectives_ = collectives_ || inside.find("\"Collective name\"") != inside.npos;
  std::string json = "{";
  (json += inside) += '}';
  *bad = !is_json(json);
  if (*bad) bad_.push_back(row);
  if (recent_.size() >= look_at_) look_whether_they_repeat();
  return row;
}

void ChromeArgumentTexts::look_whether_they_repeat() {
  const std::size_t repeated = static_cast<std::size_t>(std::ranges::count(repeated_, true));
  if (repeated + came_again_ * kHashesASample > recent_.size() / kFewRepeat) {
    look_at_ *= 2;
    return;
  }
  TextTable kept(seed_);
  std::vector<int32_t> rows;
  for (std::size_t recent = 0; recent < recent_.size(); ++recent) {
    if (!repeated_[recent]) continue;
    kept.add(recent_[static_cast<int32_t>(recent)]);
    rows.push_back(row_of(recent));
  }
  pack_recent();
  recent_ = std::move(kept);
  found_again_ = std::move(rows);
  repeated_.assign(recent_.size(), false);
  came_again_ = 0;
  look_at_ = kRecentTexts;
}

void ChromeArgumentTexts::pack_recent() {
  for (std::size_t recent = found_again_.size(); recent < recent_.size(); ++recent) {
    packed_.append(recent_[static_cast<int32_t>(recent)]);
  }
}

void ChromeArgumentTexts::close() {
  recent_.close();
  pack_recent();
  recent_ = TextTable();
  found_again_.clear();
  repeated_.clear();
  seen_.clear();
}

std::string ChromeArgumentTexts::json_of(std::string_view inside, int32_t row) const {
  std::string json = "{";
  (json += inside) += '}';
  if (!std::ranges::binary_search(bad_, row)) return json;
  std::string escaped;
  append_json_escaped(json, escaped);
  return "{\"unreadable\":\"" + escaped + "\"}";
}

ChromeEvents::ChromeEvents(std::vector<std::pair<std::string, ChromeCategory>> known, std::size_t max_bytes,
                           uint64_t seed)
    : strings(seed),
      categories(seed),
      call_stacks(seed),
      shape_texts(seed),
      shape_rows(seed),
      arguments(seed),
      metadata(seed),
      counter_processes(seed),
      known_(std::move(known)),
      max_bytes_(max_bytes),
      raw_threads_(seed),
      thread_keys_(seed),
      raw_shapes_(seed),
      ids_(seed) {
  strings.add("");
  shape_texts.add("");
}

std::size_t ChromeEvents::bytes() const {
  std::size_t total = spans.bytes() + kernels.bytes() + copies.bytes() + allocations.bytes() +
                      counters.bytes() + flows.bytes() + arguments.bytes() + ends_.bytes();
  for (const TextTable* table : {&strings, &categories, &call_stacks, &shape_texts, &shape_rows, &metadata,
                                 &counter_processes, &raw_threads_, &thread_keys_, &raw_shapes_, &ids_}) {
    total += table->bytes();
  }
  return total;
}

bool ChromeEvents::full() {
  if (max_bytes_ == 0 || full_) return full_;
  if (until_looked_at_++ % kLookEvery == 0) full_ = bytes() >= max_bytes_;
  return full_;
}

void ChromeEvents::take(const ChromeEvent& event, Arguments& arguments) {
  const std::string_view phase = inside_quotes(event.phase);
  if (phase.size() != 1) {
    // XLA writes one {} after its last event, because of the comma before.
    const bool is_empty =
        phase.empty() && event.name.empty() && event.time.empty() && arguments.nothing_left();
    losses.bad_events += is_empty && ++empty_objects_ == 1 ? 0 : 1;
    return;
  }
  if (full()) {
    ++losses.beyond_memory_limit;
    return;
  }
  switch (phase[0]) {
    case 'X':
      return take_complete(event, arguments);
    case 's':
    case 't':
    case 'f':
      return take_flow(event);
    case 'i':
    case 'I':
      return take_instant(event, arguments);
    case 'M':
      return take_metadata(event, arguments);
    case 'C':
      return take_counter(event, arguments);
    case 'B':
      return take_begin(event, arguments);
    case 'E':
      return take_end(event);
    case 'b':
    case 'e':
    case 'n':
    case 'S':
    case 'F':
      return take_async(event, arguments);
    default:
      ++losses.ignored_events;
  }
}

int32_t ChromeEvents::text_row(TextTable& table, std::string_view raw) {
  const std::string_view inside = inside_quotes(raw);
  bool fresh = false;
  int32_t row = 0;
  if (inside.find('\\') == std::string_view::npos) {
    row = table.add(inside, &fresh);
  } else {
    scratch_.clear();
    append_unescaped(inside, scratch_);
    row = table.add(scratch_, &fresh);
  }
  if (fresh && has_damage(inside)) ++losses.bad_texts;
  return row;
}

int16_t ChromeEvents::category_row(std::string_view raw) {
  if (last_category_ >= 0 && raw == last_category_text_) return last_category_;
  const int32_t row = text_row(categories, raw);
  if (row > std::numeric_limits<int16_t>::max()) return 0;  // thirty thousand categories are a mistake
  if (static_cast<std::size_t>(row) == category_.size()) {
    const std::string_view text = categories[row];
    Category made{kKindUserAnnotation, false, false, false};
    for (const auto& [name, category] : known_) {
      if (name == text) made = {category.kind, category.on_device, true, false};
    }
    made.is_flow_of_launch =
        text == "ac2g" || text == "async_cpu_to_gpu" || text == "async" || text == "async_gpu";
    category_.push_back(made);
  }
  last_category_text_ = raw;
  return last_category_ = static_cast<int16_t>(row);
}

// Checks each id once: a damaged one would put its events in the wrong place.
void ChromeEvents::check_id(std::string_view raw) {
  if (!raw.empty() && (is_quoted(raw) ? has_damage(raw) : !is_json(raw))) ++losses.bad_ids;
}

int32_t ChromeEvents::thread_row(std::string_view process, std::string_view thread, bool on_device) {
  if (last_thread_row_ >= 0 && thread == last_thread_ && process == last_process_ &&
      on_device == last_on_device_) {
    return last_thread_row_;
  }
  last_process_ = process;
  last_thread_ = thread;
  last_on_device_ = on_device;
  scratch_.assign(process).append(1, kFieldEnd).append(thread).append(1, on_device ? 'd' : 'h');
  bool fresh = false;
  const int32_t raw_row = raw_threads_.add(scratch_, &fresh);
  if (!fresh) return last_thread_row_ = thread_of_raw_[static_cast<std::size_t>(raw_row)];
  check_id(process);
  check_id(thread);
  ChromeThread made;
  made.on_device = on_device;
  identify(process, made.process, made.process_text);
  identify(thread, made.number, made.number_text);
  const auto number_of = [&made](const auto& known) {
    const auto found = known.find({made.process, made.number});
    return found == known.end() ? made.number : found->second;
  };
  made.number = number_of(lane_of_);
  scratch_ = std::to_string(made.process) + kFieldEnd + made.process_text + kFieldEnd +
             std::to_string(made.number) + kFieldEnd + made.number_text + (on_device ? "d" : "h");
  const int32_t row = thread_keys_.add(scratch_, &fresh);
  made.number = number_of(track_number_);
  if (fresh) threads.push_back(std::move(made));
  thread_of_raw_.push_back(row);
  return last_thread_row_ = row;
}

bool ChromeEvents::time_of(std::string_view raw, int64_t& time_ns) {
  const auto known = raw.empty() ? std::nullopt : in_nanoseconds_ ? integer_of(raw) : nanoseconds_of(raw);
  if (!known || *known > kLatestNs || *known < -kLatestNs) {
    ++losses.bad_times;
    return false;
  }
  time_ns = *known;
  return true;
}

int32_t ChromeEvents::shape_part(std::string_view raw) {
  if (raw.empty()) return 0;
  bool fresh = false;
  const int32_t row = raw_shapes_.add(raw, &fresh);
  if (fresh) {
    scratch_.clear();
    append_minified(raw, scratch_);
    if (!is_json(scratch_)) {
      ++losses.bad_arguments;
      scratch_.clear();
    }
    shape_text_of_raw_.push_back(shape_texts.add(scratch_));
  }
  return shape_text_of_raw_[static_cast<std::size_t>(row)];
}

int32_t ChromeEvents::shapes_row(Arguments& arguments) {
  if (!arguments.has_any(kShapes)) return -1;
  const int32_t parts[4] = {shape_part(arguments.take(Argument::InputDims)),
                            shape_part(arguments.take(Argument::InputTypes)),
                            shape_part(arguments.take(Argument::ConcreteInputs)),
                            shape_part(arguments.take(Argument::InputStrides))};
  return shape_rows.add({reinterpret_cast<const char*>(parts), sizeof parts});
}

int32_t ChromeEvents::arguments_row(Arguments& left) {
  left.drop(kWorthless);
  if (left.peek(Argument::Queued) == "0") left.take(Argument::Queued);
  if (inside_quotes(left.peek(Argument::ModuleHierarchy)).empty()) left.take(Argument::ModuleHierarchy);
  if (left.nothing_left()) return -1;
  scratch2_.clear();
  left.append_rest(scratch2_);
  bool bad = false;
  const int32_t row = arguments.add(scratch2_, &bad);
  losses.bad_arguments += bad ? 1 : 0;
  return row;
}

int32_t ChromeEvents::add_span(const ChromeEvent& event, Arguments& arguments, int64_t start_ns,
                               int64_t duration_ns, uint8_t flags) {
  const std::size_t row = spans.rows;
  if (row >= static_cast<std::size_t>(std::numeric_limits<int32_t>::max())) {
    ++losses.beyond_memory_limit;
    return -1;
  }
  const int16_t category = category_row(event.category);
  Category how = category_[static_cast<std::size_t>(category)];
  if (!how.known && arguments.has(Argument::Stream)) how = {kKindKernel, true, false, false};
  const int32_t name = text_row(strings, event.name);
  if (how.kind == kKindPython) {
    has_python = true;
    if (strings[name].starts_with("nn.Module: ")) how.kind = kKindModule;
  }
  const int32_t thread = thread_row(event.process, event.thread, how.on_device);
  spans.start_ns.set(row, start_ns);
  spans.duration_ns.set(row, duration_ns);
  spans.name.set(row, name);
  spans.thread.set(row, thread);
  spans.category.set(row, category);
  spans.kind.set(row, how.kind);
  spans.flags.set(row, flags);
  if (!how.on_device) last_host_thread_ = thread;
  first_ns_ = std::min(first_ns_, start_ns);
  int64_t end_ns = start_ns;
  if (!__builtin_add_overflow(start_ns, duration_ns, &end_ns)) latest_ns_ = std::max(latest_ns_, end_ns);

  const auto number = [&arguments](Argument which, PackedColumn& column, std::size_t at) {
    if (!arguments.has(which)) return int64_t{-1};
    const auto value = integer_of(arguments.peek(which));
    if (!value) return int64_t{-1};  // stays among the rest
    arguments.take(which);
    column.set(at, *value);
    return *value;
  };
  last_correlation_ = number(Argument::Correlation, spans.correlation, row);
  number(Argument::ExternalId, spans.external_id, row);
  number(Argument::SequenceNumber, spans.sequence, row);
  number(Argument::ForwardThread, spans.forward_number, row);
  number(Argument::EventIndex, spans.event_index, row);
  number(Argument::RecordFunction, spans.record_function, row);
  spans.shapes.set(row, shapes_row(arguments));
  if (arguments.has(Argument::CallStack)) {
    const std::string_view raw = arguments.take(Argument::CallStack);
    if (!inside_quotes(raw).empty()) spans.call_stack.set(row, text_row(call_stacks, raw));
  } else if (!event.frame.empty()) {
    check_id(event.frame);
    scratch2_.assign(1, kFieldEnd);
    append_unescaped(inside_quotes(event.frame), scratch2_);
    spans.call_stack.set(row, call_stacks.add(scratch2_));
  }
  spans.rows = row + 1;
  if (how.on_device) {
    spans.device_index.set(row, int32_or(arguments.take(Argument::Device), -1));
    const int64_t stream = integer_or(arguments.peek(Argument::Stream), -1);
    if (stream == threads[static_cast<std::size_t>(thread)].number) arguments.take(Argument::Stream);
    add_device_facts(static_cast<int32_t>(row), how.kind, arguments);
  }
  arguments.add("tts", event.thread_time);
  arguments.add("tdur", event.thread_duration);
  spans.arguments.set(row, arguments_row(arguments));
  return static_cast<int32_t>(row);
}

void ChromeEvents::add_device_facts(int32_t span, uint8_t kind, Arguments& arguments) {
  if (kind == kKindKernel && arguments.has_any(kKernelFacts)) {
    const std::size_t row = kernels.rows++;
    kernels.span.set(row, span);
    const auto three = [&arguments, row](Argument which, auto& x, auto& y, auto& z) {
      int32_t found[3];
      if (!arguments.has(which) || !three_of(arguments.peek(which), found)) return;
      arguments.take(which);
      x.set(row, found[0]);
      y.set(row, found[1]);
      z.set(row, found[2]);
    };
    three(Argument::Grid, kernels.grid_x, kernels.grid_y, kernels.grid_z);
    three(Argument::Block, kernels.block_x, kernels.block_y, kernels.block_z);
    kernels.registers.set(row, int32_or(arguments.take(Argument::Registers), -1));
    kernels.shared_bytes.set(row, integer_or(arguments.take(Argument::SharedMemory), -1));
    kernels.blocks_per_sm.set(row, real_or(arguments.take(Argument::BlocksPerSm), -1));
    kernels.warps_per_sm.set(row, real_or(arguments.take(Argument::WarpsPerSm), -1));
    kernels.occupancy_percent.set(row, real_or(arguments.take(Argument::Occupancy), -1));
    kernels.context.set(row, integer_or(arguments.take(Argument::Context), -1));
    kernels.graph.set(row, integer_or(arguments.take(Argument::Graph), -1));
    kernels.graph_node.set(row, integer_or(arguments.take(Argument::GraphNode), -1));
  } else if ((kind == kKindMemcpy || kind == kKindMemset) && arguments.has_any(kCopyFacts)) {
    const std::size_t row = copies.rows++;
    copies.span.set(row, span);
    copies.bytes_moved.set(row, integer_or(arguments.take(Argument::Bytes), -1));
    copies.context.set(row, integer_or(arguments.take(Argument::Context), -1));
    copies.graph.set(row, integer_or(arguments.take(Argument::Graph), -1));
    copies.graph_node.set(row, integer_or(arguments.take(Argument::GraphNode), -1));
  }
}

}  // namespace kinetoscope
