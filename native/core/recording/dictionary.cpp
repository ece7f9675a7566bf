#include "dictionary.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <type_traits>
#include <unordered_map>

namespace kinetoscope {
namespace {

static_assert(std::endian::native == std::endian::little, "recordings are little-endian");

// Entries in flight when a process dies leave gaps in the ids, but only few.
constexpr uint64_t kIdSlack = 4096;
constexpr uint64_t kMostDropped = uint64_t{1} << 20;

// Reads the packed fields of an entry from its front; remembers whether they were all there.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> payload) : rest_(payload) {}

  uint32_t u32() { return number<uint32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }
  std::string_view text(std::size_t bytes) {
    if (rest_.size() < bytes) {
      whole_ = false;
      return {};
    }
    const std::string_view found(reinterpret_cast<const char*>(rest_.data()), bytes);
    rest_ = rest_.subspan(bytes);
    return found;
  }
  std::string_view rest() { return text(rest_.size()); }
  bool whole() const { return whole_; }

 private:
  template <typename T>
  T number() {
    T value = 0;
    if (rest_.size() < sizeof(T)) {
      whole_ = false;
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }

  std::span<const std::byte> rest_;
  bool whole_ = true;
};

// The row of an id in a table of `rows` rows, or -1.
int32_t row_of(uint32_t id, std::size_t rows) {
  return id != 0 && id <= rows ? static_cast<int32_t>(id - 1) : -1;
}

// A string id that exists, or 0.
int32_t known_string(uint32_t id, const RecordingDictionary& tables) {
  return id < tables.strings.size() ? static_cast<int32_t>(id) : 0;
}

}  // namespace

void DictionaryParser::add_chunk(std::span<const std::byte> payload) {
  while (payload.size() >= sizeof(EntryHeader)) {
    EntryHeader header;
    std::memcpy(&header, payload.data(), sizeof(header));
    payload = payload.subspan(sizeof(header));
    if (header.bytes > payload.size()) {
      ++damaged_;
      return;
    }
    if (header.type >= 1 && header.type < kEntryTypes) {
      entries_[header.type].push_back(payload.first(header.bytes));
    } else {
      ++damaged_;
    }
    const std::size_t padded = (std::size_t{header.bytes} + 7) / 8 * 8;
    payload = payload.subspan(std::min(padded, payload.size()));
  }
  if (!payload.empty()) ++damaged_;
}

RecordingDictionary DictionaryParser::build(uint64_t dropped) {
  const uint64_t slack = std::min(dropped, kMostDropped) + kIdSlack;
  RecordingDictionary tables;
  build_strings(tables, slack);
  build_names(tables, slack);
  build_stacks(tables, slack);
  build_modules(tables, slack);
  build_parameters(tables, slack);
  build_shapes(tables, slack);
  build_sites(tables, slack);
  build_threads(tables);
  build_info(tables);
  tables.damaged_entries = damaged_;
  return tables;
}

// The largest believable id of a type: a table is only as long as the entries allow, whatever an id claims.
std::size_t DictionaryParser::rows_of(Entry type, uint64_t slack) const {
  const auto& entries = entries_[static_cast<std::size_t>(type)];
  std::size_t rows = 0;
  for (const Payload& payload : entries) {
    const uint32_t id = FieldReader(payload).u32();
    if (id <= entries.size() + slack) rows = std::max<std::size_t>(rows, id);
  }
  return rows;
}

void DictionaryParser::build_strings(RecordingDictionary& tables, uint64_t slack) {
  const std::size_t rows = rows_of(Entry::String, slack);
  tables.strings.resize(rows + 1);
  for (const Payload& payload : entries_[static_cast<std::size_t>(Entry::String)]) {
    FieldReader fields(payload);
    const int32_t row = row_of(fields.u32(), rows);
    if (row < 0) {
      ++damaged_;
      continue;
    }
    tables.strings[static_cast<std::size_t>(row) + 1] = fields.rest();
  }
}

void DictionaryParser::build_names(RecordingDictionary& tables, uint64_t slack) {
  const std::size_t rows = rows_of(Entry::Name, slack);
  tables.name_string = Column<int32_t>(rows, 0);
  tables.name_overload = Column<int32_t>(rows, 0);
  for (const Payload& payload : entries_[static_cast<std::size_t>(Entry::Name)]) {
    FieldReader fields(payload);
    const int32_t row = row_of(fields.u32(), rows);
    const uint32_t string = fields.u32(), overload = fields.u32();
    if (row < 0 || !fields.whole()) {
      ++damaged_;
      continue;
    }
    tables.name_string[row] = known_string(string, tables);
    tables.name_overload[row] = known_string(overload, tables);
  }
}

void DictionaryParser::build_stacks(RecordingDictionary& tables, uint64_t slack) {
  const std::size_t frames = rows_of(Entry::Frame, slack);
  tables.frame_function = Column<int32_t>(frames, 0);
  tables.frame_file = Column<int32_t>(frames, 0);
  tables.frame_line = Column<int32_t>(frames, 0);
  tables.frame_first_line = Column<int32_t>(frames, 0);
  for (const Payload& payload : entries_[static_cast<std::size_t>(Entry::Frame)]) {
    FieldReader fields(payload);
    const int32_t row = row_of(fields.u32(), frames);
    const uint32_t function = fields.u32(), file = fields.u32(), line = fields.u32();
    const bool whole = fields.whole();
    // Recordings of earlier releases end here.
    const uint32_t first_line = fields.u32();
    if (row < 0 || !whole) {
      ++damaged_;
      continue;
    }
    tables.frame_first_line[row] = static_cast<int32_t>(std::min<uint32_t>(first_line, INT32_MAX));
    tables.frame_function[row] = known_string(function, tables);
    tables.frame_file[row] = known_string(file, tables);
    tables.frame_line[row] = static_cast<int32_t>(std::min<uint32_t>(line, INT32_MAX));
  }

  const std::size_t stacks = rows_of(Entry::Stack, slack);
  tables.stack_parent = Column<int32_t>(stacks, -1);
  tables.stack_frame = Column<int32_t>(stacks, -1);
  for (const Payload& payload : entries_[static_cast<std::size_t>(Entry::Stack)]) {
    FieldReader fields(payload);
    const int32_t row = row_of(fields.u32(), stacks);
    const uint32_t parent = fields.u32(), frame = fields.u32();
    if (row < 0 || !fields.whole()) {
      ++damaged_;
      continue;
    }
    // Parents come first, so that every later pass is a forward loop; anything else could be a cycle.
    const int32_t parent_row = row_of(parent, static_cast<std::size_t>(row));
    if (parent != 0 && parent_row < 0) ++damaged_;
    tables.stack_parent[row] = parent_row;
    tables.stack_frame[row] = row_of(frame, frames);
  }
}

void DictionaryParser::build_modules(RecordingDictionary& tables, uint64_t slack) {
  const std::size_t rows = std::max(rows_of(Entry::Module, slack), rows_of(Entry::ModuleName, slack));
  tables.module_parent = Column<int32_t>(rows, -1);
  tables.module_name = Column<int32_t>(rows, 0);
  tables.module_class = Column<int32_t>(rows, 0);
  tables.module_caller = Column<int32_t>(rows, -1);
  tables.module_address = Column<uint64_t>(rows, 0);
  for (const Payload& payload : entries_[static_cast<std::size_t>(Entry::Module)]) {
    FieldReader fields(payload);
    const int32_t row = row_of(fields.u32(), rows);
    const uint32_t class_name = fields.u32(), caller = fields.u32();
    static_cast<void>(fields.u32());
    const uint64_t address = fields.u64();
    if (row < 0 || !fields.whole()) {
      ++damaged_;
      continue;
    }
    tables.module_class[row] = known_string(class_name, tables);
    tables.module_caller[row] = row_of(caller, rows);
    tables.module_address[row] = address;
  }
  for (const Payload& payload : entries_[static_cast<std::size_t>(Entry::ModuleName)]) {
    FieldReader fields(payload);
    const int32_t row = row_of(fields.u32(), rows);
    const uint32_t parent = fields.u32(), name = fields.u32();
    if (row < 0 || !fields.whole()) {
      ++damaged_;
      continue;
    }
    tables.module_parent[row] = row_of(parent, rows);
    tables.module_name[row] = known_string(name, tables);
  }
  damaged_ += break_cycles({tables.module_parent.data(), rows});
  damaged_ += break_cycles({tables.module_caller.data(), rows});
}

void DictionaryParser::build_parameters(RecordingDictionary& tables, uint64_t slack) {
  const std::size_t rows = rows_of(Entry::Parameter, slack);
  const std::size_t modules = tables.module_class.size();
  tables.parameter_module = Column<int32_t>(rows, -1);
  tables.parameter_name = Column<int32_t>(rows, 0);
  tables.parameter_address = Column<uint64_t>(rows, 0);
  for (const Payload& payload : entries_[static_cast<std::size_t>(Entry::Parameter)]) {
    FieldReader fields(payload);
    const int32_t row = row_of(fields.u32(), rows);
    const uint32_t module = fields.u32(), name = fields.u32();
    static_cast<void>(fields.u32());
    const uint64_t address = fields.u64();
    if (row < 0 || !fields.whole()) {
      ++damaged_;
      continue;
    }
    tables.parameter_module[row] = row_of(module, modules);
    tables.parameter_name[row] = known_string(name, tables);
    tables.parameter_address[row] = address;
  }
}

void DictionaryParser::build_shapes(RecordingDictionary& tables, uint64_t slack) {
  const std::size_t rows = rows_of(Entry::Shapes, slack);
  tables.shape_dims.resize(rows);
  tables.shape_types.resize(rows);
  tables.shape_concrete.resize(rows);
  tables.shape_strides.resize(rows);
  for (const Payload& payload : entries_[static_cast<std::size_t>(Entry::Shapes)]) {
    FieldReader fields(payload);
    const int32_t row = row_of(fields.u32(), rows);
    const uint32_t dims = fields.u32(), types = fields.u32(), concrete = fields.u32();
    const std::string_view dims_text = fields.text(dims), types_text = fields.text(types),
                           concrete_text = fields.text(concrete);
    if (row < 0 || !fields.whole()) {
      ++damaged_;
      continue;
    }
    tables.shape_dims[static_cast<std::size_t>(row)] = dims_text;
    tables.shape_types[static_cast<std::size_t>(row)] = types_text;
    tables.shape_concrete[static_cast<std::size_t>(row)] = concrete_text;
    tables.shape_strides[static_cast<std::size_t>(row)] = fields.rest();
  }
}

void DictionaryParser::build_sites(RecordingDictionary& tables, uint64_t slack) {
  const std::size_t rows = rows_of(Entry::Site, slack);
  tables.sites.resize(rows);
  for (const Payload& payload : entries_[static_cast<std::size_t>(Entry::Site)]) {
    FieldReader fields(payload);
    const int32_t row = row_of(fields.u32(), rows);
    const SpanSite site{.name = fields.u32(),
                        .stack = fields.u32(),
                        .shapes = fields.u32(),
                        .module = fields.u32(),
                        .parameter = fields.u32(),
                        .scope_and_sequence = fields.u32()};
    if (row < 0 || !fields.whole()) {
      ++damaged_;
      continue;
    }
    tables.sites[static_cast<std::size_t>(row)] = site;
  }
}

void DictionaryParser::build_threads(RecordingDictionary& tables) {
  for (const Payload& payload : entries_[static_cast<std::size_t>(Entry::Thread)]) {
    FieldReader fields(payload);
    const uint32_t index = fields.u32(), os_tid = fields.u32();
    const uint64_t torch_tid = fields.u64();
    if (!fields.whole()) {
      ++damaged_;
      continue;
    }
    tables.threads[index] = {static_cast<int64_t>(os_tid), static_cast<int64_t>(torch_tid), fields.rest()};
  }
}

void DictionaryParser::build_info(RecordingDictionary& tables) {
  std::unordered_map<std::string_view, std::size_t> seen;
  for (const Payload& payload : entries_[static_cast<std::size_t>(Entry::Info)]) {
    FieldReader fields(payload);
    const std::string_view key = fields.text(fields.u32());
    const std::string_view value = fields.rest();
    if (!fields.whole()) {
      ++damaged_;
      continue;
    }
    const auto [at, added] = seen.try_emplace(key, tables.info.size());
    if (added) {
      tables.info.emplace_back(key, value);
    } else {
      tables.info[at->second].second = value;
    }
  }
}

uint64_t break_cycles(std::span<int32_t> parent) {
  // Each row is walked once: rows of earlier walks are known to end, a row of this walk closes a cycle.
  std::vector<int32_t> walk_of(parent.size(), -1);
  uint64_t cut = 0;
  for (std::size_t first = 0; first < parent.size(); ++first) {
    const auto walk = static_cast<int32_t>(first);
    std::size_t row = first;
    while (walk_of[row] == -1) {
      walk_of[row] = walk;
      const int32_t next = parent[row];
      if (next < 0) break;
      if (walk_of[static_cast<std::size_t>(next)] == walk) {
        parent[row] = -1;
        ++cut;
        break;
      }
      row = static_cast<std::size_t>(next);
    }
  }
  return cut;
}

}  // namespace kinetoscope
