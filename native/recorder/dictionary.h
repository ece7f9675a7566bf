// What the records point to: names, stacks, frames, modules, shapes, parameters, each written once to the
// file.
//
// Everything here is reached only on a miss of a thread's own cache, so one mutex guards it all.
// Thread rule: never take the GIL while holding the mutex; callers may hold the GIL.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "probing_table.h"
#include "recording_file.h"

namespace kinetoscope {

// Lets a string map be searched by view.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

// Interns by content. Ids are dense and start at 1. What finds no room in the dictionary's share of the file
// is counted there, is not remembered here, and has the id kUnknownId. So shapes that never repeat cost
// neither file nor memory without bound, and leave room for names, and these for modules and facts.
class Dictionary {
 public:
  explicit Dictionary(std::shared_ptr<RecordingFile> file) : file_(std::move(file)) {}

  std::mutex& mutex() { return mutex_; }

  // All members below: [with mutex()].
  uint32_t string(std::string_view text);
  uint32_t name(std::string_view name, std::string_view overload);
  uint32_t frame(std::string_view function, std::string_view filename, uint32_t line, uint32_t first_line);
  uint32_t stack(uint32_t parent, uint32_t frame);
  // Inputs are known by a digest of 128 bits; find_shapes() is 0 for a new one and spares building its texts.
  uint32_t shapes(const TextKey& key, std::string_view dims, std::string_view types,
                  std::string_view concrete, std::string_view strides = {});
  // kUnknownId for new ones that would find no room.
  uint32_t find_shapes(const TextKey& key);

  uint32_t new_module(std::string_view class_name, uint32_t caller, uint64_t address);
  void name_module(uint32_t module, uint32_t parent, std::string_view attribute);
  uint32_t new_parameter(uint64_t address);
  void place_parameter(uint32_t parameter, uint64_t address, uint32_t module, std::string_view name);

  void thread(uint32_t index, uint32_t os_thread, uint64_t torch_thread, std::string_view name);
  void info(std::string_view key, std::string_view json);

 private:
  // False when there was no room for the entry.
  bool write(Entry type, std::initializer_list<uint32_t> numbers, std::string_view text = {});
  bool write_with_address(Entry type, std::initializer_list<uint32_t> numbers, uint64_t address,
                          std::string_view text = {});
  // Room for an entry of that payload in the current dictionary chunk; nullptr (counted) when the disk or the
  // dictionary's share is full.
  std::byte* room_for(Entry type, size_t payload_bytes);
  // How many bytes more may be taken for entries of that type.
  uint64_t left_for(Entry type) const;
  void commit(size_t payload_bytes);
  std::string_view cut(std::string_view text);

  std::shared_ptr<RecordingFile> file_;
  std::mutex mutex_;
  RecordingFile::Chunk chunk_;
  uint64_t taken_bytes_ = 0;  // by all chunks so far
  uint64_t used_bytes_ = 0;   // of them

  std::unordered_map<std::string, uint32_t, TextHash, std::equal_to<>> strings_;
  std::unordered_map<uint64_t, uint32_t> names_;  // (string, overload)
  std::unordered_map<std::string, uint32_t, TextHash, std::equal_to<>> frames_;
  std::unordered_map<uint64_t, uint32_t> stacks_;  // (parent, frame)
  ProbingTable<TextKey> shapes_;
  uint32_t shapes_count_ = 0;
  uint32_t modules_ = 0;
  uint32_t parameters_ = 0;
};

}  // namespace kinetoscope
