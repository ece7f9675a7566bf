// Parses the dictionary chunks of a recording into tables: strings, stacks, modules and so on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "../columns/column.h"
#include "format.h"

namespace kinetoscope {

// Texts point into the file's bytes. Tables are dense, row = id - 1; rows of ids without an entry have -1 and
// empty texts. References are rows, -1 for none; columns named after strings contain string ids, 0 for none.
struct RecordingDictionary {
  struct Thread {
    int64_t os_tid = 0;
    int64_t torch_tid = 0;
    std::string_view name;
  };

  std::vector<std::string_view> strings{std::string_view{}};  // by id; 0 is the empty string
  Column<int32_t> name_string, name_overload;
  Column<int32_t> frame_function, frame_file, frame_line, frame_first_line;
  Column<int32_t> stack_parent, stack_frame;
  Column<int32_t> module_parent, module_name, module_class, module_caller;
  Column<uint64_t> module_address;
  Column<int32_t> parameter_module, parameter_name;
  Column<uint64_t> parameter_address;
  std::vector<std::string_view> shape_dims, shape_types, shape_concrete, shape_strides;
  std::vector<SpanSite> sites;         // with ids as in the file, not rows
  std::map<uint32_t, Thread> threads;  // by the file's thread index
  std::vector<std::pair<std::string_view, std::string_view>> info;
  uint64_t damaged_entries = 0;
  bool unknown_name = false;  // the last string is the name of what found no room in the dictionary
};

// Collects the entries of dictionary chunks, and builds the tables.
class DictionaryParser {
 public:
  // Takes the committed payload of the next chunk, in the order of writing. The bytes must outlive the
  // result.
  void add_chunk(std::span<const std::byte> payload);

  // `dropped`: how many entries the recorder itself says it lost; ids may exceed the entries by that much.
  RecordingDictionary build(uint64_t dropped);

 private:
  using Payload = std::span<const std::byte>;

  std::size_t rows_of(Entry type, uint64_t slack) const;
  void build_strings(RecordingDictionary& tables, uint64_t slack);
  void build_names(RecordingDictionary& tables, uint64_t slack);
  void build_stacks(RecordingDictionary& tables, uint64_t slack);
  void build_modules(RecordingDictionary& tables, uint64_t slack);
  void build_parameters(RecordingDictionary& tables, uint64_t slack);
  void build_shapes(RecordingDictionary& tables, uint64_t slack);
  void build_sites(RecordingDictionary& tables, uint64_t slack);
  void build_threads(RecordingDictionary& tables);
  void build_info(RecordingDictionary& tables);

  static constexpr std::size_t kEntryTypes = 12;
  std::vector<Payload> entries_[kEntryTypes];
  uint64_t damaged_ = 0;
};

// Removes every link of a parent column that closes a cycle; returns their number.
uint64_t break_cycles(std::span<int32_t> parent);

}  // namespace kinetoscope
