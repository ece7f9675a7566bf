#include "chrome_writer.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>

#include "json.h"
#include "nesting.h"
#include "recording_reader.h"

namespace kinetoscope {
namespace {

// What an event takes besides its texts; generous, and checked by the tests' shortest blocks.
constexpr std::size_t kEventBytes = 512;
// A deep recursion has as many stacks as levels: whole, their texts would grow with the square of its depth.
constexpr std::size_t kMostFrames = 256;

// Writes behind a pointer; the caller has made sure of the room.
class EventText {
 public:
  explicit EventText(char* at) : at_(at) {}

  EventText& operator<<(std::string_view text) {
    std::memcpy(at_, text.data(), text.size());
    at_ += text.size();
    return *this;
  }
  template <std::size_t N>
  EventText& operator<<(const char (&text)[N]) {
    std::memcpy(at_, text, N - 1);
    at_ += N - 1;
    return *this;
  }
  EventText& number(int64_t value) {
    at_ = std::to_chars(at_, at_ + 20, value).ptr;
    return *this;
  }
  EventText& number(uint64_t value) {
    at_ = std::to_chars(at_, at_ + 20, value).ptr;
    return *this;
  }
  // Nanoseconds as microseconds with three decimals, exactly.
  EventText& microseconds(int64_t time_ns) {
    uint64_t magnitude = static_cast<uint64_t>(time_ns);
    if (time_ns < 0) {
      *at_++ = '-';
      magnitude = 0 - magnitude;
    }
    number(magnitude / 1000);
    const auto rest = static_cast<unsigned>(magnitude % 1000);
    *at_++ = '.';
    *at_++ = static_cast<char>('0' + rest / 100);
    *at_++ = static_cast<char>('0' + rest / 10 % 10);
    *at_++ = static_cast<char>('0' + rest % 10);
    return *this;
  }
  char* end() const { return at_; }

 private:
  char* at_;
};

int64_t shifted(int64_t base_ns, int64_t time_ns) {
  int64_t sum;
  if (!__builtin_add_overflow(base_ns, time_ns, &sum)) return sum;
  return base_ns > 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

std::vector<bool> used_rows(std::span<const int32_t> column, std::size_t rows) {
  std::vector<bool> used(rows, false);
  for (const int32_t row : column) {
    if (static_cast<std::size_t>(row) < rows) used[static_cast<std::size_t>(row)] = true;
  }
  return used;
}

EscapedTexts numbers_as_text(std::span<const int64_t> numbers) {
  EscapedTexts texts;
  for (const int64_t number : numbers) {
    texts.writing() += std::to_string(number);
    texts.end();
  }
  return texts;
}

// Whether an event behind this text needs a comma first.
bool ends_with_value(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  return last != std::string_view::npos && text[last] != '[' && text[last] != ',';
}

std::string_view string_of(std::span<const std::string> strings, int32_t id) {
  return static_cast<std::size_t>(id) < strings.size()
             ? std::string_view(strings[static_cast<std::size_t>(id)])
             : std::string_view{};
}

}  // namespace

ChromeWriter::ChromeWriter(const ChromeSpans& spans, const ChromeAllocations& allocations,
                           const ChromeTables& tables, int64_t pid, int64_t base_ns, std::string header,
                           std::string footer, std::size_t block_bytes)
    : spans_(spans),
      allocations_(allocations),
      track_tids_(numbers_as_text(tables.track_tid)),
      torch_tids_(numbers_as_text(tables.thread_torch_tid)),
      first_track_(tables.thread_first_track.begin(), tables.thread_first_track.end()),
      pid_("\"pid\":" + std::to_string(pid) + ",\"tid\":"),
      base_ns_(base_ns),
      header_(std::move(header)),
      footer_(std::move(footer)),
      block_bytes_(block_bytes),
      comma_(ends_with_value(header_)) {
  const std::size_t rows = spans_.start_ns.size(), events = allocations_.time_ns.size();
  for (const std::size_t size :
       {spans_.duration_ns.size(), spans_.name.size(), spans_.kind.size(), spans_.thread.size(),
        spans_.lane.size(), spans_.sequence.size(), spans_.forward.size(), spans_.forward_thread.size(),
        spans_.stack.size(), spans_.module.size(), spans_.shapes.size(), spans_.flags.size()}) {
    if (size != rows) throw BadColumns("ChromeWriter: the columns of the spans have different lengths");
  }
  if (!spans_.record_function.empty() && spans_.record_function.size() != rows)
    throw BadColumns("ChromeWriter: the columns of the spans have different lengths");
  for (const std::size_t size :
       {allocations_.thread.size(), allocations_.address.size(), allocations_.bytes.size(),
        allocations_.total_bytes.size(), allocations_.device_type.size(), allocations_.device_index.size()}) {
    if (size != events)
      throw BadColumns("ChromeWriter: the columns of the allocations have different lengths");
  }
  check_tracks(tables.categories.size());
  for (const std::string& category : tables.categories) {
    openings_.writing() += "{\"ph\":\"X\",\"cat\":\"";
    append_json_escaped(category, openings_.writing());
    openings_.writing() += "\",\"name\":\"";
    openings_.end();
  }
  escape_names(tables);
  escape_stacks(tables);
  escape_modules(tables);
  escape_shapes(tables);
}

void ChromeWriter::check_tracks(std::size_t categories) const {
  const std::size_t threads = first_track_.size(), tracks = track_tids_.size();
  const auto has_track = [&](int32_t thread, int32_t lane) {
    return static_cast<std::size_t>(thread) < threads && lane >= 0 && track_of(thread, lane) < tracks;
  };
  for (std::size_t row = 0; row < spans_.start_ns.size(); ++row) {
    if (!has_track(spans_.thread[row], spans_.lane[row])) {
      throw BadColumns("ChromeWriter: span " + std::to_string(row) +
                       " lies on a thread or lane without a track");
    }
    if (spans_.kind[row] >= categories) {
      throw BadColumns("ChromeWriter: span " + std::to_string(row) + " is of a kind without a category");
    }
  }
  for (const int32_t thread : allocations_.thread) {
    if (!has_track(thread, 0))
      throw BadColumns("ChromeWriter: an allocation lies on a thread without a track");
  }
}

void ChromeWriter::escape_names(const ChromeTables& tables) {
  const std::vector<bool> used = used_rows(spans_.name, tables.strings.size());
  for (std::size_t id = 0; id < tables.strings.size(); ++id) {
    if (used[id]) append_json_escaped(tables.strings[id], names_.writing());
    names_.end();
  }
}

void ChromeWriter::escape_stacks(const ChromeTables& tables) {
  const std::size_t frames = tables.frame_function.size(), stacks = tables.stack_parent.size();
  if (tables.frame_file.size() != frames || tables.frame_line.size() != frames ||
      tables.stack_frame.size() != stacks) {
    throw BadColumns("ChromeWriter: the columns of the stacks or frames have different lengths");
  }
  EscapedTexts frame_texts;
  for (std::size_t frame = 0; frame < frames; ++frame) {
    std::string& text = frame_texts.writing();
    append_json_escaped(string_of(tables.strings, tables.frame_file[frame]), text);
    text += '(' + std::to_string(tables.frame_line[frame]) + "): ";
    append_json_escaped(string_of(tables.strings, tables.frame_function[frame]), text);
    frame_texts.end();
  }
  const std::vector<bool> used = used_rows(spans_.stack, stacks);
  for (std::size_t stack = 0; stack < stacks; ++stack) {
    std::string& text = stacks_.writing();
    if (used[stack]) {
      text += ",\"Call stack\":\"";
      auto row = static_cast<int32_t>(stack);
      for (std::size_t depth = 0; row >= 0; ++depth) {
        if (depth > 0) text += ';';
        if (depth == kMostFrames) {
          text += "...";
          break;
        }
        text += frame_texts.of(tables.stack_frame[static_cast<std::size_t>(row)]);
        const int32_t parent = tables.stack_parent[static_cast<std::size_t>(row)];
        row = parent < row ? parent : -1;
      }
      text += '"';
    }
    stacks_.end();
  }
}

void ChromeWriter::escape_modules(const ChromeTables& tables) {
  if (tables.module_class.size() != tables.module_path.size()) {
    throw BadColumns("ChromeWriter: module_path and module_class have different lengths");
  }
  for (std::size_t module = 0; module < tables.module_path.size(); ++module) {
    std::string& text = modules_.writing();
    text += ",\"Module\":\"";
    append_json_escaped(tables.module_path[module], text);
    text += '"';
    modules_.end();
    std::string& type = module_classes_.writing();
    type += ",\"Module class\":\"";
    append_json_escaped(tables.module_class[module], type);
    type += '"';
    module_classes_.end();
  }
}

void ChromeWriter::escape_shapes(const ChromeTables& tables) {
  const std::size_t rows = tables.shape_dims.size();
  if (tables.shape_types.size() != rows || tables.shape_concrete.size() != rows) {
    throw BadColumns("ChromeWriter: shape_dims, shape_types and shape_concrete have different lengths");
  }
  const auto add = [&](std::string_view key, const std::string& json) {
    if (is_json(json)) shapes_.writing().append(key).append(json);
  };
  for (std::size_t row = 0; row < rows; ++row) {
    add(",\"Concrete Inputs\":", tables.shape_concrete[row]);
    add(",\"Input type\":", tables.shape_types[row]);
    add(",\"Input Dims\":", tables.shape_dims[row]);
    shapes_.end();
  }
}

std::size_t ChromeWriter::track_of(int32_t thread, int32_t lane) const {
  return static_cast<std::size_t>(int64_t{first_track_[static_cast<std::size_t>(thread)]} + lane);
}

bool ChromeWriter::has_room(std::size_t bytes) {
  if (used_ + bytes <= block_.size()) return true;
  if (used_ > 0) return false;
  block_ = Column<char>(std::max(bytes, block_bytes_));
  return true;
}

bool ChromeWriter::write_spans() {
  for (; row_ < spans_.start_ns.size(); ++row_) {
    const std::string_view opening = openings_[spans_.kind[row_]], name = names_.of(spans_.name[row_]),
                           shapes = shapes_.of(spans_.shapes[row_]),
                           module = modules_.of(spans_.module[row_]), stack = stacks_.of(spans_.stack[row_]);
    // The class stands where a module begins; what follows in it shows the path alone.
    const bool same_module = row_ > 0 && spans_.module[row_] == spans_.module[row_ - 1] &&
                             spans_.thread[row_] == spans_.thread[row_ - 1];
    const std::string_view type =
        same_module ? std::string_view("") : module_classes_.of(spans_.module[row_]);
    const std::string_view tid = track_tids_[track_of(spans_.thread[row_], spans_.lane[row_])];
    const auto forward = static_cast<std::size_t>(spans_.forward[row_]);
    const bool linked = forward < spans_.start_ns.size();
    const std::size_t bytes =
        opening.size() + name.size() + shapes.size() + module.size() + type.size() + stack.size();
    if (!has_room(bytes + (linked ? 3 : 1) * kEventBytes)) return false;

    char* const first = block_.data() + used_;
    EventText out(first);
    if (comma_) out << ",\n";
    comma_ = true;
    const int64_t start_ns = shifted(base_ns_, spans_.start_ns[row_]);
    out << opening << name << "\"," << pid_ << tid << ",\"ts\":";
    out.microseconds(start_ns) << ",\"dur\":";
    out.microseconds(spans_.duration_ns[row_]) << ",\"args\":{\"External id\":";
    out.number(static_cast<uint64_t>(row_) + 1);
    if (!spans_.record_function.empty() && spans_.record_function[row_] >= 0) {
      out << ",\"Record function id\":";
      out.number(spans_.record_function[row_]);
    }
    if (spans_.sequence[row_] >= 0) {
      out << ",\"Sequence number\":";
      out.number(spans_.sequence[row_]);
      const std::string_view forward_thread = torch_tids_.of(spans_.forward_thread[row_]);
      if (!forward_thread.empty()) out << ",\"Fwd thread id\":" << forward_thread;
    }
    out << shapes << module << type << stack;
    if (spans_.flags[row_] & kStateUnfinished) out << ",\"Unfinished\":true";
    out << "}}";
    if (linked) {
      const std::string_view forward_tid =
          track_tids_[track_of(spans_.thread[forward], spans_.lane[forward])];
      ++flows_;
      out << ",\n{\"ph\":\"s\",\"id\":";
      out.number(flows_) << "," << pid_ << forward_tid << ",\"ts\":";
      out.microseconds(shifted(base_ns_, spans_.start_ns[forward]))
          << ",\"cat\":\"fwdbwd\",\"name\":\"fwdbwd\"},\n{\"ph\":\"f\",\"bp\":\"e\",\"id\":";
      out.number(flows_) << "," << pid_ << tid << ",\"ts\":";
      out.microseconds(start_ns) << ",\"cat\":\"fwdbwd\",\"name\":\"fwdbwd\"}";
    }
    used_ += static_cast<std::size_t>(out.end() - first);
  }
  return true;
}

bool ChromeWriter::write_allocations() {
  for (; row_ < allocations_.time_ns.size(); ++row_) {
    if (!has_room(kEventBytes)) return false;
    char* const first = block_.data() + used_;
    EventText out(first);
    if (comma_) out << ",\n";
    comma_ = true;
    out << "{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"cpu_instant_event\",\"name\":\"[memory]\"," << pid_
        << track_tids_[track_of(allocations_.thread[row_], 0)] << ",\"ts\":";
    out.microseconds(shifted(base_ns_, allocations_.time_ns[row_]))
        << ",\"args\":{\"Total Reserved\":0,\"Total Allocated\":";
    out.number(allocations_.total_bytes[row_]) << ",\"Bytes\":";
    out.number(allocations_.bytes[row_]) << ",\"Addr\":";
    out.number(allocations_.address[row_]) << ",\"Device Id\":";
    out.number(int64_t{allocations_.device_index[row_]}) << ",\"Device Type\":";
    out.number(int64_t{allocations_.device_type[row_]}) << "}}";
    used_ += static_cast<std::size_t>(out.end() - first);
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
    } else if (!(part_ == Part::Spans ? write_spans() : write_allocations())) {
      break;
    }
    part_ = static_cast<Part>(static_cast<int>(part_) + 1);
    row_ = 0;
  }
  return {block_.data(), used_};
}

}  // namespace kinetoscope
