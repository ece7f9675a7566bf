#include "writer_texts.h"

#include <unordered_set>

#include "../spans/nesting.h"
#include "json.h"

namespace kinetoscope {
namespace {

// A deep recursion has as many stacks as levels: without a limit, their texts would be quadratic in its
// depth.
constexpr std::size_t kMostFrames = 256;

std::vector<bool> used_rows(std::span<const int32_t> column, std::size_t rows) {
  std::vector<bool> used(rows, false);
  for (const int32_t row : column) {
    if (static_cast<std::size_t>(row) < rows) used[static_cast<std::size_t>(row)] = true;
  }
  return used;
}

std::string_view string_of(std::span<const std::string> strings, int32_t id) {
  return static_cast<std::size_t>(id) < strings.size()
             ? std::string_view(strings[static_cast<std::size_t>(id)])
             : std::string_view{};
}

EscapedTexts escaped(std::span<const std::string> texts) {
  EscapedTexts made;
  for (const std::string& text : texts) {
    append_json_escaped(text, made.writing());
    made.end();
  }
  return made;
}

}  // namespace

ChromeTexts::ChromeTexts(const ChromeSpans& spans, const ChromeTables& tables)
    : categories(escaped(tables.categories)),
      device_categories(escaped(tables.device_categories)),
      flow_categories(escaped(tables.flow_categories)) {
  escape_names(spans, tables);
  escape_stacks(spans, tables);
  escape_modules(tables);
  escape_shapes(tables);
  escape_tracks(tables);
  escape_counters(tables);
  for (const std::string& json : tables.arguments) arguments.add(json);
}

void ChromeTexts::escape_names(const ChromeSpans& spans, const ChromeTables& tables) {
  const std::vector<bool> used = used_rows(spans.name, tables.strings.size()),
                          also = used_rows(spans.category, tables.strings.size());
  for (std::size_t id = 0; id < tables.strings.size(); ++id) {
    if (used[id] || also[id]) append_json_escaped(tables.strings[id], names.writing());
    names.end();
  }
}

void ChromeTexts::escape_stacks(const ChromeSpans& spans, const ChromeTables& tables) {
  const std::size_t frames = tables.frame_function.size(), rows = tables.stack_parent.size();
  if (tables.frame_file.size() != frames || tables.frame_line.size() != frames ||
      tables.stack_frame.size() != rows) {
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
  const std::vector<bool> used = used_rows(spans.stack, rows);
  for (std::size_t stack = 0; stack < rows; ++stack) {
    std::string& text = stacks.writing();
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
    stacks.end();
  }
}

void ChromeTexts::escape_modules(const ChromeTables& tables) {
  const std::size_t rows = tables.module_path.size();
  const std::span<const int64_t> numbers = tables.module_number;
  if (tables.module_class.size() != rows || (!numbers.empty() && numbers.size() != rows)) {
    throw BadColumns("ChromeWriter: module_path, module_class and module_number have different lengths");
  }
  std::unordered_set<std::string_view> paths;
  for (std::size_t module = 0; module < tables.module_path.size(); ++module) {
    std::string& text = modules.writing();
    text += ",\"Module\":\"";
    append_json_escaped(tables.module_path[module], text);
    text += '"';
    // Our own reader identifies a module by its path; the first one that has it is enough.
    if (!paths.insert(tables.module_path[module]).second) text += ",\"Module row\":" + std::to_string(module);
    modules.end();
    std::string& type = module_classes.writing();
    type += ",\"Module class\":\"";
    append_json_escaped(tables.module_class[module], type);
    type += '"';
    module_classes.end();
    if (!numbers.empty() && numbers[module] >= 0)
      module_ordinals.writing() += ",\"Python module id\":" + std::to_string(numbers[module]);
    module_ordinals.end();
  }
}

void ChromeTexts::escape_shapes(const ChromeTables& tables) {
  const std::size_t rows = tables.shape_dims.size();
  if (tables.shape_types.size() != rows || tables.shape_concrete.size() != rows ||
      (!tables.shape_strides.empty() && tables.shape_strides.size() != rows)) {
    throw BadColumns("ChromeWriter: the columns of the shapes have different lengths");
  }
  const auto add = [&](std::string_view key, const std::string& json) {
    if (is_json(json)) shapes.writing().append(key).append(json);
  };
  for (std::size_t row = 0; row < rows; ++row) {
    add(",\"Concrete Inputs\":", tables.shape_concrete[row]);
    add(",\"Input type\":", tables.shape_types[row]);
    if (!tables.shape_strides.empty()) add(",\"Input Strides\":", tables.shape_strides[row]);
    add(",\"Input Dims\":", tables.shape_dims[row]);
    shapes.end();
  }
}

void ChromeTexts::escape_tracks(const ChromeTables& tables) {
  if (tables.track_pid.size() != tables.track_tid.size())
    throw BadColumns("ChromeWriter: track_pid and track_tid have different lengths");
  for (std::size_t track = 0; track < tables.track_tid.size(); ++track) {
    tracks.writing() += "\"pid\":" + std::to_string(tables.track_pid[track]) +
                        ",\"tid\":" + std::to_string(tables.track_tid[track]);
    tracks.end();
  }
  for (const int64_t number : tables.thread_torch_tid) {
    if (number >= 0) torch_tids.writing() += ",\"Fwd thread id\":" + std::to_string(number);
    torch_tids.end();
  }
  if (tables.stream_device.size() != tables.stream_number.size())
    throw BadColumns("ChromeWriter: stream_device and stream_number have different lengths");
  for (std::size_t stream = 0; stream < tables.stream_number.size(); ++stream) {
    streams.writing() += ",\"device\":" + std::to_string(tables.stream_device[stream]);
    if (tables.stream_number[stream] != kNoStreamNumber)
      streams.writing() += ",\"stream\":" + std::to_string(tables.stream_number[stream]);
    streams.end();
  }
}

void ChromeTexts::escape_counters(const ChromeTables& tables) {
  for (const std::string& name : tables.counter_name) {
    counter_openings.writing() += "{\"ph\":\"C\",\"name\":\"";
    append_json_escaped(name, counter_openings.writing());
    counter_openings.writing() += "\",\"args\":{\"value\":";
    counter_openings.end();
  }
}

}  // namespace kinetoscope
